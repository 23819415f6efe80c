//! A jail as plain data: everything a launcher needs to know to start one. No policy, no defaults, no lookups.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The user id that a sandboxed program has inside its own user namespace.
pub const INNER_UID: u32 = 1_000;
/// The user id of PID 1 inside, where the host has a second one to give.
pub const INNER_INIT_UID: u32 = 999;
/// Where code runs.
pub const WORKSPACE: &str = "/workspace";
/// Home of the sandbox user.
pub const HOME: &str = "/home/sandbox";
/// Where a runner and its arguments are, read-only, when there are any.
pub const INBOX: &str = "/run/belljar";

/// One entry of a root tree.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RootEntry {
    /// An empty folder.
    Folder {
        /// Absolute, inside.
        path: String,
    },
    /// A symbolic link.
    Link {
        /// Absolute, inside.
        path: String,
        /// Where it points.
        target: String,
    },
    /// A small file.
    File {
        /// Absolute, inside.
        path: String,
        /// Content.
        content: Vec<u8>,
    },
    /// A host folder or file, read-only.
    Bind {
        /// On the host, absolute, without symbolic links.
        source: String,
        /// Absolute, inside.
        path: String,
    },
    /// A host folder that nobody changes, read-only. Its inodes are every jail's own where the kernel can do that: no
    /// lock and no watch is shared with another jail.
    Image {
        /// On the host, absolute, without symbolic links.
        source: String,
        /// Absolute, inside.
        path: String,
    },
    /// A host folder of packages that nobody changes, read-only.
    Packages {
        /// On the host, absolute, without symbolic links.
        source: String,
        /// Absolute, inside.
        path: String,
    },
    /// A host device, checked by its number.
    Device {
        /// On the host.
        source: String,
        /// Absolute, inside.
        path: String,
        /// Major and minor number that it must have.
        number: (u32, u32),
    },
}

/// A root tree: entries in the order in which they are made; parents are made as needed.
pub type RootTree = Vec<RootEntry>;

/// What a jail may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Network {
    /// Its own loopback.
    Own,
    /// The same, with a gate in it: sockets that listen there for somebody outside.
    Gated,
    /// The host's network.
    Host,
}

/// A host folder or file that a jail sees beside its root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostBind {
    /// On the host, absolute, without symbolic links.
    pub source: String,
    /// Absolute, inside.
    pub destination: String,
    /// Whether it may be written.
    pub writable: bool,
}

/// Limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// From the request to the kill, where there is one.
    pub timeout: Option<Duration>,
    /// Of the group.
    pub memory_bytes: u64,
    /// Thousandths of a core.
    pub cpu_millis: u32,
    /// Processes and threads.
    pub processes: u32,
    /// Everything writable together.
    pub disk_bytes: u64,
    /// Open files of one process.
    pub open_files: u64,
}

/// A jail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Jail {
    /// The read-only root, by the number under which it was told of.
    pub root: u64,
    /// Whether it stays: PID 1 itself becomes the guest, confined as any program, and runs whatever it is told to. Such a jail
    /// has no commands, no result pipe and no artifacts; and a process that runs out of memory is no end of it.
    pub living: bool,
    /// Commands, run in order until one fails; the last one is the program.
    pub commands: Vec<Vec<String>>,
    /// `KEY=VALUE`, all of it.
    pub env: Vec<String>,
    /// Where commands start, absolute, inside.
    pub workdir: String,
    /// Limits.
    pub limits: Limits,
    /// Reach.
    pub network: Network,
    /// A host folder that is the workspace; a fresh one otherwise.
    pub playground: Option<String>,
    /// Further host folders and files.
    pub binds: Vec<HostBind>,
    /// Whether a result pipe comes along, as descriptor 3 of the program.
    pub result_pipe: bool,
    /// What may leave as artifacts; none are collected where this is absent.
    pub artifacts: Option<ArtifactRules>,
    /// Refuse to run where an own host user id cannot be given.
    pub require_separate_uid: bool,
    /// Whose it is.
    pub tenant: String,
    /// What could have been started ahead of time to run this; the payload then has a text for it.
    pub interpreter: Option<Interpreter>,
}

/// A language whose interpreter can be kept warm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tongue {
    /// CPython.
    Python,
    /// Node.js.
    Node,
}

/// A warm interpreter: two runs with the same one, in the same root, can have the same zygote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interpreter {
    /// Which language.
    pub tongue: Tongue,
    /// The program, absolute, inside.
    pub program: String,
    /// `KEY=VALUE`, all of it.
    pub env: Vec<String>,
    /// Modules to import ahead of time.
    pub preimports: Vec<String>,
    /// Modules that waiting children import after confinement, as idle work.
    pub frequent_imports: Vec<String>,
    /// Folders of the root that the interpreter does not see while it waits, because requests bring what is in them.
    pub hidden: Vec<String>,
    /// Whose it is. Forks share secrets of the process they come from, so never two tenants.
    pub tenant: String,
}

/// What may leave as artifacts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactRules {
    /// At most so many files.
    pub count: usize,
    /// Each at most so long.
    pub file_bytes: u64,
    /// Only these endings, without the dot.
    pub extensions: Vec<String>,
}

/// Where a file of the payload goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Place {
    /// The workspace, written as the sandbox user.
    Workspace = 0,
    /// The inbox, read-only for the program.
    Inbox = 1,
}

