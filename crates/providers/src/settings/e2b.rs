//! How E2B is used.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Secret;

/// How E2B is used; `[providers.e2b]` in the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct E2bSettings {
    /// The key of a project at E2B; else `E2B_API_KEY`.
    #[schemars(title = "Key")]
    pub api_key: Option<Secret>,
    /// Template that sandboxes are made of, by name or id. It needs `sh`, `tar`, `find` and the languages that are run.
    #[schemars(title = "Template")]
    pub template: String,
    /// Where E2B is; another one where it is hosted by somebody else.
    #[schemars(title = "Domain", extend("x-destination" = true))]
    pub domain: String,
    /// Where its API is, if not at `https://api.DOMAIN`.
    #[schemars(title = "Address of the API", extend("x-destination" = true))]
    pub api_url: Option<String>,
    /// Where sandboxes are reached, if not at `https://PORT-ID.DOMAIN`.
    #[schemars(title = "Address of sandboxes", extend("x-destination" = true))]
    pub sandbox_url: Option<String>,
    /// The longest that a sandbox may live there, in seconds: an hour, or more on some plans.
    #[schemars(range(min = 60, max = 86_400))]
    #[schemars(title = "Longest life")]
    pub longest_seconds: u64,
    /// How many sandboxes there may be at one time; more requests wait.
    #[schemars(range(min = 1, max = 10_000))]
    #[schemars(title = "Sandboxes at one time")]
    pub sandboxes: u32,
    /// How long an answer is waited for, in seconds; what a program runs for does not count.
    #[schemars(range(min = 1, max = 600))]
    #[schemars(title = "Patience")]
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
