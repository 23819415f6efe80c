//! Arguments of `belljar sandbox`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use belljar_engine::gpus::Gpus;
use belljar_engine::quantity::{parse_bytes, parse_millis};
use clap::{Args, Subcommand};

use super::super::args::{ServerArgs, pair};
use super::examples;

/// Arguments of `belljar sandbox`.
#[derive(Debug, Args)]
#[command(after_help = examples::SANDBOX)]
pub(crate) struct SandboxArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(subcommand)]
    pub(super) command: SandboxCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum SandboxCommand {
    /// Creates a sandbox and prints its id
    #[command(after_help = examples::CREATE)]
    Create(Box<CreateArgs>),
    /// Lists sandboxes, newest first
    #[command(after_help = examples::LIST)]
    List(ListArgs),
    /// Shows a sandbox
    #[command(after_help = examples::SHOW)]
    Show {
        /// Id of the sandbox
        id: String,
    },
    /// Removes sandboxes with everything in them
    #[command(after_help = examples::RM)]
    Rm(RmArgs),
    /// Changes how long a sandbox may be unused before it expires
    #[command(after_help = examples::EXTEND)]
    Extend {
        /// Id of the sandbox
        id: String,
        /// Time without use after which it expires, such as 30m
        #[arg(value_name = "TIME", value_parser = parse_millis)]
        time: i64,
    },
    /// Freezes all processes of a sandbox
    #[command(after_help = examples::PAUSE)]
    Pause {
        /// Id of the sandbox
        id: String,
    },
    /// Continues a paused sandbox
    #[command(after_help = examples::PAUSE)]
    Resume {
        /// Id of the sandbox
        id: String,
    },
    /// Shows the network access of a sandbox, or changes it
    #[command(after_help = examples::NETWORK)]
    Network {
        /// Id of the sandbox
        id: String,
        /// New list of allowed hosts, or 'internet'; connections to others are closed
        #[arg(value_name = "HOST,…|internet", value_delimiter = ',')]
        hosts: Vec<String>,
    },
    /// Shows the resource usage of a sandbox
    #[command(after_help = examples::STATS)]
    Stats {
        /// Id of the sandbox
        id: String,
        /// Repeat every second
        #[arg(long)]
        watch: bool,
    },
    /// Runs a program or code in a sandbox
    #[command(after_help = examples::EXEC)]
    Exec(Box<ExecArgs>),
    /// Opens a terminal in a sandbox
    #[command(after_help = examples::SHELL)]
    Shell(ShellArgs),
    /// Lists the commands of a sandbox
    #[command(after_help = examples::PS)]
    Ps {
        /// Id of the sandbox
        id: String,
    },
    /// Shows the output of a command
    #[command(after_help = examples::LOGS)]
    Logs(LogsArgs),
    /// Sends a signal to a command and all its descendants
    #[command(after_help = examples::KILL)]
    Kill {
        /// Id of the sandbox
        id: String,
        /// Number of the command
        number: u64,
        /// Signal, by name or number
        #[arg(long, value_name = "SIGNAL", default_value = "TERM")]
        signal: String,
    },
    /// Copies files and folders into or out of a sandbox
    #[command(after_help = examples::CP)]
    Cp {
        /// File or folder, in a sandbox as ID:PATH; '-' reads standard input
        source: String,
        /// Target, in a sandbox as ID:PATH; '-' writes to standard output
        #[arg(value_name = "DEST")]
        destination: String,
    },
    /// Removes files and folders in a sandbox, also while it is halted
    #[command(after_help = examples::RM_FILE)]
    RmFile {
        /// Id of the sandbox
        id: String,
        /// Files in the sandbox
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<String>,
        /// Remove folders with everything in them
        #[arg(long)]
        recursive: bool,
    },
    /// Forwards a port of a sandbox to this machine, or lists its listening ports
    #[command(after_help = examples::PORTS)]
    Ports {
        /// Id of the sandbox
        id: String,
        /// Port in the sandbox
        port: Option<u16>,
        /// Address and port to listen on; port 0 selects a free one
        #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", requires = "port")]
        listen: SocketAddr,
    },
    /// Prints file changes as they happen
    #[command(after_help = examples::WATCH)]
    Watch {
        /// Id of the sandbox
        id: String,
        /// File or folder in the sandbox
        path: String,
        /// Include everything below the folder
        #[arg(long)]
        recursive: bool,
    },
    /// Creates, lists and removes volumes: folders that outlive sandboxes
    #[command(after_help = examples::VOLUME)]
    Volume {
        #[command(subcommand)]
        command: VolumeCommand,
    },
    /// Creates, lists and removes snapshots of workspaces
    #[command(after_help = examples::SNAPSHOT)]
    Snapshot {
        #[command(subcommand)]
        command: SnapshotCommand,
    },
}

