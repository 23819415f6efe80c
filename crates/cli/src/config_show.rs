//! `belljar config show`: prints every setting with its value and origin.

use std::path::PathBuf;

use belljar_engine::limits::Limits;
use belljar_engine::quantity::{show_bytes, show_duration};
use belljar_engine::warm::WarmSettings;
use belljar_server::Settings;
use clap::{Args, Subcommand};
use comfy_table::{Table, presets};
use serde::Serialize;

use crate::config::Config;
use crate::deps::{LayerSettings, SHARED_CACHE_WAIT};
use crate::env::Environment;
use crate::error::CliError;
use crate::say;

/// Arguments of `belljar config`.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// Print one JSON object
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Shows all settings with their values and where they come from
    Show,
}

/// A setting with its value and origin.
#[derive(Debug, Serialize)]
struct ShownSetting {
    name: String,
    value: String,
    origin: String,
}

/// Prints the settings.
pub(crate) fn run(args: &ConfigArgs, environment: &Environment, config: &Config) -> Result<u8, CliError> {
    let ConfigCommand::Show = args.command;
    let settings = settings(environment, config);
    if args.json {
        let object = serde_json::to_string(&settings).map_err(|error| CliError::host(error.to_string()))?;
        say::answer(&object);
        return Ok(0);
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(["SETTING", "VALUE", "FROM"]);
    for setting in settings {
        table.add_row([setting.name, setting.value.escape_debug().to_string(), setting.origin]);
    }
    say::answer(&table.to_string());
    Ok(0)
}

fn settings(environment: &Environment, config: &Config) -> Vec<ShownSetting> {
    let mut settings: Vec<ShownSetting> = default_values(environment, config)
        .into_iter()
        .map(|(name, value)| ShownSetting { name: name.to_owned(), value, origin: "default".to_owned() })
        .collect();
    for written in &config.file_settings {
        set_value(&mut settings, &written.name, &written.value, &format!("{}", written.file.display()));
    }
    for (name, variable, value) in environment.set_variables() {
        set_value(&mut settings, &name, &value, variable);
    }
    settings
}

fn set_value(settings: &mut Vec<ShownSetting>, name: &str, value: &str, origin: &str) {
    let (value, origin) = (value.to_owned(), origin.to_owned());
    match settings.iter_mut().find(|setting| setting.name == name) {
        Some(setting) => (setting.value, setting.origin) = (value, origin),
        None => settings.push(ShownSetting { name: name.to_owned(), value, origin }),
    }
}

/// Returns the default values.
fn default_values(environment: &Environment, config: &Config) -> Vec<(&'static str, String)> {
    let (limits, machine) = (Limits::DEFAULT, config.machine);
    let ceiling = Limits::ceiling_for(&machine);
    let (warm, server) = (WarmSettings::default(), Settings::default());
    let cores = |millis: u32| format!("{}", f64::from(millis) / 1_000.0);
    let folder = |path: &Option<PathBuf>| {
        path.as_ref().map_or(String::new(), |path| path.join("belljar").display().to_string())
    };
    let shown = |path: PathBuf| path.display().to_string();
    let (layers, kept) = (LayerSettings::default(), server.retention);
    vec![
        ("profile", "default".to_owned()),
        ("limits.timeout_ms", limits.timeout.as_millis().to_string()),
        ("limits.memory_bytes", limits.memory_bytes.to_string()),
        ("limits.cpus", cores(limits.cpu_millis)),
        ("limits.disk_bytes", limits.disk_bytes.to_string()),
        ("limits.processes", limits.processes.to_string()),
        ("limits.output_bytes", limits.output_bytes.to_string()),
        ("ceiling.timeout_ms", ceiling.timeout.as_millis().to_string()),
        ("ceiling.memory_bytes", ceiling.memory_bytes.to_string()),
        ("ceiling.cpus", cores(ceiling.cpu_millis)),
        ("ceiling.disk_bytes", ceiling.disk_bytes.to_string()),
        ("ceiling.processes", ceiling.processes.to_string()),
        ("ceiling.output_bytes", ceiling.output_bytes.to_string()),
        ("warm.mode", "pool".to_owned()),
        ("warm.memory", show_bytes(warm.memory_bytes)),
        ("warm.idle", show_duration(warm.idle)),
        ("dependencies.folder", layers.folder(None, environment).map_or_else(|_| String::new(), shown)),
        ("dependencies.max_bytes", show_bytes(layers.bounds.bytes)),
        ("dependencies.max_cache_bytes", show_bytes(layers.cache_bytes)),
        ("dependencies.max_layers", layers.bounds.layers.to_string()),
        ("dependencies.ttl", show_duration(layers.ttl)),
        ("dependencies.shared", layers.shared.to_string()),
        ("dependencies.shared_cache", String::new()),
        ("dependencies.shared_cache_read_only", false.to_string()),
        ("dependencies.shared_cache_wait", show_duration(SHARED_CACHE_WAIT)),
        ("network.not_public", String::new()),
        ("server.listen", "127.0.0.1:7117".to_owned()),
        ("server.data_dir", folder(&environment.state_home)),
        ("server.metrics_listen", String::new()),
        ("server.otlp_endpoint", String::new()),
        ("server.tls_cert", String::new()),
        ("server.tls_key", String::new()),
        ("server.secrets_key", String::new()),
        ("server.concurrency", server.concurrency.to_string()),
        ("server.queue", server.queue.to_string()),
        ("server.sandbox_memory", machine.memory_bytes.map_or_else(String::new, show_bytes)),
        ("server.max_body", show_bytes(server.max_body as u64)),
        ("server.drain", show_duration(server.drain)),
        ("server.keep", kept.max_age.map_or_else(String::new, show_duration)),
        ("server.keep_bytes", kept.max_bytes.map_or_else(String::new, show_bytes)),
        ("server.network", "names".to_owned()),
        ("server.durability", "process".to_owned()),
        ("log", "info".to_owned()),
    ]
}
