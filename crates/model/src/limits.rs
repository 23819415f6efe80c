//! Limits: as requested, and as enforced.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum number of open files of one process; no request can change it.
pub const MAX_OPEN_FILES: u64 = 1_024;

/// Resource limits. A value that is zero, negative or above the ceiling is refused.
// Signed, so that a negative number is refused with the name of the limit instead of as a parse error.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Limits")]
pub struct LimitsSpec {
    /// Wall-clock time in milliseconds.
    #[schemars(range(min = 1))]
    pub timeout_ms: Option<i64>,
    /// Memory of the whole sandbox in bytes, including files on its disk.
    #[schemars(range(min = 1))]
    pub memory_bytes: Option<i64>,
    /// CPU share in cores.
    pub cpus: Option<f64>,
    /// Total size of all written files in bytes.
    #[schemars(range(min = 1))]
    pub disk_bytes: Option<i64>,
    /// Maximum number of processes and threads.
    #[schemars(range(min = 1))]
    pub processes: Option<i64>,
    /// Bytes kept of each output stream.
    #[schemars(range(min = 1))]
    pub output_bytes: Option<i64>,
}

impl LimitsSpec {
    /// Fills in absent limits from `base`.
    #[must_use]
    pub fn or(&self, base: &LimitsSpec) -> LimitsSpec {
        LimitsSpec {
            timeout_ms: self.timeout_ms.or(base.timeout_ms),
            memory_bytes: self.memory_bytes.or(base.memory_bytes),
            cpus: self.cpus.or(base.cpus),
            disk_bytes: self.disk_bytes.or(base.disk_bytes),
            processes: self.processes.or(base.processes),
            output_bytes: self.output_bytes.or(base.output_bytes),
        }
    }
}

/// Enforced limits. Each one is finite, above zero and within the ceiling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Wall-clock time.
    pub timeout: Duration,
    /// Memory of the whole sandbox.
    pub memory_bytes: u64,
    /// CPU share, in thousandths of a core.
    pub cpu_millis: u32,
    /// Disk space of all writable places together.
    pub disk_bytes: u64,
    /// Processes and threads at the same time.
    pub processes: u32,
    /// Bytes kept of each output stream.
    pub output_bytes: u64,
}

impl Limits {
    /// The default limits.
    pub const DEFAULT: Limits = Limits {
        timeout: Duration::from_secs(30),
        memory_bytes: 512 << 20,
        cpu_millis: 1_000,
        disk_bytes: 100 << 20,
        processes: 64,
        output_bytes: 1 << 20,
    };

    /// The default ceiling of each limit.
    pub const CEILING: Limits = Limits {
        timeout: Duration::from_secs(24 * 3_600),
        memory_bytes: 64 << 30,
        cpu_millis: 128_000,
        disk_bytes: 64 << 30,
        processes: 4_096,
        output_bytes: 64 << 20,
    };

    /// The smallest useful limits: with less, an interpreter would fail to start with an obscure error.
    pub const MINIMUM: Limits = Limits {
        timeout: Duration::from_millis(1),
        memory_bytes: 4 << 20,
        cpu_millis: 10,
        disk_bytes: 64 << 10,
        processes: 1,
        output_bytes: 1,
    };

    /// Returns the default ceiling for a host. A sandbox's disk is memory, so it has the same ceiling.
    #[must_use]
    pub fn ceiling_for(machine: &HostCapacity) -> Limits {
        let usual = Limits::CEILING;
        let memory = machine.memory_bytes.unwrap_or(u64::MAX).max(Self::MINIMUM.memory_bytes);
        Limits {
            memory_bytes: usual.memory_bytes.min(memory),
            disk_bytes: usual.disk_bytes.min(memory),
            cpu_millis: usual
                .cpu_millis
                .min(machine.cpu_millis.unwrap_or(u32::MAX))
                .max(Self::MINIMUM.cpu_millis),
            processes: usual.processes.min(machine.processes.unwrap_or(u32::MAX)).max(1),
            ..usual
        }
    }

    /// Returns the number of cores, rounded up: how many threads are worth starting.
    pub fn whole_cpus(&self) -> u32 {
        self.cpu_millis.div_ceil(1_000)
    }
}

/// Capacity of a host for all sandboxes together; unknown values are absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostCapacity {
    /// Memory, without the server's reserve.
    pub memory_bytes: Option<u64>,
    /// CPU, in thousandths of a core.
    pub cpu_millis: Option<u32>,
    /// Processes and threads.
    pub processes: Option<u32>,
}

impl HostCapacity {
    /// Returns how much of a host's memory sandboxes may use. The server keeps a tenth, and at least 512 MiB
    /// or half of the memory, whichever is less.
    #[must_use]
    pub fn sandbox_share(total_bytes: u64) -> u64 {
        total_bytes - (total_bytes / 10).max((512 << 20).min(total_bytes / 2))
    }
}
