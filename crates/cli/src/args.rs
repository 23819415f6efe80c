//! What was typed. Nothing is decided here: [`Intent`](crate::intent::Intent) says what it means.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use belljar_engine::quantity::{parse_bytes, parse_millis};
use clap::{Args, Parser, Subcommand};

use crate::bench::BenchArgs;
use crate::check::CheckArgs;
use crate::deps::DepsArgs;
use crate::image::ImageArgs;
use crate::manual::{CompletionsArgs, ManArgs};
use crate::mcp::{McpArgs, ToolsArgs};
use crate::provider::ProviderArgs;
use crate::remote::{ExecutionsArgs, KeyArgs, ProfileArgs, SandboxArgs, TenantArgs};
use crate::serve::ServeArgs;
use crate::setup::SetupArgs;
use crate::shown_config::ConfigArgs;

const FIRST_STEPS: &str = "\
Examples:
  belljar run hello.py                                  run a file in a fresh sandbox
  belljar run -c 'print(6 * 7)' --json                  a line of code, and everything about its run
  belljar doctor                                        what isolates here, and what is missing
  belljar serve                                         the same for others, over HTTP
  belljar help sandbox exec                             more about a command";

/// The whole command line.
#[derive(Debug, Parser)]
#[command(name = "belljar", version, about = "Runs untrusted code under glass.", max_term_width = 100)]
#[command(after_help = FIRST_STEPS)]
pub(crate) struct Cli {
    /// Configuration to read instead of the usual places
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Asks who is to make sandboxes, tries that out, and writes the configuration
    Setup(SetupArgs),
    /// Runs a piece of code, or a program, in a fresh sandbox
    Run(Box<RunArgs>),
    /// Reads code without running it, and says what a policy minds in it
    Check(CheckArgs),
    /// Runs code for others, over HTTP
    Serve(ServeArgs),
    /// Gives an agent tools that run code, over standard input and output (MCP)
    Mcp(McpArgs),
    /// Prints the definitions of those tools, for a model's API
    Tools(ToolsArgs),
    /// Opens sandboxes of a server that stay, and works in them
    Sandbox(Box<SandboxArgs>),
    /// Lists, shows and cancels executions of a server
    Executions(ExecutionsArgs),
    /// Adds, changes and removes tenants of a server
    Tenant(TenantArgs),
    /// Makes, rotates and revokes API keys of a server
    Key(KeyArgs),
    /// Sets and removes profiles of a server
    Profile(ProfileArgs),
    /// Lists, sets and tests the ways to make sandboxes, of a server or of this machine
    Provider(ProviderArgs),
    /// Says which packages code needs, and looks after the layers in which they are kept
    Deps(DepsArgs),
    /// Builds and fetches images, seals this machine's own files into one, and looks after them
    Image(ImageArgs),
    /// Shows settings, and where each came from
    Config(ConfigArgs),
    /// Says what isolates on this machine, what is missing and how to mend it
    Doctor(DoctorArgs),
    /// Measures runs on this machine beside the same commands without a sandbox
    Bench(BenchArgs),
    /// Prints completions for a shell
    Completions(CompletionsArgs),
    /// Prints a page of the manual, or writes all of them
    Man(ManArgs),
}

