//! Owners of directories: distinguishes a live launcher's directory from one left by a dead launcher.
//!
//! A directory is named `belljar-<pid>-<starttime>`, so that a process with a reused pid is not mistaken for
//! the owner. The owner also locks it, because a pid has a different meaning in another pid namespace: a
//! directory is removed only if no such process is visible *and* the lock is free.

use std::ffi::CStr;
use std::fmt;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{Dir, FlockOperation, flock};

use super::{files, kill, v1};

/// Suffix of the name of a group into which a launcher moved itself and its parent.
pub(super) const MOVED_SUFFIX: &str = ".self";

/// A process, identified by its pid and its start time in ticks since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LauncherIdentity {
    pid: u32,
    start: u64,
}

impl LauncherIdentity {
    /// Returns this process as `/proc` shows it, which is where another launcher looks it up.
    pub(super) fn current() -> Option<LauncherIdentity> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        let pid = stat.split(' ').next()?.parse().ok()?;
        Some(LauncherIdentity { pid, start: parse_start_time(&stat)? })
    }

    /// Parses the owner from a directory's name with any suffix.
    pub(super) fn parse(name: &str) -> Option<LauncherIdentity> {
        let (pid, rest) = name.strip_prefix("belljar-")?.split_once('-')?;
        let start = rest.split_once('.').map_or(rest, |(start, _)| start);
        Some(LauncherIdentity { pid: pid.parse().ok()?, start: start.parse().ok()? })
    }

    /// Returns the state of this process, as `/proc` shows it.
    fn state(self) -> OwnerState {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        if parse_start_time(&stat) != Some(self.start) {
            return OwnerState::Dead;
        }
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        if is_exiting(&stat) || is_killed(&status) { OwnerState::Dying } else { OwnerState::Alive }
    }
}

/// Whether a launcher can still use its directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OwnerState {
    Alive,
    /// Killed: the process does nothing anymore, but holds its lock until the kernel has torn it down.
    Dying,
    Dead,
}

/// A directory whose owner is dead or dying.
#[derive(Debug)]
pub(super) struct AbandonedDir {
    pub(super) name: String,
    owner_is_dying: bool,
}

#[cfg(test)]
impl AbandonedDir {
    pub(super) fn new(name: &str, owner_is_dying: bool) -> Self {
        Self { name: name.to_owned(), owner_is_dying }
    }
}

/// Returns the start time of a live process in ticks since boot, which distinguishes it from others with the
/// same pid.
#[must_use]
pub fn process_start_time(pid: u32) -> Option<u64> {
    parse_start_time(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

impl fmt::Display for LauncherIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "belljar-{}-{}", self.pid, self.start)
    }
}

/// Returns field 22 of a `stat` file, unless the process is a zombie.
fn parse_start_time(stat: &str) -> Option<u64> {
    // The second field is the program's name, which may contain anything, including parentheses and spaces.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let state = fields.next()?;
    let start = fields.nth(18)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(start)
}

/// Returns whether the kernel is tearing the process down: flag `PF_EXITING` in field 9 of a `stat` file.
fn is_exiting(stat: &str) -> bool {
    const PF_EXITING: u32 = 0x4;
    let flags = stat.rsplit_once(") ").and_then(|(_, fields)| fields.split(' ').nth(6)?.parse().ok());
    flags.is_some_and(|flags: u32| flags & PF_EXITING != 0)
}

/// Returns whether `SIGKILL` is pending, in a `status` file.
fn is_killed(status: &str) -> bool {
    const SIGKILL_BIT: u64 = 1 << 8;
    let pending =
        status.lines().filter_map(|line| line.strip_prefix("SigPnd:").or(line.strip_prefix("ShdPnd:")));
    pending.filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok()).any(|mask| mask & SIGKILL_BIT != 0)
}

