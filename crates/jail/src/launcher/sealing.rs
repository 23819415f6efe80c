//! The binary that guests execute: this one, as a memory file that nobody can write to, and that has no path anywhere. It can
//! be executed and not read, so whoever executes it is from its first instruction on a process that nobody may look into.
//!
//! It is tens of megabytes, so a process of its own copies it when the first living jail is asked for, and that jail waits.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;

use super::child::Pending;
use crate::sys::{self, Cloned};

/// The copying, while it lasts.
pub(super) struct Sealing {
    memory: OwnedFd,
    pub(super) pid: i32,
    pub(super) copier: OwnedFd,
    /// Jails that wait for it.
    pub(super) pending: Vec<Pending>,
}

impl Sealing {
    /// Begins to copy.
    pub(super) fn begin(proc: &OwnedFd) -> Result<Self, Errno> {
        let own = rustix::fs::openat(proc, "self/exe", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = match rustix::fs::memfd_create("belljar", flags | MemfdFlags::EXEC) {
            // A kernel that does not know that flag needs none.
            Err(Errno::INVAL) => rustix::fs::memfd_create("belljar", flags)?,
            made => made?,
        };
        match sys::clone(0, None)? {
            Cloned::Child => sys::exit_now(i32::from(copy(&own, &memory).is_err())),
            Cloned::Parent { pid, pidfd } => {
                Ok(Self { memory, pid, copier: pidfd.ok_or(Errno::NOSYS)?, pending: Vec::new() })
            }
        }
    }

    /// Gives the binary, when the copying is over, and the jails that waited for it.
    pub(super) fn finish(self, proc: &OwnedFd) -> (Result<OwnedFd, Errno>, Vec<Pending>) {
        let copied = match sys::wait_for(self.copier.as_fd()) {
            Ok(0) => seal(proc, &self.memory),
            Ok(_) => Err(Errno::IO),
            Err(errno) => Err(errno),
        };
        (copied, self.pending)
    }
}

/// Only system calls: this runs in a copy of a process that may have had threads.
fn copy(from: &OwnedFd, to: &OwnedFd) -> Result<(), Errno> {
    const AT_A_TIME: usize = 16 << 20;
    while rustix::fs::sendfile(to, from, None, AT_A_TIME)? > 0 {}
    Ok(())
}

fn seal(proc: &OwnedFd, memory: &OwnedFd) -> Result<OwnedFd, Errno> {
    rustix::fs::fchmod(memory, Mode::from_raw_mode(0o111))?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(memory, seals)?;
    // What is open for writing cannot be executed.
    let path = format!("self/fd/{}", memory.as_raw_fd());
    rustix::fs::openat(proc, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_can_write_to_what_guests_execute() {
        let proc = rustix::fs::open("/proc", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let (binary, waited) = Sealing::begin(&proc).unwrap().finish(&proc);
        let binary = binary.unwrap();
        assert!(waited.is_empty());
        let mode = rustix::fs::fstat(&binary).unwrap().st_mode & 0o7777;
        assert_eq!(mode, 0o111, "it can be executed and not read");
        let path = format!("/proc/self/fd/{}", binary.as_raw_fd());
        // Root may open anything; even then nothing can be changed.
        if let Ok(file) = rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
            assert_eq!(rustix::io::write(&file, b"x"), Err(Errno::PERM));
            assert_eq!(rustix::fs::ftruncate(&file, 0), Err(Errno::PERM));
            assert_eq!(rustix::fs::fcntl_add_seals(&file, SealFlags::empty()), Err(Errno::PERM));
        }
        let ran = std::process::Command::new(path).arg("--list").output().unwrap();
        assert!(ran.status.success(), "it is this program");
    }
}
