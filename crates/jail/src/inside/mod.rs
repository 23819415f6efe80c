//! Code that runs inside a jail before, around and after the program: as PID 1, and as the program's process.
//!
//! ```text
//! PID 1:    id map → cgroup → cgroup namespace → gate → host name → ids → bounding set → mounts → pivot
//!           → fork → drop privileges → task → supervise
//! program:  task → disk size → stdio → rlimits → ids → files → capabilities → no_new_privs → landlock → seccomp
//!           → turn → execve
//! guest:    PID 1 … → pivot → task → disk size → stdio → rlimits → ids → capabilities → no_new_privs → landlock
//!           → seccomp → execve
//! ```
//!
//! The steps before the task depend only on the root tree, so they are done in advance. The task may arrive
//! early, so the program's process has its turn only after PID 1 has dropped its privileges.

mod artifact_collector;
mod artifacts;
mod builder;
mod guest;
mod init;
mod inspect;
mod landlock;
mod mounts;
mod namespace_set;
mod privileges;
mod program;
mod writable_root;
mod zygote_setup;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use belljar_model::layer::Layer;
use belljar_zygote::privileges::ResourceLimit;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::seccomp::SeccompFilter;
use crate::spec::{Jail, JailLimits, RootTree, WORKSPACE};
use crate::step::{Step, StepFailed, step};
use crate::sys;
use crate::wire;

pub(crate) use artifact_collector::{ArtifactCollector, run_collector};
pub(crate) use artifacts::may_hold_artifacts;
pub(crate) use builder::{
    BuilderEvent, BuilderRequest, BuilderSetup, JailPlan, common_step, run_builder, setup_failure,
};
pub(crate) use inspect::ExpectedChild;
#[cfg(test)]
pub(crate) use inspect::inspect;
pub(crate) use landlock::{
    apply_for_mounts as landlock_here, is_supported as landlock_supported, supported_access as landlock_guard,
};
pub(crate) use mounts::{disk_options, is_below_fresh_dir, tmpfs_options};
pub(crate) use namespace_set::NamespaceSetPlan;
pub(crate) use zygote_setup::{ZygoteSetup, run_zygote};

/// Input for building a jail's mounts.
pub(crate) struct MountPlan<'a> {
    pub(crate) tree: &'a RootTree,
    /// Path of the root tree.
    pub(crate) root_path: &'a str,
    /// Detached mounts and their destinations.
    pub(crate) binds: &'a [(OwnedFd, String)],
    /// User and group that own the disk.
    pub(crate) owner: (u32, u32),
    /// Size of the disk, if already known.
    pub(crate) disk_bytes: Option<u64>,
    /// Mount of a disk in a file; without one, the disk is in memory.
    pub(crate) disk_mount: Option<&'a OwnedFd>,
    /// Mount of the image, if the root is writable.
    pub(crate) lower_mount: Option<&'a OwnedFd>,
}

impl MountPlan<'_> {
    /// Returns whether a host directory is the workspace.
    fn has_host_workspace(&self) -> bool {
        self.binds.iter().any(|(_, destination)| destination == WORKSPACE)
    }
}

/// Input of a PID 1, before it is known what will run. The clone copies it; nothing else in the jail owns it.
pub(crate) struct JailSetup<'a> {
    pub(crate) mounts: MountPlan<'a>,
    /// Cgroup join fds, to which PID 1 writes.
    pub(crate) cgroup_join_fds: &'a [OwnedFd],
    /// Pipe that becomes readable once the id map is written.
    pub(crate) id_map_ready: OwnedFd,
    /// Socket on which PID 1 receives its task.
    pub(crate) init_socket: OwnedFd,
    /// One socket for each command's process, on which it receives its task.
    pub(crate) command_sockets: Vec<OwnedFd>,
    /// Pipe to which failures and the end are reported.
    pub(crate) report: OwnedFd,
    pub(crate) init_filter: &'a SeccompFilter,
    /// Filter of commands, whose notifications the launcher receives.
    pub(crate) program_filter: &'a SeccompFilter,
    /// The guest's binary, if PID 1 becomes the guest of a sandbox.
    pub(crate) guest_binary: Option<&'a OwnedFd>,
    /// Socket to which the gate's descriptors of its network are sent.
    pub(crate) gate_socket: Option<&'a OwnedFd>,
    /// Whether a TUN device leads to the gate, in place of a proxy's socket.
    pub(crate) has_tun: bool,
    pub(crate) has_landlock: bool,
    /// Whether PID 1 has a user id other than the program's.
    pub(crate) own_init_uid: bool,
    /// Whether the clone created a network namespace, in which loopback is still down.
    pub(crate) new_network: bool,
    /// Whether a cgroup limits the number of processes.
    pub(crate) cgroup_limits_processes: bool,
    /// Whether no cgroup limits memory, so that each process is limited individually.
    pub(crate) limit_memory_per_process: bool,
}

