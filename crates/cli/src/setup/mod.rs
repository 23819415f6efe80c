//! `belljar setup`: asks for a provider and its settings, tests it with a real program, and writes the
//! configuration. It asks nothing if flags and the environment are sufficient.

mod ask;
mod file;

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use belljar_engine::catalog::{self, ProviderSettings};
use belljar_server::InitialProviderConfig;
use clap::Args;
use serde_json::Value;

use crate::config::Config;
use crate::env::Environment;
use crate::error::{CliError, quote_path};
use crate::provider::{TypedSetting, test_here};
use crate::provider_kinds::{KINDS, ProviderKind};
use crate::say;

const EXAMPLES: &str = "\
Examples:
  belljar setup                                         choose a provider interactively
  belljar setup --provider native                       use the native provider, ask nothing
  belljar setup --provider docker --set image=python:3.12-slim --set pool=4
  E2B_API_KEY=… belljar setup --provider e2b            read a service's key from the environment";

/// Arguments of `belljar setup`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SetupArgs {
    /// Provider to use, without asking
    #[arg(long, value_name = "PROVIDER")]
    provider: Option<String>,
    /// A setting of the provider; KEY=@FILE reads the value from a file
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "provider")]
    settings: Vec<TypedSetting>,
    /// Write the configuration even if the test fails
    #[arg(long)]
    anyway: bool,
}

/// Chooses and tests a provider, and writes the configuration.
pub(crate) fn run(
    args: SetupArgs,
    named_file: Option<PathBuf>,
    environment: &Environment,
    mut config: Config,
) -> Result<u8, CliError> {
    let path = file::config_path(named_file, environment)?;
    let (kind, settings) = match &args.provider {
        Some(name) => settings_from_flags(ProviderKind::find(name)?, args.settings, environment)?,
        None => ask_settings(&config, environment)?,
    };
    catalog::check_settings(&kind.schema(), &settings)?;
    let instead =
        config.providers.configs.get(kind.name).map(|seed| seed.instead.clone()).unwrap_or_default();
    config
        .providers
        .configs
        .insert(kind.name.to_owned(), InitialProviderConfig { settings: settings.clone(), instead });
    config.providers.default_provider = Some(kind.name.to_owned());
    say::note(&format!("testing provider '{}'", kind.name));
    let failed = match test_here(kind.name, config, environment, false) {
        Ok(status) => status != 0,
        Err(failure) => {
            say::note(&failure.message);
            true
        }
    };
    if failed && !args.anyway {
        return Err(CliError::host("the test failed and nothing was written; write it anyway with --anyway"));
    }
    file::write(&path, kind, &settings)?;
    say::answer(&format!(
        "wrote {}; 'belljar run' now uses provider '{}', and so does a server at its first start",
        quote_path(&path),
        kind.name
    ));
    Ok(u8::from(failed))
}

/// Returns the settings from the flags, and from the environment where no flag is given.
fn settings_from_flags(
    kind: &'static ProviderKind,
    given: Vec<TypedSetting>,
    environment: &Environment,
) -> Result<(&'static ProviderKind, ProviderSettings), CliError> {
    let (schema, mut settings) = (kind.schema(), kind.settings_in(environment));
    for one in given {
        one.apply_to(&mut settings, &schema)?;
    }
    Ok((kind, settings))
}

/// Asks the user for settings; current values and the environment are the defaults.
fn ask_settings(
    config: &Config,
    environment: &Environment,
) -> Result<(&'static ProviderKind, ProviderSettings), CliError> {
    if !io::stdin().is_terminal() {
        let known: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
        return Err(CliError::invalid(format!(
            "standard input is not a terminal, so setup cannot ask; set --provider to one of {}",
            known.join(", ")
        )));
    }
    let kind = ask::kind(config.providers.default_provider.as_deref())?;
    let mut settings = kind.settings_in(environment);
    if let Some(seed) = config.providers.configs.get(kind.name) {
        settings.extend(seed.settings.clone());
    }
    let schema = kind.schema();
    let properties = schema["properties"].as_object().cloned().unwrap_or_default();
    for (name, property) in properties.iter().filter(|(_, property)| property["readOnly"] != true) {
        match ask::setting(name, property, settings.get(name))? {
            Value::Null => {}
            value => drop(settings.insert(name.clone(), value)),
        }
    }
    Ok((kind, settings))
}
