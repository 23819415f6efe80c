//! Admission of limits. A limit above the ceiling is refused, never clamped.

use std::time::Duration;

pub use belljar_model::limits::{HostCapacity, Limits, LimitsSpec, MAX_OPEN_FILES};

use crate::Error;
use crate::quantity::{show_bytes, show_duration};

/// Checks requested limits against the ceiling and fills in defaults.
///
/// # Errors
/// Names the first limit that is zero, negative, too small to be useful or above the ceiling.
pub fn admit_limits(spec: &LimitsSpec, ceiling: &Limits) -> Result<Limits, Error> {
    let default = Limits::DEFAULT;
    let millis = |d: Duration| i64::try_from(d.as_millis()).unwrap_or(i64::MAX);
    let time = |ms: u64| show_duration(Duration::from_millis(ms));
    let timeout_ms = check_range(
        "timeout_ms",
        spec.timeout_ms.unwrap_or(millis(default.timeout)),
        Limits::MINIMUM.timeout.as_millis() as u64,
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
            Limits::MINIMUM.memory_bytes,
            ceiling.memory_bytes,
        )?,
        cpu_millis: admit_cpus(spec.cpus, ceiling)?,
        disk_bytes: bytes(
            "disk_bytes",
            spec.disk_bytes,
            default.disk_bytes,
            Limits::MINIMUM.disk_bytes,
            ceiling.disk_bytes,
        )?,
        processes: check_range(
            "processes",
            spec.processes.unwrap_or(default.processes.into()),
            Limits::MINIMUM.processes.into(),
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
        admit_limits(&spec, &Limits::CEILING).unwrap_err().to_string()
    }

    #[test]
    fn absent_means_default() {
        assert_eq!(admit_limits(&LimitsSpec::default(), &Limits::CEILING).unwrap(), Limits::DEFAULT);
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
        let refused = admit_limits(&spec, &ceiling).unwrap_err().to_string();
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
