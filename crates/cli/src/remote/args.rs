//! Arguments of the commands that call a server.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::quotas::QuotaArgs;

/// Arguments common to all commands that call a server.
#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// Server to call, with the API key from BELLJAR_API_KEY [default: BELLJAR_SERVER, or
    /// http://127.0.0.1:7117]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) server: Option<String>,
    /// Print JSON instead of text and tables
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

const EXECUTIONS_EXAMPLES: &str = "\
Examples:
  belljar executions list --status failed --limit 10    list the latest failures
  belljar executions list --metadata job=42 --json      list the executions of a job as JSON
  belljar executions cancel exec_01m7g556e5…
  belljar executions remove exec_01m7g556e5…            delete an execution with its result";

/// Arguments of `belljar executions`.
#[derive(Debug, Args)]
#[command(after_help = EXECUTIONS_EXAMPLES)]
pub(crate) struct ExecutionsArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(subcommand)]
    pub(super) command: ExecutionsCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum ExecutionsCommand {
    /// Lists executions, newest first
    List {
        /// Only executions with this status: running, succeeded, failed and so on
        #[arg(long, value_name = "STATUS")]
        status: Option<String>,
        /// Only executions in this language
        #[arg(long, value_name = "LANGUAGE")]
        language: Option<String>,
        /// Only executions with this value in their metadata
        #[arg(long, value_name = "K=V", value_parser = pair)]
        metadata: Vec<(String, String)>,
        /// Maximum number of results, up to 200
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: u32,
        /// Start of the page: next_cursor of the previous page
        #[arg(long, value_name = "ID")]
        cursor: Option<String>,
    },
    /// Shows an execution and its result
    Show {
        /// Id of the execution
        id: String,
    },
    /// Cancels a queued or running execution
    Cancel {
        /// Id of the execution
        id: String,
    },
    /// Deletes executions that have ended, with their results; cancels those that have not
    Remove {
        /// Ids of the executions
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
        /// Remove without asking
        #[arg(long)]
        yes: bool,
    },
}

const TENANT_EXAMPLES: &str = "\
Examples:
  belljar tenant create ada --concurrency 4
  belljar tenant quotas ada --cpu-seconds-per-day 3600  one core-hour per day; other quotas stay
  belljar tenant quotas ada --concurrency none          remove a quota
  belljar tenant usage ada                              what 'ada' uses now, owns, and has used per day
  belljar tenant policy ada strict                      a policy floor: at least 'strict' for all runs of 'ada'
  belljar tenant disable ada                            disable the keys of 'ada' at once
  belljar tenant remove ada                             delete 'ada' with everything it owns";

/// Arguments of `belljar tenant`.
#[derive(Debug, Args)]
#[command(after_help = TENANT_EXAMPLES)]
pub(crate) struct TenantArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(subcommand)]
    pub(super) command: TenantCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum TenantCommand {
    /// Lists tenants
    List,
    /// Creates a tenant
    Create {
        /// Name of the tenant
        name: String,
        #[command(flatten)]
        quotas: QuotaArgs,
    },
    /// Sets the named quotas of a tenant; the others stay as they are
    Quotas {
        /// Name of the tenant
        name: String,
        #[command(flatten)]
        quotas: QuotaArgs,
    },
    /// Shows what a tenant uses now, owns, and has used per day
    Usage {
        /// Name of the tenant
        name: String,
        /// Number of days up to today, up to 366
        #[arg(long, value_name = "N", default_value_t = 7)]
        days: u32,
    },
    /// Sets a tenant's policy floor: requests can be stricter, never more lenient; 'off' removes it
    Policy {
        /// Name of the tenant
        name: String,
        /// Name of the policy
        policy: String,
    },
    /// Sets the default provider of a tenant
    Provider {
        /// Name of the tenant
        name: String,
        /// Name of the provider, or 'auto' [default: the server's default provider]
        provider: Option<String>,
    },
    /// Disables all keys of a tenant
    Disable {
        /// Name of the tenant
        name: String,
    },
    /// Enables a tenant's keys again
    Enable {
        /// Name of the tenant
        name: String,
    },
    /// Deletes a tenant with everything it owns: ends its work, deletes results, volumes and keys
    Remove {
        /// Name of the tenant
        name: String,
        /// Remove without asking
        #[arg(long)]
        yes: bool,
    },
}

const KEY_EXAMPLES: &str = "\
Examples:
  belljar key create --tenant ada --label agent         create a key, which is shown only once
  belljar key create --scopes run --expires 12h
  belljar key rotate bj_9w2vd6sm1k0r --grace 1h         old and new key both work for an hour";

/// Arguments of `belljar key`.
#[derive(Debug, Args)]
#[command(after_help = KEY_EXAMPLES)]
pub(crate) struct KeyArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Tenant that owns the keys
    #[arg(long, global = true, value_name = "TENANT", default_value = "default")]
    pub(super) tenant: String,
    #[command(subcommand)]
    pub(super) command: KeyCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum KeyCommand {
    /// Lists keys, without their secrets
    List,
    /// Creates a key and shows it, only this once
    Create {
        /// Note on what the key is for
        #[arg(long, default_value = "")]
        label: String,
        /// Scopes that the key gives access to: run, sandboxes, admin [default: run,sandboxes]
        #[arg(long, value_name = "SCOPE", value_delimiter = ',')]
        scopes: Vec<String>,
        /// How long the key is valid, such as 12h [default: forever]
        #[arg(long, value_name = "TIME")]
        expires: Option<String>,
    },
    /// Replaces a key and shows the new one, only this once
    Rotate {
        /// Id of the key
        id: String,
        /// How long the old key stays valid, such as 1h [default: not at all]
        #[arg(long, value_name = "TIME")]
        grace: Option<String>,
    },
    /// Revokes a key, at once and permanently
    Revoke {
        /// Id of the key
        id: String,
    },
}

const PROFILE_EXAMPLES: &str = "\
Examples:
  belljar profile set small small.json                  create profile 'small' from a JSON file
  belljar profile show small";

/// Arguments of `belljar profile`.
#[derive(Debug, Args)]
#[command(after_help = PROFILE_EXAMPLES)]
pub(crate) struct ProfileArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(subcommand)]
    pub(super) command: ProfileCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum ProfileCommand {
    /// Lists the profiles on the server
    List,
    /// Shows a profile
    Show {
        /// Name of the profile
        name: String,
    },
    /// Creates or replaces a profile
    Set {
        /// Name of the profile
        name: String,
        /// File with the profile as JSON; '-' reads standard input
        file: PathBuf,
    },
    /// Deletes a profile
    Remove {
        /// Name of the profile
        name: String,
    },
}

pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
    pair.ok_or_else(|| "use KEY=VALUE".to_owned())
}