/// A file that is put into the jail before the program starts; its bytes follow in the payload, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayloadFile {
    /// Where.
    pub place: Place,
    /// Relative path, checked by the caller to have neither `..` nor NUL.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
}

/// How the program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// By itself.
    Exited(u8),
    /// By a signal that was not ours.
    Signalled(i32),
    /// Its time was over.
    TimedOut,
    /// The group's memory was used up.
    Memory,
    /// It was killed because the memory for all jails together was used up, and not its own.
    MachineMemory,
    /// It failed, with this status, after a fork was refused.
    Processes(u8),
    /// It failed with its disk full; without a status where the kernel ended it for writing too long a file.
    Disk(Option<u8>),
    /// The caller asked for its end.
    Killed,
}

/// What a run used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Processor time of all processes.
    pub cpu: Duration,
    /// The most memory at one time.
    pub peak_memory_bytes: u64,
    /// The most processes and threads at one time.
    pub peak_processes: Option<u64>,
}

/// A system call that the filter refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedCall {
    /// What it is called.
    pub name: String,
    /// Its first arguments, the first time.
    pub arguments: [u64; 3],
    /// How often.
    pub count: u32,
}

/// What a run was kept from, whether it ended because of that or not.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Kept {
    /// System calls, each name once.
    pub calls: Vec<RefusedCall>,
    /// Whether there were more of them than anybody looked at.
    pub more_calls: bool,
    /// How often a process or thread was refused, where a control group counts.
    pub forks_refused: u64,
    /// No block or no inode was left at the end.
    pub disk_full: bool,
}

/// What a living jail uses now; a figure that this kernel does not keep is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the engine's figures of the same names say what each one means")]
pub struct Stats {
    pub cpu: Option<Duration>,
    pub memory_bytes: Option<u64>,
    pub peak_memory_bytes: Option<u64>,
    pub processes: Option<u64>,
    pub peak_processes: Option<u64>,
    pub disk_bytes: Option<u64>,
    pub memory_kills: u64,
    pub machine_memory_kills: u64,
    pub forks_refused: u64,
    pub disk_full: bool,
}

/// What can be asked of a living jail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// What is in force.
    Layers,
    /// What it uses.
    Stats,
    /// What its filter refused.
    Calls,
    /// To stand still.
    Pause,
    /// To go on.
    Resume,
}

/// What comes of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// What is in force.
    Layers(Vec<Layer>),
    /// What it uses.
    Stats(Stats),
    /// What its filter refused, and to whom: the session, by its number inside, of whichever child of the guest's the caller
    /// descends from; 0 where that is not known.
    Calls(Vec<(u32, RefusedCall)>),
    /// It does.
    Done,
    /// It cannot, and why.
    Refused(String),
    /// There is no such jail any more.
    Gone,
}

/// A layer that was in force, or is missing. The names of receipts, as far as the jail knows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the engine's list of layers says what each one means")]
pub enum Layer {
    UserNs,
    PidNs,
    MountNs,
    IpcNs,
    UtsNs,
    NetNs,
    CgroupNs,
    ReadOnlyRoot,
    DiskQuota,
    SeparateUid,
    NoCapabilities,
    NoNewPrivs,
    Rlimits,
    Landlock,
    Seccomp,
    CgroupMemory,
    CgroupCpu,
    CgroupPids,
}

/// A layer that this host does not give.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingLayer {
    /// The layer.
    pub layer: Layer,
    /// Why.
    pub reason: String,
    /// What mends it.
    pub remedy: String,
}

/// How far ahead of orders interpreters are started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Warming {
    /// Jails with an interpreter in them wait for orders.
    Pool,
    /// An interpreter waits, and is forked into a jail for each order.
    Fork,
    /// Each run starts its own.
    #[default]
    Off,
}

/// What a launcher keeps ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Settings {
    /// How far ahead of orders interpreters are started.
    pub warming: Warming,
    /// What all waiting jails may hold together.
    pub pool_memory_bytes: u64,
    /// When nobody asked for so long, none waits any longer; ten times that, and no interpreter does.
    pub idle: Duration,
    /// What all jails may use together, where that is less than the machine has for them.
    pub memory_for_all: Option<u64>,
}

/// Whether an interpreter was waiting for a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Warmth {
    /// In a jail of its own.
    Pool,
    /// It was forked for this run.
    Fork,
    /// It was started for this run.
    Cold,
}

/// One pool, for whoever looks at it from outside.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the engine's metrics of the same names say what each one means")]
pub struct PoolState {
    pub name: String,
    pub tenant: String,
    pub size: usize,
    pub wanted: usize,
    pub memory_bytes: u64,
    pub hits: u64,
    pub forks: u64,
    pub misses: u64,
    pub zygotes: u64,
    pub refill: Duration,
    pub mismatches: u64,
    pub processes: Vec<u32>,
    pub obstacle: Option<String>,
}

/// A zygote's child that was not confined as it said, seen from outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mismatch {
    /// The name of its pool: the language, and what is imported ahead of time.
    pub pool: String,
    /// Whose the pool is.
    pub tenant: String,
    /// What did not match.
    pub what: String,
}

/// The longest turns of a launcher's loop of which one of its handlers took most. While a turn lasts nobody else is served.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Turns {
    /// A word of a closed list.
    pub handler: String,
    /// The most CPU time that the loop's thread used in one turn.
    pub longest_cpu: Duration,
    /// The longest time from one poll to the next.
    pub longest_wall: Duration,
}
