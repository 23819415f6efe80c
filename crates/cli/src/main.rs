//! The command line: interprets flags, file and environment, wires the parts together, and prints the result.
//!
//! ```text
//! Cli (as typed) → Intent (interpreted) → Engine → Report → exit status
//! ```

mod args;
mod batch;
mod bench;
mod check;
mod config;
mod deps;
mod doctor;
mod env;
mod escape;
mod failure;
mod fleet;
mod identity;
mod image;
mod input;
mod intent;
mod language;
mod manual;
mod mcp;
mod os;
mod provider;
mod remote;
mod run;
mod say;
mod serve;
mod setup;
mod shown_config;
mod view;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use crate::args::{Cli, Command};
use crate::config::Config;
use crate::env::Environment;
use crate::failure::Failure;

fn main() -> ExitCode {
    os::become_launcher_if_asked();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error, json_is_wanted(std::env::args_os())),
    };
    let json = cli.command.json();
    match dispatch(cli) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => say::failure(&failure, json),
    }
}

fn dispatch(cli: Cli) -> Result<u8, Failure> {
    let environment = Environment::read(|name| std::env::var_os(name))?;
    let named = cli.config.as_deref().or(environment.config.as_deref());
    // `setup` may write a file that does not exist yet, and a shell's start-up must not fail on an invalid
    // file.
    let config = match &cli.command {
        Command::Completions(_) | Command::Man(_) | Command::Tools(_) => Config::usual(),
        Command::Setup(_) if named.is_some_and(|path| !path.exists()) => Config::usual(),
        _ => config::load(cli.config.as_deref(), &environment)?,
    };
    match cli.command {
        Command::Setup(args) => setup::run(args, cli.config, &environment, config),
        Command::Run(args) => run::run(*args, &environment, config),
        Command::Check(args) => check::run(args, &config),
        Command::Serve(args) => serve::run(args, &environment, config),
        Command::Mcp(args) => mcp::run(args, &environment, config),
        Command::Tools(args) => mcp::tools(&args),
        Command::Sandbox(args) => remote::sandbox(*args, &environment),
        Command::Executions(args) => remote::executions(args, &environment),
        Command::Tenant(args) => remote::tenant(args, &environment),
        Command::Key(args) => remote::key(args, &environment),
        Command::Profile(args) => remote::profile(args, &environment),
        Command::Provider(args) => provider::run(args, &environment, config),
        Command::Deps(args) => deps::run(args, &environment, config),
        Command::Image(args) => image::run(&args, &environment, &config),
        Command::Config(args) => shown_config::run(&args, &environment, &config),
        Command::Doctor(args) => doctor::run(args, &environment, config),
        Command::Bench(args) => bench::run(&args, &environment, &config),
        Command::Completions(args) => manual::completions(&args),
        Command::Man(args) => manual::man(&args),
    }
}

/// Prints help and version as answers. Every other message of the parser is an error with status 125 instead
/// of clap's.
fn usage(error: &clap::Error, json: bool) -> ExitCode {
    if !error.use_stderr() {
        // A closed pipe (`belljar --help | head -1`) is not a failure.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return say::help(error);
    }
    if json { say::failure(&Failure::usage(error), true) } else { say::usage(error) }
}

fn json_is_wanted(args: impl Iterator<Item = OsString>) -> bool {
    args.take_while(|arg| arg != "--").any(|arg| arg == "--json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_after_the_double_dash_belongs_to_the_program() {
        let wanted = |words: &[&str]| json_is_wanted(words.iter().map(OsString::from));
        assert!(wanted(&["belljar", "run", "--json", "--nope"]));
        assert!(!wanted(&["belljar", "run", "--", "tool", "--json"]));
    }
}
