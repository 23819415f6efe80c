//! Why an image cannot be had.

use std::path::{Path, PathBuf};

use belljar_engine::Fault;
use belljar_layers::shelf::ShelfError;
use rustix::io::Errno;
use thiserror::Error as ThisError;

/// Why an image cannot be had or kept.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
pub enum ImageError {
    /// What was given is no name of an image.
    #[error("'{name}' is no name of an image ({why}); write one such as python:3.12-slim")]
    Name {
        /// What was given; escaped.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// Nobody pulled it.
    #[error("there is no image '{0}' here; 'belljar image list' shows those that there are")]
    NotFound(String),
    /// The registry does not have it, or does not give it.
    #[error("{registry}: {why}")]
    Registry {
        /// Which.
        registry: String,
        /// What it said, and what to do.
        why: String,
    },
    /// For other machines only.
    #[error("'{name}' is not made for this machine ({wanted}), only for {offered}")]
    Platform {
        /// The image.
        name: String,
        /// What this machine is.
        wanted: String,
        /// What there is.
        offered: String,
    },
    /// Something in it is not what its digest says.
    #[error("{what} is not what its digest says: it was changed on the way, or the source lies")]
    Tampered {
        /// A manifest, a configuration, a layer.
        what: String,
    },
    /// Something in it that is refused.
    #[error("the image is refused: {0}")]
    Refused(String),
    /// More than an image may have.
    #[error("the image is refused: more than {limit} {what}")]
    TooLarge {
        /// The bound.
        limit: u64,
        /// Of what.
        what: &'static str,
    },
    /// No room on the disk.
    #[error("{}: no room on this disk; make some, or remove images with 'belljar image rm'", .0.display())]
    NoSpace(PathBuf),
    /// The folder cannot be written, or others can.
    #[error(
        "{}: has to be yours alone to write; chmod it, or give 'images.folder' of belljar.toml another folder",
        .0.display()
    )]
    Folder(PathBuf),
    /// The machine refuses for another reason.
    #[error("cannot {doing} {}: {cause}", .path.display())]
    Io {
        /// What was done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// What the system said.
        cause: String,
    },
}

impl ImageError {
    pub(crate) fn refused(why: impl Into<String>) -> Self {
        Self::Refused(why.into())
    }

    /// What was done to what, and what the system said to it.
    pub(crate) fn io(doing: &'static str, path: impl AsRef<Path>, error: impl Into<std::io::Error>) -> Self {
        let (path, error) = (path.as_ref().to_owned(), error.into());
        match Errno::from_io_error(&error) {
            Some(Errno::NOSPC | Errno::DQUOT) => Self::NoSpace(path),
            _ => Self::Io { doing, path, cause: error.to_string() },
        }
    }

    /// Whose move it is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::NoSpace(_) | Self::Folder(_) | Self::Io { .. } => Fault::Host,
            _ => Fault::Caller,
        }
    }
}

impl From<ShelfError> for ImageError {
    fn from(error: ShelfError) -> Self {
        match error {
            ShelfError::NoSpace { path } => Self::NoSpace(path),
            ShelfError::ReadOnly { path } | ShelfError::Exposed { path } => Self::Folder(path),
            ShelfError::Io { doing, path, errno } => Self::io(doing, path, errno),
            other => Self::Io { doing: "keep images", path: PathBuf::new(), cause: other.to_string() },
        }
    }
}
