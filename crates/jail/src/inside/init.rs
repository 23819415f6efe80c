//! PID 1 of a jail: sets up the jail, starts the program, reaps, and reports how the program ended. It never
//! runs tenant code.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use belljar_model::layer::Layer;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::DumpableBehavior;

use super::{
    JailSetup, SetupReport, artifacts, await_byte, await_task, guest, mounts, privileges, program,
    send_report, writable_root, write_once,
};
use crate::fault;
use crate::proxy_sockets;
use crate::spec::{INNER_UID, Jail, WORKSPACE};
use crate::step::{Step, StepFailed, step};
use crate::sys::{self, CloneResult};

/// A command's process that waits for its turn, and the pipe that releases it.
struct WaitingCommand {
    pid: i32,
    go: OwnedFd,
}

impl WaitingCommand {
    fn release(&self) -> Result<(), Errno> {
        rustix::io::write(&self.go, b"1").map(drop)
    }
}

/// Runs as PID 1, and returns its exit status.
pub(super) fn set_up_and_supervise(setup: &JailSetup<'_>) -> Result<i32, StepFailed> {
    let uid = if setup.has_writable_root() { 0 } else { privileges::init_uid(setup.own_init_uid) };
    let inbox = set_up(setup, uid)?;
    if let Some(binary) = setup.guest_binary {
        drop(inbox);
        return guest::become_guest(setup, binary);
    }
    let started = (0..setup.command_sockets.len())
        .map(|index| fork_command(setup, &inbox, index))
        .collect::<Result<Vec<_>, _>>()?;
    drop(inbox);
    // The task may have arrived already, but no command may continue before PID 1 has dropped its privileges.
    step(Step::Init, "", || {
        confine_pid1(setup, started.iter().map(|command| &command.go), uid)?;
        started.first().map_or(Ok(()), WaitingCommand::release)
    })?;
    let Some((jail, fds)) = await_task(&setup.init_socket)? else { return Ok(0) };
    Ok(supervise(setup, &jail, fds.first(), &started))
}

/// Performs all setup that does not depend on what will run, and returns the inbox.
fn set_up(setup: &JailSetup<'_>, uid: u32) -> Result<OwnedFd, StepFailed> {
    step(Step::IdMap, "", || {
        sys::die_with_parent()?;
        close_all_but_own(setup)?;
        await_byte(&setup.id_map_ready)?;
        // Only after the id map is written: a process that is not dumpable belongs to root in /proc,
        // including the map of an unprivileged user's jail.
        die_with_launcher()
    })?;
    step(Step::JoinCgroup, "", || setup.cgroup_join_fds.iter().try_for_each(|tasks| write_once(tasks, "0")))?;
    step(Step::CgroupNamespace, "", || {
        if fault::is_left_out(Layer::CgroupNs) { Ok(()) } else { sys::unshare(libc::CLONE_NEWCGROUP) }
    })?;
    if setup.new_network {
        step(Step::Network, "", sys::loopback_up)?;
        match setup.gate_socket {
            Some(gate) if setup.has_tun => {
                step(Step::NetworkDevice, "", || proxy_sockets::create_with_device_and_send(gate))?
            }
            Some(gate) => step(Step::Network, "with a gate", || proxy_sockets::create_and_send(gate))?,
            None => {}
        }
    }
    step(Step::Hostname, "", || {
        if fault::is_left_out(Layer::UtsNs) { Ok(()) } else { rustix::system::sethostname(b"sandbox") }
    })?;
    step(Step::Ids, "", || {
        privileges::become_user(uid, uid)?;
        die_with_launcher()
    })?;
    if setup.has_writable_root() {
        step(Step::Capabilities, "", privileges::limit_bounding_set)?;
        return writable_root::build(&setup.mounts);
    }
    step(Step::Capabilities, "", privileges::clear_bounding_set)?;
    mounts::build_jail_root(&setup.mounts)
}

/// Makes this process die with the launcher, and hides its memory and /proc files from others.
pub(super) fn die_with_launcher() -> Result<(), Errno> {
    sys::die_with_parent()?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
}

/// Starts a command's process. It waits for its task, and then for its turn.
fn fork_command(setup: &JailSetup<'_>, inbox: &OwnedFd, index: usize) -> Result<WaitingCommand, StepFailed> {
    step(Step::Fork, "", || {
        let (turn, go) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        match sys::clone(0, None)? {
            CloneResult::Child => {
                // With its own copy open, it would wait forever if PID 1 died.
                drop(go);
                program::run_command_process(setup, inbox, index, &turn)
            }
            CloneResult::Parent { pid, .. } => Ok(WaitingCommand { pid, go }),
        }
    })
}

