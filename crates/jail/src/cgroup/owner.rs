//! Whose a folder is: names that tell a living launcher's folder from one that a dead launcher left.
//!
//! A folder is called `belljar-<pid>-<starttime>`, so that a recycled pid is not taken for the owner. The owner
//! also holds a lock on it, because a pid means something else in another pid namespace: a folder is removed
//! only when no such process is seen *and* the lock is free.

use std::ffi::CStr;
use std::fmt;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Dir, FlockOperation, flock, unlinkat};
use rustix::io::Errno;

use super::{files, kill, v1};

/// Ends the name of a group into which a launcher moved itself and its parent, to make way in theirs.
pub(super) const REFUGE: &str = ".self";

/// A process, told from any later one with the same pid by when it started (in ticks since boot).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    pid: u32,
    start: u64,
}

impl Owner {
    /// This process as `/proc` numbers it, which is what another launcher will look up.
    pub(super) fn me() -> Option<Owner> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        let pid = stat.split(' ').next()?.parse().ok()?;
        Some(Owner { pid, start: living_since(&stat)? })
    }

    /// The owner in a folder's name, whatever suffix follows.
    pub(super) fn of(name: &str) -> Option<Owner> {
        let (pid, rest) = name.strip_prefix("belljar-")?.split_once('-')?;
        let start = rest.split_once('.').map_or(rest, |(start, _)| start);
        Some(Owner { pid: pid.parse().ok()?, start: start.parse().ok()? })
    }

    fn is_alive(self) -> bool {
        started(self.pid) == Some(self.start)
    }
}

/// When a process started that is alive, in ticks since boot: what tells it from another one with its pid.
#[must_use]
pub fn started(pid: u32) -> Option<u64> {
    living_since(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "belljar-{}-{}", self.pid, self.start)
    }
}

/// Field 22 of a `stat` file, unless the process has ended and only waits to be reaped.
fn living_since(stat: &str) -> Option<u64> {
    // The second field is the program's name and may hold anything, closing brackets and spaces too.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let state = fields.next()?;
    let start = fields.nth(18)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(start)
}

/// Held until every copy of the fd is closed, which for a launcher means until it is dead.
pub(super) fn claim(home: BorrowedFd<'_>) -> bool {
    flock(home, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// The folders beneath `base` whose owners are dead.
pub(super) fn abandoned(base: BorrowedFd<'_>) -> Vec<String> {
    names(base).into_iter().filter(|name| Owner::of(name).is_some_and(|owner| !owner.is_alive())).collect()
}

/// Removes an abandoned folder and the groups in it. `false` while something in it is still dying.
pub(super) fn remove_abandoned(base: BorrowedFd<'_>, name: &str) -> bool {
    let Ok(home) = files::open_dir(base, name) else {
        return true; // another launcher, starting at the same time, was quicker
    };
    if !claim(home.as_fd()) {
        return true; // alive after all, in another pid namespace
    }
    for group in names(home.as_fd()).iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())) {
        // What outlived its launcher is killed, and thawed to die of it.
        kill::kill_members(home.as_fd(), group);
        v1::thaw(home.as_fd(), group);
        remove_folder(home.as_fd(), group);
    }
    // A refuge outlives its launcher for as long as the server does that lives in it: nothing to wait for.
    remove_folder(base, name) || name.ends_with(REFUGE)
}

/// Whether the folder is gone afterwards.
pub(super) fn remove_folder(parent: BorrowedFd<'_>, name: &str) -> bool {
    matches!(unlinkat(parent, name, AtFlags::REMOVEDIR), Ok(()) | Err(Errno::NOENT))
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
    fn names_are_read_back_with_and_without_suffix() {
        let owner = Owner { pid: 12, start: 345 };
        assert_eq!(owner.to_string(), "belljar-12-345");
        for name in ["belljar-12-345", "belljar-12-345.self", "belljar-12-345.2"] {
            assert_eq!(Owner::of(name), Some(owner), "{name}");
        }
        for name in ["belljar", "belljar-12", "belljar-x-3", "belljar-12-", "other-12-345", "belljar-1-2-3"] {
            assert_eq!(Owner::of(name), None, "{name}");
        }
    }

    #[test]
    fn the_start_is_found_behind_any_program_name() {
        let rest = "4008 4008 3300 0 -1 4194304 102 0 0 0 0 0 0 0 20 0 1 0 98218 3133440";
        assert_eq!(living_since(&format!("7 (a) b) (c) S {rest}")), Some(98218));
        assert_eq!(living_since(&format!("7 (cat) Z {rest}")), None, "a zombie owns nothing");
        assert_eq!(living_since("7 (cat) S 1 2"), None);
    }

    #[test]
    fn this_process_is_alive_and_its_pid_with_another_start_is_not() {
        let me = Owner::me().unwrap();
        assert!(me.is_alive());
        assert!(!Owner { start: me.start + 1, ..me }.is_alive());
    }
}
