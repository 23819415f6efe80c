//! Whose a process of a living jail is: the child of the guest's that it descends from. Only what the kernel says of
//! processes is read, and nothing of theirs.
//!
//! A process may have as many ancestors as the jail lets it have, and there may be as many jails as the host has room for.
//! So what was found out is remembered, by process and the time of its start, and the number of looks has a bound.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use super::pace::Bucket;

/// So many generations are looked at. Whoever hides behind more is nobody's.
const GENERATIONS: usize = 16;
/// What is looked for stands at the beginning.
const READ: usize = 2_048;
/// How many processes of one jail are remembered; the oldest go first.
const MAX_KNOWN: usize = 64;
/// How many looks one jail has at once, and how soon after each another one, where it is alone.
const MAX_LOOKS: u32 = 64;
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
/// The same for all jails together: each has an equal share of it.
const BETWEEN_LOOKS_OF_ALL: Duration = Duration::from_millis(1);

/// Whose the processes of one jail are, as far as that was found out.
#[derive(Debug)]
pub(super) struct Owners {
    known: VecDeque<Known>,
    looks: Bucket,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Known {
    process: i32,
    start: u64,
    session: u32,
}

impl Owners {
    pub(super) fn new(now: Instant) -> Self {
        Self { known: VecDeque::new(), looks: Bucket::new(MAX_LOOKS, now) }
    }

    /// Returns the session, by its number inside, of the guest's child that a process descends from; 0 where that cannot be
    /// told, or was not looked up because `jails` together had too many looks. What a command left behind when it ended is
    /// a child of the guest's as well, and still in that command's session.
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

    /// The thread alone is looked at: what is said of a whole process takes as long as it has threads.
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
        // A process may call itself anything.
        Some(String::from_utf8_lossy(&buffer[..read]).into_owned())
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Kin {
    parent: i32,
    /// When it started, which tells it from another one with its number.
    start: u64,
}

/// Reads a `stat` file. The second field is what a process calls itself and may hold anything, brackets too.
fn kin(stat: &str) -> Option<Kin> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let parent = fields.nth(1)?.parse().ok()?;
    let start = fields.nth(17)?.parse().ok()?;
    Some(Kin { parent, start })
}

/// Reads the session in a `status` file. A process may call itself anything, but on a line of its own. The last number is
/// the one in the innermost namespace, which is the jail's: no other can be made in there.
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
        // 0 where who made the session is in no namespace of ours, which rustix does not expect.
        // SAFETY: takes a number and gives one.
        let session = unsafe { libc::getsid(0) };
        let now = Instant::now();
        let of = |guest| Owners::new(now).of(&proc(), guest, me, 1, now);
        assert_eq!(of(parent), session as u32, "a child of its parent's");
        assert_eq!(of(me), 0, "and none of its own");
    }

    #[test]
    fn a_process_that_is_known_takes_one_look_and_a_flood_has_no_more_than_its_share() {
        let now = Instant::now();
        let (me, parent) = (std::process::id() as i32, std::os::unix::process::parent_id() as i32);
        let mut owners = Owners::new(now);
        owners.of(&proc(), parent, me, 1, now);
        assert_eq!(owners.looks.left(), MAX_LOOKS - 2, "what it is, and its session");
        owners.of(&proc(), parent, me, 1, now);
        assert_eq!(owners.looks.left(), MAX_LOOKS - 3, "that it still is the same");
        for _ in 0..1_000 {
            owners.of(&proc(), parent, me, 1, now);
        }
        assert_eq!(owners.looks.left(), 0);
        assert_eq!(owners.of(&proc(), parent, me, 1, now), 0, "nobody looks any more");
        let later = now + Duration::from_secs(1);
        owners.of(&proc(), parent, me, 100, later);
        assert_eq!(owners.looks.left(), 9, "one hundredth of all looks in a second, less the one just taken");
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
