//! The command line as typed: its subcommands, each with the arguments of its module.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::bench::BenchArgs;
use crate::check::CheckArgs;
use crate::config_show::ConfigArgs;
use crate::deps::DepsArgs;
use crate::doctor::DoctorArgs;
use crate::image::ImageArgs;
use crate::manual::{CompletionsArgs, ManArgs};
use crate::mcp::{McpArgs, ToolsArgs};
use crate::provider::ProviderArgs;
use crate::remote::{ExecutionsArgs, KeyArgs, ProfileArgs, SandboxArgs, TenantArgs};
use crate::run_args::RunArgs;
use crate::serve::ServeArgs;
use crate::setup::SetupArgs;

const FIRST_STEPS: &str = "\
Examples:
  belljar run hello.py                                  run a file in a fresh sandbox
  belljar run -c 'print(6 * 7)' --json                  run one line of code, print its full result
  belljar doctor                                        check which isolation works here
  belljar serve                                         accept code over HTTP
  belljar help sandbox exec                             show help for a command";

/// The whole command line.
#[derive(Debug, Parser)]
#[command(name = "belljar", version, about = "Runs untrusted code in sandboxes.", max_term_width = 100)]
#[command(after_help = FIRST_STEPS)]
pub(crate) struct Cli {
    /// Configuration file to read instead of the default ones
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Chooses a provider, tests it, and writes belljar.toml
    Setup(SetupArgs),
    /// Runs code or a program in a fresh sandbox
    Run(Box<RunArgs>),
    /// Checks code against a policy without running it
    Check(CheckArgs),
    /// Starts the HTTP server, which runs code for its clients
    Serve(ServeArgs),
    /// Starts an MCP server on standard input and output, so that an agent can run code
    Mcp(McpArgs),
    /// Prints the definitions of the MCP tools, for a model's API
    Tools(ToolsArgs),
    /// Creates sandboxes on a server and works in them
    Sandbox(Box<SandboxArgs>),
    /// Lists, shows and cancels executions on a server
    Executions(ExecutionsArgs),
    /// Creates, changes and deletes tenants on a server
    Tenant(TenantArgs),
    /// Creates, rotates and revokes API keys on a server
    Key(KeyArgs),
    /// Creates, changes and deletes profiles on a server
    Profile(ProfileArgs),
    /// Lists, configures and tests providers, of a server or of this machine
    Provider(ProviderArgs),
    /// Shows the packages that code needs, and manages the package cache
    Deps(DepsArgs),
    /// Pulls, builds, seals, lists and removes images
    Image(ImageArgs),
    /// Shows the settings and where each one comes from
    Config(ConfigArgs),
    /// Checks which isolation this machine provides, and how to fix what is missing
    Doctor(DoctorArgs),
    /// Measures how fast sandboxed runs are, compared with unsandboxed ones
    Bench(BenchArgs),
    /// Prints a shell completion script
    Completions(CompletionsArgs),
    /// Prints a manual page, or writes all of them to a folder
    Man(ManArgs),
}

impl CliCommand {
    /// Returns whether the output is JSON for another program.
    pub(crate) fn json(&self) -> bool {
        match self {
            Self::Run(args) => args.json,
            Self::Check(args) => args.json,
            Self::Serve(_) | Self::Mcp(_) | Self::Tools(_) => false,
            Self::Setup(_) | Self::Completions(_) | Self::Man(_) => false,
            Self::Deps(args) => args.json(),
            Self::Image(args) => args.json(),
            Self::Config(args) => args.json,
            Self::Sandbox(args) => args.server.json,
            Self::Executions(args) => args.server.json,
            Self::Tenant(args) => args.server.json,
            Self::Key(args) => args.server.json,
            Self::Profile(args) => args.server.json,
            Self::Provider(args) => args.server.json,
            Self::Doctor(args) => args.json,
            Self::Bench(args) => args.json,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn flags_are_consistent() {
        Cli::command().debug_assert();
    }

    fn run(words: &[&str]) -> RunArgs {
        let cli = Cli::try_parse_from(["belljar", "run"].iter().chain(words)).unwrap();
        match cli.command {
            CliCommand::Run(args) => *args,
            _ => panic!("not run"),
        }
    }

    #[test]
    fn words_after_the_double_dash_are_the_program() {
        let args = run(&["--json", "--", "ls", "--json", "-l"]);
        assert_eq!((args.source, args.command), (None, vec!["ls".to_owned(), "--json".into(), "-l".into()]));
    }

    #[test]
    fn negative_limits_reach_admission() {
        let args =
            run(&["-c", "-1", "--timeout", "-5s", "--memory", "-1", "--cpus", "-0.5", "--processes", "-3"]);
        assert_eq!(args.code, Some("-1".into()));
        assert_eq!((args.limits.timeout, args.limits.memory), (Some(-5_000), Some(-1)));
        assert_eq!((args.limits.cpus, args.limits.processes), (Some(-0.5), Some(-3)));
    }
}