/// Limits as typed. A leading `-` is accepted, so that a negative limit is refused as a limit and not as a
/// flag.
#[derive(Debug, Args)]
pub(super) struct CreateArgs {
    /// Image of the sandbox [default: host]
    #[arg(long, value_name = "IMAGE")]
    pub(super) image: Option<String>,
    /// Profile on the server
    #[arg(long, value_name = "PROFILE")]
    pub(super) profile: Option<String>,
    /// GPUs for its programs: all, or a number; provider docker gives them to it
    #[arg(long, value_name = "all|N", allow_hyphen_values = true)]
    pub(super) gpus: Option<Gpus>,
    /// Policy that checks code and commands before they run [default: balanced]
    #[arg(long, value_name = "POLICY")]
    pub(super) policy: Option<String>,
    /// How long it may be unused, such as 30m; running commands are use [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = parse_millis, allow_hyphen_values = true)]
    pub(super) timeout: Option<i64>,
    /// Life from its creation, used or not, such as 8h [default: the longest that the server allows]
    #[arg(long, value_name = "TIME", value_parser = parse_millis, allow_hyphen_values = true)]
    pub(super) life: Option<i64>,
    /// Action when it was not used for its timeout [default: kill]
    #[arg(long, value_name = "WHAT", value_parser = ["kill", "pause"])]
    pub(super) on_timeout: Option<String>,
    /// Memory limit of the whole sandbox, such as 512M, 1G
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, allow_hyphen_values = true)]
    pub(super) memory: Option<i64>,
    /// CPU limit in cores
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(super) cpus: Option<f64>,
    /// Limit on the data written to disk
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, allow_hyphen_values = true)]
    pub(super) disk: Option<i64>,
    /// Whether programs may change the system, as its root user: read_only or writable; needs an image
    #[arg(long, value_name = "HOW", value_parser = ["read_only", "writable"])]
    pub(super) root: Option<String>,
    /// Where the disk is: memory, or file, which may be larger than memory [default: the server's]
    #[arg(long, value_name = "WHERE", value_parser = ["memory", "file"])]
    pub(super) disk_storage: Option<String>,
    /// Limit on processes and threads at one time
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(super) processes: Option<i64>,
    /// Network access: none, internet (public addresses only), single hosts, or full (the server's own
    /// network) [default: none]
    #[arg(long, value_name = "internet|HOST,…")]
    pub(super) network: Option<String>,
    /// Set an environment variable for all commands; without '=', copy its value from this shell
    #[arg(long = "env", value_name = "K[=V]")]
    pub(super) variables: Vec<String>,
    /// Mount a volume at a path
    #[arg(long = "volume", value_name = "NAME:PATH[:ro]")]
    pub(super) volumes: Vec<String>,
    /// Start with the workspace of a snapshot
    #[arg(long, value_name = "ID")]
    pub(super) snapshot: Option<String>,
    /// Package to install at the start, such as pandas or npm:lodash
    #[arg(long = "dep", value_name = "NAME")]
    pub(super) packages: Vec<String>,
    /// Metadata that lists and filters show
    #[arg(long, value_name = "K=V", value_parser = pair)]
    pub(super) metadata: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// Only sandboxes in this state: running, halted, paused, ended [default: all but ended]
    #[arg(long, value_name = "STATE")]
    pub(super) state: Option<String>,
    /// Only sandboxes with this value in their metadata
    #[arg(long, value_name = "K=V", value_parser = pair)]
    pub(super) metadata: Vec<(String, String)>,
    /// Maximum number of results, up to 200
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub(super) limit: u32,
    /// Start of the page: next_cursor of the previous page
    #[arg(long, value_name = "ID")]
    pub(super) cursor: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct RmArgs {
    /// Ids of the sandboxes
    #[arg(value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    pub(super) ids: Vec<String>,
    /// Remove all sandboxes
    #[arg(long)]
    pub(super) all: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    pub(super) yes: bool,
}

