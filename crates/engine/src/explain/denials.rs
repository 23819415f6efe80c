//! Denials observed from outside a program: refused system calls, refused forks, memory kills, a full disk.

use belljar_model::denial::{Denials, DeniedSyscall};

use super::rules::{DISK_FULL, MEMORY, NOT_LIMITED, PROCESSES, SYSCALL};
use super::syscalls;
use crate::finding::Finding;
use crate::layer::Layer;
use crate::limits::Limits;
use crate::outcome::{Ending, Limit};
use crate::provider::Capabilities;
use crate::quantity::show_bytes;

/// Returns findings about denials. A denial that ended the execution is in `error` instead.
pub fn denial_findings(denials: &Denials, ending: Ending, limits: &Limits) -> Vec<Finding> {
    let ended_by = |limit| matches!(ending, Ending::LimitHit(ended, _) if ended == limit);
    let mut findings: Vec<Finding> =
        denials.calls.iter().map(|call| refused_call_finding(call, denials.more_calls)).collect();
    if denials.forks_refused > 0 && !ended_by(Limit::Processes) {
        findings.push(processes_finding(Some(denials.forks_refused), limits));
    }
    if denials.memory_kills > 0 && !ended_by(Limit::Memory) {
        findings.push(memory_finding(denials.memory_kills, limits));
    }
    if denials.disk_full && !ended_by(Limit::Disk) {
        findings.push(disk_full_finding("the disk was full", limits));
    }
    findings
}

/// Reports limits that the provider declares but the receipt lacks; every execution must have them. Returns
/// `None` if no sandbox was created.
pub(crate) fn missing_limits(declared: &Capabilities, isolation: &[Layer]) -> Option<Finding> {
    const LIMITS: [(Layer, &str); 3] = [
        (Layer::CgroupMemory, "memory"),
        (Layer::CgroupCpu, "CPU time"),
        (Layer::CgroupPids, "the number of processes"),
    ];
    if isolation.is_empty() {
        return None;
    }
    let is_said = |layer| declared.remote || declared.missing.iter().any(|missing| missing.layer == layer);
    let open: Vec<_> =
        LIMITS.iter().filter(|(layer, _)| !isolation.contains(layer) && !is_said(*layer)).collect();
    let what: Vec<_> = open.iter().map(|(_, what)| *what).collect();
    let (first, _) = open.first()?;
    Some(NOT_LIMITED.finding(
        format!("no limit was enforced on {}", what.join(", ")),
        format!("check the runtime's configuration (gVisor's --ignore-cgroups causes this), or refuse such executions: --require {first}"),
        "the receipt".to_owned(),
    ))
}

fn refused_call_finding(call: &DeniedSyscall, more: bool) -> Finding {
    let known = syscalls::advice_for(&call.name);
    let (name, reason) = (&call.name, known.reason);
    let least = if more { "at least " } else { "" };
    let often = if call.count > 1 { format!(" ({least}{} times)", call.count) } else { String::new() };
    let message = format!("the call {name}({}) was refused: {reason}{often}", call_detail(call));
    let finding = SYSCALL.finding(message, known.suggestion.to_owned(), "the system-call filter".to_owned());
    Finding { category: known.category.to_owned(), ..finding }
}

/// Returns the argument that the filter checked, if it says more than the name.
fn call_detail(call: &DeniedSyscall) -> String {
    const RAW: u64 = 3;
    match (call.name.as_str(), call.arguments) {
        ("ioctl", [_, request, _]) => format!("{:#x}", request as u32),
        ("setsockopt" | "getsockopt", [_, level, name]) => option_name(level as u32, name as u32),
        ("socket", [_, kind, _]) if kind & 0xf == RAW => "SOCK_RAW".to_owned(),
        _ => String::new(),
    }
}

/// Returns the name of a socket option as in the manuals, or its two numbers.
fn option_name(level: u32, name: u32) -> String {
    let known = match (level, name) {
        (1, 26) => "SO_ATTACH_FILTER",
        (1, 50) => "SO_ATTACH_BPF",
        (1, 51) => "SO_ATTACH_REUSEPORT_CBPF",
        (1, 52) => "SO_ATTACH_REUSEPORT_EBPF",
        (1, 36) => "SO_MARK",
        (1, 37) => "SO_TIMESTAMPING",
        (1, 60) => "SO_ZEROCOPY",
        (1, 61) => "SO_TXTIME",
        (6, 14) => "TCP_MD5SIG",
        (6, 19) => "TCP_REPAIR",
        (6, 31) => "TCP_ULP",
        (6, 35) => "TCP_ZEROCOPY_RECEIVE",
        (0, 4) => "IP_OPTIONS",
        _ => return format!("level {level}, option {name}"),
    };
    known.to_owned()
}

pub(super) fn processes_finding(refused: Option<u64>, limits: &Limits) -> Finding {
    let often = refused.map_or(String::new(), |count| format!(" {count} times"));
    PROCESSES.finding(
        format!("a new process or thread was refused{often}: the limit is {}", limits.processes),
        "start fewer at once, or raise limits.processes (--processes)".to_owned(),
        format!("limits.processes = {}", limits.processes),
    )
}

fn memory_finding(kills: u64, limits: &Limits) -> Finding {
    let limit = limits.memory_bytes;
    let (who, were) = if kills == 1 { ("a process", "was") } else { ("processes", "were") };
    MEMORY.finding(
        format!(
            "{who} {were} killed because memory ran out: the limit for all processes together is {}",
            show_bytes(limit)
        ),
        "use less, or raise limits.memory_bytes (--memory)".to_owned(),
        format!("limits.memory_bytes = {limit}"),
    )
}

pub(super) fn disk_full_finding(what: &str, limits: &Limits) -> Finding {
    let size = show_bytes(limits.disk_bytes);
    DISK_FULL.finding(
        format!("{what}: /workspace, /tmp and home may hold {size} together, unless a host folder is mounted there"),
        "write less, or raise limits.disk_bytes (--disk)".to_owned(),
        format!("limits.disk_bytes = {}", limits.disk_bytes),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::MissingLayer;

    #[test]
    fn declared_but_missing_limits_are_reported() {
        let held = [Layer::PidNs, Layer::CgroupPids];
        let said =
            |declared: &Capabilities, held: &[Layer]| missing_limits(declared, held).map(|one| one.message);
        let all = Capabilities::default();
        assert_eq!(said(&all, &held).unwrap(), "no limit was enforced on memory, CPU time");
        assert_eq!(said(&all, &[]), None);
        assert_eq!(said(&Capabilities { remote: true, ..all.clone() }, &held), None);
        let missing = |layer| MissingLayer { layer, reason: String::new(), remedy: String::new() };
        let known = vec![missing(Layer::CgroupMemory), missing(Layer::CgroupCpu)];
        assert_eq!(said(&Capabilities { missing: known, ..all }, &held), None);
    }
}
