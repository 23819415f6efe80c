//! Prefaulting: which pages the children of a zygote use, so that idle children can fault them in before a
//! program runs.
//!
//! A fork shares each page with its parent until it writes to it, and maps file pages only when it reads
//! them. For a short program these page faults take most of the time. So the launcher samples the memory of
//! finished runs now and then, and idle children prefault the pages that two runs in a row have used.
//!
//! The program controls the layout of its address space, so its mappings are never enumerated. Only addresses
//! that the zygote itself had mapped are looked up. They are read once, and their number, the CPU time of a
//! sample and its result are bounded.
//!
//! A page that is copied at its first write costs more than all the rest of a short run.

use std::os::fd::OwnedFd;
use std::time::Duration;

use belljar_zygote::message::{MAX_PAGE_RANGES, PageRange};
use rustix::fs::{Mode, OFlags};

use crate::launcher::setup::LauncherContext;
use crate::sys;

const PAGE_BYTES: u64 = 4_096;
/// Maximum pages to prefault of each kind, written and read: eight megabytes.
const MAX_PAGES: u64 = 2_048;
/// Larger mappings are skipped: they are reservations rather than memory in use.
const LARGEST_MAPPING_BYTES: u64 = 64 << 20;
/// Maximum bytes read of a zygote's `maps`, rounded up to a whole read.
const MAX_MAPS_BYTES: usize = 256 << 10;
/// Maximum `pagemap` entries read per sample.
const MAX_ENTRIES: u64 = 64 << 10;
/// Number of entries per read; the CPU time is checked between reads.
const CHUNK_ENTRIES: u64 = 4 << 10;
/// Maximum separate ranges of used memory recorded per sample.
const MAX_RANGES: usize = 4 * MAX_PAGE_RANGES;
/// Maximum CPU time per sample. A Python with pandas takes 2.5 ms, a bare one 0.3 ms; and each zygote's children are
/// sampled eight times at most.
const MAX_CPU_TIME: Duration = Duration::from_millis(4);
/// Bits of a `pagemap` entry.
const PRESENT: u64 = 1 << 63;
const EXCLUSIVE: u64 = 1 << 56;

/// Statistics of the pages that one zygote's children use.
#[derive(Debug, Default)]
pub(super) struct PageStats {
    finished_runs: u64,
    /// Pages that the previously sampled child used, if it is the first of a pair.
    previous: Option<Vec<PageRange>>,
    /// The zygote's private mappings, once they have been read.
    zygote_mappings: Option<Vec<Mapping>>,
}

impl PageStats {
    /// Samples the memory of a child whose run is over, if a sample is due. Returns the pages that it and the
    /// previously sampled child both used.
    ///
    /// The caller ensures that no other thread shares the memory: a thread that changes its mappings
    /// meanwhile would make the launcher wait for a lock.
    pub(super) fn sample(
        &mut self,
        context: &LauncherContext,
        zygote: i32,
        child: i32,
    ) -> Option<Vec<PageRange>> {
        if !self.count_run() {
            return None;
        }
        let inherited = match &mut self.zygote_mappings {
            Some(inherited) => inherited,
            unread => unread.insert(private_mappings(&read_start(&open(context, zygote, "maps")?)?)),
        };
        let used = used_pages(&open(context, child, "pagemap")?, inherited);
        self.record_sample(used)
    }

    /// Counts a finished run and returns whether to sample it: two runs in a row, early on and then ever less
    /// often.
    fn count_run(&mut self) -> bool {
        self.finished_runs += 1;
        [3, 10, 100, 1_000]
            .iter()
            .any(|first| self.finished_runs == *first || self.finished_runs == first + 1)
    }

    /// Records the pages that a child used. Returns those that the first child of the pair used as well.
    fn record_sample(&mut self, used: Vec<PageRange>) -> Option<Vec<PageRange>> {
        match self.previous.take() {
            None => {
                self.previous = Some(used);
                None
            }
            Some(before) => Some(intersect(&before, &used)),
        }
    }
}

