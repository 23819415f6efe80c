//! The port of stored images: root file systems that were pulled or sealed, by name.

use std::collections::BTreeMap;
use std::fmt::Debug;

use thiserror::Error as ThisError;

use crate::plan::StoredImage;

/// Why an image cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
pub enum ImagesError {
    /// The image is not stored here, or not for this caller; the message says what to do.
    #[error("image: {0}")]
    Unknown(String),
    /// The host failed.
    #[error("image: {0}")]
    Host(String),
}

/// Maximum size of all variables that an image sets, in bytes.
pub const MAX_VARIABLES_BYTES: usize = 32 << 10;
/// Variables that the sandbox sets itself, overriding the image.
const SANDBOX_VARIABLES: &[&str] =
    &["HOME", "HOSTNAME", "LOGNAME", "PATH", "PWD", "SHELL", "TERM", "TMPDIR", "USER"];

/// Environment variables that an image sets for its programs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageVariables {
    /// All variables except those that the sandbox sets itself.
    pub env: BTreeMap<String, String>,
    /// The image's `PATH`.
    pub path: Option<String>,
}

impl ImageVariables {
    /// Parses lines of `NAME=value`, ignoring malformed ones. Returns `None` if they exceed
    /// [`MAX_VARIABLES_BYTES`].
    pub fn parse(lines: &[String]) -> Option<Self> {
        if lines.iter().map(String::len).sum::<usize>() > MAX_VARIABLES_BYTES {
            return None;
        }
        let pairs = lines.iter().filter_map(|line| line.split_once('='));
        let mut env: BTreeMap<String, String> = pairs
            .filter(|(name, value)| !name.is_empty() && !name.contains('\0') && !value.contains('\0'))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let path = env.get("PATH").cloned().filter(|path| !path.is_empty());
        env.retain(|name, _| !SANDBOX_VARIABLES.contains(&name.as_str()));
        Some(Self { env, path })
    }
}

/// Images stored on this host. Requests never trigger a pull.
pub trait StoredImages: Debug + Send + Sync {
    /// Returns the image of that name and keeps it from being removed while the value exists.
    ///
    /// # Errors
    /// Says why the image cannot be used.
    fn find(&self, name: &str) -> Result<StoredImage, ImagesError>;
}
