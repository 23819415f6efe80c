//! Attributes a process of a sandbox to a command: the child of the guest from which it descends. Relies only
//! on what the kernel reports about processes, not on anything that they control.
//!
//! A process may have as many ancestors as the sandbox's process limit allows, and there may be many
//! sandboxes. So results are cached by pid and start time, and lookups are rate-limited.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use crate::launcher::token_bucket::TokenBucket;

/// Maximum ancestors followed. A process with more is attributed to no command.
const MAX_ANCESTORS: usize = 16;
/// Bytes read of a file in `/proc`. The fields needed here are near the beginning.
const MAX_READ_BYTES: usize = 2_048;
/// Maximum cached processes of one sandbox; the oldest are evicted first.
const MAX_KNOWN: usize = 64;
/// Rate limit of `/proc` reads for one sandbox: the burst, and the time until another read if it is the only
/// sandbox.
const MAX_READS: u32 = 64;
const READ_INTERVAL: Duration = Duration::from_millis(20);
/// Time between `/proc` reads of all sandboxes together, which share the rate equally.
const SHARED_READ_INTERVAL: Duration = Duration::from_millis(1);

/// Attributes the processes of one sandbox, with a cache.
#[derive(Debug)]
pub(crate) struct ProcessOwners {
    cache: VecDeque<KnownProcess>,
    reads: TokenBucket,
}

/// A cached attribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KnownProcess {
    process: i32,
    /// Its start time, in clock ticks after boot.
    start: u64,
    session: u32,
}

impl ProcessOwners {
    pub(crate) fn new(now: Instant) -> Self {
        Self { cache: VecDeque::new(), reads: TokenBucket::new(MAX_READS, now) }
    }

    /// Returns the session id, inside the sandbox, of the guest's child that a process descends from. 0 if
    /// that is unknown, or if the rate limit shared by `jails` sandboxes is exhausted. Processes that outlive
    /// their command become children of the guest, but stay in that command's session.
    pub(crate) fn session_of(
        &mut self,
        proc: &OwnedFd,
        guest: i32,
        process: i32,
        jails: u32,
        now: Instant,
    ) -> u32 {
        let every = READ_INTERVAL.max(SHARED_READ_INTERVAL * jails);
        self.reads.refill(every, MAX_READS, now);
        self.find(proc, guest, process).unwrap_or(0)
    }

