//! Settings of the AgentRun provider.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Secret;

/// Settings of the Aliyun AgentRun provider; `[providers.agentrun]` in the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AgentRunSettings {
    /// Access key id; defaults to `AGENTRUN_ACCESS_KEY_ID`.
    #[schemars(title = "Access key")]
    pub access_key_id: Option<String>,
    /// Access key secret; defaults to `AGENTRUN_ACCESS_KEY_SECRET`.
    #[schemars(title = "Access key secret")]
    pub access_key_secret: Option<Secret>,
    /// Token of a temporary access key; defaults to `AGENTRUN_SECURITY_TOKEN`.
    #[schemars(title = "Token")]
    pub security_token: Option<Secret>,
    /// Account number; defaults to `AGENTRUN_ACCOUNT_ID`.
    #[schemars(title = "Account", extend("x-destination" = true))]
    pub account_id: Option<String>,
    /// Region; defaults to `AGENTRUN_REGION`, then to `cn-hangzhou`.
    #[schemars(title = "Region", extend("x-destination" = true))]
    pub region: Option<String>,
    /// Name of a code interpreter template; defaults to `AGENTRUN_TEMPLATE`. It needs `python3`, `sh`, `tar`
    /// and `find`.
    #[schemars(title = "Template")]
    pub template: Option<String>,
    /// Whether programs in this template reach the internet, according to its network settings at AgentRun.
    /// If true, requests must use network 'full'; if false, network 'none'.
    #[schemars(title = "Internet")]
    pub internet: bool,
    /// URL of the API; defaults to `AGENTRUN_DATA_ENDPOINT`, then to
    /// `https://ACCOUNT-ram.agentrun-data.REGION.aliyuncs.com`.
    #[schemars(title = "API URL", extend("x-destination" = true))]
    pub data_url: Option<String>,
    /// Maximum number of concurrent sandboxes; further requests wait.
    #[schemars(range(min = 1, max = 10_000))]
    #[schemars(title = "Concurrent sandboxes")]
    pub sandboxes: u32,
    /// Timeout for a response in seconds, not counting a program's run time.
    #[schemars(range(min = 1, max = 600))]
    #[schemars(title = "Response timeout")]
    pub answer_seconds: u64,
}

impl Default for AgentRunSettings {
    fn default() -> Self {
        Self {
            access_key_id: None,
            access_key_secret: None,
            security_token: None,
            account_id: None,
            region: None,
            template: None,
            internet: true,
            data_url: None,
            sandboxes: 20,
            answer_seconds: 60,
        }
    }
}
