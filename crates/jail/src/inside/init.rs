//! PID 1 of a jail: sets the place up, starts the program, reaps, and tells how it ended. Never the tenant's code.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Signal};

use super::{Cell, Told, artifacts, await_byte, mounts, program, rights, tell, write_once};
use crate::fault;
use crate::payload::{self, Payload};
use crate::spec::{INNER_UID, Layer, WORKSPACE};
use crate::step::{Step, StepFailed, step};
use crate::sys::{self, Cloned};

/// One started command, and how to let it go on where it waits for its turn.
pub(super) struct Started {
    pid: i32,
    go: Option<OwnedFd>,
}

/// Everything up to the moment at which the program may run.
pub(super) fn set_up(cell: &Cell<'_>) -> Result<Vec<Started>, StepFailed> {
    step(Step::IdMap, "", || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        await_byte(&cell.go)?;
        // Not before the map stands: what is not dumpable belongs to root in /proc, also the map of a user's jail.
        die_with_launcher()
    })?;
    step(Step::JoinCgroup, "", || cell.groups.iter().try_for_each(|tasks| write_once(tasks, "0")))?;
    step(Step::CgroupNamespace, "", || {
        if fault::without(Layer::CgroupNs) { Ok(()) } else { sys::unshare(libc::CLONE_NEWCGROUP) }
    })?;
    if cell.new_network {
        step(Step::Network, "", sys::loopback_up)?;
    }
    step(Step::Hostname, "", || rustix::system::sethostname(b"sandbox"))?;
    let uid = rights::init_uid(cell.own_init_uid);
    step(Step::Ids, "", || rights::become_user(uid, uid))?;
    let payload = step(Step::Inbox, "", || Payload::open(rustix::io::dup(&cell.descriptors.payload)?))?;
    mounts::build(cell, &payload)?;
    let started =
        (0..cell.jail.commands.len()).map(|index| start(cell, &payload, index)).collect::<Result<Vec<_>, _>>()?;
    drop(payload);
    step(Step::Init, "", || confine_self(cell, &started, uid))?;
    Ok(started)
}

/// Nothing in here outlives the launcher. The setting is lost at every change of ids, so it is made anew then.
fn die_with_launcher() -> Result<(), Errno> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
}

/// Starts a command; all but the first wait for their turn.
fn start(cell: &Cell<'_>, payload: &Payload, index: usize) -> Result<Started, StepFailed> {
    step(Step::Fork, "", || {
        let park = if index == 0 { None } else { Some(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?) };
        match sys::clone(0, None)? {
            Cloned::Child => program::become_command(cell, payload, index, park.map(|(read, _)| read)),
            Cloned::Parent { pid, .. } => Ok(Started { pid, go: park.map(|(_, write)| write) }),
        }
    })
}

/// PID 1 keeps no right but the saved id with which it collects artifacts as the sandbox user.
fn confine_self(cell: &Cell<'_>, commands: &[Started], uid: u32) -> Result<(), Errno> {
    close_all_but(cell, commands)?;
    rights::become_user(uid, INNER_UID)?;
    rights::drop_capabilities()?;
    die_with_launcher()?;
    if launcher_is_gone(&cell.report) {
        return Err(Errno::SRCH);
    }
    rights::forbid_new_privileges()?;
    if fault::without(Layer::Seccomp) {
        return Ok(());
    }
    cell.filter.install().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
}

/// PID 1 came with a copy of every descriptor of the launcher's; it needs two of them, and the parked commands'.
fn close_all_but(cell: &Cell<'_>, commands: &[Started]) -> Result<(), Errno> {
    let mut kept: Vec<i32> = [Some(&cell.report), cell.descriptors.artifacts.as_ref()]
        .into_iter()
        .flatten()
        .chain(commands.iter().filter_map(|command| command.go.as_ref()))
        .map(AsRawFd::as_raw_fd)
        .collect();
    kept.sort_unstable();
    let mut first = 0;
    for fd in kept {
        sys::close_range(first, fd - 1)?;
        first = fd + 1;
    }
    sys::close_range(first, i32::MAX)
}

/// The launcher may have died between two settings of the death signal; then nobody reads the report any more.
fn launcher_is_gone(report: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(report, PollFlags::empty())];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut polled, Some(&now)).is_err() || polled[0].revents().contains(PollFlags::ERR)
}

/// Reaps until the program has ended, and tells how.
pub(super) fn supervise(cell: &Cell<'_>, commands: &[Started]) -> i32 {
    let mut current = 0;
    let mut cpu = Duration::ZERO;
    loop {
        let reaped = match sys::wait(-1) {
            Ok(reaped) => reaped,
            Err(Errno::INTR) => continue,
            Err(errno) => {
                tell(&cell.report, &Told::Failed(StepFailed::new(Step::Init, "", errno)));
                return 1;
            }
        };
        if reaped.pid != commands[current].pid {
            continue;
        }
        cpu += Duration::from_micros(reaped.cpu_micros);
        current += 1;
        let next = commands.get(current).and_then(|next| next.go.as_ref());
        if let (0, Some(go)) = (reaped.status, next) {
            let _released = rustix::io::write(go, b"1");
            continue;
        }
        let disk_full = disk_is_full();
        leave(cell);
        let (status, peak_memory_bytes) = (reaped.status, reaped.peak_memory_bytes);
        tell(&cell.report, &Told::Ended { status, cpu, peak_memory_bytes, disk_full });
        return 0;
    }
}

/// `/tmp` is on the one file system that everything written shares.
fn disk_is_full() -> bool {
    rustix::fs::statfs("/tmp").is_ok_and(|disk| disk.f_bfree == 0 || disk.f_ffree == 0)
}

/// After the program: as the sandbox user, collect what it left and remove what was only there for the run.
fn leave(cell: &Cell<'_>) {
    let jail = cell.jail;
    let Some(pipe) = cell.descriptors.artifacts.as_ref().filter(|_| jail.artifacts.is_some()) else {
        return remove_temporary(cell);
    };
    if !has_artifacts() {
        return remove_temporary(cell);
    }
    if rights::become_user(INNER_UID, INNER_UID).is_ok()
        && let Some(rules) = &jail.artifacts
    {
        end_survivors();
        artifacts::collect(rules, pipe);
    }
    remove_temporary(cell);
}

/// Survivors could swap files under the collector. All of them are descendants of PID 1, so when there is nothing
/// left to wait for there is nobody left.
fn end_survivors() {
    sys::kill_all_others();
    while !matches!(sys::wait(-1), Err(Errno::CHILD)) {}
}

fn has_artifacts() -> bool {
    rustix::fs::stat(format!("{WORKSPACE}/artifacts")).is_ok()
}

fn remove_temporary(cell: &Cell<'_>) {
    let Some(name) = &cell.jail.temporary else { return };
    if rights::become_user(INNER_UID, INNER_UID).is_err() {
        return;
    }
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    if let Ok(folder) = rustix::fs::open(WORKSPACE, flags, rustix::fs::Mode::empty()) {
        payload::remove(folder.as_fd(), name);
    }
}