/// Drops the privileges of PID 1, except the saved id with which it collects artifacts as the sandbox user.
fn confine_pid1<'a>(
    setup: &'a JailSetup<'_>,
    kept_fds: impl Iterator<Item = &'a OwnedFd>,
    uid: u32,
) -> Result<(), Errno> {
    close_all_but(0, [&setup.report, &setup.init_socket].into_iter().chain(kept_fds))?;
    privileges::become_user(uid, INNER_UID)?;
    privileges::drop_capabilities()?;
    die_with_launcher()?;
    if launcher_is_gone(&setup.report) {
        return Err(Errno::SRCH);
    }
    privileges::set_no_new_privs()?;
    if fault::is_left_out(Layer::Seccomp) { Ok(()) } else { setup.init_filter.install() }
}

/// Closes the copies of the launcher's descriptors, except those meant for this jail.
fn close_all_but_own(setup: &JailSetup<'_>) -> Result<(), Errno> {
    let own = [&setup.id_map_ready, &setup.init_socket, &setup.report].into_iter();
    let binds = setup.mounts.binds.iter().map(|(mount, _)| mount);
    // The program's descriptor numbers stay occupied, so that no other descriptor is opened at them.
    sys::reserve_standard_fds()?;
    close_all_but(
        4,
        own.chain(&setup.command_sockets)
            .chain(setup.cgroup_join_fds)
            .chain(binds)
            .chain(setup.guest_binary)
            .chain(setup.mounts.disk_mount)
            .chain(setup.mounts.lower_mount)
            .chain(setup.gate_socket),
    )
}

pub(super) fn close_all_but<'a>(
    mut first: i32,
    kept_fds: impl Iterator<Item = &'a OwnedFd>,
) -> Result<(), Errno> {
    let mut kept_fds: Vec<i32> = kept_fds.map(AsRawFd::as_raw_fd).collect();
    kept_fds.sort_unstable();
    for fd in kept_fds {
        sys::close_range(first, fd - 1)?;
        first = fd + 1;
    }
    sys::close_range(first, i32::MAX)
}

/// Returns whether the launcher died before the death signal was set again: then the report pipe has no
/// reader.
pub(super) fn launcher_is_gone(report: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(report, PollFlags::empty())];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut polled, Some(&now)).is_err() || polled[0].revents().contains(PollFlags::ERR)
}

/// Reaps until the program has ended, and reports how.
fn supervise(
    setup: &JailSetup<'_>,
    jail: &Jail,
    artifacts: Option<&OwnedFd>,
    commands: &[WaitingCommand],
) -> i32 {
    let mut current = 0;
    let mut cpu = Duration::ZERO;
    loop {
        let reaped = match sys::wait_child(-1) {
            Ok(reaped) => reaped,
            Err(Errno::INTR) => continue,
            Err(errno) => {
                send_report(&setup.report, &SetupReport::Failed(StepFailed::new(Step::Init, "", errno)));
                return 1;
            }
        };
        if reaped.pid != commands[current].pid {
            continue;
        }
        cpu += Duration::from_micros(reaped.cpu_micros);
        current += 1;
        if let (0, Some(next)) = (reaped.status, commands.get(current)) {
            // If the next command is already dead, it is reaped next and has reported its own failure.
            let _released = next.release();
            continue;
        }
        let disk_full = disk_is_full();
        collect_artifacts(jail, artifacts);
        let (status, peak_memory_bytes) = (reaped.status, reaped.peak_memory_bytes);
        send_report(&setup.report, &SetupReport::Ended { status, cpu, peak_memory_bytes, disk_full });
        return 0;
    }
}

/// Returns whether the disk is full. `/tmp` is on the file system that holds everything writable.
fn disk_is_full() -> bool {
    rustix::fs::statfs("/tmp").is_ok_and(|disk| disk.f_bfree == 0 || disk.f_ffree == 0)
}

/// Collects the artifacts as the sandbox user, after the program has ended.
fn collect_artifacts(jail: &Jail, artifacts: Option<&OwnedFd>) {
    let (Some(pipe), Some(rules)) = (artifacts, &jail.artifacts) else { return };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(workspace) = rustix::fs::open(WORKSPACE, flags, Mode::empty()) else { return };
    // Another file system says nothing about its empty directories.
    let left = jail.host_workspace.is_some() || artifacts::may_hold_artifacts(rules, workspace.as_fd());
    if left && privileges::become_user(INNER_UID, INNER_UID).is_ok() {
        kill_survivors();
        artifacts::collect(rules, workspace.as_fd(), pipe);
    }
}

/// Kills remaining processes, which could replace files during the collection. All are descendants of PID 1,
/// so once there is nothing left to wait for, no process is left.
fn kill_survivors() {
    sys::kill_all_others();
    while !matches!(sys::wait_child(-1), Err(Errno::CHILD)) {}
}
