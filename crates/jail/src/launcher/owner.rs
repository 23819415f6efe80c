//! Attributes a process of a sandbox to a command: the child of the guest from which it descends. Relies only
//! on what the kernel reports about processes, not on anything that they control.
//!
//! A process may have as many ancestors as the sandbox's process limit allows, and there may be many
//! sandboxes. So results are cached by pid and start time, and lookups are rate-limited.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use super::pace::Bucket;

/// Maximum ancestors followed. A process with more is attributed to no command.
const GENERATIONS: usize = 16;
/// Bytes read of a file in `/proc`. The fields needed here are near the beginning.
const READ: usize = 2_048;
/// Maximum cached processes of one sandbox; the oldest are evicted first.
const MAX_KNOWN: usize = 64;
/// Rate limit of `/proc` reads for one sandbox: the burst, and the time until another read if it is the only
/// sandbox.
const MAX_LOOKS: u32 = 64;
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
/// Time between `/proc` reads of all sandboxes together, which share the rate equally.
const BETWEEN_LOOKS_OF_ALL: Duration = Duration::from_millis(1);

/// Attributes the processes of one sandbox, with a cache.
#[derive(Debug)]
pub(super) struct Owners {
    known: VecDeque<Known>,
    looks: Bucket,
}

/// A cached attribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Known {
    process: i32,
    /// Its start time, in clock ticks after boot.
    start: u64,
    session: u32,
}

impl Owners {
    pub(super) fn new(now: Instant) -> Self {
        Self { known: VecDeque::new(), looks: Bucket::new(MAX_LOOKS, now) }
    }

    /// Returns the session id, inside the sandbox, of the guest's child that a process descends from. 0 if
    /// that is unknown, or if the rate limit shared by `jails` sandboxes is exhausted. Processes that outlive
    /// their command become children of the guest, but stay in that command's session.
    pub(super) fn of(&mut self, proc: &OwnedFd, guest: i32, process: i32, jails: u32, now: Instant) -> u32 {
        let every = BETWEEN_LOOKS.max(BETWEEN_LOOKS_OF_ALL * jails);
        self.looks.refill(every, MAX_LOOKS, now);
        self.find(proc, guest, process).unwrap_or(0)
    }

    fn find(&mut self, proc: &OwnedFd, guest: i32, process: i32) -> Option<u32> {
        let mut first = None;
        let mut next = process;
        let mut session = 0;
        for _ in 0..GENERATIONS {
            let kin = self.look(proc, next)?;
            let first = *first.get_or_insert(kin.start);
            if let Some(known) = self.known(next, kin.start) {
                session = known;
            } else if kin.parent == guest {
                session = self.session_of(proc, next)?;
                self.remember(next, kin.start, session);
            } else if kin.parent > 1 && next != guest {
                next = kin.parent;
                continue;
            }
            self.remember(process, first, session);
            return Some(session);
        }
        self.remember(process, first?, session);
        Some(session)
    }

    fn known(&self, process: i32, start: u64) -> Option<u32> {
        let known = self.known.iter().find(|known| known.process == process && known.start == start);
        known.map(|known| known.session)
    }

    fn remember(&mut self, process: i32, start: u64, session: u32) {
        if self.known(process, start).is_some() {
            return;
        }
        if self.known.len() >= MAX_KNOWN {
            self.known.pop_front();
        }
        self.known.push_back(Known { process, start, session });
    }

    /// Reads the `stat` file of the main thread only: the time to read that of a process grows with its
    /// number of threads.
    fn look(&mut self, proc: &OwnedFd, process: i32) -> Option<Kin> {
        kin(&self.read(proc, &format!("{process}/task/{process}/stat"))?)
    }

    fn session_of(&mut self, proc: &OwnedFd, process: i32) -> Option<u32> {
        session(&self.read(proc, &format!("{process}/status"))?)
    }

