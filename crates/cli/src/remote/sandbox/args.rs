//! What was typed after `belljar sandbox`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use belljar_engine::quantity::{parse_bytes, parse_millis};
use clap::{Args, Subcommand};

use super::super::args::{ServerArgs, pair};
use super::examples;

/// `belljar sandbox`.
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
    /// Opens a sandbox, and prints its id
    #[command(after_help = examples::CREATE)]
    Create(Box<CreateArgs>),
    /// Lists sandboxes, newest first
    #[command(after_help = examples::LIST)]
    List(ListArgs),
    /// Shows one
    #[command(after_help = examples::SHOW)]
    Show {
        /// Its id
        id: String,
    },
    /// Ends sandboxes, with everything in them
    #[command(after_help = examples::RM)]
    Rm(RmArgs),
    /// Says anew when one ends
    #[command(after_help = examples::EXTEND)]
    Extend {
        /// Its id
        id: String,
        /// How long from now, such as 30m
        #[arg(value_name = "TIME", value_parser = parse_millis)]
        time: i64,
    },
    /// Has everything in one stand still
    #[command(after_help = examples::PAUSE)]
    Pause {
        /// Its id
        id: String,
    },
    /// Has everything in one go on
    #[command(after_help = examples::PAUSE)]
    Resume {
        /// Its id
        id: String,
    },
    /// Says what one reaches and was kept from, or has it reach other hosts
    #[command(after_help = examples::NETWORK)]
    Network {
        /// Its id
        id: String,
        /// The hosts from now on; what is connected to others is cut off
        #[arg(value_name = "HOST,…", value_delimiter = ',')]
        hosts: Vec<String>,
    },
    /// Says what one uses
    #[command(after_help = examples::STATS)]
    Stats {
        /// Its id
        id: String,
        /// Again every second
        #[arg(long)]
        watch: bool,
    },
    /// Runs a program, or a piece of code, in one
    #[command(after_help = examples::EXEC)]
    Exec(Box<ExecArgs>),
    /// Opens a terminal in one
    #[command(after_help = examples::SHELL)]
    Shell(ShellArgs),
    /// Lists the commands in one
    #[command(after_help = examples::PS)]
    Ps {
        /// Its id
        id: String,
    },
    /// Shows what a command has written
    #[command(after_help = examples::LOGS)]
    Logs(LogsArgs),
    /// Sends a signal to a command and everything that it started
    #[command(after_help = examples::KILL)]
    Kill {
        /// The sandbox's id
        id: String,
        /// The command's number
        number: u64,
        /// Signal, by name or number
        #[arg(long, value_name = "S", default_value = "TERM")]
        signal: String,
    },
    /// Copies files and folders into a sandbox, or out of it
    #[command(after_help = examples::CP)]
    Cp {
        /// File or folder; in a sandbox it is ID:PATH, and '-' is standard input
        source: String,
        /// Where it goes; '-' is standard output
        #[arg(value_name = "DEST")]
        destination: String,
    },
    /// Makes a port of a sandbox reachable here, or lists those on which somebody listens
    #[command(after_help = examples::PORTS)]
    Ports {
        /// Its id
        id: String,
        /// Port inside
        port: Option<u16>,
        /// Address and port here; port 0 is any that is free
        #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", requires = "port")]
        listen: SocketAddr,
    },
    /// Prints changes of files as they happen
    #[command(after_help = examples::WATCH)]
    Watch {
        /// The sandbox's id
        id: String,
        /// File or folder inside
        path: String,
        /// What is below it, too
        #[arg(long)]
        recursive: bool,
    },
    /// Makes, lists and removes volumes: folders that outlive sandboxes
    #[command(after_help = examples::VOLUME)]
    Volume {
        #[command(subcommand)]
        command: VolumeCommand,
    },
    /// Makes, lists and removes snapshots of workspaces
    #[command(after_help = examples::SNAPSHOT)]
    Snapshot {
        #[command(subcommand)]
        command: SnapshotCommand,
    },
}

