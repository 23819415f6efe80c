//! Jail specifications: everything a launcher needs to start a jail, as plain data. No policy, defaults or
//! lookups.

use std::time::Duration;

use belljar_model::artifact::ArtifactLimits;
use belljar_model::denial::DeniedSyscall;
use belljar_model::layer::Layer;
use belljar_model::limits::{Limits, MAX_OPEN_FILES};
use belljar_model::stats::SandboxStats;
use belljar_model::warm::WarmSettings;
use belljar_zygote::payload::{INBOX_TARGET, WORKSPACE_TARGET};
use serde::{Deserialize, Serialize};

/// User id of a sandboxed program inside its own user namespace.
pub const INNER_UID: u32 = 1_000;
/// User id of PID 1 in a jail, if the host has a second id to give.
pub const INNER_INIT_UID: u32 = 999;
/// Working directory of the code.
pub const WORKSPACE: &str = "/workspace";
/// Home directory of the sandbox user.
pub const HOME: &str = "/home/sandbox";
/// Inbox: read-only directory with the runner and its arguments, if any.
pub const INBOX: &str = "/run/belljar";
/// Tag of a file in the stream of artifacts.
pub const ARTIFACT_FILE_TAG: u8 = 0xff;
/// Tag of the number of unnamed files that were left out.
pub const ARTIFACT_MORE_TAG: u8 = 0xfe;
/// Tag of the end of the stream of artifacts.
pub const ARTIFACT_END_TAG: u8 = 0xfd;

/// An entry of a root tree.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RootEntry {
    /// An empty directory.
    Dir {
        /// Absolute path in the jail.
        path: String,
    },
    /// A symbolic link.
    Link {
        /// Absolute path in the jail.
        path: String,
        /// Target of the link.
        target: String,
    },
    /// A small file.
    File {
        /// Absolute path in the jail.
        path: String,
        /// Content of the file.
        content: Vec<u8>,
    },
    /// A host directory or file, read-only.
    Bind {
        /// Absolute path on the host, without symbolic links.
        source: String,
        /// Absolute path in the jail.
        path: String,
    },
    /// An immutable host directory, read-only. Where the kernel allows it, each jail gets its own inodes, so
    /// that no lock and no watch is shared with another jail.
    Image {
        /// Absolute path on the host, without symbolic links.
        source: String,
        /// Absolute path in the jail.
        path: String,
    },
    /// The root of an image, an immutable host directory: the lower layer of a writable root. The other entries of
    /// such a tree lie above it.
    Lower {
        /// Absolute path on the host, without symbolic links.
        source: String,
    },
    /// An immutable host directory of packages, read-only.
    Packages {
        /// Absolute path on the host, without symbolic links.
        source: String,
        /// Absolute path in the jail.
        path: String,
    },
    /// A host device, verified by its device number.
    Device {
        /// Absolute path on the host.
        source: String,
        /// Absolute path in the jail.
        path: String,
        /// Required major and minor number.
        number: (u32, u32),
    },
}

/// Capabilities of the root user in a jail with a writable root, by name and number: what package managers need to
/// own, write and remove files, and to act as other users. They are valid for ids of the jail only.
pub const ROOT_CAPABILITIES: &[(&str, u32)] = &[
    ("CHOWN", 0),
    ("DAC_OVERRIDE", 1),
    ("FOWNER", 3),
    ("FSETID", 4),
    ("KILL", 5),
    ("SETGID", 6),
    ("SETUID", 7),
];

/// A root tree: entries in creation order. Parent directories are created as needed.
pub type RootTree = Vec<RootEntry>;

/// Network of a jail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum JailNetwork {
    /// Only its own loopback.
    Own,
    /// Its own loopback with proxy sockets: sockets that listen in the jail and are served from outside.
    Proxied,
    /// A TUN device that is served from outside, and its own loopback with sockets for DNS.
    Tun,
    /// The host's network.
    Host,
}

/// A host directory or file mounted in a jail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostBind {
    /// Absolute path on the host, without symbolic links.
    pub source: String,
    /// Absolute path in the jail.
    pub destination: String,
    /// Whether the jail may write to it.
    pub writable: bool,
}

/// Resource limits of a jail. Unlike [`Limits`], they are only what the jail itself enforces: not the timeout,
/// which does not keep a warm jail from serving another run, and not the output, which the provider reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct JailLimits {
    /// Memory of all processes together.
    pub memory_bytes: u64,
    /// CPU share in thousandths of a core.
    pub cpu_millis: u32,
    /// Number of processes and threads.
    pub processes: u32,
    /// Size of everything writable together.
    pub disk_bytes: u64,
    /// Open files per process.
    pub open_files: u64,
}

impl From<&Limits> for JailLimits {
    fn from(limits: &Limits) -> Self {
        Self {
            memory_bytes: limits.memory_bytes,
            cpu_millis: limits.cpu_millis,
            processes: limits.processes,
            disk_bytes: limits.disk_bytes,
            open_files: MAX_OPEN_FILES,
        }
    }
}

