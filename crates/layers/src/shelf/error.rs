//! What the shelf failed to do, and whose move it is.

use std::path::{Path, PathBuf};

use belljar_engine::Fault;
use rustix::io::Errno;
use thiserror::Error as ThisError;

use super::manifest::Key;

/// Why a layer cannot be had or kept. Cheap to clone: everybody who waited for the same thing gets the same answer.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
pub enum ShelfError {
    /// No room on the disk.
    #[error("{}: no room on this disk; make some, or remove layers with 'belljar deps prune'", .path.display())]
    NoSpace {
        /// What was written.
        path: PathBuf,
    },
    /// The folder cannot be written.
    #[error(
        "{}: may not be written; give 'dependencies.folder' a folder of yours, or make this one writable",
        .path.display()
    )]
    ReadOnly {
        /// What was written.
        path: PathBuf,
    },
    /// The folder can be written by others.
    #[error("{}: others may write here, and could change layers; chmod go-w it, or take a folder of yours", .path.display())]
    Exposed {
        /// The folder.
        path: PathBuf,
    },
    /// The disk refuses for another reason.
    #[error("cannot {doing} {}: {errno}", .path.display())]
    Io {
        /// What was done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// What the system said.
        errno: Errno,
    },
    /// Something that has no place in a layer.
    #[error("'{path}' does not belong into a layer: {why}")]
    Unfit {
        /// Where it is, from the top of the layer; escaped.
        path: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// More than one layer may be.
    #[error("more than a layer may have: {what} (at most {limit})")]
    TooLarge {
        /// Of what.
        what: &'static str,
        /// The bound.
        limit: u64,
    },
    /// A layer that is not what it was when it was made.
    #[error("layer {key} is damaged ({why}); it will be made anew")]
    Broken {
        /// Which.
        key: Key,
        /// What is not as it was.
        why: String,
    },
    /// There is none.
    #[error("there is no layer {0}; 'belljar deps list' shows those that there are")]
    NotFound(Key),
    /// An archive that is none of ours, or was changed.
    #[error(
        "the archive is refused: {0}; export it again from a shelf that 'belljar deps verify' finds whole"
    )]
    Archive(String),
    /// Another process has the shelf for long.
    #[error("{}: another belljar keeps this locked; try again later", .0.display())]
    Busy(PathBuf),
    /// No random numbers, no thread.
    #[error("the system does not give what is needed: {0}")]
    System(String),
}

impl ShelfError {
    /// What was done to what, and what the system said to it.
    pub(super) fn io(doing: &'static str, path: impl AsRef<Path>, errno: Errno) -> Self {
        let path = path.as_ref().to_owned();
        match errno {
            Errno::NOSPC | Errno::DQUOT => Self::NoSpace { path },
            Errno::ROFS | Errno::ACCESS | Errno::PERM => Self::ReadOnly { path },
            errno => Self::Io { doing, path, errno },
        }
    }

    /// The same, of the standard library's errors.
    pub(super) fn of(doing: &'static str, path: impl AsRef<Path>, error: &std::io::Error) -> Self {
        Self::io(doing, path, Errno::from_io_error(error).unwrap_or(Errno::IO))
    }

    /// Whose move it is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Unfit { .. } | Self::TooLarge { .. } | Self::NotFound(_) | Self::Archive(_) => {
                Fault::Caller
            }
            Self::Busy(_) => Fault::Capacity,
            Self::NoSpace { .. }
            | Self::ReadOnly { .. }
            | Self::Exposed { .. }
            | Self::Io { .. }
            | Self::Broken { .. }
            | Self::System(_) => Fault::Host,
        }
    }
}
