//! What was typed, for the commands that call a server.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

/// Which server, and how its answer is shown.
#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// Server to call; its key is in BELLJAR_API_KEY [default: BELLJAR_SERVER, or http://127.0.0.1:7117]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) server: Option<String>,
    /// Print JSON instead of text and tables
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

const EXECUTIONS_EXAMPLES: &str = "\
Examples:
  belljar executions list --status failed --limit 10    the last that failed
  belljar executions list --metadata job=42 --json      those of a job, for a program
  belljar executions cancel exec_01m7g556e5…";

/// `belljar executions`.
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
        /// That stand so: running, succeeded, failed and so on
        #[arg(long, value_name = "S")]
        status: Option<String>,
        /// In this language
        #[arg(long, value_name = "L")]
        language: Option<String>,
        /// With this value in their metadata
        #[arg(long, value_name = "K=V", value_parser = pair)]
        metadata: Vec<(String, String)>,
        /// How many, up to 200
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: u32,
        /// Where the page begins: next_cursor of the one before
        #[arg(long, value_name = "ID")]
        cursor: Option<String>,
    },
    /// Shows one, with its result
    Show {
        /// Its id
        id: String,
    },
    /// Ends one that waits or runs
    Cancel {
        /// Its id
        id: String,
    },
}

const TENANT_EXAMPLES: &str = "\
Examples:
  belljar tenant create ada --concurrency 4
  belljar tenant quotas ada --cpu-seconds-per-day 3600  an hour of one core a day
  belljar tenant policy ada strict                      nothing of hers runs under less
  belljar tenant disable ada                            at once; enable undoes it";

/// `belljar tenant`.
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
    /// Adds a tenant
    Create {
        /// Its name
        name: String,
        #[command(flatten)]
        quotas: QuotaArgs,
    },
    /// Sets what a tenant may have; what is not given is as usual
    Quotas {
        /// Its name
        name: String,
        #[command(flatten)]
        quotas: QuotaArgs,
    },
    /// Sets the policy above which none of a tenant's requests can go; 'off' lets them choose
    Policy {
        /// Its name
        name: String,
        /// Name of the policy
        policy: String,
    },
    /// Sets who serves a tenant's requests that name no provider
    Provider {
        /// Its name
        name: String,
        /// Name of the provider, or 'auto' [default: the server's usual one]
        provider: Option<String>,
    },
    /// Lets a tenant's keys open nothing
    Disable {
        /// Its name
        name: String,
    },
    /// Lets them open again
    Enable {
        /// Its name
        name: String,
    },
    /// Removes a tenant that has nothing any more
    Remove {
        /// Its name
        name: String,
    },
}

#[derive(Debug, Args)]
pub(super) struct QuotaArgs {
    /// Executions at one time
    #[arg(long, value_name = "N")]
    concurrency: Option<u32>,
    /// Processor time in one day
    #[arg(long, value_name = "SECONDS")]
    cpu_seconds_per_day: Option<u64>,
}

impl QuotaArgs {
    pub(super) fn object(&self) -> Value {
        json!({"concurrency": self.concurrency, "cpu_seconds_per_day": self.cpu_seconds_per_day})
    }
}

const KEY_EXAMPLES: &str = "\
Examples:
  belljar key create --tenant ada --label agent         shown this once
  belljar key create --scopes run --expires 12h
  belljar key rotate bj_9w2vd6sm1k0r --grace 1h         both open for an hour";

/// `belljar key`.
#[derive(Debug, Args)]
#[command(after_help = KEY_EXAMPLES)]
pub(crate) struct KeyArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Whose keys
    #[arg(long, global = true, value_name = "T", default_value = "default")]
    pub(super) tenant: String,
    #[command(subcommand)]
    pub(super) command: KeyCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum KeyCommand {
    /// Lists keys, without what makes them keys
    List,
    /// Makes a key and shows it, this once
    Create {
        /// What it is for
        #[arg(long, default_value = "")]
        label: String,
        /// What it opens: run, sandboxes, admin [default: run,sandboxes]
        #[arg(long, value_name = "S", value_delimiter = ',')]
        scopes: Vec<String>,
        /// When it ends by itself, such as 12h
        #[arg(long, value_name = "TIME")]
        expires: Option<String>,
    },
    /// Makes a successor and shows it, this once
    Rotate {
        /// Its id
        id: String,
        /// How long the old one still opens [default: not at all]
        #[arg(long, value_name = "TIME")]
        grace: Option<String>,
    },
    /// Takes a key back, at once and for good
    Revoke {
        /// Its id
        id: String,
    },
}

const PROFILE_EXAMPLES: &str = "\
Examples:
  belljar profile set small small.json                  limits and network by a name
  belljar profile show small";

/// `belljar profile`.
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
    /// Lists the profiles that were set on the server
    List,
    /// Shows one
    Show {
        /// Its name
        name: String,
    },
    /// Adds or replaces one
    Set {
        /// Its name
        name: String,
        /// File with the profile as JSON; '-' is standard input
        file: PathBuf,
    },
    /// Removes one
    Remove {
        /// Its name
        name: String,
    },
}

pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
    pair.ok_or_else(|| "write KEY=VALUE".to_owned())
}