impl Command {
    /// Whether the answer goes to a program.
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

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// More sandboxes at one time only wait for each other.
const MAX_JOBS: usize = 1_024;

const EXAMPLES: &str = "\
Examples:
  belljar run hello.py                                  a file; its name says the language
  belljar run -c 'print(6 * 7)'                         a line of Python
  belljar run -c 'echo $((6 * 7))' --language bash      a line of something else
  curl -s https://example.com/x.js | belljar run - --language js
  belljar run job.py --args '{\"name\": \"Ada\"}' --json    calls main(name=\"Ada\")
  belljar run job.py --file data.csv --timeout 2m --memory 1G
  belljar run --workspace ./project -- make test        works on a folder of yours
  belljar run --batch requests.jsonl --jobs 8           one request a line, one result a line
  belljar run job.py --batch args.jsonl                 lines such as {\"arguments\": {\"n\": 1}}

Exit status: the program's own; 128+n when a signal ended it, 124 timed out, 137 memory limit,
130 cancelled, 126 refused by policy, 125 when nothing ran (the message says why). Of a batch:
0 when every line succeeded, else 1.";

/// `belljar run`.
#[derive(Debug, Default, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RunArgs {
    /// File with the code; '-' reads it from standard input
    #[arg(value_name = "FILE")]
    pub(crate) source: Option<PathBuf>,
    /// The code itself; Python unless --language says otherwise
    #[arg(short = 'c', value_name = "CODE", allow_hyphen_values = true)]
    pub(crate) code: Option<OsString>,
    /// Language of the code [default: by file name or #! line]
    #[arg(long, value_name = "L")]
    pub(crate) language: Option<String>,
    /// Arguments for main(), a JSON object
    #[arg(long = "args", value_name = "JSON", allow_hyphen_values = true)]
    pub(crate) arguments: Option<String>,
    /// File for its standard input; '-' is our own [default: empty]
    #[arg(long, value_name = "FILE")]
    pub(crate) stdin: Option<PathBuf>,
    /// File or folder to copy into the workspace
    #[arg(long = "file", value_name = "SRC[:DEST]")]
    pub(crate) files: Vec<String>,
    /// Package that the code needs
    #[arg(long = "dep", value_name = "NAME")]
    pub(crate) packages: Vec<String>,
    /// Do not look for imports in the code
    #[arg(long)]
    pub(crate) no_deps: bool,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    /// What it may reach [default: none]
    #[arg(long, value_name = "none|full|HOST,…")]
    pub(crate) network: Option<String>,
    /// Environment variable; without '=' its value is taken from ours
    #[arg(long = "env", value_name = "K[=V]")]
    pub(crate) variables: Vec<String>,
    /// default, terminal, data, or one of belljar.toml's
    #[arg(long, value_name = "P")]
    pub(crate) profile: Option<String>,
    /// Way to make the sandbox [default: native]
    #[arg(long, value_name = "P")]
    pub(crate) provider: Option<String>,
    /// 'host', 'sealed', a name such as python:3.12-slim, an archive or OCI layout, or the folder of an
    /// unpacked root [default: host]
    #[arg(long, value_name = "I")]
    pub(crate) image: Option<PathBuf>,
    /// Folder of yours to work on; changes stay
    #[arg(long, value_name = "DIR")]
    pub(crate) workspace: Option<PathBuf>,
    /// Further folder or file to show inside, read-only unless :rw
    #[arg(long = "mount", value_name = "SRC:DEST[:ro|rw]")]
    pub(crate) mounts: Vec<String>,
    /// How the code is read before it runs: off, audit, balanced, strict, ragflow, or one of
    /// belljar.toml's [default: balanced]
    #[arg(long, value_name = "POLICY")]
    pub(crate) policy: Option<String>,
    /// Run only with this layer (belljar doctor lists them)
    #[arg(long, value_name = "LAYER")]
    pub(crate) require: Vec<String>,
    /// Folder in which the program starts [default: /workspace]
    #[arg(long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// File with requests, one JSON object a line; '-' is standard input. What a line leaves out is as
    /// the flags say; each result is a line of JSON, with the line's number as 'index'
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["arguments", "stdin", "workspace", "mounts", "raw", "command"]
    )]
    pub(crate) batch: Option<PathBuf>,
    /// How many of a batch run at a time, up to 1024 [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = parse_jobs, allow_hyphen_values = true, requires = "batch")]
    pub(crate) jobs: Option<NonZeroUsize>,
    /// Run it on this server; its key is in BELLJAR_API_KEY
    #[arg(long, value_name = "URL")]
    pub(crate) server: Option<String>,
    /// Only the program's own output
    #[arg(long)]
    pub(crate) quiet: bool,
    /// Do not make control characters harmless on a terminal
    #[arg(long)]
    pub(crate) raw: bool,
    /// Print the result as one line of JSON instead of the output
    #[arg(long)]
    pub(crate) json: bool,
    /// Program and its arguments, instead of code
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<String>,
}

fn parse_jobs(text: &str) -> Result<NonZeroUsize, String> {
    let jobs = text.parse().ok().filter(|jobs: &NonZeroUsize| jobs.get() <= MAX_JOBS);
    jobs.ok_or_else(|| format!("write a number from 1 to {MAX_JOBS}"))
}

/// Limits as typed. A leading '-' is let through, so that a negative limit is refused as a limit and not as a flag.
#[derive(Debug, Default, Args)]
pub(crate) struct LimitArgs {
    /// Wall-clock time, such as 500ms, 30s, 2m [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = parse_millis, allow_hyphen_values = true)]
    pub(crate) timeout: Option<i64>,
    /// Memory of the whole sandbox, such as 512M, 1G [default: 512M]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, allow_hyphen_values = true)]
    pub(crate) memory: Option<i64>,
    /// Processor share in cores [default: 1.0]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) cpus: Option<f64>,
    /// Everything it may write, together [default: 100M]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, allow_hyphen_values = true)]
    pub(crate) disk: Option<i64>,
    /// Processes and threads at one time [default: 64]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) processes: Option<i64>,
    /// Kept of each output stream, beginning and end [default: 1M]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, allow_hyphen_values = true)]
    pub(crate) output: Option<i64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_flags_fit_together() {
        Cli::command().debug_assert();
    }

    fn run(words: &[&str]) -> RunArgs {
        let cli = Cli::try_parse_from(["belljar", "run"].iter().chain(words)).unwrap();
        match cli.command {
            Command::Run(args) => *args,
            _ => panic!("not run"),
        }
    }

    #[test]
    fn what_follows_the_double_dash_is_the_program() {
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
