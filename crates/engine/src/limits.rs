//! Limits: as requested, the ceiling, and as enforced. A limit above the ceiling is refused, never clamped.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::quantity::{show_bytes, show_duration};

/// Maximum number of open files of one process; no request can change it.
pub const MAX_OPEN_FILES: u64 = 1_024;

/// Limits as given by a request, a profile or a flag; an absent limit comes from the next source.
/// Signed, so that a negative number is refused with the name of the limit instead of as a parse error.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsSpec {
    /// Wall-clock time.
    pub timeout_ms: Option<i64>,
    /// Memory of the whole sandbox, including files on its disk.
    pub memory_bytes: Option<i64>,
    /// CPU share; 1.0 is one core.
    pub cpus: Option<f64>,
    /// Disk space of the workspace, `/tmp`, `/dev/shm` and home together.
    pub disk_bytes: Option<i64>,
    /// Processes and threads at the same time.
    pub processes: Option<i64>,
    /// Bytes kept of each output stream.
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

    /// The smallest useful limits: with less, an interpreter would fail to start with an obscure error.
    const MINIMUM: Limits = Limits {
        timeout: Duration::from_millis(1),
        memory_bytes: 4 << 20,
        cpu_millis: 10,
        disk_bytes: 64 << 10,
        processes: 1,
        output_bytes: 1,
    };

    /// Returns the number of cores, rounded up: how many threads are worth starting.
    pub fn whole_cpus(&self) -> u32 {
        self.cpu_millis.div_ceil(1_000)
    }

    /// Checks requested limits against the ceiling and fills in defaults.
    ///
    /// # Errors
    /// Names the first limit that is zero, negative, too small to be useful or above the ceiling.
    pub fn admit(spec: &LimitsSpec, ceiling: &Limits) -> Result<Limits, Error> {
        let default = Limits::DEFAULT;
        let millis = |d: Duration| i64::try_from(d.as_millis()).unwrap_or(i64::MAX);
        let time = |ms: u64| show_duration(Duration::from_millis(ms));
        let timeout_ms = check_range(
            "timeout_ms",
            spec.timeout_ms.unwrap_or(millis(default.timeout)),
            Self::MINIMUM.timeout.as_millis() as u64,
            ceiling.timeout.as_millis() as u64,
            time,
        )?;
        let bytes = |name, given: Option<i64>, default: u64, floor, ceiling| {
            check_range(name, given.unwrap_or(default as i64), floor, ceiling, show_bytes)
        };
        Ok(Limits {
            timeout: Duration::from_millis(timeout_ms),
            memory_bytes: bytes(
                "memory_bytes",
                spec.memory_bytes,
                default.memory_bytes,
                Self::MINIMUM.memory_bytes,
                ceiling.memory_bytes,
            )?,
            cpu_millis: admit_cpus(spec.cpus, ceiling)?,
            disk_bytes: bytes(
                "disk_bytes",
                spec.disk_bytes,
                default.disk_bytes,
                Self::MINIMUM.disk_bytes,
                ceiling.disk_bytes,
            )?,
            processes: check_range(
                "processes",
                spec.processes.unwrap_or(default.processes.into()),
                Self::MINIMUM.processes.into(),
                ceiling.processes.into(),
                |n| n.to_string(),
            )? as u32,
            output_bytes: bytes(
                "output_bytes",
                spec.output_bytes,
                default.output_bytes,
                1,
                ceiling.output_bytes,
            )?,
        })
    }
}

fn admit_cpus(given: Option<f64>, ceiling: &Limits) -> Result<u32, Error> {
    let cpus = given.unwrap_or(1.0);
    // NaN becomes 0 and infinities saturate here; both are refused below like any other bad value.
    let millis = (cpus * 1_000.0).round() as i64;
    let show = |millis: u64| format!("{}", millis as f64 / 1_000.0);
    check_range("cpus", millis, Limits::MINIMUM.cpu_millis.into(), ceiling.cpu_millis.into(), show)
        .map(|n| n as u32)
}

