//! Memory cost of idle sandboxes.

use std::fs;

use belljar_engine::provider::PoolMetrics;
use serde::Serialize;

/// Idle sandboxes and the mean memory of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct IdleMemory {
    pub(crate) sandboxes: usize,
    /// Mean proportional set size: a page shared by n processes counts 1/n for each.
    pub(crate) memory_bytes: u64,
}

/// Measures every idle process; `None` if there are none or the kernel does not report their memory.
pub(crate) fn measure_idle(pools: &[PoolMetrics]) -> Option<IdleMemory> {
    let sandboxes: usize = pools.iter().map(|pool| pool.size).sum();
    let sizes: Option<Vec<u64>> =
        pools.iter().flat_map(|pool| &pool.processes).map(|pid| pss(*pid)).collect();
    let total: u64 = sizes?.iter().sum();
    (sandboxes > 0 && total > 0).then(|| IdleMemory { sandboxes, memory_bytes: total / sandboxes as u64 })
}

/// Returns the proportional set size of a process.
pub(crate) fn pss(pid: u32) -> Option<u64> {
    parse(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?)
}

fn parse(rollup: &str) -> Option<u64> {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pss_is_parsed() {
        let text = "5581-7ffc ---p 00000000 00:00 0   [rollup]\nRss:     3000 kB\nPss:     1331 kB\nPss_Dirty: 9 kB\n";
        assert_eq!(parse(text), Some(1331 << 10));
        assert_eq!(parse("Rss: 1 kB\n"), None);
    }

    #[test]
    fn no_idle_sandbox_gives_no_figure() {
        assert_eq!(measure_idle(&[]), None);
        assert_eq!(measure_idle(&[PoolMetrics::default()]), None);
        let gone = PoolMetrics { size: 1, processes: vec![u32::MAX], ..PoolMetrics::default() };
        assert_eq!(measure_idle(&[gone]), None);
    }
}
