//! Settings and counters of cgroup v2, and preparing a directory to hold limited groups.
//!
//! A controller is available in a group if the parent directory lists it in `cgroup.subtree_control`. A
//! directory other than the root of the hierarchy may contain either processes or such groups, not both. So
//! if the launcher's own group is all it was given, the processes in it are moved into a child first.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, fgetxattr, mkdirat};
use rustix::io::Errno;

use super::files::{self, GroupDir};
use super::obstacle::Obstacle;
use super::{CPU_PERIOD_US, Controller, Error, GroupLimits};

const SUBTREE_CONTROL: &str = "cgroup.subtree_control";
pub(super) const MEMORY_LIMIT: &str = "memory.max";
pub(super) const MEMBERS: &str = "cgroup.procs";

/// Writes the settings that are the same for every run, in advance.
pub(super) fn apply_defaults(group: GroupDir<'_>, controller: Controller) -> Result<(), Error> {
    match controller {
        Controller::Memory => {
            // Absent if the kernel has no swap, which then needs no limit.
            group.write_if_exists("memory.swap.max", "0")?;
            group.write("memory.oom.group", "1")
        }
        Controller::Cpu | Controller::Pids => Ok(()),
    }
}

pub(super) fn set_limit(
    group: GroupDir<'_>,
    controller: Controller,
    limits: &GroupLimits,
) -> Result<(), Error> {
    match controller {
        Controller::Memory => group.write(MEMORY_LIMIT, &limits.memory_bytes.to_string()),
        Controller::Cpu => group.write("cpu.max", &format!("{} {CPU_PERIOD_US}", limits.cpu_quota_us())),
        Controller::Pids => group.write("pids.max", &limits.pids.to_string()),
    }
}

/// Makes the kernel kill a single process, not the whole group, when memory runs out.
pub(super) fn disable_group_kill(group: GroupDir<'_>) -> Result<(), Error> {
    group.write("memory.oom.group", "0")
}

pub(super) fn freeze(group: GroupDir<'_>, frozen: bool) -> Result<(), Error> {
    group.write("cgroup.freeze", if frozen { "1" } else { "0" })
}

pub(super) fn is_frozen(group: GroupDir<'_>) -> bool {
    group.value_in("cgroup.events", "frozen") == Some(1)
}

/// Returns the larger count, not the sum: a process killed with its whole group is in both counts.
pub(super) fn oom_kills(group: GroupDir<'_>) -> Option<u64> {
    let events = group.read("memory.events")?;
    files::value(&events, "oom_kill").max(files::value(&events, "oom_group_kill"))
}

pub(super) fn cpu_time(group: GroupDir<'_>) -> Option<Duration> {
    group.value_in("cpu.stat", "usage_usec").map(Duration::from_micros)
}

pub(super) fn peak_memory(group: GroupDir<'_>) -> Option<u64> {
    group.number_in("memory.peak")
}

/// Returns whether `dir` is the root of the whole hierarchy, not merely of a namespace: only there is
/// `cgroup.type` absent, and only there may processes and groups be mixed.
pub(super) fn is_true_root(dir: BorrowedFd<'_>) -> bool {
    !files::exists(dir, "cgroup.type")
}

/// Returns whether a service manager has marked `dir` as delegated (`Delegate=yes`). The limits that it sets
/// there then also apply to sandboxes.
pub(super) fn is_delegated(dir: BorrowedFd<'_>) -> bool {
    let mut mark = [0; 1];
    let marked = |name: &str| fgetxattr(dir, name, &mut mark[..]) == Ok(1) && mark == *b"1";
    ["trusted.delegate", "user.delegate"].into_iter().any(marked)
}

/// Returns whether the parent group of `dir` is visible, so that a controller can be enabled there.
pub(super) fn has_visible_parent(dir: BorrowedFd<'_>) -> bool {
    files::exists(dir, "../cgroup.subtree_control")
}

pub(super) fn is_available(dir: BorrowedFd<'_>, controller: Controller) -> bool {
    files::words(dir, "cgroup.controllers").contains(&controller.to_string())
}

/// Enables a controller for the groups in `dir`.
pub(super) fn enable(dir: BorrowedFd<'_>, controller: Controller) -> rustix::io::Result<()> {
    // Under systemd it is usually enabled already; writing again might require rights that we lack.
    if files::words(dir, SUBTREE_CONTROL).contains(&controller.to_string()) {
        return Ok(());
    }
    files::write(dir, SUBTREE_CONTROL, &format!("+{controller}"))
}

/// Returns the processes in `dir`. A process outside our pid namespace is listed as 0.
pub(super) fn members(dir: BorrowedFd<'_>) -> rustix::io::Result<Vec<u32>> {
    let text = files::read(dir, MEMBERS)?;
    Ok(text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}

/// Returns the members other than this process and its parent; these must not be moved.
pub(super) fn foreign_processes(members: &[u32]) -> Vec<u32> {
    let ours = [std::process::id(), std::os::unix::process::parent_id()];
    members.iter().copied().filter(|pid| *pid == 0 || !ours.contains(pid)).collect()
}

/// Moves all processes in `base` into its new child `child_group`. Returns `false` if there were none and nothing
/// was created.
pub(super) fn move_processes_to_child(
    base: BorrowedFd<'_>,
    child_group: &str,
    folder: &str,
) -> Result<bool, Obstacle> {
    let failed = |file: &str, errno: Errno| Obstacle::failed(folder, file, errno);
    let members = members(base).map_err(|errno| failed(MEMBERS, errno))?;
    if members.is_empty() {
        return Ok(false);
    }
    let foreign = foreign_processes(&members);
    if !foreign.is_empty() {
        return Err(Obstacle::Occupied { folder: folder.to_owned(), pids: foreign });
    }
    mkdirat(base, child_group, Mode::from(0o755)).map_err(|errno| failed(child_group, errno))?;
    let members_file = format!("{child_group}/{MEMBERS}");
    for pid in members {
        if let Err(errno) = files::write(base, &members_file, &pid.to_string()) {
            undo_move(base, child_group);
            return Err(failed(&members_file, errno));
        }
    }
    Ok(true)
}

/// Undoes [`move_processes_to_child`], best effort: while another launcher has groups there, nothing can be undone, and the
/// last launcher does it. A leftover child is recognized by its name at the next start.
pub(super) fn undo_move(base: BorrowedFd<'_>, child_group: &str) {
    for controller in Controller::ALL {
        let _ = files::write(base, SUBTREE_CONTROL, &format!("-{controller}"));
    }
    let members = files::read(base, &format!("{child_group}/{MEMBERS}")).unwrap_or_default();
    for pid in members.split_whitespace() {
        let _ = files::write(base, MEMBERS, pid);
    }
    files::remove_folder(base, child_group);
}

#[cfg(test)]
#[path = "v2_tests.rs"]
mod tests;

/// Opens the file to which a process writes `0` to join.
pub(super) fn open_join_file(group: GroupDir<'_>) -> Result<OwnedFd, Error> {
    group.open(MEMBERS, OFlags::WRONLY)
}
