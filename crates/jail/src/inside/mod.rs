//! Code that runs inside a jail before, around and after the program: as PID 1, and as the program's process.
//!
//! ```text
//! PID 1:    id map → cgroup → host name → mounts → pivot → fork → drop privileges → task → supervise
//! program:  task → stdio → rlimits → ids → files → capabilities → no_new_privs → landlock → seccomp → turn → execve
//! guest:    PID 1 … → pivot → task → stdio → rlimits → ids → capabilities → no_new_privs → landlock → seccomp → execve
//! ```
//!
//! The steps before the task depend only on the root tree, so they are done in advance. The task may arrive
//! early, so the program's process has its turn only after PID 1 has dropped its privileges.

mod artifacts;
mod builder;
mod collector;
mod guest;
mod init;
mod inspect;
mod landlock;
mod mounts;
mod nest;
mod plot;
mod program;
mod rights;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::bare::rights::ResourceLimit;
use crate::seccomp::Filter;
use crate::spec::{Jail, Layer, Limits, RootTree, WORKSPACE};
use crate::step::{Step, StepFailed, step};
use crate::sys;
use crate::wire;

pub(crate) use builder::{
    Builder, BuilderNotice, BuilderOrder, JailPlan, enter_builder, failure_of, step_of,
};
pub(crate) use collector::{Collector, enter_collector};
pub(crate) use inspect::Expected;
#[cfg(test)]
pub(crate) use inspect::inspect;
pub(crate) use landlock::{
    apply_here as landlock_here, guard as landlock_guard, supported as landlock_supported,
};
pub(crate) use mounts::{disk_options, disk_size, lies_in_place};
pub(crate) use nest::{Nest, enter_nest};
pub(crate) use plot::NewPlot;

/// Input for building a jail's mounts.
pub(crate) struct Ground<'a> {
    pub(crate) tree: &'a RootTree,
    /// Path of the root tree.
    pub(crate) root: &'a str,
    /// Detached mounts and their destinations.
    pub(crate) binds: &'a [(OwnedFd, String)],
    /// User and group that own the disk.
    pub(crate) owner: (u32, u32),
    /// Size of the disk, if already known.
    pub(crate) disk_bytes: Option<u64>,
}

impl Ground<'_> {
    /// Returns whether a host directory is the workspace.
    fn has_playground(&self) -> bool {
        self.binds.iter().any(|(_, destination)| destination == WORKSPACE)
    }
}

/// Input of a PID 1, before it is known what will run. The clone copies it; nothing else in the jail owns it.
pub(crate) struct Shell<'a> {
    pub(crate) ground: Ground<'a>,
    /// Cgroup join fds, to which PID 1 writes.
    pub(crate) groups: &'a [OwnedFd],
    /// Pipe that becomes readable once the id map is written.
    pub(crate) go: OwnedFd,
    /// Socket on which PID 1 receives its task.
    pub(crate) orders: OwnedFd,
    /// One socket for each command's process, on which it receives its task.
    pub(crate) seats: Vec<OwnedFd>,
    /// Pipe to which failures and the end are reported.
    pub(crate) report: OwnedFd,
    pub(crate) filter: &'a Filter,
    /// Filter of commands, whose notifications the launcher receives.
    pub(crate) heard: &'a Filter,
    /// The guest's binary, if PID 1 becomes the guest of a sandbox.
    pub(crate) guest: Option<&'a OwnedFd>,
    /// Socket to which the proxy sockets of its network are sent.
    pub(crate) gate: Option<&'a OwnedFd>,
    pub(crate) landlock: bool,
    /// Whether PID 1 has a user id other than the program's.
    pub(crate) own_init_uid: bool,
    /// Whether the clone created a network namespace, in which loopback is still down.
    pub(crate) new_network: bool,
    /// Whether a cgroup limits the number of processes.
    pub(crate) group_counts_processes: bool,
    /// Whether no cgroup limits memory, so that each process is limited individually.
    pub(crate) hold_each_process: bool,
}

/// A report of PID 1 or a command's process to the launcher; small enough for a single pipe write.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Told {
    /// A setup step failed.
    Failed(StepFailed),
    /// The program ended.
    Ended {
        /// Status in the encoding of `wait`.
        status: i32,
        /// CPU time of the program and the children it waited for.
        cpu: Duration,
        peak_memory_bytes: u64,
        /// Whether the disk had no free block or no free inode at the end.
        disk_full: bool,
    },
    /// A namespace set was created.
    Ready,
}

/// Runs as PID 1 of a new jail; never returns.
pub(crate) fn enter(shell: &Shell<'_>) -> ! {
    let status = match init::live(shell) {
        Ok(status) => status,
        Err(failed) => {
            tell(&shell.report, &Told::Failed(failed));
            1
        }
    };
    sys::exit_now(status)
}

/// Returns the reported failure, if any. The reporting process is gone, so the report is waited for only
/// briefly.
pub(crate) fn read_failure(told: BorrowedFd<'_>) -> Option<StepFailed> {
    let patience = rustix::time::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    let mut polled = [PollFd::from_borrowed_fd(told, PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&patience)).ok().filter(|ready| *ready > 0)?;
    let mut buffer = [0; rustix::pipe::PIPE_BUF];
    let read = rustix::io::read(told, &mut buffer).ok()?;
    match postcard::from_bytes(&buffer[..read]).ok()? {
        Told::Failed(failed) => Some(failed),
        Told::Ended { .. } | Told::Ready => None,
    }
}

