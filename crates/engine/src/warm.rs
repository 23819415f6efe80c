//! How far ahead of requests interpreters are started: what an administrator can set.

use std::time::Duration;

use serde::Deserialize;

use crate::Error;
use crate::quantity::{parse_bytes, parse_millis};

/// How far ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Warming {
    /// Sandboxes with an interpreter in them wait for requests.
    #[default]
    Pool,
    /// An interpreter waits, and is forked into a sandbox for each request.
    Fork,
    /// Each run starts its own interpreter.
    Off,
}

/// What is kept ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WarmSettings {
    /// How far ahead of requests interpreters are started.
    pub mode: Warming,
    /// What all waiting sandboxes may hold together.
    pub memory_bytes: u64,
    /// When nobody asked for so long, none waits any longer.
    pub idle: Duration,
}

impl Default for WarmSettings {
    fn default() -> Self {
        Self { mode: Warming::default(), memory_bytes: 512 << 20, idle: Duration::from_secs(30) }
    }
}

impl WarmSettings {
    /// The same with another mode.
    pub fn with_mode(self, mode: Warming) -> Self {
        Self { mode, ..self }
    }
}

/// The settings as `belljar.toml` gives them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WarmSpec {
    /// `pool`, `fork` or `off`.
    pub mode: Option<Warming>,
    /// Such as `512M`.
    pub memory: Option<String>,
    /// Such as `30s`.
    pub idle: Option<String>,
}

impl WarmSpec {
    /// Checks what was given; what was not is as usual.
    ///
    /// # Errors
    /// Names the setting that makes no sense.
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
        assert_eq!((warm.memory_bytes, warm.idle.as_secs(), warm.mode), (64 << 20, 120, Warming::Pool));
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