fn check_range(
    name: &'static str,
    given: i64,
    floor: u64,
    ceiling: u64,
    show: impl Fn(u64) -> String,
) -> Result<u64, Error> {
    let refuse = |message| Err(Error::Limit { name, message });
    let Ok(value) = u64::try_from(given) else {
        return refuse("must be above zero, but is negative".to_owned());
    };
    if value == 0 {
        return refuse("must be above zero: there is no 'unlimited'".to_owned());
    }
    if value < floor {
        return refuse(format!("{} is too small; the minimum is {}", show(value), show(floor)));
    }
    if value > ceiling {
        return refuse(format!(
            "{} is above the ceiling of {}; ask for less, or raise [ceiling] in belljar.toml",
            show(value),
            show(ceiling)
        ));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(spec: LimitsSpec) -> String {
        Limits::admit(&spec, &Limits::CEILING).unwrap_err().to_string()
    }

    #[test]
    fn absent_means_default() {
        assert_eq!(Limits::admit(&LimitsSpec::default(), &Limits::CEILING).unwrap(), Limits::DEFAULT);
    }

    #[test]
    fn zero_negative_and_absurd_are_refused() {
        let spec = LimitsSpec::default;
        assert!(
            refused(LimitsSpec { timeout_ms: Some(0), ..spec() })
                .contains("limits.timeout_ms: must be above")
        );
        assert!(refused(LimitsSpec { memory_bytes: Some(-1), ..spec() }).contains("negative"));
        assert!(refused(LimitsSpec { memory_bytes: Some(i64::MAX), ..spec() }).contains("ceiling of 64 GB"));
        assert!(refused(LimitsSpec { memory_bytes: Some(1), ..spec() }).contains("the minimum is 4 MB"));
        assert!(refused(LimitsSpec { cpus: Some(f64::NAN), ..spec() }).contains("above zero"));
        assert!(refused(LimitsSpec { cpus: Some(f64::INFINITY), ..spec() }).contains("ceiling of 128"));
        assert!(refused(LimitsSpec { cpus: Some(-0.5), ..spec() }).contains("negative"));
        assert!(refused(LimitsSpec { processes: Some(1 << 40), ..spec() }).contains("ceiling of 4096"));
        assert!(refused(LimitsSpec { disk_bytes: Some(0), ..spec() }).contains("above zero"));
        assert!(refused(LimitsSpec { output_bytes: Some(0), ..spec() }).contains("above zero"));
    }

    #[test]
    fn the_ceiling_follows_the_host_capacity() {
        let machine = HostCapacity {
            memory_bytes: Some(HostCapacity::sandbox_share(24 << 30)),
            cpu_millis: Some(2_000),
            processes: Some(1_000),
        };
        let ceiling = Limits::ceiling_for(&machine);
        assert_eq!(ceiling.memory_bytes, (24 << 30) - (24 << 30) / 10);
        assert_eq!(
            (ceiling.disk_bytes, ceiling.cpu_millis, ceiling.processes),
            (ceiling.memory_bytes, 2_000, 1_000)
        );
        let spec = LimitsSpec { memory_bytes: Some(64 << 30), ..LimitsSpec::default() };
        let refused = Limits::admit(&spec, &ceiling).unwrap_err().to_string();
        assert!(refused.contains(&format!("ceiling of {}", show_bytes(ceiling.memory_bytes))), "{refused}");
        assert_eq!(Limits::ceiling_for(&HostCapacity::default()), Limits::CEILING, "for an unknown capacity");
        assert_eq!(HostCapacity::sandbox_share(1 << 30), 512 << 20);
        assert_eq!(HostCapacity::sandbox_share(512 << 20), 256 << 20, "half of a small machine is reserved");
    }

    #[test]
    fn own_limits_win_over_base() {
        let near = LimitsSpec { cpus: Some(2.0), ..LimitsSpec::default() };
        let far = LimitsSpec { cpus: Some(1.0), processes: Some(9), ..LimitsSpec::default() };
        let both = near.or(&far);
        assert_eq!((both.cpus, both.processes), (Some(2.0), Some(9)));
    }
}
