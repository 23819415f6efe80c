//! Arguments of `belljar run` as typed. [`Intent`](crate::intent::Intent) interprets them.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use belljar_engine::gpus::Gpus;
use belljar_engine::quantity::{parse_bytes, parse_millis};
use clap::Args;

/// Upper bound of `--jobs`: more concurrent sandboxes only wait for each other.
const MAX_JOBS: usize = 1_024;

const EXAMPLES: &str = "\
Examples:
  belljar run hello.py                                  run a file; its extension sets the language
  belljar run -c 'print(6 * 7)'                         run a line of Python
  belljar run -c 'echo $((6 * 7))' --language bash      run a line of Bash
  curl -s https://example.com/x.js | belljar run - --language js
  belljar run job.py --args '{\"name\": \"Ada\"}' --json    calls main(name=\"Ada\")
  belljar run job.py --file data.csv --timeout 2m --memory 1G
  belljar run --workspace ./project -- make test        work on a folder of this machine
  belljar run --batch requests.jsonl --jobs 8           one request and one result per line
  belljar run job.py --inputs args.jsonl                one run per line: {\"arguments\": {\"n\": 1}}

Exit status: the program's own; 128+n when killed by signal n, 124 timed out, 137 memory limit,
130 canceled, 126 refused by policy, 125 when nothing ran (the message says why). For --batch
and --inputs: 0 when every line succeeded, else 1.";

/// Arguments of `belljar run`.
#[derive(Debug, Default, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RunArgs {
    /// File with the code to run; '-' reads standard input
    #[arg(value_name = "FILE")]
    pub(crate) source: Option<PathBuf>,
    /// Code to run, given inline; Python unless --language is set
    #[arg(short = 'c', value_name = "CODE", allow_hyphen_values = true)]
    pub(crate) code: Option<OsString>,
    /// Language of the code [default: by file extension or #! line]
    #[arg(long, value_name = "LANGUAGE")]
    pub(crate) language: Option<String>,
    /// Arguments for the code's main(), as a JSON object
    #[arg(long = "args", value_name = "JSON", allow_hyphen_values = true)]
    pub(crate) arguments: Option<String>,
    /// File to use as standard input; '-' passes on belljar's own [default: empty]
    #[arg(long, value_name = "FILE")]
    pub(crate) stdin: Option<PathBuf>,
    /// Copy a file or folder into the workspace
    #[arg(long = "file", value_name = "SRC[:DEST]")]
    pub(crate) files: Vec<String>,
    /// Install a package that the code needs
    #[arg(long = "dep", value_name = "NAME")]
    pub(crate) packages: Vec<String>,
    /// Do not install the packages that the code imports
    #[arg(long)]
    pub(crate) no_deps: bool,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    /// Network access of the program: none, internet (public addresses only), single hosts, or full (the
    /// host's own network: everything that this machine can reach) [default: none]
    #[arg(long, help_heading = "Sandbox", value_name = "internet|HOST,…")]
    pub(crate) network: Option<String>,
    /// GPUs for the program: all, or a number; provider docker gives them to it
    #[arg(long, help_heading = "Sandbox", value_name = "all|N", allow_hyphen_values = true)]
    pub(crate) gpus: Option<Gpus>,
    /// Set an environment variable; without '=', copy its value from this shell
    #[arg(long = "env", value_name = "K[=V]")]
    pub(crate) variables: Vec<String>,
    /// Profile of limits and policy: default, terminal, data, or one from belljar.toml
    #[arg(long, help_heading = "Sandbox", value_name = "PROFILE")]
    pub(crate) profile: Option<String>,
    /// Provider that runs the sandbox [default: native]
    #[arg(long, help_heading = "Sandbox", value_name = "PROVIDER")]
    pub(crate) provider: Option<String>,
    /// Root file system: 'host', 'sealed', an image name such as python:3.12-slim, an archive, an OCI layout,
    /// or a folder with an unpacked root [default: host]
    #[arg(long, help_heading = "Sandbox", value_name = "IMAGE")]
    pub(crate) image: Option<PathBuf>,
    /// Folder of this machine to work on; changes are kept
    #[arg(long, help_heading = "Sandbox", value_name = "DIR")]
    pub(crate) workspace: Option<PathBuf>,
    /// Mount another folder or file of this machine, read-only unless :rw
    #[arg(long = "mount", help_heading = "Sandbox", value_name = "SRC:DEST[:ro|rw]")]
    pub(crate) mounts: Vec<String>,
    /// Policy that checks the code before it runs: off, audit, balanced, strict, ragflow, or one from
    /// belljar.toml [default: balanced]
    #[arg(long, help_heading = "Sandbox", value_name = "POLICY")]
    pub(crate) policy: Option<String>,
    /// Refuse to run unless this isolation layer is in force (belljar doctor lists them)
    #[arg(long, help_heading = "Sandbox", value_name = "LAYER")]
    pub(crate) require: Vec<String>,
    /// Working directory of the program [default: /workspace]
    #[arg(long, help_heading = "Sandbox", value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// File with one request per line as JSON; '-' reads standard input. Flags fill in what a request leaves
    /// out. Each result is one line of JSON whose 'index' is the number of its input line
    #[arg(
        long,
        value_name = "FILE",
        group = "lines",
        conflicts_with_all = ["arguments", "stdin", "workspace", "mounts", "raw", "command"]
    )]
    pub(crate) batch: Option<PathBuf>,
    /// File with one input of the code per line as JSON: arguments, stdin, files and env; '-' reads standard input.
    /// The code is read, checked and compiled once, and runs for each. Results are as with --batch
    #[arg(long, value_name = "FILE", group = "lines", conflicts_with_all = ["workspace", "raw"])]
    pub(crate) inputs: Option<PathBuf>,
    /// How many lines of --batch or --inputs run at once, up to 1024 [default: one per processor]
    #[arg(long, value_name = "N", value_parser = parse_jobs, allow_hyphen_values = true, requires = "lines")]
    pub(crate) jobs: Option<NonZeroUsize>,
    /// Run on this server instead of this machine; the API key is read from BELLJAR_API_KEY
    #[arg(long, value_name = "URL")]
    pub(crate) server: Option<String>,
    /// Print only the program's own output
    #[arg(long)]
    pub(crate) quiet: bool,
    /// Do not escape control characters when printing to a terminal
    #[arg(long)]
    pub(crate) raw: bool,
    /// Print the result as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Folder in which to save what the program leaves in ./artifacts; created if missing. With --batch and --inputs,
    /// the files of line N are in the folder N
    #[arg(long, value_name = "DIR")]
    pub(crate) artifacts: Option<PathBuf>,
    /// Program to run instead of code, with its arguments
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<String>,
}

