//! How Aliyun AgentRun is used.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Secret;

/// How Aliyun AgentRun is used; `[providers.agentrun]` in the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AgentRunSettings {
    /// Id of an access key; else `AGENTRUN_ACCESS_KEY_ID`.
    #[schemars(title = "Access key")]
    pub access_key_id: Option<String>,
    /// Its secret; else `AGENTRUN_ACCESS_KEY_SECRET`.
    #[schemars(title = "Its secret")]
    pub access_key_secret: Option<Secret>,
    /// A token of a temporary access key; else `AGENTRUN_SECURITY_TOKEN`.
    #[schemars(title = "Token")]
    pub security_token: Option<Secret>,
    /// Number of the account; else `AGENTRUN_ACCOUNT_ID`.
    #[schemars(title = "Account", extend("x-destination" = true))]
    pub account_id: Option<String>,
    /// Region; else `AGENTRUN_REGION`, else `cn-hangzhou`.
    #[schemars(title = "Region", extend("x-destination" = true))]
    pub region: Option<String>,
    /// Template of a code interpreter, by name; else `AGENTRUN_TEMPLATE`. It needs `python3`, `sh`, `tar` and `find`.
    #[schemars(title = "Template")]
    pub template: Option<String>,
    /// Whether programs of that template reach the internet, as its network settings there have it. Where they do, requests
    /// have to ask for network 'full'; where they do not, none can.
    #[schemars(title = "Internet")]
    pub internet: bool,
    /// Where its API is, if not at `https://ACCOUNT-ram.agentrun-data.REGION.aliyuncs.com`; else `AGENTRUN_DATA_ENDPOINT`.
    #[schemars(title = "Address of the API", extend("x-destination" = true))]
    pub data_url: Option<String>,
    /// How many sandboxes there may be at one time; more requests wait.
    #[schemars(range(min = 1, max = 10_000))]
    #[schemars(title = "Sandboxes at one time")]
    pub sandboxes: u32,
    /// How long an answer is waited for, in seconds; what a program runs for does not count.
    #[schemars(range(min = 1, max = 600))]
    #[schemars(title = "Patience")]
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