/// Locks a directory until every copy of the fd is closed, which for a launcher means until it is dead.
pub(super) fn try_lock(dir_fd: BorrowedFd<'_>) -> bool {
    flock(dir_fd, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Returns the directories in `base` whose owners are dead or dying.
pub(super) fn abandoned(base: BorrowedFd<'_>) -> Vec<AbandonedDir> {
    let abandoned = |name: String| match LauncherIdentity::parse(&name)?.state() {
        OwnerState::Alive => None,
        state => Some(AbandonedDir { name, owner_is_dying: state == OwnerState::Dying }),
    };
    names(base).into_iter().filter_map(abandoned).collect()
}

/// Removes an abandoned directory and its groups. Returns `false` while its owner or a process in it is still
/// dying.
pub(super) fn remove_abandoned(base: BorrowedFd<'_>, dir: &AbandonedDir) -> bool {
    let name = dir.name.as_str();
    let Ok(dir_fd) = files::open_dir(base, name) else {
        return true; // another launcher, starting at the same time, removed it first
    };
    if !try_lock(dir_fd.as_fd()) {
        // If the owner is not dying, it is alive in another pid namespace.
        return !dir.owner_is_dying;
    }
    for group in names(dir_fd.as_fd()).iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())) {
        // Processes that outlived their launcher are killed, then thawed so that they die.
        kill::kill_members(dir_fd.as_fd(), group);
        v1::thaw(dir_fd.as_fd(), group);
        files::remove_folder(dir_fd.as_fd(), group);
    }
    // A child group with the server in it outlives its launcher, and is not waited for.
    files::remove_folder(base, name) || name.ends_with(MOVED_SUFFIX)
}

fn names(dir: BorrowedFd<'_>) -> Vec<String> {
    let Ok(entries) = Dir::read_from(dir) else { return Vec::new() };
    let name = |name: &CStr| name.to_str().map(str::to_owned).ok();
    entries.filter_map(|entry| name(entry.ok()?.file_name())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_is_parsed_with_and_without_suffix() {
        let owner = LauncherIdentity { pid: 12, start: 345 };
        assert_eq!(owner.to_string(), "belljar-12-345");
        for name in ["belljar-12-345", "belljar-12-345.self", "belljar-12-345.2"] {
            assert_eq!(LauncherIdentity::parse(name), Some(owner), "{name}");
        }
        for name in ["belljar", "belljar-12", "belljar-x-3", "belljar-12-", "other-12-345", "belljar-1-2-3"] {
            assert_eq!(LauncherIdentity::parse(name), None, "{name}");
        }
    }

    #[test]
    fn start_time_is_parsed_after_any_program_name() {
        let rest = "4008 4008 3300 0 -1 4194304 102 0 0 0 0 0 0 0 20 0 1 0 98218 3133440";
        assert_eq!(parse_start_time(&format!("7 (a) b) (c) S {rest}")), Some(98218));
        assert_eq!(parse_start_time(&format!("7 (cat) Z {rest}")), None, "a zombie owns nothing");
        assert_eq!(parse_start_time("7 (cat) S 1 2"), None);
    }

    #[test]
    fn a_killed_process_is_dying() {
        let rest = "0 0 0 0 0 0 0 20 0 1 0 98218 3133440";
        let stat = |flags: u32| format!("7 (a) b) (c) D 4008 4008 3300 0 -1 {flags} 102 {rest}");
        assert!(is_exiting(&stat(4_194_304 | 4)));
        assert!(!is_exiting(&stat(4_194_304)));
        let status =
            |own: u64, shared: u64| format!("Name:\ta\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\n");
        assert!(is_killed(&status(0x100, 0)) && is_killed(&status(0, 0x100)));
        assert!(!is_killed(&status(0x4000, 0x80)));
        assert!(!is_killed(""));
    }

    #[test]
    fn liveness_compares_pid_and_start_time() {
        let me = LauncherIdentity::current().unwrap();
        assert_eq!(me.state(), OwnerState::Alive);
        assert_eq!(LauncherIdentity { start: me.start + 1, ..me }.state(), OwnerState::Dead);
    }
}