fn parse_jobs(text: &str) -> Result<NonZeroUsize, String> {
    let jobs = text.parse().ok().filter(|jobs: &NonZeroUsize| jobs.get() <= MAX_JOBS);
    jobs.ok_or_else(|| format!("write a number from 1 to {MAX_JOBS}"))
}

/// Limits as typed. A leading `-` is accepted, so that a negative limit is refused as a limit and not as a
/// flag.
#[derive(Debug, Default, Args)]
pub(crate) struct LimitArgs {
    /// Wall-clock limit, such as 500ms, 30s, 2m [default: 30s]
    #[arg(long, help_heading = "Limits", value_name = "TIME", value_parser = parse_millis, allow_hyphen_values = true)]
    pub(crate) timeout: Option<i64>,
    /// Memory limit of the whole sandbox, such as 512M, 1G [default: 512M]
    #[arg(long, help_heading = "Limits", value_name = "SIZE", value_parser = parse_bytes, allow_hyphen_values = true)]
    pub(crate) memory: Option<i64>,
    /// CPU limit in cores [default: 1.0]
    #[arg(long, help_heading = "Limits", value_name = "N", allow_hyphen_values = true)]
    pub(crate) cpus: Option<f64>,
    /// Limit on the data that the program writes to disk [default: 100M]
    #[arg(long, help_heading = "Limits", value_name = "SIZE", value_parser = parse_bytes, allow_hyphen_values = true)]
    pub(crate) disk: Option<i64>,
    /// Limit on processes and threads at one time [default: 64]
    #[arg(long, help_heading = "Limits", value_name = "N", allow_hyphen_values = true)]
    pub(crate) processes: Option<i64>,
    /// How much of each output stream to keep, beginning and end [default: 1M]
    #[arg(long, help_heading = "Limits", value_name = "SIZE", value_parser = parse_bytes, allow_hyphen_values = true)]
    pub(crate) output: Option<i64>,
}