#[derive(Debug, Args)]
pub(super) struct ExecArgs {
    /// Id of the sandbox
    pub(super) id: String,
    /// File on this machine with code to run; '-' reads standard input
    #[arg(value_name = "FILE")]
    pub(super) source: Option<PathBuf>,
    /// Code to run, given inline; Python unless --language is set
    #[arg(short = 'c', value_name = "CODE", allow_hyphen_values = true)]
    pub(super) code: Option<OsString>,
    /// Language of the code [default: by file extension or #! line]
    #[arg(long, value_name = "LANGUAGE")]
    pub(super) language: Option<String>,
    /// Working directory [default: /workspace]
    #[arg(long, value_name = "DIR")]
    pub(super) workdir: Option<String>,
    /// Set an environment variable; without '=', copy its value from this shell
    #[arg(long = "env", value_name = "K[=V]")]
    pub(super) variables: Vec<String>,
    /// Time limit [default: the sandbox's; none with --detach]
    #[arg(long, value_name = "TIME", value_parser = parse_millis, allow_hyphen_values = true)]
    pub(super) timeout: Option<i64>,
    /// Package to add to the sandbox for the code; imports are detected
    #[arg(long = "dep", value_name = "NAME", conflicts_with = "command")]
    pub(super) packages: Vec<String>,
    /// Do not detect imports of the code
    #[arg(long, conflicts_with = "command")]
    pub(super) no_deps: bool,
    /// Start the command in the background and print its number
    #[arg(long, conflicts_with_all = ["interactive", "code", "source"])]
    pub(super) detach: bool,
    /// Pass standard input to the command
    #[arg(short = 'i', long, conflicts_with_all = ["code", "source"])]
    pub(super) interactive: bool,
    /// Do not escape control characters when printing to a terminal
    #[arg(long)]
    pub(super) raw: bool,
    /// Program to run, with its arguments
    #[arg(last = true, value_name = "CMD")]
    pub(super) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(super) struct ShellArgs {
    /// Id of the sandbox
    pub(super) id: String,
    /// Join the terminal of this command instead of starting a shell
    #[arg(long, value_name = "N", conflicts_with = "command")]
    pub(super) attach: Option<u64>,
    /// Program to run, with its arguments [default: bash, or sh if bash is missing]
    #[arg(last = true, value_name = "CMD")]
    pub(super) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(super) struct LogsArgs {
    /// Id of the sandbox
    pub(super) id: String,
    /// Number of the command
    pub(super) number: u64,
    /// Wait for more output until the command ends
    #[arg(long)]
    pub(super) follow: bool,
    /// Start at this byte offset
    #[arg(long, value_name = "OFFSET", default_value_t = 0)]
    pub(super) from: u64,
    /// Do not escape control characters when printing to a terminal
    #[arg(long)]
    pub(super) raw: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum VolumeCommand {
    /// Creates a volume
    Create {
        /// Name of the volume
        name: String,
        /// Maximum size [default: 1G]
        #[arg(long, value_name = "SIZE", value_parser = parse_bytes, allow_hyphen_values = true)]
        size: Option<i64>,
    },
    /// Lists volumes
    List,
    /// Removes volumes with everything in them
    Rm {
        /// Names of the volumes
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum SnapshotCommand {
    /// Saves the files of a sandbox's workspace and prints the snapshot's id
    Create {
        /// Id of the sandbox
        id: String,
        /// Note on what the snapshot is for
        #[arg(long, value_name = "LABEL")]
        label: Option<String>,
    },
    /// Lists snapshots
    List,
    /// Removes snapshots
    Rm {
        /// Ids of the snapshots
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
}
