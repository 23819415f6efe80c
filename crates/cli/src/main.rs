//! The command line: interprets flags, file and environment, wires the parts together, and prints the result.
//!
//! ```text
//! Cli (as typed) → Intent (interpreted) → Engine → Report → exit status
//! ```

mod args;
mod artifacts;
mod batch;
mod bench;
mod check;
mod config;
mod config_show;
mod deps;
mod doctor;
mod env;
mod error;
mod escape;
mod identity;
mod image;
mod input;
mod intent;
mod language;
mod manual;
mod mcp;
mod os;
mod provider;
mod provider_kinds;
mod remote;
mod run;
mod run_args;
mod say;
mod serve;
mod settings;
mod setup;
mod table;
mod view;
mod wire;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use crate::args::{Cli, CliCommand};
use crate::error::CliError;
use crate::settings::{Files, Settings};

fn main() -> ExitCode {
    os::run_launcher_if_requested();
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

fn dispatch(cli: Cli) -> Result<u8, CliError> {
    let files = match &cli.command {
        CliCommand::Completions(_) | CliCommand::Man(_) | CliCommand::Tools(_) => Files::Ignored,
        CliCommand::Setup(_) => Files::Optional,
        _ => Files::Required,
    };
    let settings = Settings::load(cli.config.as_deref(), files, |name| std::env::var_os(name))?;
    if files != Files::Ignored {
        warn_of_misspelled_variables();
    }
    let shown = if let CliCommand::Config(_) = cli.command { settings.show()? } else { Vec::new() };
    let Settings { environment, config, .. } = settings;
    match cli.command {
        CliCommand::Setup(args) => setup::run(args, cli.config, &environment, config),
        CliCommand::Run(args) => run::run(*args, &environment, config),
        CliCommand::Check(args) => check::run(args, &config),
        CliCommand::Serve(args) => serve::run(args, &environment, config),
        CliCommand::Mcp(args) => mcp::run(args, &environment, config),
        CliCommand::Tools(args) => mcp::tools(&args),
        CliCommand::Sandbox(args) => remote::sandbox(*args, &environment),
        CliCommand::Executions(args) => remote::executions(args, &environment),
        CliCommand::Tenant(args) => remote::tenant(args, &environment),
        CliCommand::Key(args) => remote::key(args, &environment),
        CliCommand::Profile(args) => remote::profile(args, &environment),
        CliCommand::Provider(args) => provider::run(args, &environment, config),
        CliCommand::Deps(args) => deps::run(args, &environment, config),
        CliCommand::Image(args) => image::run(&args, &environment, &config),
        CliCommand::Config(args) => config_show::run(&args, shown),
        CliCommand::Doctor(args) => doctor::run(args, &environment, config),
        CliCommand::Bench(args) => bench::run(&args, &environment, &config),
        CliCommand::Completions(args) => manual::completions(&args),
        CliCommand::Man(args) => manual::man(&args),
    }
}

fn warn_of_misspelled_variables() {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    names.filter_map(|name| settings::misspelled_variable(&name)).for_each(|warning| say::warning(&warning));
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
    if json { say::failure(&CliError::usage(error), true) } else { say::usage(error) }
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
