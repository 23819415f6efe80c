//! What is handed to a provider: a place to make, and a task to run in it. Only admission can build either.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::language::Language;
use crate::layer::Layer;
use crate::limits::Limits;
use crate::network::HostRules;

/// The folder in which code runs, inside every sandbox.
pub const WORKSPACE: &str = "/workspace";

/// The read-only root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Image {
    /// Named folders of the host, read-only.
    Host,
    /// An unpacked root in a host folder.
    Folder(PathBuf),
}

/// What a sandbox may reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Network {
    /// Its own loopback and nothing else.
    None,
    /// Single hosts, through Belljar's own proxy on that loopback.
    Hosts(HostRules),
    /// Whatever the host reaches.
    Full,
}

/// A host folder or file made visible inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// On the host.
    pub source: PathBuf,
    /// Inside, absolute.
    pub destination: String,
    /// Whether the program may write there.
    pub writable: bool,
}

/// A file put into the workspace before the program starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputFile {
    /// Relative to the workspace; no `..`, no NUL.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// Content.
    pub content: Vec<u8>,
}

/// What happens when a program writes more than is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overflow {
    /// Head and tail are kept, the program goes on.
    #[default]
    Truncate,
    /// The program is ended.
    Kill,
}

/// A place to make.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Plan {
    /// The read-only root.
    pub image: Image,
    /// A host folder that is the workspace, or a fresh one.
    pub playground: Option<PathBuf>,
    /// Further host folders.
    pub mounts: Vec<Mount>,
    /// What holds.
    pub limits: Limits,
    /// What may be reached.
    pub network: Network,
    /// Layers without which nothing may run.
    pub require: Vec<Layer>,
    /// Who it is for. No warm interpreter serves two of them.
    pub tenant: String,
    /// What the profile puts into the environment of every run.
    pub env: BTreeMap<String, String>,
    /// Modules that a warm interpreter has imported already.
    pub preimports: Vec<String>,
}

/// What to run.
#[derive(Debug, Clone, PartialEq)]
pub enum Program {
    /// Code in a language.
    Code {
        /// The language.
        language: &'static Language,
        /// Where the code is: a file of its own in the workspace (made from `code`), or one that a playground has.
        source: Source,
        /// Arguments for `main`, if any were given.
        arguments: Option<Map<String, Value>>,
    },
    /// A program with its arguments, found on the sandbox's `PATH`.
    Command(Vec<String>),
}

/// Where the code is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// To be written to the workspace under this name.
    Text {
        /// File name.
        name: String,
        /// The code.
        code: String,
    },
    /// Already in the playground, at this relative path.
    Existing(String),
}

/// What to run in a place.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Task {
    /// The program.
    pub program: Program,
    /// Its standard input.
    pub stdin: Vec<u8>,
    /// Its environment, beside the few variables that every sandbox has.
    pub env: BTreeMap<String, String>,
    /// Files put into the workspace first.
    pub files: Vec<InputFile>,
    /// Where it starts, absolute.
    pub workdir: String,
}