/// Returns the intersection of two samples, up to the limits. Written pages come first, because their faults
/// cost more.
fn intersect(one: &[PageRange], other: &[PageRange]) -> Vec<PageRange> {
    let mut both = Vec::new();
    for write in [1, 0] {
        let mut left = MAX_PAGES * PAGE_BYTES;
        for a in one.iter().filter(|range| range.write == write) {
            // Both samples are sorted by address.
            let from = other.partition_point(|b| b.start + b.bytes <= a.start);
            let near = other[from..].iter().take_while(|b| b.start < a.start + a.bytes);
            for b in near.filter(|range| range.write == write) {
                let (start, end) = (a.start.max(b.start), (a.start + a.bytes).min(b.start + b.bytes));
                if both.len() < MAX_PAGE_RANGES && end - start <= left {
                    left -= end - start;
                    both.push(PageRange { start, bytes: end - start, write });
                }
            }
        }
    }
    both
}

fn open(context: &LauncherContext, pid: i32, name: &str) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::openat(&context.proc, format!("{pid}/{name}"), flags, Mode::empty()).ok()
}

/// Reads a file up to the limit and cuts it after the last complete line.
fn read_start(file: &OwnedFd) -> Option<String> {
    let mut text = Vec::new();
    let mut buffer = [0; 16 << 10];
    while text.len() < MAX_MAPS_BYTES {
        match rustix::io::read(file, &mut buffer).ok()? {
            0 => break,
            read => text.extend_from_slice(&buffer[..read]),
        }
    }
    text.truncate(text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1));
    String::from_utf8(text).ok()
}

/// Returns the private mappings in a `maps` file, in order, up to the number of pages that one sample reads.
fn private_mappings(maps: &str) -> Vec<Mapping> {
    let mut left = MAX_ENTRIES;
    let mut fits = |mapping: &Mapping| {
        let pages = (mapping.end - mapping.start) / PAGE_BYTES;
        let fits = pages <= left;
        left -= if fits { pages } else { 0 };
        fits
    };
    maps.lines().filter_map(Mapping::parse).filter(|mapping| fits(mapping)).collect()
}

/// Returns the pages in these mappings that a process has written to or, in read-only mappings, read. Stops
/// at the limits and returns what was found so far.
fn used_pages(map: &OwnedFd, mappings: &[Mapping]) -> Vec<PageRange> {
    let started = sys::thread_cpu_time();
    let mut used = Vec::new();
    let mut entries = vec![0; (CHUNK_ENTRIES * 8) as usize];
    for mapping in mappings {
        let mut at = mapping.start;
        while at < mapping.end {
            if used.len() >= MAX_RANGES || sys::thread_cpu_time().saturating_sub(started) >= MAX_CPU_TIME {
                return used;
            }
            let len = entries.len().min(((mapping.end - at) / PAGE_BYTES * 8) as usize);
            match rustix::io::pread(map, &mut entries[..len], at / PAGE_BYTES * 8) {
                Ok(read) if read >= 8 => at = mapping.record_used(at, &entries[..read], &mut used),
                _ => break,
            }
        }
    }
    used
}

/// A private mapping of a process.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    start: u64,
    end: u64,
    write: bool,
}

