//! What an administrator says about providers; the same on every machine, whatever runs there.

mod agentrun;
mod e2b;
mod secret;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use agentrun::AgentRunSettings;
pub use e2b::E2bSettings;
pub use secret::Secret;

/// How Docker is used; `[providers.docker]` in the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DockerSettings {
    /// Where the daemon listens: `unix:///PATH`. Else `DOCKER_HOST`, else the usual socket.
    #[schemars(title = "Daemon")]
    pub host: Option<String>,
    /// The image that everything runs in that names no other; `belljar image build` makes the default one.
    #[schemars(length(min = 1, max = 512))]
    #[schemars(title = "Image")]
    pub image: String,
    /// Other images that requests may name; `"*"` lets them name any.
    #[schemars(title = "Other images", length(max = 256))]
    pub images: Vec<String>,
    /// The daemon's runtime: `runc`, `runsc` or another one that it knows; absent, its own default.
    #[schemars(title = "Runtime")]
    pub runtime: Option<String>,
    /// Whether images are pulled where they are missing.
    #[schemars(title = "Pull images")]
    pub pull: bool,
    /// How many containers may wait for runs to come.
    #[schemars(range(max = 128))]
    #[schemars(title = "Waiting containers")]
    pub pool: usize,
}

impl Default for DockerSettings {
    fn default() -> Self {
        let image = "belljar/default".to_owned();
        Self { host: None, image, images: Vec::new(), runtime: None, pull: false, pool: 0 }
    }
}
