//! Settings of the E2B provider.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Secret;

/// Settings of the E2B provider; `[providers.e2b]` in the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct E2bSettings {
    /// API key of an E2B project; defaults to `E2B_API_KEY`.
    #[schemars(title = "API key")]
    pub api_key: Option<Secret>,
    /// Name or id of the template for sandboxes. It needs `sh`, `tar`, `find` and the languages to run.
    #[schemars(title = "Template")]
    pub template: String,
    /// Domain of E2B, or of a self-hosted installation.
    #[schemars(title = "Domain", extend("x-destination" = true))]
    pub domain: String,
    /// URL of the API; defaults to `https://api.DOMAIN`.
    #[schemars(title = "API URL", extend("x-destination" = true))]
    pub api_url: Option<String>,
    /// URL of the sandboxes; defaults to `https://PORT-ID.DOMAIN`.
    #[schemars(title = "Sandbox URL", extend("x-destination" = true))]
    pub sandbox_url: Option<String>,
    /// Longest lifetime of a sandbox at E2B in seconds: an hour, or more on some plans.
    #[schemars(range(min = 60, max = 86_400))]
    #[schemars(title = "Longest lifetime")]
    pub longest_seconds: u64,
    /// Maximum number of concurrent sandboxes; further requests wait.
    #[schemars(range(min = 1, max = 10_000))]
    #[schemars(title = "Concurrent sandboxes")]
    pub sandboxes: u32,
    /// Timeout for a response in seconds, not counting a program's run time.
    #[schemars(range(min = 1, max = 600))]
    #[schemars(title = "Response timeout")]
    pub answer_seconds: u64,
}

impl Default for E2bSettings {
    fn default() -> Self {
        Self {
            api_key: None,
            template: "base".to_owned(),
            domain: "e2b.app".to_owned(),
            api_url: None,
            sandbox_url: None,
            longest_seconds: 3_600,
            sandboxes: 20,
            answer_seconds: 60,
        }
    }
}
