//! Packing and unpacking folders: a process of its own, which does one job and ends.
//!
//! ```text
//! stdin: the archive ──▶ unpack ──▶ files          pack ──▶ stdout: the archive         stderr: one report
//! ```
//!
//! The formats are read and written by the `tar` and `zip` crates: both are widely used and kept up, and neither needs
//! more than a reader or a writer. Where files go is decided here, not there.

#[cfg(test)]
mod fuzz_tests;
mod ground;
mod pack;
mod path;
mod tree;
mod unpack;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;

use rustix::process::{Resource, Rlimit};
use serde::{Deserialize, Serialize};

use crate::protocol::{ArchiveFormat, ArchiveLimits, Failure, FailureKind, Unpacked, decode, encode};

/// How the worker is told that it is one: its own name.
pub const WORKER: &str = "belljar-archive";

/// A name in an archive can claim to be a gigabyte long: memory ends here, and with it the worker.
const MEMORY: u64 = 128 << 20;

/// What is said then.
pub(crate) const NEEDS_MEMORY: &str = "the archive needs more memory than it may";

/// What to do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Job {
    /// From stdin.
    Unpack { path: PathBuf, said: String, format: ArchiveFormat, limits: ArchiveLimits },
    /// To stdout.
    Pack { path: PathBuf, said: String, format: ArchiveFormat, reach: Reach },
}

/// How far packing goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reach {
    /// Everything below the folder.
    All,
    /// Nothing that is mounted there.
    OneDisk,
}

/// How it went.
pub(crate) type Report = Result<Unpacked, Failure>;

impl Job {
    /// The one argument of a worker.
    pub(crate) fn to_argument(&self) -> String {
        encode(self).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn of_argument(argument: &str) -> Option<Self> {
        let digits = argument.as_bytes().chunks(2);
        let bytes: Option<Vec<u8>> =
            digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect();
        decode(&bytes?)
    }
}

/// The whole life of a worker; gives the status to end with.
pub(crate) fn work() -> u8 {
    let _best_effort =
        rustix::process::setrlimit(Resource::Data, Rlimit { current: Some(MEMORY), maximum: Some(MEMORY) });
    let report = std::env::args()
        .nth(1)
        .as_deref()
        .and_then(Job::of_argument)
        .map_or_else(|| Err(Failure::new(FailureKind::Invalid, "job", "unreadable")), |job| perform(&job));
    let told = std::io::stderr().write_all(&encode(&report.map_err(Failure::bounded)));
    u8::from(told.is_err())
}

fn perform(job: &Job) -> Report {
    match job {
        Job::Unpack { path, said, format, limits } => {
            unpack::unpack(path, *format, *limits, input(said)?).map_err(|refusal| refusal.of(said))
        }
        Job::Pack { path, said, format, reach } => {
            pack::pack(path, *format, *reach, output(said)?).map_err(|refusal| refusal.of(said))?;
            Ok(Unpacked::default())
        }
    }
}

/// Unbuffered; whoever uses them reads and writes in large pieces.
fn input(said: &str) -> Result<impl Read + use<>, Failure> {
    let fd = std::io::stdin().as_fd().try_clone_to_owned();
    fd.map(File::from).map_err(|error| Failure::of_io(&error, said))
}

fn output(said: &str) -> Result<impl Write + use<>, Failure> {
    let fd = std::io::stdout().as_fd().try_clone_to_owned();
    fd.map(File::from).map_err(|error| Failure::of_io(&error, said))
}

/// Why there is no folder, or no archive, at the end.
#[derive(Debug)]
enum Refusal {
    /// The archive tries something, or is none.
    Bad { entry: String, why: &'static str },
    /// Beyond a limit.
    TooLarge(&'static str),
    /// The system's answer, about an entry.
    Io { entry: String, error: std::io::Error },
    /// The archive itself cannot be read or written.
    Archive(std::io::Error),
}

impl Refusal {
    fn of(self, said: &str) -> Failure {
        match self {
            Self::Bad { entry, why } => Failure::new(FailureKind::BadArchive, entry, why),
            Self::TooLarge(why) => Failure::new(FailureKind::TooLarge, said, why),
            Self::Io { entry, error } => Failure::of_io(&error, entry),
            Self::Archive(error) if error.kind() == std::io::ErrorKind::OutOfMemory => {
                Failure::new(FailureKind::BadArchive, said, NEEDS_MEMORY)
            }
            Self::Archive(error) => Failure::new(FailureKind::BadArchive, said, error.to_string()),
        }
    }
}
