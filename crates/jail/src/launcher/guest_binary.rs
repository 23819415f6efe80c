//! The guest binary: a copy of this binary in a sealed memfd, which cannot be written and has no path. It can
//! be executed but not read, so a process that executes it cannot be inspected by others from its first
//! instruction on.
//!
//! The binary is tens of megabytes, so a separate process copies it when the first sandbox is requested, and
//! that sandbox waits.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;

use super::pending_run::PendingRun;
use crate::sys::{self, CloneResult};

/// A copy in progress.
pub(super) struct GuestSealer {
    memfd: OwnedFd,
    pub(super) pid: i32,
    pub(super) copier: OwnedFd,
    /// Sandboxes that wait for the binary.
    pub(super) pending: Vec<PendingRun>,
}

impl GuestSealer {
    /// Starts the copying process.
    pub(super) fn begin(proc: &OwnedFd) -> Result<Self, Errno> {
        let own = rustix::fs::openat(proc, "self/exe", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = match rustix::fs::memfd_create("belljar", flags | MemfdFlags::EXEC) {
            // A kernel that does not know this flag does not need it.
            Err(Errno::INVAL) => rustix::fs::memfd_create("belljar", flags)?,
            made => made?,
        };
        match sys::clone(0, None)? {
            CloneResult::Child => {
                let sealed = copy(&own, &memory).and_then(|()| sys::seal(&memory));
                sys::exit_now(i32::from(sealed.is_err()))
            }
            CloneResult::Parent { pid, pidfd } => {
                Ok(Self { memfd: memory, pid, copier: pidfd.ok_or(Errno::NOSYS)?, pending: Vec::new() })
            }
        }
    }

    /// Returns the binary after the copying process has exited, and the sandboxes that waited for it.
    pub(super) fn finish(self, proc: &OwnedFd) -> (Result<OwnedFd, Errno>, Vec<PendingRun>) {
        let copied = match sys::wait_pidfd(self.copier.as_fd()) {
            Ok(0) => executable_only(proc, &self.memfd),
            Ok(_) => Err(Errno::IO),
            Err(errno) => Err(errno),
        };
        (copied, self.pending)
    }
}

/// Copies a file using system calls only: this runs in a fork of a process that may have had threads. So does
/// sealing, which can take the kernel a while.
fn copy(from: &OwnedFd, to: &OwnedFd) -> Result<(), Errno> {
    const AT_A_TIME: usize = 16 << 20;
    while rustix::fs::sendfile(to, from, None, AT_A_TIME)? > 0 {}
    Ok(())
}

/// Opens the copy such that it can be executed only.
fn executable_only(proc: &OwnedFd, memory: &OwnedFd) -> Result<OwnedFd, Errno> {
    rustix::fs::fchmod(memory, Mode::from_raw_mode(0o111))?;
    // A file that is open for writing cannot be executed.
    let path = format!("self/fd/{}", memory.as_raw_fd());
    rustix::fs::openat(proc, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

#[cfg(test)]
mod tests {
    use rustix::fs::SealFlags;

    use super::*;

    #[test]
    fn guest_binary_cannot_be_written() {
        let proc = rustix::fs::open("/proc", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let (binary, waited) = GuestSealer::begin(&proc).unwrap().finish(&proc);
        let binary = binary.unwrap();
        assert!(waited.is_empty());
        let mode = rustix::fs::fstat(&binary).unwrap().st_mode & 0o7777;
        assert_eq!(mode, 0o111, "it can be executed but not read");
        let path = format!("/proc/self/fd/{}", binary.as_raw_fd());
        // Root may open any file. Even then the content cannot be changed.
        if let Ok(file) = rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
            assert_eq!(rustix::io::write(&file, b"x"), Err(Errno::PERM));
            assert_eq!(rustix::fs::ftruncate(&file, 0), Err(Errno::PERM));
            assert_eq!(rustix::fs::fcntl_add_seals(&file, SealFlags::empty()), Err(Errno::PERM));
        }
        let ran = std::process::Command::new(path).arg("--list").output().unwrap();
        assert!(ran.status.success(), "it is this program");
    }
}