impl Mapping {
    /// Parses a line of `maps`. `None` for mappings that are shared, unreadable, too large or the kernel's
    /// own.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let rights = words.next()?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = (number(start)?, number(end)?);
        let kernels = ["[vvar", "[vdso", "[vsyscall"].iter().any(|name| line.contains(name));
        let bytes = end.checked_sub(start)?;
        let own = rights.starts_with('r') && rights.ends_with('p') && !kernels;
        (own && bytes <= LARGEST_MAPPING_BYTES).then_some(Self {
            start,
            end,
            write: rights.as_bytes().get(1) == Some(&b'w'),
        })
    }

    /// Records which pages from `at` on are used. Returns the address after the last one.
    fn record_used(&self, at: u64, entries: &[u8], used: &mut Vec<PageRange>) -> u64 {
        let wanted = if self.write { PRESENT | EXCLUSIVE } else { PRESENT };
        let mut at = at;
        for entry in entries.chunks_exact(8) {
            let bits = entry.try_into().map_or(0, u64::from_le_bytes);
            if bits & wanted == wanted {
                self.add_page(at, used);
            }
            at += PAGE_BYTES;
        }
        at
    }

    /// Records a used page, extending the previous range if the page follows it.
    fn add_page(&self, at: u64, used: &mut Vec<PageRange>) {
        match used.last_mut() {
            Some(last) if last.start + last.bytes == at && last.write == u64::from(self.write) => {
                last.bytes += PAGE_BYTES;
            }
            _ => used.push(PageRange { start: at, bytes: PAGE_BYTES, write: self.write.into() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page_range(start: u64, pages: u64, write: u64) -> PageRange {
        PageRange { start: start * PAGE_BYTES, bytes: pages * PAGE_BYTES, write }
    }

    #[test]
    fn intersection_of_two_samples_is_bounded() {
        let one = [page_range(1, 4, 1), page_range(10, 2, 0), page_range(20, 1, 1)];
        let other = [page_range(3, 4, 1), page_range(10, 1, 0), page_range(20, 1, 0)];
        assert_eq!(intersect(&one, &other), [page_range(3, 2, 1), page_range(10, 1, 0)]);
        let much = [page_range(1, MAX_PAGES + 1, 1), page_range(9_000, 3, 1)];
        assert_eq!(
            intersect(&much, &much),
            [page_range(9_000, 3, 1)],
            "a range that exceeds the limit is left out"
        );
    }

    #[test]
    fn only_private_readable_mappings_are_parsed() {
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
    fn zygote_mappings_are_bounded() {
        let line = |at: u64, bytes: u64| format!("{:x}-{:x} r--p 00000000 00:00 0\n", at, at + bytes);
        let large: String = (1..=1_000).map(|at| line(at << 30, 1 << 30)).collect();
        assert_eq!(private_mappings(&large), [], "large mappings are skipped");
        let many: String = (1..=1_000).map(|at| line(at << 30, LARGEST_MAPPING_BYTES)).collect();
        let sampled = private_mappings(&many);
        assert_eq!(sampled.len() as u64, MAX_ENTRIES * PAGE_BYTES / LARGEST_MAPPING_BYTES);
    }

    #[test]
    fn reading_maps_stops_at_the_limit() {
        let (file, mut end) = std::io::pipe().unwrap();
        let writer = std::thread::spawn(move || {
            let line = [b"7f00-9f00 r--p 0 00:00 0\n".as_slice(); 1_000].concat();
            // Until the reader is closed.
            while std::io::Write::write_all(&mut end, &line).is_ok() {}
        });
        let text = read_start(&file.into()).unwrap();
        assert!(text.len() <= MAX_MAPS_BYTES + (16 << 10) && text.ends_with('\n'), "{}", text.len());
        writer.join().unwrap();
    }

    #[test]
    fn sample_stops_at_its_cpu_time_limit() {
        let map =
            rustix::fs::open("/proc/self/pagemap", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        // Far more mappings than a sample may read.
        let mappings: Vec<Mapping> =
            (0..10_000).map(|at| Mapping { start: at << 30, end: (at + 1) << 30, write: false }).collect();
        let before = sys::thread_cpu_time();
        used_pages(&map, &mappings);
        let took = sys::thread_cpu_time() - before;
        assert!(took < 20 * MAX_CPU_TIME, "the sample stops at its CPU time limit: {took:?}");
    }

    #[test]
    fn two_consecutive_runs_are_sampled() {
        let mut stats = PageStats::default();
        let sampled: Vec<u64> = (1..=200).filter(|_| stats.count_run()).collect();
        assert_eq!(sampled, [3, 4, 10, 11, 100, 101]);
        assert!(stats.record_sample(vec![page_range(1, 1, 1)]).is_none());
        assert_eq!(stats.record_sample(vec![page_range(1, 2, 1)]), Some(vec![page_range(1, 1, 1)]));
        assert!(stats.record_sample(vec![page_range(1, 1, 1)]).is_none(), "the next pair starts over");
    }
}
