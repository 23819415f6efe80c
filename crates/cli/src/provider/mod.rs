//! `belljar provider`: who can make sandboxes, what is said about each, and whether it works; of a server, or of this machine.

mod here;
mod settings;
mod there;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use comfy_table::{Table, presets};
use serde_json::{Value, json};

pub(crate) use here::test as test_here;
pub(crate) use settings::{Given, typed};

use crate::config::Config;
use crate::env::Environment;
use crate::failure::Failure;
use crate::fleet::Kind;
use crate::remote::ServerArgs;
use crate::say;

/// More layers than these are counted only.
const MANY: usize = 4;

const EXAMPLES: &str = "\
Examples:
  belljar provider list                                 who there is on the server, and how they do
  belljar provider list --local                         the same on this machine, without a server
  belljar provider set docker image=python:3.12-slim pool=4
  belljar provider set e2b api_key=@key.txt             a value from a file; '@-' is standard input
  belljar provider set docker --instead native          who serves while it fails
  belljar provider test docker && belljar provider use docker";

/// `belljar provider`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ProviderArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Look at this machine and its configuration file, and call no server
    #[arg(long, global = true, conflicts_with = "server")]
    local: bool,
    #[command(subcommand)]
    command: ProviderCommand,
}

#[derive(Debug, Subcommand)]
enum ProviderCommand {
    /// Lists providers with what they can do and how they do
    List,
    /// Shows what can be set about one, as JSON Schema
    Schema {
        /// Its name
        name: String,
    },
    /// Shows what is set about one; secrets are masked
    Show {
        /// Its name
        name: String,
    },
    /// Sets something about one; what is not named stays. It is tested first, and counts at once
    Set {
        /// Its name
        name: String,
        /// Settings: KEY=VALUE, KEY=@FILE for a value from a file, KEY= for the default
        #[arg(value_name = "KEY=VALUE")]
        settings: Vec<Given>,
        /// Who serves instead while it fails, in this order; '' for nobody
        #[arg(long, value_name = "P")]
        instead: Vec<String>,
        /// File with all settings as one JSON object instead; '-' is standard input
        #[arg(long, value_name = "FILE", conflicts_with = "settings")]
        file: Option<PathBuf>,
    },
    /// Runs a real program with one, from one end to the other; 0 where that succeeded, else 1
    Test {
        /// Its name
        name: String,
    },
    /// Has one serve whoever names none; 'auto' is the strongest that works
    Use {
        /// Its name
        name: String,
    },
    /// Lists what was set about one in the past, newest first
    Versions {
        /// Its name
        name: String,
    },
    /// Sets what an earlier version says
    Rollback {
        /// Its name
        name: String,
        /// The version
        version: u32,
    },
    /// Forgets what is set about one
    Remove {
        /// Its name
        name: String,
    },
}

/// Does it.
pub(crate) fn run(args: ProviderArgs, environment: &Environment, config: Config) -> Result<u8, Failure> {
    let json = args.server.json;
    if !args.local {
        return there::run(&args.server, args.command, environment);
    }
    match args.command {
        ProviderCommand::List => here::list(config, environment, json),
        ProviderCommand::Schema { name } => {
            say::answer(&format!("{:#}", Kind::named(&name)?.schema()));
            Ok(0)
        }
        ProviderCommand::Test { name } => here::test(&name, config, environment, json),
        _ => Err(Failure::invalid(
            "--local: only list, schema and test do without a server; see: belljar setup",
        )),
    }
}

/// A table of providers, as a server lists them.
fn show_list(answer: &Value, json: bool) -> u8 {
    if json {
        say::answer(&answer.to_string());
        return 0;
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header([
        "NAME",
        "",
        "WORKS",
        "VERSION",
        "INSTEAD",
        "NOT ENFORCED",
        "WHY NOT",
    ]);
    for row in answer["providers"].as_array().into_iter().flatten() {
        let missing = row["capabilities"]["missing_layers"].as_array().cloned().unwrap_or_default();
        let missing = match missing.len() {
            0..=MANY => missing.iter().map(|one| text(&one["layer"])).collect::<Vec<_>>().join(" "),
            many => format!("{many} layers"),
        };
        let instead = row["instead"].as_array().into_iter().flatten().map(text).collect::<Vec<_>>().join(" ");
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
            text(&row["name"]),
            if row["usual"] == true { "usual".to_owned() } else { String::new() },
            works.to_owned(),
            text(&row["version"]),
            instead,
            missing,
            text(&row["health"]["error"]),
        ]);
    }
    say::answer(&table.to_string());
    0
}

/// What came of a test; the status for the shell.
fn show_test(tested: &Value, json: bool) -> u8 {
    let passed = tested["passed"] == true;
    if json {
        say::answer(&tested.to_string());
    } else if passed {
        let (ms, result) = (tested["duration_ms"].as_f64().unwrap_or_default(), &tested["result"]);
        say::answer(&format!(
            "{}: a program ran and said {} ({ms:.1} ms, of which the program {} ms)",
            text(&tested["provider"]),
            result["stdout"],
            result["duration_ms"]
        ));
    } else {
        say::note(&format!("{}: {}", text(&tested["provider"]), text(&tested["error"])));
    }
    u8::from(!passed)
}

/// Nothing that a server says may draw on the terminal.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.escape_debug().to_string(),
        other => other.to_string(),
    }
}

/// What a test came to, in the form in which a server says it.
fn tested(name: &str, duration_ms: f64, ran: Result<Value, String>) -> Value {
    let passed = ran.as_ref().is_ok_and(|result| result["status"] == "succeeded");
    let error = match &ran {
        Err(why) => json!(why),
        Ok(result) if !passed => result["error"].clone(),
        Ok(_) => Value::Null,
    };
    json!({"provider": name, "passed": passed, "duration_ms": duration_ms, "error": error, "result": ran.ok()})
}