/// Limits as typed: a leading '-' is let through, so that a negative one is refused as a limit and not as a flag.
#[derive(Debug, Args)]
pub(super) struct CreateArgs {
    /// Image whose files it sees [default: host]
    #[arg(long, value_name = "I")]
    pub(super) image: Option<String>,
    /// Profile of the server's
    #[arg(long, value_name = "P")]
    pub(super) profile: Option<String>,
    /// How code and commands are read before they run in it [default: balanced]
    #[arg(long, value_name = "POLICY")]
    pub(super) policy: Option<String>,
    /// How long it lives, such as 30m, 1h [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = parse_millis, allow_hyphen_values = true)]
    pub(super) timeout: Option<i64>,
    /// What happens then [default: kill]
    #[arg(long, value_name = "WHAT", value_parser = ["kill", "pause"])]
    pub(super) on_timeout: Option<String>,
    /// Memory of everything in it, such as 512M, 1G
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, allow_hyphen_values = true)]
    pub(super) memory: Option<i64>,
    /// Processor share in cores
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(super) cpus: Option<f64>,
    /// Everything that may be written in it, together
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, allow_hyphen_values = true)]
    pub(super) disk: Option<i64>,
    /// Processes and threads at one time
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(super) processes: Option<i64>,
    /// What it may reach [default: none]
    #[arg(long, value_name = "none|full|HOST,…")]
    pub(super) network: Option<String>,
    /// Environment variable of every command; without '=' its value is taken from ours
    #[arg(long = "env", value_name = "K[=V]")]
    pub(super) variables: Vec<String>,
    /// Volume, and where it is seen
    #[arg(long = "volume", value_name = "NAME:PATH[:ro]")]
    pub(super) volumes: Vec<String>,
    /// Snapshot with whose files the workspace starts
    #[arg(long, value_name = "ID")]
    pub(super) snapshot: Option<String>,
    /// Said back in lists
    #[arg(long, value_name = "K=V", value_parser = pair)]
    pub(super) metadata: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// That stand so: running, paused, ended [default: all that have not ended]
    #[arg(long, value_name = "S")]
    pub(super) state: Option<String>,
    /// With this value in their metadata
    #[arg(long, value_name = "K=V", value_parser = pair)]
    pub(super) metadata: Vec<(String, String)>,
    /// How many, up to 200
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub(super) limit: u32,
    /// Where the page begins: next_cursor of the one before
    #[arg(long, value_name = "ID")]
    pub(super) cursor: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct RmArgs {
    /// Their ids
    #[arg(value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    pub(super) ids: Vec<String>,
    /// All that there are
    #[arg(long)]
    pub(super) all: bool,
    /// Do not ask
    #[arg(long)]
    pub(super) yes: bool,
}

#[derive(Debug, Args)]
pub(super) struct ExecArgs {
    /// The sandbox's id
    pub(super) id: String,
    /// File of ours with code to run instead of a program; '-' is standard input
    #[arg(value_name = "FILE")]
    pub(super) source: Option<PathBuf>,
    /// Code to run instead of a program; Python unless --language says otherwise
    #[arg(short = 'c', value_name = "CODE", allow_hyphen_values = true)]
    pub(super) code: Option<OsString>,
    /// Language of the code [default: by file name or #! line]
    #[arg(long, value_name = "L")]
    pub(super) language: Option<String>,
    /// Folder in which it starts [default: /workspace]
    #[arg(long, value_name = "DIR")]
    pub(super) workdir: Option<String>,
    /// Environment variable; without '=' its value is taken from ours
    #[arg(long = "env", value_name = "K[=V]")]
    pub(super) variables: Vec<String>,
    /// How long it may take [default: the sandbox's; with --detach without end]
    #[arg(long, value_name = "TIME", value_parser = parse_millis, allow_hyphen_values = true)]
    pub(super) timeout: Option<i64>,
    /// Only start it, and print its number
    #[arg(long, conflicts_with_all = ["interactive", "code", "source"])]
    pub(super) detach: bool,
    /// Pass our standard input on
    #[arg(short = 'i', long, conflicts_with_all = ["code", "source"])]
    pub(super) interactive: bool,
    /// Do not make control characters harmless on a terminal
    #[arg(long)]
    pub(super) raw: bool,
    /// Program and its arguments
    #[arg(last = true, value_name = "CMD")]
    pub(super) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(super) struct ShellArgs {
    /// The sandbox's id
    pub(super) id: String,
    /// Number of a command with a terminal to join, instead of a new shell
    #[arg(long, value_name = "N", conflicts_with = "command")]
    pub(super) attach: Option<u64>,
    /// Program and its arguments [default: bash, or sh where there is none]
    #[arg(last = true, value_name = "CMD")]
    pub(super) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(super) struct LogsArgs {
    /// The sandbox's id
    pub(super) id: String,
    /// The command's number
    pub(super) number: u64,
    /// Until the command ends
    #[arg(long)]
    pub(super) follow: bool,
    /// From this byte on
    #[arg(long, value_name = "OFFSET", default_value_t = 0)]
    pub(super) from: u64,
    /// Do not make control characters harmless on a terminal
    #[arg(long)]
    pub(super) raw: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum VolumeCommand {
    /// Makes one
    Create {
        /// Its name
        name: String,
        /// How much it can hold
        #[arg(long, value_name = "SIZE", value_parser = parse_bytes, allow_hyphen_values = true)]
        size: Option<i64>,
    },
    /// Lists them
    List,
    /// Removes some, with everything in them
    Rm {
        /// Their names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum SnapshotCommand {
    /// Keeps the files of a sandbox's workspace, and prints the snapshot's id
    Create {
        /// The sandbox's id
        id: String,
        /// What it is for
        #[arg(long, value_name = "L")]
        label: Option<String>,
    },
    /// Lists them
    List,
    /// Removes some
    Rm {
        /// Their ids
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
}