impl JailSetup<'_> {
    /// Returns whether the root is writable, and programs run as its root user.
    fn has_writable_root(&self) -> bool {
        self.mounts.lower_mount.is_some()
    }
}

/// A report of PID 1 or a command's process to the launcher; small enough for a single pipe write.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum SetupReport {
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
pub(crate) fn run_pid1(setup: &JailSetup<'_>) -> ! {
    let status = match init::set_up_and_supervise(setup) {
        Ok(status) => status,
        Err(failed) => {
            send_report(&setup.report, &SetupReport::Failed(failed));
            1
        }
    };
    sys::exit_now(status)
}

/// Returns the reported failure, if any. The reporting process is gone, so the report is waited for only
/// briefly.
pub(crate) fn read_reported_failure(report: BorrowedFd<'_>) -> Option<StepFailed> {
    let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    let mut polled = [PollFd::from_borrowed_fd(report, PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&timeout)).ok().filter(|ready| *ready > 0)?;
    let mut buffer = [0; rustix::pipe::PIPE_BUF];
    let read = rustix::io::read(report, &mut buffer).ok()?;
    match postcard::from_bytes(&buffer[..read]).ok()? {
        SetupReport::Failed(failed) => Some(failed),
        SetupReport::Ended { .. } | SetupReport::Ready => None,
    }
}

/// Waits until a namespace set is created.
fn await_ready(report: BorrowedFd<'_>) -> Result<(), StepFailed> {
    let mut buffer = [0; rustix::pipe::PIPE_BUF];
    let lost = |errno| StepFailed::new(Step::Init, "(it was killed)", errno);
    let read = rustix::io::retry_on_intr(|| rustix::io::read(report, &mut buffer)).map_err(lost)?;
    match postcard::from_bytes(&buffer[..read]) {
        Ok(SetupReport::Ready) => Ok(()),
        Ok(SetupReport::Failed(failed)) => Err(failed),
        Ok(SetupReport::Ended { .. }) | Err(_) => Err(lost(Errno::CHILD)),
    }
}

fn send_report(pipe: &OwnedFd, report: &SetupReport) {
    let Ok(mut bytes) = postcard::to_allocvec(report) else { return };
    bytes.truncate(rustix::pipe::PIPE_BUF);
    // If the launcher is gone, there is no reader, and this process is about to be killed.
    let _sent = rustix::io::write(pipe, &bytes);
}

/// Returns the layers in force after such a jail was entered without a failed step.
pub(crate) fn layers(jail: &Jail, landlock: bool, separate_uid: bool) -> Vec<Layer> {
    use crate::spec::JailNetwork;
    let mut layers = vec![
        Layer::UserNs,
        Layer::PidNs,
        Layer::MountNs,
        Layer::IpcNs,
        Layer::UtsNs,
        Layer::CgroupNs,
        Layer::NoNewPrivs,
        Layer::Rlimits,
        Layer::Seccomp,
    ];
    let writable_host = jail.host_workspace.is_some() || jail.binds.iter().any(|bind| bind.writable);
    let conditional = [
        (jail.network != JailNetwork::Host, Layer::NetNs),
        (!jail.writable_root, Layer::ReadOnlyRoot),
        (!jail.writable_root, Layer::NoCapabilities),
        (!writable_host, Layer::DiskQuota),
        (separate_uid, Layer::SeparateUid),
        (landlock, Layer::Landlock),
    ];
    layers.extend(conditional.into_iter().filter(|(holds, _)| *holds).map(|(_, layer)| layer));
    layers
}

/// Returns the resource limits of each process of the program.
pub(crate) fn resource_limits(
    limits: &JailLimits,
    processes_of_ours: u64,
    hold_each_process: bool,
) -> Vec<ResourceLimit> {
    let limit = |resource: libc::__rlimit_resource_t, soft, hard| ResourceLimit {
        resource: u64::from(resource),
        soft,
        hard,
    };
    let fixed = |resource, value| limit(resource, value, value);
    let mut limits_to_set = vec![
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
        limits_to_set.push(fixed(libc::RLIMIT_DATA, limits.memory_bytes));
    }
    limits_to_set
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
pub(crate) fn own_process_count(own_init_uid: bool, group_counts_processes: bool) -> u64 {
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
fn await_task(socket: &OwnedFd) -> Result<Option<(Jail, Vec<OwnedFd>)>, StepFailed> {
    step(Step::Task, "", || wire::receive_one::<Jail>(socket.as_fd()))
}

/// Duplicates a descriptor to a fixed number, where it survives `execve`.
fn dup_to(fd: &OwnedFd, number: i32) -> Result<(), Errno> {
    // SAFETY: takes two numbers; `number` is 0 to 3, which this process's own descriptors were moved away
    // from.
    match unsafe { libc::dup2(fd.as_raw_fd(), number) } {
        -1 => Err(Errno::BADF),
        _ => Ok(()),
    }
}

const _: () = assert!(Step::ALL.len() < 64, "a failed step fits the report pipe");
