//! `belljar setup`: asks for a provider and its settings, tests it with a real program, and writes the
//! configuration. It asks nothing if flags and the environment are sufficient.

mod ask;
mod file;

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use belljar_engine::catalog::{self, Settings};
use belljar_server::Seed;
use clap::Args;
use serde_json::Value;

use crate::config::Config;
use crate::env::Environment;
use crate::failure::{Failure, shown};
use crate::fleet::{KINDS, Kind};
use crate::provider::{Given, test_here};
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
    #[arg(long, value_name = "P")]
    provider: Option<String>,
    /// A setting of the provider; KEY=@FILE reads the value from a file
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "provider")]
    settings: Vec<Given>,
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
) -> Result<u8, Failure> {
    let path = file::place(named_file, environment)?;
    let (kind, settings) = match &args.provider {
        Some(name) => told(Kind::named(name)?, args.settings, environment)?,
        None => asked(&config, environment)?,
    };
    catalog::check(&kind.schema(), &settings)?;
    let instead = config.providers.seeds.get(kind.name).map(|seed| seed.instead.clone()).unwrap_or_default();
    config.providers.seeds.insert(kind.name.to_owned(), Seed { settings: settings.clone(), instead });
    config.providers.usual = Some(kind.name.to_owned());
    say::note(&format!("testing provider '{}'", kind.name));
    let failed = match test_here(kind.name, config, environment, false) {
        Ok(status) => status != 0,
        Err(failure) => {
            say::note(&failure.message);
            true
        }
    };
    if failed && !args.anyway {
        return Err(Failure::host("the test failed and nothing was written; write it anyway with --anyway"));
    }
    file::write(&path, kind, &settings)?;
    say::answer(&format!(
        "wrote {}; 'belljar run' now uses provider '{}', and so does a server at its first start",
        shown(&path),
        kind.name
    ));
    Ok(u8::from(failed))
}

/// Returns the settings from the flags, and from the environment where no flag is given.
fn told(
    kind: &'static Kind,
    given: Vec<Given>,
    environment: &Environment,
) -> Result<(&'static Kind, Settings), Failure> {
    let (schema, mut settings) = (kind.schema(), environment.about(kind));
    for one in given {
        one.over(&mut settings, &schema)?;
    }
    Ok((kind, settings))
}

/// Asks the user for settings; current values and the environment are the defaults.
fn asked(config: &Config, environment: &Environment) -> Result<(&'static Kind, Settings), Failure> {
    if !io::stdin().is_terminal() {
        let known: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
        return Err(Failure::invalid(format!(
            "standard input is not a terminal, so setup cannot ask; set --provider to one of {}",
            known.join(", ")
        )));
    }
    let kind = ask::kind(config.providers.usual.as_deref())?;
    let mut settings = environment.about(kind);
    if let Some(seed) = config.providers.seeds.get(kind.name) {
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