    fn find(&mut self, proc: &OwnedFd, guest: i32, process: i32) -> Option<u32> {
        let mut first = None;
        let mut next = process;
        let mut session = 0;
        for _ in 0..MAX_ANCESTORS {
            let kin = self.read_stat(proc, next)?;
            let first = *first.get_or_insert(kin.start);
            if let Some(known) = self.cached(next, kin.start) {
                session = known;
            } else if kin.parent == guest {
                session = self.read_session(proc, next)?;
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

    fn cached(&self, process: i32, start: u64) -> Option<u32> {
        let known = self.cache.iter().find(|known| known.process == process && known.start == start);
        known.map(|known| known.session)
    }

    fn remember(&mut self, process: i32, start: u64, session: u32) {
        if self.cached(process, start).is_some() {
            return;
        }
        if self.cache.len() >= MAX_KNOWN {
            self.cache.pop_front();
        }
        self.cache.push_back(KnownProcess { process, start, session });
    }

    /// Reads the `stat` file of the main thread only: the time to read that of a process grows with its
    /// number of threads.
    fn read_stat(&mut self, proc: &OwnedFd, process: i32) -> Option<ProcStat> {
        parse_stat(&self.read(proc, &format!("{process}/task/{process}/stat"))?)
    }

    fn read_session(&mut self, proc: &OwnedFd, process: i32) -> Option<u32> {
        parse_session(&self.read(proc, &format!("{process}/status"))?)
    }

    fn read(&mut self, proc: &OwnedFd, path: &str) -> Option<String> {
        if !self.reads.take() {
            return None;
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(proc, path, flags, Mode::empty()).ok()?;
        let mut buffer = [0; MAX_READ_BYTES];
        let read = rustix::io::read(&file, &mut buffer[..]).ok()?;
        // The name of a process may be any bytes.
        Some(String::from_utf8_lossy(&buffer[..read]).into_owned())
    }
}

/// The fields of a `stat` file that attribution needs.
#[derive(Debug, PartialEq, Eq)]
struct ProcStat {
    parent: i32,
    /// Its start time, which distinguishes it from an earlier process with its pid.
    start: u64,
}

/// Parses a `stat` file. The second field is the name of the process and may contain anything, even
/// parentheses.
fn parse_stat(stat: &str) -> Option<ProcStat> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let parent = fields.nth(1)?.parse().ok()?;
    let start = fields.nth(17)?.parse().ok()?;
    Some(ProcStat { parent, start })
}

/// Parses the session id in a `status` file. The name of a process may be anything, but is confined to a line
/// of its own. The last number is for the innermost pid namespace, which is the sandbox's: no other can be
/// created in it.
fn parse_session(status: &str) -> Option<u32> {
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
    fn processes_are_attributed_by_kernel_data_only() {
        let stat = "7 (a) b) (c) S 4008 4008 3300 0 -1 4194304 102 0 0 0 0 0 0 0 20 0 1 0 98218 3133440";
        assert_eq!(parse_stat(stat), Some(ProcStat { parent: 4008, start: 98218 }));
        assert_eq!(parse_stat("7 (cat) S 1 2"), None);
        assert_eq!(
            parse_session("Name:\tNSsid:\\n1\nPPid:\t42\nNSpid:\t4711\t9\nNSsid:\t4700\t7\n"),
            Some(7)
        );
        assert_eq!(parse_session("Name:\tsh\nPPid:\t42\n"), None);
        let (me, parent) = (std::process::id() as i32, std::os::unix::process::parent_id() as i32);
        // libc, because the session id may be 0 (its leader is outside this pid namespace), which rustix does
        // not expect. SAFETY: `getsid` takes and returns a plain number.
        let session = unsafe { libc::getsid(0) };
        let now = Instant::now();
        let of = |guest| ProcessOwners::new(now).session_of(&proc(), guest, me, 1, now);
        assert_eq!(of(parent), session as u32, "a child of its parent");
        assert_eq!(of(me), 0, "but not of itself");
    }

    #[test]
    fn cached_process_takes_one_read_and_reads_are_rate_limited() {
        let now = Instant::now();
        let (me, parent) = (std::process::id() as i32, std::os::unix::process::parent_id() as i32);
        let mut owners = ProcessOwners::new(now);
        owners.session_of(&proc(), parent, me, 1, now);
        assert_eq!(owners.reads.tokens_left(), MAX_READS - 2, "its parent, and its session");
        owners.session_of(&proc(), parent, me, 1, now);
        assert_eq!(owners.reads.tokens_left(), MAX_READS - 3, "its start time, to verify its identity");
        for _ in 0..1_000 {
            owners.session_of(&proc(), parent, me, 1, now);
        }
        assert_eq!(owners.reads.tokens_left(), 0);
        assert_eq!(owners.session_of(&proc(), parent, me, 1, now), 0, "the budget is used up");
        let later = now + Duration::from_secs(1);
        owners.session_of(&proc(), parent, me, 100, later);
        assert_eq!(
            owners.reads.tokens_left(),
            9,
            "one hundredth of all reads in a second, less the one just made"
        );
    }

    #[test]
    fn cache_is_bounded() {
        let mut owners = ProcessOwners::new(Instant::now());
        for process in 1..=1_000 {
            owners.remember(process, 1, 7);
        }
        assert_eq!(owners.cache.len(), MAX_KNOWN);
        assert_eq!(
            (owners.cached(1_000, 1), owners.cached(1_000, 2), owners.cached(1, 1)),
            (Some(7), None, None)
        );
    }
}
