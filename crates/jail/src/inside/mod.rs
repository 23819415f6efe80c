//! What happens inside a jail before, around and after the program, as the new PID 1 and as the program's process.
//!
//! ```text
//! PID 1:    id map → cgroup → host name → mounts → pivot → fork → drop rights → supervise
//! program:  stdio → rlimits → ids → files → capabilities → no_new_privs → landlock → seccomp → execve
//! ```

mod artifacts;
mod init;
mod landlock;
mod mounts;
mod program;
mod rights;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::seccomp::Filter;
use crate::spec::{Jail, Layer};
use crate::step::{Step, StepFailed};
use crate::sys;

pub(crate) use landlock::supported as landlock_supported;

/// Everything PID 1 starts with: copied by the clone, owned by nobody else inside.
pub(crate) struct Cell<'a> {
    pub(crate) jail: &'a Jail,
    /// Where the root tree stands.
    pub(crate) root: &'a str,
    /// Detached mounts and where they go.
    pub(crate) binds: &'a [(OwnedFd, String)],
    /// Control groups to join by writing to these.
    pub(crate) groups: &'a [OwnedFd],
    /// Readable once the id map stands.
    pub(crate) go: OwnedFd,
    /// Where failures and the ending are told.
    pub(crate) report: OwnedFd,
    pub(crate) descriptors: Descriptors,
    pub(crate) filter: &'a Filter,
    pub(crate) landlock: bool,
    /// Whether PID 1 has a user id other than the program's.
    pub(crate) own_init_uid: bool,
    /// Whether the clone made a network namespace, in which loopback is still down.
    pub(crate) new_network: bool,
    /// Memory for one process where no group holds it.
    pub(crate) data_limit: Option<u64>,
}

/// What came with the order to start.
#[derive(Debug)]
pub(crate) struct Descriptors {
    pub(crate) payload: OwnedFd,
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
    pub(crate) result: Option<OwnedFd>,
    pub(crate) artifacts: Option<OwnedFd>,
}

/// What PID 1 and the program's process tell the launcher. Small enough that a pipe takes it whole.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Told {
    /// A step failed.
    Failed(StepFailed),
    /// The program ended.
    Ended {
        /// As `wait` gives it.
        status: i32,
        /// Of the program and the children it waited for.
        cpu: Duration,
        peak_memory_bytes: u64,
        /// No block or no inode was left at the end.
        disk_full: bool,
    },
}

/// Runs as PID 1 of a new jail; never comes back.
pub(crate) fn enter(cell: Cell<'_>) -> ! {
    let status = match init::set_up(&cell) {
        Ok(programs) => init::supervise(&cell, &programs),
        Err(failed) => {
            tell(&cell.report, &Told::Failed(failed));
            1
        }
    };
    sys::exit_now(status)
}

fn tell(report: &OwnedFd, told: &Told) {
    let Ok(mut bytes) = postcard::to_allocvec(told) else { return };
    bytes.truncate(rustix::pipe::PIPE_BUF);
    // If the launcher is gone there is nobody to tell, and this process is about to be killed.
    let _told = rustix::io::write(report, &bytes);
}

/// The layers that hold when a jail of this kind has been entered without a failed step.
pub(crate) fn layers(jail: &Jail, landlock: bool, separate_uid: bool) -> Vec<Layer> {
    use crate::spec::Network;
    let mut layers = vec![
        Layer::UserNs,
        Layer::PidNs,
        Layer::MountNs,
        Layer::IpcNs,
        Layer::UtsNs,
        Layer::CgroupNs,
        Layer::ReadOnlyRoot,
        Layer::NoCapabilities,
        Layer::NoNewPrivs,
        Layer::Rlimits,
        Layer::Seccomp,
    ];
    let writable_host = jail.playground.is_some() || jail.binds.iter().any(|bind| bind.writable);
    let conditional = [
        (jail.network == Network::Own, Layer::NetNs),
        (!writable_host, Layer::DiskQuota),
        (separate_uid, Layer::SeparateUid),
        (landlock, Layer::Landlock),
    ];
    layers.extend(conditional.into_iter().filter(|(holds, _)| *holds).map(|(_, layer)| layer));
    layers
}

/// Writes all of a short text to a file that the kernel reads at once.
fn write_once(fd: impl AsFd, text: &str) -> Result<(), Errno> {
    rustix::io::write(fd, text.as_bytes()).map(drop)
}

/// Waits for one byte; `ESRCH` where the other side went away.
fn await_byte(fd: &OwnedFd) -> Result<(), Errno> {
    let mut byte = [0];
    loop {
        match rustix::io::read(fd, &mut byte) {
            Ok(0) => return Err(Errno::SRCH),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Puts a descriptor at a fixed number, there to survive `execve`.
fn place_at(fd: &OwnedFd, number: i32) -> Result<(), Errno> {
    // SAFETY: takes two numbers; `number` is 0 to 3, which this process's own descriptors were moved away from.
    match unsafe { libc::dup2(fd.as_raw_fd(), number) } {
        -1 => Err(Errno::BADF),
        _ => Ok(()),
    }
}

const _: () = assert!(Step::ALL.len() < 64, "a failed step fits the report pipe");