/// Specification of a jail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Jail {
    /// The read-only root, by its registered number.
    pub root: u64,
    /// Whether the jail belongs to a sandbox: PID 1 itself becomes the guest, confined like a program, and
    /// runs what it is told to. Such a jail has no commands, result pipe or artifacts, and survives a process
    /// that runs out of memory.
    pub is_sandbox: bool,
    /// Commands, run in order until one fails; the last one is the program.
    pub commands: Vec<Vec<String>>,
    /// The complete environment, as `KEY=VALUE`.
    pub env: Vec<String>,
    /// Working directory of the commands, an absolute path in the jail.
    pub workdir: String,
    /// Time from the request to the kill; unlimited if `None`.
    pub timeout: Option<Duration>,
    /// Resource limits.
    pub limits: JailLimits,
    /// Whether the root is writable and programs run as its root user. Only for a sandbox with a disk in a file whose
    /// tree has a lower layer.
    pub writable_root: bool,
    /// Whether the disk is in a file, whose mount is among the descriptors of the request. Only for a sandbox.
    pub has_disk_file: bool,
    /// Network of the jail.
    pub network: JailNetwork,
    /// Host directory used as the workspace; a fresh one if `None`.
    pub host_workspace: Option<String>,
    /// Other host directories and files to mount.
    pub binds: Vec<HostBind>,
    /// Whether a result pipe is attached, as descriptor 3 of the program.
    pub result_pipe: bool,
    /// Which files are collected after the program has ended; none if `None`.
    pub artifacts: Option<CollectionRules>,
    /// Whether to fail if no host user id of its own is available.
    pub require_separate_uid: bool,
    /// Tenant that owns the jail.
    pub tenant: String,
    /// Warm interpreter that can run this jail's program. The payload then contains a text for it.
    pub interpreter: Option<WarmInterpreter>,
}

/// A language whose interpreter can be kept warm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WarmLanguage {
    /// CPython.
    Python,
    /// Node.js.
    Node,
}

/// A warm interpreter. Runs with equal interpreters in the same root can share a zygote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmInterpreter {
    /// Language of the interpreter.
    pub language: WarmLanguage,
    /// Absolute path of the interpreter in the jail.
    pub program: String,
    /// The complete environment, as `KEY=VALUE`.
    pub env: Vec<String>,
    /// Modules that the zygote imports before it forks.
    pub preimports: Vec<String>,
    /// Modules that waiting children import after they are confined.
    pub frequent_imports: Vec<String>,
    /// Directories of the root that are hidden from a waiting interpreter, because requests supply their
    /// content.
    pub hidden: Vec<String>,
    /// Tenant that owns the interpreter. Forks share secrets of their parent process, so tenants never share
    /// one.
    pub tenant: String,
}

/// Rules for collecting files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectionRules {
    /// Name of the folder in the workspace.
    pub folder: String,
    /// Limits.
    pub limits: ArtifactLimits,
}

/// Destination of a file in the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum PayloadTarget {
    /// The workspace; the file is written as the sandbox user.
    Workspace = WORKSPACE_TARGET,
    /// The inbox, read-only for the program.
    Inbox = INBOX_TARGET,
}

/// A file that is placed in the jail before the program starts. Its content follows in the payload, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayloadFile {
    /// Destination.
    pub target: PayloadTarget,
    /// Relative path; the caller has verified that it contains neither `..` nor NUL. With a `/` at its end, it
    /// is a directory.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
}

/// How a jail ended, as seen by the launcher. Unlike [`Ending`](belljar_model::outcome::Ending), it tells the
/// jail's own memory limit from the memory of all jails, and names no reason for a requested kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum JailEnding {
    /// Exited with this status.
    Exited(u8),
    /// Killed by this signal, which the launcher did not send.
    Signalled(i32),
    /// Killed because it reached its time limit.
    TimedOut,
    /// Used up its own memory limit.
    Memory,
    /// Killed because all jails together used up their memory, although it had not used up its own.
    MachineMemory,
    /// Failed with this status after a fork was refused.
    Processes(u8),
    /// Failed with its disk full. The status is absent if the kernel killed it for writing too large a file.
    Disk(Option<u8>),
    /// Killed on request of the caller.
    Killed,
}

/// A request to the running jail of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JailRequest {
    /// Lists the layers in force.
    Layers,
    /// Returns its resource usage.
    Stats,
    /// Returns the system calls that its filter denied.
    Calls,
    /// Freezes all processes.
    Pause,
    /// Thaws all processes.
    Resume,
    /// Mounts an immutable host directory of packages, read-only, over a directory of the root tree.
    AttachPackages {
        /// Absolute path on the host, without symbolic links.
        source: String,
        /// Absolute path in the jail.
        path: String,
    },
}

/// The answer to a request to a sandbox's jail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JailResponse {
    /// Lists the layers in force.
    Layers(Vec<Layer>),
    /// Returns its resource usage.
    Stats(SandboxStats),
    /// Denied system calls with the session of each caller: the process id in the jail of the guest's child
    /// that it descends from, or 0 if unknown.
    Calls(Vec<(u32, DeniedSyscall)>),
    /// Done.
    Done,
    /// The request failed, with the reason.
    Refused(String),
    /// The jail no longer exists.
    Gone,
}

/// Settings of a launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LauncherSettings {
    /// Which interpreters are started in advance, and how much memory they may use.
    pub warm: WarmSettings,
    /// Memory that all jails may use together, if less than the machine can spare.
    pub total_memory_bytes: Option<u64>,
}
