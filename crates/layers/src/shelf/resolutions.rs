//! Cached resolutions: the exact packages that a set of requirements resolved to. Resolutions expire; layers
//! do not.

use std::time::{Duration, SystemTime};

use rustix::fs::Mode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::disk::{Disk, seconds};
use super::error::ShelfError;
use super::nook::Nook;

const MAX_BYTES: u64 = 4 << 20;

/// A cached resolution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolution<T> {
    /// The resolved packages.
    pub value: T,
    /// Whether it is younger than the TTL. An outdated one still helps if the registry cannot be reached.
    pub fresh: bool,
}

#[derive(Serialize)]
struct Written<'a, T> {
    question: &'a Digest,
    answered_at: u64,
    answer: &'a T,
}

#[derive(Deserialize)]
struct Read<T> {
    question: Digest,
    answered_at: u64,
    answer: T,
}

/// Serializes a resolution.
pub(super) fn written<T: Serialize>(question: &Digest, answer: &T) -> Result<Vec<u8>, ShelfError> {
    let written = Written { question, answered_at: seconds(SystemTime::now()), answer };
    let text = serde_json::to_vec(&written).map_err(|error| ShelfError::System(error.to_string()))?;
    match text.len() as u64 > MAX_BYTES {
        true => Err(ShelfError::TooLarge { what: "bytes in a resolution", limit: MAX_BYTES }),
        false => Ok(text),
    }
}

/// Parses a resolution. Returns `None` if it cannot be parsed.
pub(super) fn read<T: DeserializeOwned>(
    question: &Digest,
    ttl: Duration,
    text: &[u8],
) -> Option<Resolution<T>> {
    let read: Read<T> = serde_json::from_slice(text).ok()?;
    let age = seconds(SystemTime::now()).checked_sub(read.answered_at);
    // A time in the future says nothing about the age.
    let fresh = age.is_some_and(|age| age < ttl.as_secs());
    (read.question == *question).then_some(Resolution { value: read.answer, fresh })
}

impl Disk {
    pub(super) fn recall(&self, question: &Digest) -> Result<Option<Vec<u8>>, ShelfError> {
        self.resolutions.read(&question.to_string(), MAX_BYTES)
    }

    pub(super) fn remember(&self, question: &Digest, text: &[u8]) -> Result<(), ShelfError> {
        let (nook, name) = (Nook::new(&self.staging)?, question.to_string());
        nook.folder().write(&name, text, Mode::RUSR | Mode::WUSR)?;
        let moved = rustix::fs::renameat(nook.folder(), &name, &self.resolutions, &name);
        moved.map_err(|errno| self.resolutions.failed("write", &name, errno))
    }
}
