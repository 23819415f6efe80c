//! `belljar setup`: asks who is to make sandboxes and what has to be known for that, tries it out with a real program,
//! and writes the configuration. Nobody is asked where flags and the environment say enough.

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
  belljar setup                                         asks
  belljar setup --provider native                       asks nothing
  belljar setup --provider docker --set image=python:3.12-slim --set pool=4
  E2B_API_KEY=… belljar setup --provider e2b            keys of services may be in the environment";

/// `belljar setup`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SetupArgs {
    /// Who is to make sandboxes; then nothing is asked
    #[arg(long, value_name = "P")]
    provider: Option<String>,
    /// A setting of it; KEY=@FILE takes the value from a file
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "provider")]
    settings: Vec<Given>,
    /// Write the configuration although the program did not run
    #[arg(long)]
    anyway: bool,
}

/// Sets up.
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
    say::note(&format!("running a program with provider '{}'", kind.name));
    let failed = match test_here(kind.name, config, environment, false) {
        Ok(status) => status != 0,
        Err(failure) => {
            say::note(&failure.message);
            true
        }
    };
    if failed && !args.anyway {
        return Err(Failure::host(
            "that did not work, and nothing was written; --anyway writes it all the same",
        ));
    }
    file::write(&path, kind, &settings)?;
    say::answer(&format!(
        "wrote {}: 'belljar run' uses provider '{}', and a server that starts for the first time takes it over",
        shown(&path),
        kind.name
    ));
    Ok(u8::from(failed))
}

/// What flags say, over what the environment says.
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

/// What a person says; what counts now, and what the environment says, is taken where they say nothing.
fn asked(config: &Config, environment: &Environment) -> Result<(&'static Kind, Settings), Failure> {
    if !io::stdin().is_terminal() {
        let known: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
        return Err(Failure::invalid(format!(
            "there is nobody to ask: standard input is no terminal; give --provider, one of {}",
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
