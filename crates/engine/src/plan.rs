//! What is handed to a provider: a place to make, and a task to run in it. Only admission can build either.

use std::any::Any;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::language::Language;
use crate::layer::Layer;
use crate::limits::Limits;
use crate::network::HostRules;
use crate::packages::PackageLayer;

/// The folder in which code runs, inside every sandbox.
pub const WORKSPACE: &str = "/workspace";

/// The read-only root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Image {
    /// Named folders of the host, read-only.
    Host,
    /// An unpacked root in a host folder.
    Folder(PathBuf),
    /// An image that is kept unpacked.
    Stored(Arc<Stored>),
    /// An image that the provider itself has, by name.
    Named(String),
}

impl Image {
    /// Where its root is, if that is a folder of this machine and not the host's own.
    pub fn folder(&self) -> Option<&Path> {
        match self {
            Self::Host | Self::Named(_) => None,
            Self::Folder(folder) => Some(folder),
            Self::Stored(stored) => Some(&stored.folder),
        }
    }

    /// Returns whether its programs are the operator's own. Only these may be started outside a sandbox's full confinement.
    pub fn is_operators(&self) -> bool {
        match self {
            Self::Host => true,
            Self::Stored(stored) => stored.sealed,
            Self::Folder(_) | Self::Named(_) => false,
        }
    }

    /// What tells it from others.
    pub fn identity(&self) -> Cow<'_, str> {
        match self {
            Self::Host => "host".into(),
            Self::Folder(folder) => folder.to_string_lossy(),
            Self::Stored(stored) => stored.folder.to_string_lossy(),
            Self::Named(name) => name.into(),
        }
    }
}

/// An image that is kept unpacked, and never changes.
#[derive(Debug, Clone)]
pub struct Stored {
    /// Its root. No other image, and no later one of the same name, is ever there.
    pub folder: PathBuf,
    /// What it sets, without its search path.
    pub env: BTreeMap<String, String>,
    /// Where it has its programs, as `PATH` has it.
    pub path: Option<String>,
    /// Whether it is a copy of this machine's own files, and not an image that came from elsewhere.
    pub sealed: bool,
    /// Keeps it from being removed.
    pub held: Arc<dyn Any + Send + Sync>,
}

impl PartialEq for Stored {
    fn eq(&self, other: &Self) -> bool {
        self.folder == other.folder
    }
}

impl Eq for Stored {}

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
    /// Modules that a warm interpreter has imported already: the operator's choice, never a tenant's.
    pub preimports: Vec<String>,
    /// Modules that waiting interpreters import once they are confined.
    pub frequent_imports: Vec<String>,
    /// Packages, read-only beside the image.
    pub package_layers: Vec<PackageLayer>,
    /// Keeps these layers from being removed while the place is there.
    pub held: Option<Arc<dyn Any + Send + Sync>>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machines_own_programs_are_the_operators() {
        let stored = |sealed| {
            let held: Arc<dyn Any + Send + Sync> = Arc::new(());
            let (env, path) = (BTreeMap::new(), None);
            Image::Stored(Arc::new(Stored { folder: "/i".into(), env, path, sealed, held }))
        };
        assert!(Image::Host.is_operators() && stored(true).is_operators());
        for image in [stored(false), Image::Folder("/i".into()), Image::Named("i".to_owned())] {
            assert!(!image.is_operators(), "{image:?}");
        }
    }
}
