//! `belljar provider`: lists, configures and tests providers, of a server or of this machine.

mod local;
mod server;
mod settings;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

pub(crate) use local::test as test_here;
pub(crate) use settings::{TypedSetting, parse_setting};

use crate::config::Config;
use crate::env::Environment;
use crate::error::CliError;
use crate::provider_kinds::ProviderKind;
use crate::remote::ServerArgs;
use crate::say;
use crate::table::table_with;

/// Up to this many missing layers are listed by name; more are only counted.
const MAX_LISTED_LAYERS: usize = 4;

const EXAMPLES: &str = "\
Examples:
  belljar provider list                                 list a server's providers and their health
  belljar provider list --local                         list this machine's providers, without a server
  belljar provider set docker image=python:3.12-slim pool=4
  belljar provider set e2b api_key=@key.txt             read the value from a file, or from stdin with '@-'
  belljar provider set docker --instead native          use 'native' while 'docker' fails
  belljar provider test docker && belljar provider use docker";

/// Arguments of `belljar provider`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ProviderArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Use this machine and its configuration file instead of a server
    #[arg(long, global = true, conflicts_with = "server")]
    local: bool,
    #[command(subcommand)]
    command: ProviderCommand,
}

#[derive(Debug, Subcommand)]
enum ProviderCommand {
    /// Lists providers with their health and what they do not enforce
    List,
    /// Shows a provider's possible settings as a JSON Schema
    Schema {
        /// Name of the provider
        name: String,
    },
    /// Shows a provider's settings; secrets are masked
    Show {
        /// Name of the provider
        name: String,
    },
    /// Changes settings of a provider and keeps the others. Takes effect at once if a test succeeds
    Set {
        /// Name of the provider
        name: String,
        /// Settings: KEY=VALUE, KEY=@FILE to read the value from a file, KEY= for the default
        #[arg(value_name = "KEY=VALUE")]
        settings: Vec<TypedSetting>,
        /// Provider to use while this one fails; repeat to list several in order, '' for none
        #[arg(long, value_name = "PROVIDER")]
        instead: Vec<String>,
        /// File with all settings as one JSON object; '-' reads standard input
        #[arg(long, value_name = "FILE", conflicts_with = "settings")]
        file: Option<PathBuf>,
    },
    /// Tests a provider by running a program; exits with 0 if that succeeded, else 1
    Test {
        /// Name of the provider
        name: String,
    },
    /// Sets the default provider; 'auto' uses the strongest one that works
    Use {
        /// Name of the provider, or 'auto'
        name: String,
    },
    /// Lists the earlier settings of a provider, newest first
    Versions {
        /// Name of the provider
        name: String,
    },
    /// Restores earlier settings of a provider
    Rollback {
        /// Name of the provider
        name: String,
        /// Version to restore
        version: u32,
    },
    /// Deletes the settings of a provider
    Remove {
        /// Name of the provider
        name: String,
    },
}

/// Runs the given subcommand.
pub(crate) fn run(args: ProviderArgs, environment: &Environment, config: Config) -> Result<u8, CliError> {
    let json = args.server.json;
    if !args.local {
        return server::run(&args.server, args.command, environment);
    }
    match args.command {
        ProviderCommand::List => local::list(&config, environment, json),
        ProviderCommand::Schema { name } => {
            say::answer(&format!("{:#}", ProviderKind::find(&name)?.schema()));
            Ok(0)
        }
        ProviderCommand::Test { name } => local::test(&name, config, environment, json),
        _ => Err(CliError::invalid(
            "--local: only list, schema and test work without a server; to configure this machine, run: \
             belljar setup",
        )),
    }
}

/// Prints a table of providers, in the format that a server lists them.
fn show_list(answer: &Value, json: bool) -> u8 {
    if json {
        say::answer(&answer.to_string());
        return 0;
    }
    let mut table = table_with(["NAME", "", "WORKS", "VERSION", "INSTEAD", "NOT ENFORCED", "ERROR"]);
    for row in answer["providers"].as_array().into_iter().flatten() {
        let missing = row["capabilities"]["missing_layers"].as_array().cloned().unwrap_or_default();
        let missing = match missing.len() {
            0..=MAX_LISTED_LAYERS => {
                missing.iter().map(|one| escape_value(&one["layer"])).collect::<Vec<_>>().join(" ")
            }
            many => format!("{many} layers"),
        };
        let instead =
            row["instead"].as_array().into_iter().flatten().map(escape_value).collect::<Vec<_>>().join(" ");
        let works = match (&row["configured"], &row["health"]["works"]) {
            (Value::Bool(true), works) => {
                if works == true {
                    "yes"
                } else {
                    "no"
                }
            }
            _ => "not configured",
        };
        table.add_row([
            escape_value(&row["name"]),
            if row["usual"] == true { "default".to_owned() } else { String::new() },
            works.to_owned(),
            escape_value(&row["version"]),
            instead,
            missing,
            escape_value(&row["health"]["error"]),
        ]);
    }
    say::answer(&table.to_string());
    0
}

/// Prints the result of a test and returns the exit status.
fn show_test(tested: &Value, json: bool) -> u8 {
    let passed = tested["passed"] == true;
    if json {
        say::answer(&tested.to_string());
    } else if passed && tested["result"]["receipt"]["simulated"] == true {
        say::answer(&format!(
            "{}: nothing ran, because this provider only simulates",
            escape_value(&tested["provider"])
        ));
    } else if passed {
        let (ms, result) = (tested["duration_ms"].as_f64().unwrap_or_default(), &tested["result"]);
        say::answer(&format!(
            "{}: test passed, a program printed {} (total {ms:.1} ms, program {} ms)",
            escape_value(&tested["provider"]),
            result["stdout"],
            result["duration_ms"]
        ));
    } else {
        say::note(&format!("{}: {}", escape_value(&tested["provider"]), escape_value(&tested["error"])));
    }
    u8::from(!passed)
}

/// Formats a value from a server, escaped for the terminal.
fn escape_value(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => say::printable(text),
        other => other.to_string(),
    }
}

/// Returns the result of a test in the format of a server.
fn test_result(name: &str, duration_ms: f64, ran: Result<Value, String>) -> Value {
    let passed = ran.as_ref().is_ok_and(|result| result["status"] == "succeeded");
    let error = match &ran {
        Err(why) => json!(why),
        Ok(result) if !passed => result["error"].clone(),
        Ok(_) => Value::Null,
    };
    json!({"provider": name, "passed": passed, "duration_ms": duration_ms, "error": error, "result": ran.ok()})
}
