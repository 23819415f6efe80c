//! What happens inside a jail before, around and after the program, as the new PID 1 and as the program's process.
//!
//! ```text
//! PID 1:    id map → cgroup → host name → mounts → pivot → fork → drop rights → ⋯ order ⋯ → supervise
//! program:  ⋯ order ⋯ → stdio → rlimits → ids → files → capabilities → no_new_privs → landlock → seccomp → turn → execve
//! guest:    PID 1 … → pivot → ⋯ order ⋯ → stdio → rlimits → ids → capabilities → no_new_privs → landlock → seccomp → execve
//! ```
//!
//! What comes before the order depends on nothing but the root tree, so it is done ahead of time. The order may be
//! there early, so the program's process has its turn only when PID 1 has given up its rights.

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

/// What a place is built from.
pub(crate) struct Ground<'a> {
    pub(crate) tree: &'a RootTree,
    /// Where the root tree stands.
    pub(crate) root: &'a str,
    /// Detached mounts and where they go.
    pub(crate) binds: &'a [(OwnedFd, String)],
    /// User and group who can write to the disk.
    pub(crate) owner: (u32, u32),
    /// Size of the disk, where it is known already.
    pub(crate) disk_bytes: Option<u64>,
}

impl Ground<'_> {
    /// Whether a host folder is the workspace.
    fn has_playground(&self) -> bool {
        self.binds.iter().any(|(_, destination)| destination == WORKSPACE)
    }
}

/// What PID 1 starts with, before it knows what it is for: copied by the clone, owned by nobody else inside.
pub(crate) struct Shell<'a> {
    pub(crate) ground: Ground<'a>,
    /// Control groups to join by writing to these.
    pub(crate) groups: &'a [OwnedFd],
    /// Readable once the id map stands.
    pub(crate) go: OwnedFd,
    /// Where PID 1 learns what will run.
    pub(crate) orders: OwnedFd,
    /// Where each process that will run in here learns what it is to be.
    pub(crate) seats: Vec<OwnedFd>,
    /// Where failures and the ending are told.
    pub(crate) report: OwnedFd,
    pub(crate) filter: &'a Filter,
    /// The filter of commands, to which the launcher listens.
    pub(crate) heard: &'a Filter,
    /// What PID 1 becomes, where the jail stays.
    pub(crate) guest: Option<&'a OwnedFd>,
    /// Where the sockets of its network's gate go.
    pub(crate) gate: Option<&'a OwnedFd>,
    pub(crate) landlock: bool,
    /// Whether PID 1 has a user id other than the program's.
    pub(crate) own_init_uid: bool,
    /// Whether the clone made a network namespace, in which loopback is still down.
    pub(crate) new_network: bool,
    /// Whether a control group holds the number of processes.
    pub(crate) group_counts_processes: bool,
    /// Whether no control group holds memory, so that each process is held for itself.
    pub(crate) hold_each_process: bool,
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
    /// A plot is made.
    Ready,
}

/// Runs as PID 1 of a new jail; never comes back.
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

/// The failure that was told, if there was one; whoever told it is gone, so it does not take long to arrive.
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

/// Waits until a plot is made.
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
        (jail.network != Network::Host, Layer::NetNs),
        (!writable_host, Layer::DiskQuota),
        (separate_uid, Layer::SeparateUid),
        (landlock, Layer::Landlock),
    ];
    layers.extend(conditional.into_iter().filter(|(holds, _)| *holds).map(|(_, layer)| layer));
    layers
}

/// What the program's process, and all that it starts, are held to each for itself.
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
    // Without a control group this holds each process, not the group, so no receipt counts it. It is private data
    // and not address space, because many runtimes reserve far more of that than they use.
    if hold_each_process {
        wanted.push(fixed(libc::RLIMIT_DATA, limits.memory_bytes));
    }
    wanted
}

/// What a zygote is held to. Limits that requests choose stay open for its children, whose own are lower.
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

/// How many processes of ours the kernel counts as the program's: PID 1 where it is the same user. Where a control
/// group counts as well it is to refuse first, because it says that it did.
pub(crate) fn processes_of_ours(own_init_uid: bool, group_counts_processes: bool) -> u64 {
    u64::from(!own_init_uid) + if group_counts_processes { 2 } else { 0 }
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

/// Waits to be told what to run; nothing where the launcher has no use for this jail.
fn await_order(orders: &OwnedFd) -> Result<Option<(Jail, Vec<OwnedFd>)>, StepFailed> {
    step(Step::Order, "", || wire::receive_one::<Jail>(orders.as_fd()))
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
