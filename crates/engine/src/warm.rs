//! Settings for warm interpreters, which are started ahead of requests.

use std::time::Duration;

use serde::Deserialize;

use crate::Error;
use crate::quantity::{parse_bytes, parse_millis};

/// How much work is done ahead of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WarmPoolMode {
    /// Warm children wait for requests in their own sandboxes.
    #[default]
    Pool,
    /// A zygote waits and is forked into a sandbox for each request.
    Fork,
    /// Each execution starts its own interpreter.
    Off,
}

/// Checked settings of the warm pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WarmSettings {
    /// How much work is done ahead of requests.
    pub mode: WarmPoolMode,
    /// Maximum memory of all waiting children together.
    pub memory_bytes: u64,
    /// Time without requests after which a pool is emptied.
    pub idle: Duration,
}

impl Default for WarmSettings {
    fn default() -> Self {
        Self { mode: WarmPoolMode::default(), memory_bytes: 512 << 20, idle: Duration::from_secs(30) }
    }
}

impl WarmSettings {
    /// Replaces the mode.
    pub fn with_mode(self, mode: WarmPoolMode) -> Self {
        Self { mode, ..self }
    }
}

/// Settings of the warm pools as in `belljar.toml`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WarmSpec {
    /// `pool`, `fork` or `off`.
    pub mode: Option<WarmPoolMode>,
    /// A size, e.g. `512M`.
    pub memory: Option<String>,
    /// A duration, e.g. `30s`.
    pub idle: Option<String>,
}

impl WarmSpec {
    /// Checks the settings and fills in defaults.
    ///
    /// # Errors
    /// Names the invalid setting.
    pub fn admit(&self) -> Result<WarmSettings, Error> {
        let usual = WarmSettings::default();
        let invalid = |field, message: String| Error::Invalid { field, message };
        let memory_bytes = match self.memory.as_deref().map(parse_bytes) {
            None => usual.memory_bytes,
            Some(Ok(bytes @ 0..)) => bytes as u64,
            Some(Ok(_)) => return Err(invalid("warm.memory", "is negative".to_owned())),
            Some(Err(message)) => return Err(invalid("warm.memory", message)),
        };
        let idle = match self.idle.as_deref().map(parse_millis) {
            None => usual.idle,
            Some(Ok(millis @ 1_000..=86_400_000)) => Duration::from_millis(millis as u64),
            Some(Ok(_)) => return Err(invalid("warm.idle", "must be between 1s and 24h".to_owned())),
            Some(Err(message)) => return Err(invalid("warm.idle", message)),
        };
        Ok(WarmSettings { mode: self.mode.unwrap_or(usual.mode), memory_bytes, idle })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(memory: &str, idle: &str) -> Result<WarmSettings, String> {
        let spec = WarmSpec { mode: None, memory: Some(memory.into()), idle: Some(idle.into()) };
        spec.admit().map_err(|error| error.to_string())
    }

    #[test]
    fn settings_are_refused_and_not_clamped() {
        let warm = admit("64M", "2m").unwrap();
        assert_eq!((warm.memory_bytes, warm.idle.as_secs(), warm.mode), (64 << 20, 120, WarmPoolMode::Pool));
        assert_eq!(WarmSpec::default().admit().unwrap(), WarmSettings::default());
        for (memory, idle, names) in [
            ("-1", "1s", "warm.memory"),
            ("much", "1s", "warm.memory"),
            ("1G", "0s", "warm.idle"),
            ("1G", "25h", "warm.idle"),
        ] {
            assert!(admit(memory, idle).unwrap_err().contains(names), "{memory} {idle}");
        }
    }
}
