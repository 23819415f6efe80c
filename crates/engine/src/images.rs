//! The port of images: roots that somebody has pulled or sealed, by name.

use std::collections::BTreeMap;
use std::fmt::Debug;

use thiserror::Error as ThisError;

use crate::plan::Stored;

/// Why there is no such image.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
pub enum ImagesError {
    /// Nobody has it here, or not for this caller; with what to do about it.
    #[error("image: {0}")]
    Unknown(String),
    /// This machine could not do its part.
    #[error("image: {0}")]
    Host(String),
}

/// Of everything that an image sets, in bytes.
pub const MAX_VARIABLES: usize = 32 << 10;
/// What a sandbox sets itself, whatever the image says.
const OURS: &[&str] = &["HOME", "HOSTNAME", "LOGNAME", "PATH", "PWD", "SHELL", "TERM", "TMPDIR", "USER"];

/// What an image sets for its programs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Variables {
    /// All but what a sandbox sets itself.
    pub env: BTreeMap<String, String>,
    /// Where it has its programs, as `PATH` has it.
    pub path: Option<String>,
}

impl Variables {
    /// Reads lines of `NAME=value`; what is none counts for nothing. `None` where they are more than [`MAX_VARIABLES`].
    pub fn read(lines: &[String]) -> Option<Self> {
        if lines.iter().map(String::len).sum::<usize>() > MAX_VARIABLES {
            return None;
        }
        let pairs = lines.iter().filter_map(|line| line.split_once('='));
        let mut env: BTreeMap<String, String> = pairs
            .filter(|(name, value)| !name.is_empty() && !name.contains('\0') && !value.contains('\0'))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let path = env.get("PATH").cloned().filter(|path| !path.is_empty());
        env.retain(|name, _| !OURS.contains(&name.as_str()));
        Some(Self { env, path })
    }
}

/// Images that are here. Nothing is fetched for a request.
pub trait Images: Debug + Send + Sync {
    /// The image of that name, kept from being removed for as long as somebody holds it.
    ///
    /// # Errors
    /// Says why it cannot be had.
    fn find(&self, name: &str) -> Result<Stored, ImagesError>;
}
