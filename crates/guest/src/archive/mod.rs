//! Packs and unpacks folders in a separate process, which does one job and exits.
//!
//! ```text
//! stdin: the archive ──▶ unpack ──▶ files          pack ──▶ stdout: the archive         stderr: one report
//! ```
//!
//! The formats are read and written by the `tar` and `zip` crates, which are widely used and maintained, and
//! only need a reader or a writer. This module decides where files go.
//!
//! The process has its own memory limit. Every name in an archive is looked up from an open folder, and no
//! link is followed.

mod entry_writer;
#[cfg(test)]
mod fuzz_tests;
mod pack;
mod pack_walk;
mod unpack;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;

use belljar_beneath::InnerPath;
use rustix::process::{Resource, Rlimit};
use serde::{Deserialize, Serialize};

use crate::protocol::{ArchiveFormat, ArchiveLimits, Failure, FailureKind, UnpackSummary, decode, encode};

/// The worker's program name: a process started under it is a worker.
pub const ARCHIVE_WORKER_NAME: &str = "belljar-archive";

/// Memory limit in bytes. A name in an archive can claim to be a gigabyte long; the worker then fails at this
/// limit.
const MEMORY_LIMIT_BYTES: u64 = 128 << 20;

/// The error if the memory limit is reached.
pub(crate) const NEEDS_MEMORY: &str = "the archive needs too much memory";

/// A worker's job.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ArchiveJob {
    /// Unpacks stdin.
    Unpack { path: PathBuf, given: String, format: ArchiveFormat, limits: ArchiveLimits },
    /// Packs to stdout.
    Pack { path: PathBuf, given: String, format: ArchiveFormat, reach: PackScope },
}

/// The scope of packing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PackScope {
    /// Everything below the folder.
    All,
    /// Only entries on the folder's own file system.
    OneFileSystem,
}

/// The result of a job.
pub(crate) type ArchiveReport = Result<UnpackSummary, Failure>;

impl ArchiveJob {
    /// Encodes the job as the worker's only argument.
    pub(crate) fn to_argument(&self) -> String {
        encode(self).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn from_argument(argument: &str) -> Option<Self> {
        let digits = argument.as_bytes().chunks(2);
        let bytes: Option<Vec<u8>> =
            digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect();
        decode(&bytes?)
    }
}

/// Runs a worker, and returns its exit status.
pub(crate) fn run_worker() -> u8 {
    let _best_effort = rustix::process::setrlimit(
        Resource::Data,
        Rlimit { current: Some(MEMORY_LIMIT_BYTES), maximum: Some(MEMORY_LIMIT_BYTES) },
    );
    let report = std::env::args()
        .nth(1)
        .as_deref()
        .and_then(ArchiveJob::from_argument)
        .map_or_else(|| Err(Failure::new(FailureKind::Invalid, "job", "unreadable")), |job| run_job(&job));
    let reported = std::io::stderr().write_all(&encode(&report.map_err(Failure::truncated)));
    u8::from(reported.is_err())
}

fn run_job(job: &ArchiveJob) -> ArchiveReport {
    match job {
        ArchiveJob::Unpack { path, given, format, limits } => {
            unpack::unpack(path, *format, *limits, input(given)?)
                .map_err(|refusal| refusal.into_failure(given))
        }
        ArchiveJob::Pack { path, given, format, reach } => {
            pack::pack(path, *format, *reach, output(given)?)
                .map_err(|refusal| refusal.into_failure(given))?;
            Ok(UnpackSummary::default())
        }
    }
}

/// Returns stdin unbuffered; the callers read and write in large chunks.
fn input(given: &str) -> Result<impl Read + use<>, Failure> {
    let fd = std::io::stdin().as_fd().try_clone_to_owned();
    fd.map(File::from).map_err(|error| Failure::from_io(&error, given))
}

fn output(given: &str) -> Result<impl Write + use<>, Failure> {
    let fd = std::io::stdout().as_fd().try_clone_to_owned();
    fd.map(File::from).map_err(|error| Failure::from_io(&error, given))
}

/// Why packing or unpacking failed.
#[derive(Debug)]
enum ArchiveError {
    /// The archive is hostile or malformed.
    Hostile { entry: String, why: &'static str },
    /// A limit is exceeded.
    TooLarge(&'static str),
    /// A system error about an entry.
    Io { entry: String, error: std::io::Error },
    /// The archive itself cannot be read or written.
    Archive(std::io::Error),
}

/// Maximum nesting depth of an archive.
const MAX_DEPTH: usize = 128;

/// Parses a name in an archive; returns `None` for the folder itself.
fn parse_name(name: &[u8]) -> Result<Option<InnerPath<'_>>, ArchiveError> {
    InnerPath::parse(name, MAX_DEPTH).map_err(|why| ArchiveError::Hostile { entry: to_text(name), why })
}

fn to_text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

impl ArchiveError {
    fn into_failure(self, given: &str) -> Failure {
        match self {
            Self::Hostile { entry, why } => Failure::new(FailureKind::BadArchive, entry, why),
            Self::TooLarge(why) => Failure::new(FailureKind::TooLarge, given, why),
            Self::Io { entry, error } => Failure::from_io(&error, entry),
            Self::Archive(error) if error.kind() == std::io::ErrorKind::OutOfMemory => {
                Failure::new(FailureKind::BadArchive, given, NEEDS_MEMORY)
            }
            Self::Archive(error) => Failure::new(FailureKind::BadArchive, given, error.to_string()),
        }
    }
}
