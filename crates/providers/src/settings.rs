//! Provider settings that administrators configure, identical on all platforms.

mod agentrun;
mod e2b;
mod secret;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use agentrun::AgentRunSettings;
pub use e2b::E2bSettings;
pub use secret::Secret;

/// Settings of the Docker provider; `[providers.docker]` in the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DockerSettings {
    /// Address of the daemon: `unix:///PATH`. Defaults to `DOCKER_HOST`, then to the standard socket.
    #[schemars(title = "Daemon")]
    pub host: Option<String>,
    /// Image for requests that name none; `belljar image build` builds the default one.
    #[schemars(length(min = 1, max = 512))]
    #[schemars(title = "Image")]
    pub image: String,
    /// Other images that requests may use; `"*"` allows any.
    #[schemars(title = "Other images", length(max = 256))]
    pub images: Vec<String>,
    /// Runtime of the daemon: `runc`, `runsc` or another that it knows. Defaults to the daemon's own default.
    #[schemars(title = "Runtime")]
    pub runtime: Option<String>,
    /// Whether requests may ask for GPUs. They need the NVIDIA Container Toolkit on this machine.
    #[schemars(title = "GPUs")]
    pub gpus: bool,
    /// Whether missing images are pulled.
    #[schemars(title = "Pull images")]
    pub pull: bool,
    /// Number of idle containers kept ready for later runs.
    #[schemars(range(max = 128))]
    #[schemars(title = "Idle containers")]
    pub pool: usize,
}

impl Default for DockerSettings {
    fn default() -> Self {
        let image = "belljar/default".to_owned();
        Self { host: None, image, images: Vec::new(), runtime: None, gpus: false, pull: false, pool: 0 }
    }
}