    fn read(&mut self, proc: &OwnedFd, path: &str) -> Option<String> {
        if !self.looks.take() {
            return None;
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(proc, path, flags, Mode::empty()).ok()?;
        let mut buffer = [0; READ];
        let read = rustix::io::read(&file, &mut buffer[..]).ok()?;
        // The name of a process may be any bytes.
        Some(String::from_utf8_lossy(&buffer[..read]).into_owned())
    }
}

/// The fields of a `stat` file that attribution needs.
#[derive(Debug, PartialEq, Eq)]
struct Kin {
    parent: i32,
    /// Its start time, which distinguishes it from an earlier process with its pid.
    start: u64,
}

/// Parses a `stat` file. The second field is the name of the process and may contain anything, even
/// parentheses.
fn kin(stat: &str) -> Option<Kin> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let parent = fields.nth(1)?.parse().ok()?;
    let start = fields.nth(17)?.parse().ok()?;
    Some(Kin { parent, start })
}

/// Parses the session id in a `status` file. The name of a process may be anything, but is confined to a line
/// of its own. The last number is for the innermost pid namespace, which is the sandbox's: no other can be
/// created in it.
fn session(status: &str) -> Option<u32> {
    let found = status.lines().find_map(|line| line.strip_prefix("NSsid:"))?;
    found.split_ascii_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proc() -> OwnedFd {
        rustix::fs::open("/proc", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    #[test]
    fn a_process_is_known_by_what_the_kernel_says_of_it() {
        let stat = "7 (a) b) (c) S 4008 4008 3300 0 -1 4194304 102 0 0 0 0 0 0 0 20 0 1 0 98218 3133440";
        assert_eq!(kin(stat), Some(Kin { parent: 4008, start: 98218 }));
        assert_eq!(kin("7 (cat) S 1 2"), None);
        assert_eq!(session("Name:\tNSsid:\\n1\nPPid:\t42\nNSpid:\t4711\t9\nNSsid:\t4700\t7\n"), Some(7));
        assert_eq!(session("Name:\tsh\nPPid:\t42\n"), None);
        let (me, parent) = (std::process::id() as i32, std::os::unix::process::parent_id() as i32);
        // libc, because the session id may be 0 (its leader is outside this pid namespace), which rustix does
        // not expect. SAFETY: `getsid` takes and returns a plain number.
        let session = unsafe { libc::getsid(0) };
        let now = Instant::now();
        let of = |guest| Owners::new(now).of(&proc(), guest, me, 1, now);
        assert_eq!(of(parent), session as u32, "a child of its parent");
        assert_eq!(of(me), 0, "but not of itself");
    }

    #[test]
    fn a_process_that_is_known_takes_one_look_and_a_flood_has_no_more_than_its_share() {
        let now = Instant::now();
        let (me, parent) = (std::process::id() as i32, std::os::unix::process::parent_id() as i32);
        let mut owners = Owners::new(now);
        owners.of(&proc(), parent, me, 1, now);
        assert_eq!(owners.looks.left(), MAX_LOOKS - 2, "its parent, and its session");
        owners.of(&proc(), parent, me, 1, now);
        assert_eq!(owners.looks.left(), MAX_LOOKS - 3, "its start time, to verify its identity");
        for _ in 0..1_000 {
            owners.of(&proc(), parent, me, 1, now);
        }
        assert_eq!(owners.looks.left(), 0);
        assert_eq!(owners.of(&proc(), parent, me, 1, now), 0, "the budget is used up");
        let later = now + Duration::from_secs(1);
        owners.of(&proc(), parent, me, 100, later);
        assert_eq!(owners.looks.left(), 9, "one hundredth of all reads in a second, less the one just made");
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let mut owners = Owners::new(Instant::now());
        for process in 1..=1_000 {
            owners.remember(process, 1, 7);
        }
        assert_eq!(owners.known.len(), MAX_KNOWN);
        assert_eq!(
            (owners.known(1_000, 1), owners.known(1_000, 2), owners.known(1, 1)),
            (Some(7), None, None)
        );
    }
}
