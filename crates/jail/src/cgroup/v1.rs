//! Settings and counters of cgroup v1, where each controller may have its own hierarchy.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::files::GroupDir;
use super::{CPU_PERIOD_US, Controller, Error, GroupLimits, MIN_CPU_QUOTA_US};

/// Returns the file without which the controller cannot limit anything.
pub(super) fn limit_file(controller: Controller) -> &'static str {
    match controller {
        Controller::Memory => "memory.limit_in_bytes",
        Controller::Cpu => "cpu.cfs_quota_us",
        Controller::Pids => "pids.max",
    }
}

/// Writes the settings that are the same for every run, in advance.
pub(super) fn apply_defaults(group: GroupDir<'_>, controller: Controller) -> Result<(), Error> {
    match controller {
        // Swap would only let a sandbox above its limit continue slowly, at the host's expense.
        Controller::Memory => group.write_if_exists("memory.swappiness", "0"),
        Controller::Cpu => group.write("cpu.cfs_period_us", &CPU_PERIOD_US.to_string()),
        Controller::Pids => Ok(()),
    }
}

pub(super) fn set_limit(
    group: GroupDir<'_>,
    controller: Controller,
    limits: &GroupLimits,
) -> Result<(), Error> {
    let file = limit_file(controller);
    match controller {
        Controller::Memory => {
            let bytes = limits.memory_bytes.to_string();
            let with_swap = || group.write_if_exists("memory.memsw.limit_in_bytes", &bytes);
            // The limit of memory and swap together may never be below that of memory alone, so memory is
            // written first, unless that is refused because the group has a lower combined limit, which must
            // be raised first.
            match group.write(file, &bytes) {
                Err(Error::Write { errno: Errno::INVAL, .. }) => {
                    with_swap().and_then(|()| group.write(file, &bytes))
                }
                written => written.and_then(|()| with_swap()),
            }
        }
        Controller::Cpu => match group.write(file, &limits.cpu_quota_us().to_string()) {
            // v1 refuses a quota above an ancestor's, where v2 applies the tighter of the two. A group
            // without a quota of its own gets exactly that: the ancestor's, which is less than requested.
            Err(Error::Write { errno: Errno::INVAL, .. }) if limits.cpu_quota_us() >= MIN_CPU_QUOTA_US => {
                Ok(())
            }
            written => written,
        },
        Controller::Pids => group.write(file, &limits.pids.to_string()),
    }
}

/// Opens the file to which a process writes `0` to join.
pub(super) fn open_join_file(group: GroupDir<'_>) -> Result<OwnedFd, Error> {
    group.open("tasks", OFlags::WRONLY)
}

/// Creates an eventfd that becomes readable when the group runs out of memory. v1 kills only one process, so
/// the launcher must kill the others. `None` if the kernel was built without this notification.
pub(super) fn oom_event(group: GroupDir<'_>) -> Result<Option<OwnedFd>, Error> {
    const FILE: &str = "cgroup.event_control";
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|errno| Error::Open { file: "eventfd", errno })?;
    let control = group.open("memory.oom_control", OFlags::RDONLY)?;
    match group.write(FILE, &format!("{} {}", event.as_raw_fd(), control.as_raw_fd())) {
        Ok(()) => Ok(Some(event)),
        Err(Error::Write { errno: Errno::NOENT | Errno::OPNOTSUPP | Errno::INVAL, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn oom_kills(group: GroupDir<'_>) -> Option<u64> {
    group.value_in("memory.oom_control", "oom_kill")
}

pub(super) fn cpu_time(group: GroupDir<'_>) -> Option<Duration> {
    group.number_in("cpuacct.usage").map(Duration::from_nanos)
}

pub(super) fn peak_memory(group: GroupDir<'_>) -> Option<u64> {
    group.number_in("memory.max_usage_in_bytes")
}

/// Resets the peak memory usage.
pub(super) fn reset_peak_memory(group: GroupDir<'_>) -> rustix::io::Result<()> {
    group.reset("memory.max_usage_in_bytes", "0")
}

/// Name of the v1 controller that freezes groups; in v2 every group can be frozen.
pub(super) const FREEZER: &str = "freezer";
const FREEZER_STATE: &str = "freezer.state";

pub(super) fn freeze(group: GroupDir<'_>, frozen: bool) -> Result<(), Error> {
    group.write(FREEZER_STATE, if frozen { "FROZEN" } else { THAWED })
}

/// Returns whether the group is frozen; while it is freezing, the file says `FREEZING`.
pub(super) fn is_frozen(group: GroupDir<'_>) -> bool {
    group.read(FREEZER_STATE).is_some_and(|state| state.trim() == "FROZEN")
}

const THAWED: &str = "THAWED";

/// Thaws a group of a dead launcher, so that its processes can die: on v1 a fatal signal takes effect only
/// after thawing. Without a freezer there is nothing to thaw.
pub(super) fn thaw(parent: BorrowedFd<'_>, group: &str) {
    let _thawed = super::files::write(parent, &format!("{group}/{FREEZER_STATE}"), THAWED);
}

/// Name of the v1 controller for CPU accounting, which v2 has in every group.
pub(super) const ACCOUNTING: &str = "cpuacct";

/// Returns whether the kernel supports the limit of this controller in this hierarchy.
pub(super) fn supports_limit(dir: BorrowedFd<'_>, controller: Controller) -> bool {
    super::files::exists(dir, limit_file(controller))
}
