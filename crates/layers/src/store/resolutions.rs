//! Cached resolutions: the exact packages that a set of requirements resolved to. Resolutions expire; layers
//! do not.

use std::time::{Duration, SystemTime};

use belljar_beneath::folder::unix_seconds;
use belljar_beneath::{ContentDigest, StagingDir};
use rustix::fs::Mode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::disk::DiskStore;
use super::error::LayerStoreError;

const MAX_RESOLUTION_BYTES: u64 = 4 << 20;

/// A cached resolution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedResolution<T> {
    /// The resolved packages.
    pub value: T,
    /// Whether it is younger than the TTL. An outdated one still helps if the registry cannot be reached.
    pub fresh: bool,
}

#[derive(Serialize)]
struct ResolutionFileRef<'a, T> {
    question: &'a ContentDigest,
    answered_at: u64,
    answer: &'a T,
}

#[derive(Deserialize)]
struct ResolutionFile<T> {
    question: ContentDigest,
    answered_at: u64,
    answer: T,
}

/// Serializes a resolution.
pub(super) fn serialize_resolution<T: Serialize>(
    question: &ContentDigest,
    answer: &T,
) -> Result<Vec<u8>, LayerStoreError> {
    let written = ResolutionFileRef { question, answered_at: unix_seconds(SystemTime::now()), answer };
    let text = serde_json::to_vec(&written).map_err(|error| LayerStoreError::System(error.to_string()))?;
    match text.len() as u64 > MAX_RESOLUTION_BYTES {
        true => Err(LayerStoreError::TooLarge { what: "bytes in a resolution", limit: MAX_RESOLUTION_BYTES }),
        false => Ok(text),
    }
}

/// Parses a resolution. Returns `None` if it cannot be parsed.
pub(super) fn parse_resolution<T: DeserializeOwned>(
    question: &ContentDigest,
    ttl: Duration,
    text: &[u8],
) -> Option<CachedResolution<T>> {
    let read: ResolutionFile<T> = serde_json::from_slice(text).ok()?;
    let age = unix_seconds(SystemTime::now()).checked_sub(read.answered_at);
    // A time in the future says nothing about the age.
    let fresh = age.is_some_and(|age| age < ttl.as_secs());
    (read.question == *question).then_some(CachedResolution { value: read.answer, fresh })
}

impl DiskStore {
    pub(super) fn read_resolution(
        &self,
        question: &ContentDigest,
    ) -> Result<Option<Vec<u8>>, LayerStoreError> {
        Ok(self.resolutions.read(&question.to_string(), MAX_RESOLUTION_BYTES)?)
    }

    pub(super) fn write_resolution(
        &self,
        question: &ContentDigest,
        text: &[u8],
    ) -> Result<(), LayerStoreError> {
        let (staging_dir, name) = (StagingDir::new(&self.staging)?, question.to_string());
        staging_dir.folder().write(&name, text, Mode::RUSR | Mode::WUSR)?;
        let moved = rustix::fs::renameat(staging_dir.folder(), &name, &self.resolutions, &name);
        Ok(moved.map_err(|errno| self.resolutions.error("write", &name, errno))?)
    }
}
