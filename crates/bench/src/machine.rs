//! The machine and the date of a benchmark. A figure without its machine means nothing.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct MachineInfo {
    pub(crate) kernel: Option<String>,
    pub(crate) cpu: Option<String>,
    pub(crate) cpus: usize,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) euid: Option<u32>,
}

impl MachineInfo {
    pub(crate) fn read() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Self {
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").ok().map(|text| text.trim().to_owned()),
            cpu: field(&read("/proc/cpuinfo"), "model name").map(str::to_owned),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory(&read("/proc/meminfo")),
            euid: Some(rustix::process::geteuid().as_raw()),
        }
    }
}

fn memory(meminfo: &str) -> Option<u64> {
    let kilobytes: u64 = field(meminfo, "MemTotal")?.strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes << 10)
}

/// Returns the first `name: value` of a text.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(key, value)| (key.trim(), value.trim())).find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// Returns the current time as `2026-11-15T13:05:09Z`.
pub(crate) fn now() -> String {
    // A clock before 1970 is wrong; the output then shows 1970.
    date(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn date(since_1970: Duration) -> String {
    let (mut days, seconds) = (since_1970.as_secs() / 86_400, since_1970.as_secs() % 86_400);
    let mut year = 1970;
    while days >= length_of(year) {
        days -= length_of(year);
        year += 1;
    }
    let february = length_of(year) - 337;
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    format!("{year}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", days + 1)
}

fn length_of(year: u64) -> u64 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    365 + u64::from(leap)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_794_747_909, "2026-11-15T13:05:09Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(date(Duration::from_secs(seconds)), expected);
        }
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "processor\t: 0\nmodel\t\t: 17\nmodel name\t: A CPU\nMemTotal:  2048 kB\n";
        assert_eq!(field(text, "model name"), Some("A CPU"));
        assert_eq!(field(text, "name"), None);
        assert_eq!(memory(text), Some(2 << 20));
    }
}
