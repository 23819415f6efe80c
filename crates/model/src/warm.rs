//! Settings for warm interpreters, which are started ahead of requests.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How much work is done ahead of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmSettings {
    /// How much work is done ahead of requests.
    pub mode: WarmPoolMode,
    /// Maximum memory of all waiting children together.
    pub memory_bytes: u64,
    /// Time without requests after which a pool is emptied; after ten times that, its zygote exits too.
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
