//! What the runs of a zygote's children have in common: the memory that they come to use.
//!
//! A fork shares its memory with the one it comes from until it is written to, page by page, and has the files that are
//! mapped only when it looks at them. For a short program most of its time goes into that. So the memory of a run that is
//! over is looked at now and then, and what two of them in a row have used is got ready in those that wait.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};

use super::home::Home;
use crate::bare::message::{Habit, MAX_HABITS};

const PAGE: u64 = 4_096;
/// Most pages that are got ready of each kind: eight megabytes.
const MOST_PAGES: u64 = 2_048;
/// Mappings beyond this are reserved rather than used.
const LARGEST: u64 = 1 << 30;
const MOST_TEXT: usize = 1 << 20;
/// Bits of an entry in `pagemap`.
const PRESENT: u64 = 1 << 63;
const EXCLUSIVE: u64 = 1 << 56;

/// The habits of one zygote's children, as far as they are known.
#[derive(Debug, Default)]
pub(super) struct Habits {
    looked_at: u64,
    /// What the last one used.
    last: Option<Vec<Habit>>,
}

impl Habits {
    /// Whether the memory of a child is worth a look: that of two in a row, early, and then ever less often.
    pub(super) fn wants_a_look(&mut self) -> bool {
        self.looked_at += 1;
        [3, 10, 100, 1_000].iter().any(|first| self.looked_at == *first || self.looked_at == first + 1)
    }

    /// Takes note of what a child used; gives what it had in common with the one before it.
    pub(super) fn learn(&mut self, used: Vec<Habit>) -> Option<Vec<Habit>> {
        match self.last.take() {
            None => {
                self.last = Some(used);
                None
            }
            Some(before) => Some(common(&before, &used)),
        }
    }
}

/// What both have, as far as there is room for it: first what is written to, which costs more.
fn common(one: &[Habit], other: &[Habit]) -> Vec<Habit> {
    let mut both = Vec::new();
    for write in [1, 0] {
        let mut left = MOST_PAGES * PAGE;
        for a in one.iter().filter(|habit| habit.write == write) {
            // Both are in order of their addresses.
            let from = other.partition_point(|b| b.start + b.bytes <= a.start);
            let near = other[from..].iter().take_while(|b| b.start < a.start + a.bytes);
            for b in near.filter(|habit| habit.write == write) {
                let (start, end) = (a.start.max(b.start), (a.start + a.bytes).min(b.start + b.bytes));
                if both.len() < MAX_HABITS && end - start <= left {
                    left -= end - start;
                    both.push(Habit { start, bytes: end - start, write });
                }
            }
        }
    }
    both
}

/// What a process has of its own by now: pages that were written to, and files that were looked at.
pub(super) fn look_at(home: &Home, pid: i32) -> Option<Vec<Habit>> {
    let open = |name: &str| {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::openat(&home.proc, format!("{pid}/{name}"), flags, Mode::empty()).ok()
    };
    let (text, map) = (read_all(&open("maps")?)?, open("pagemap")?);
    let mut used = Vec::new();
    for mapping in text.lines().filter_map(Mapping::parse) {
        mapping.used(&map, &mut used)?;
    }
    Some(used)
}

fn read_all(file: &OwnedFd) -> Option<String> {
    let mut text = Vec::new();
    let mut buffer = [0; 16 << 10];
    loop {
        match rustix::io::read(file, &mut buffer).ok()? {
            0 => return String::from_utf8(text).ok(),
            read if text.len() + read <= MOST_TEXT => text.extend_from_slice(&buffer[..read]),
            _ => return None,
        }
    }
}

/// A mapping that is this process's own.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    start: u64,
    end: u64,
    write: bool,
}

impl Mapping {
    /// A line of `maps`; nothing for what is shared, cannot be read, or is the kernel's own.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let rights = words.next()?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = (number(start)?, number(end)?);
        let kernels = ["[vvar", "[vdso", "[vsyscall"].iter().any(|name| line.contains(name));
        let own = rights.starts_with('r') && rights.ends_with('p') && !kernels && end - start <= LARGEST;
        own.then_some(Self { start, end, write: rights.as_bytes().get(1) == Some(&b'w') })
    }

    fn used(&self, map: &OwnedFd, used: &mut Vec<Habit>) -> Option<()> {
        let wanted = if self.write { PRESENT | EXCLUSIVE } else { PRESENT };
        let mut entries = vec![0; 32 << 10];
        let mut at = self.start;
        while at < self.end {
            let len = entries.len().min(((self.end - at) / PAGE * 8) as usize);
            let read = rustix::io::pread(map, &mut entries[..len], at / PAGE * 8).ok()?;
            if read == 0 {
                return None;
            }
            for entry in entries[..read].chunks_exact(8) {
                let bits = entry.try_into().map_or(0, u64::from_le_bytes);
                if bits & wanted == wanted {
                    self.add(at, used);
                }
                at += PAGE;
            }
        }
        Some(())
    }

    /// One more page, which may follow on the one before it.
    fn add(&self, at: u64, used: &mut Vec<Habit>) {
        match used.last_mut() {
            Some(last) if last.start + last.bytes == at && last.write == u64::from(self.write) => {
                last.bytes += PAGE;
            }
            _ => used.push(Habit { start: at, bytes: PAGE, write: self.write.into() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn habit(start: u64, pages: u64, write: u64) -> Habit {
        Habit { start: start * PAGE, bytes: pages * PAGE, write }
    }

    #[test]
    fn what_two_have_in_common() {
        let one = [habit(1, 4, 1), habit(10, 2, 0), habit(20, 1, 1)];
        let other = [habit(3, 4, 1), habit(10, 1, 0), habit(20, 1, 0)];
        assert_eq!(common(&one, &other), [habit(3, 2, 1), habit(10, 1, 0)]);
        let much = [habit(1, MOST_PAGES + 1, 1), habit(9_000, 3, 1)];
        assert_eq!(common(&much, &much), [habit(9_000, 3, 1)], "what is too much is left out");
    }

    #[test]
    fn mappings_that_are_its_own() {
        let parse = Mapping::parse;
        let own = parse("7f00-9f00 rw-p 00000000 00:00 0  [heap]");
        assert_eq!(own, Some(Mapping { start: 0x7f00, end: 0x9f00, write: true }));
        assert_eq!(parse("7f00-9f00 r-xp 0 08:01 7 /usr/bin/x").map(|mapping| mapping.write), Some(false));
        for other in [
            "7f00-9f00 rw-s 0 0:1 1 /dev/shm/x",
            "7f00-9f00 ---p 0 0:0 0",
            "7f00-9f00 r--p 0 0:0 0 [vvar]",
            "",
            "x",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn two_in_a_row_are_looked_at() {
        let mut habits = Habits::default();
        let looks: Vec<u64> = (1..=200).filter(|_| habits.wants_a_look()).collect();
        assert_eq!(looks, [3, 4, 10, 11, 100, 101]);
        assert!(habits.learn(vec![habit(1, 1, 1)]).is_none());
        assert_eq!(habits.learn(vec![habit(1, 2, 1)]), Some(vec![habit(1, 1, 1)]));
        assert!(habits.learn(vec![habit(1, 1, 1)]).is_none(), "the next two are other ones");
    }
}