/// Waits until a namespace set is created.
fn await_ready(told: BorrowedFd<'_>) -> Result<(), StepFailed> {
    let mut buffer = [0; rustix::pipe::PIPE_BUF];
    let lost = |errno| StepFailed::new(Step::Init, "(it was killed)", errno);
    let read = rustix::io::retry_on_intr(|| rustix::io::read(told, &mut buffer)).map_err(lost)?;
    match postcard::from_bytes(&buffer[..read]) {
        Ok(Told::Ready) => Ok(()),
        Ok(Told::Failed(failed)) => Err(failed),
        Ok(Told::Ended { .. }) | Err(_) => Err(lost(Errno::CHILD)),
    }
}

fn tell(report: &OwnedFd, told: &Told) {
    let Ok(mut bytes) = postcard::to_allocvec(told) else { return };
    bytes.truncate(rustix::pipe::PIPE_BUF);
    // If the launcher is gone, there is no reader, and this process is about to be killed.
    let _told = rustix::io::write(report, &bytes);
}

/// Returns the layers in force after such a jail was entered without a failed step.
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
        (jail.network != Network::Host, Layer::NetNs),
        (!writable_host, Layer::DiskQuota),
        (separate_uid, Layer::SeparateUid),
        (landlock, Layer::Landlock),
    ];
    layers.extend(conditional.into_iter().filter(|(holds, _)| *holds).map(|(_, layer)| layer));
    layers
}

/// Returns the resource limits of each process of the program.
pub(crate) fn resource_limits(
    limits: &Limits,
    processes_of_ours: u64,
    hold_each_process: bool,
) -> Vec<ResourceLimit> {
    let limit = |resource: libc::__rlimit_resource_t, soft, hard| ResourceLimit {
        resource: u64::from(resource),
        soft,
        hard,
    };
    let fixed = |resource, value| limit(resource, value, value);
    let mut wanted = vec![
        fixed(libc::RLIMIT_CORE, 0),
        fixed(libc::RLIMIT_NOFILE, limits.open_files),
        fixed(libc::RLIMIT_FSIZE, limits.disk_bytes),
        fixed(libc::RLIMIT_NPROC, u64::from(limits.processes) + processes_of_ours),
        fixed(libc::RLIMIT_MEMLOCK, 64 << 10),
        limit(libc::RLIMIT_STACK, 8 << 20, 64 << 20),
        fixed(libc::RLIMIT_SIGPENDING, 1_024),
        fixed(libc::RLIMIT_MSGQUEUE, 0),
        fixed(libc::RLIMIT_NICE, 0),
        fixed(libc::RLIMIT_RTPRIO, 0),
    ];
    // Without a cgroup this limits each process, not the group, so no receipt counts it. It limits private
    // data rather than address space, because many runtimes reserve far more address space than they use.
    if hold_each_process {
        wanted.push(fixed(libc::RLIMIT_DATA, limits.memory_bytes));
    }
    wanted
}

/// Returns the resource limits of a zygote. Limits that requests choose are left open for its children, whose
/// own are lower.
pub(crate) fn zygote_limits() -> Vec<ResourceLimit> {
    let fixed = |resource: libc::__rlimit_resource_t, value| ResourceLimit {
        resource: u64::from(resource),
        soft: value,
        hard: value,
    };
    vec![
        fixed(libc::RLIMIT_CORE, 0),
        fixed(libc::RLIMIT_MEMLOCK, 64 << 10),
        fixed(libc::RLIMIT_SIGPENDING, 1_024),
        fixed(libc::RLIMIT_MSGQUEUE, 0),
        fixed(libc::RLIMIT_NICE, 0),
        fixed(libc::RLIMIT_RTPRIO, 0),
    ]
}

/// Returns how many of our processes the kernel counts as the program's: PID 1 if it has the same user id. If
/// a cgroup also counts, the rlimit is two higher, so that the cgroup, which counts its refusals, refuses
/// first.
pub(crate) fn processes_of_ours(own_init_uid: bool, group_counts_processes: bool) -> u64 {
    u64::from(!own_init_uid) + if group_counts_processes { 2 } else { 0 }
}

/// Writes a short text with a single `write`, as kernel files require.
fn write_once(fd: impl AsFd, text: &str) -> Result<(), Errno> {
    rustix::io::write(fd, text.as_bytes()).map(drop)
}

/// Waits for one byte. Fails with `ESRCH` if the other end is closed.
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

/// Waits for a task; `None` if the launcher has no use for this jail.
fn await_order(orders: &OwnedFd) -> Result<Option<(Jail, Vec<OwnedFd>)>, StepFailed> {
    step(Step::Order, "", || wire::receive_one::<Jail>(orders.as_fd()))
}

/// Duplicates a descriptor to a fixed number, where it survives `execve`.
fn place_at(fd: &OwnedFd, number: i32) -> Result<(), Errno> {
    // SAFETY: takes two numbers; `number` is 0 to 3, which this process's own descriptors were moved away
    // from.
    match unsafe { libc::dup2(fd.as_raw_fd(), number) } {
        -1 => Err(Errno::BADF),
        _ => Ok(()),
    }
}

const _: () = assert!(Step::ALL.len() < 64, "a failed step fits the report pipe");
