//! Kinds of findings about denials. `docs/findings.md` is generated from this table.

use crate::finding::Finding;

/// A kind of finding.
#[derive(Debug)]
pub(super) struct FindingRule {
    pub(super) id: &'static str,
    pub(super) category: &'static str,
    pub(super) severity: &'static str,
    /// When it is reported.
    pub(super) when: &'static str,
    /// The setting that would allow it.
    pub(super) setting: &'static str,
    /// Where the information comes from.
    pub(super) source: &'static str,
}

const PROGRAM_STDERR: &str = "standard error of the failed program";

pub(super) const SYSCALL: FindingRule = FindingRule {
    id: "sandbox-syscall",
    category: "depends on the call, see below",
    severity: "warning",
    when: "the seccomp filter refused a system call with EPERM",
    setting: "depends on the call, see below",
    source: "the kernel",
};
pub(super) const READ_ONLY: FindingRule = FindingRule {
    id: "sandbox-read-only",
    category: "filesystem",
    severity: "warning",
    when: "a write to a read-only place failed",
    setting: "`--mount SRC:DEST:rw`, `--workspace DIR`",
    source: PROGRAM_STDERR,
};
pub(super) const NO_ACCESS: FindingRule = FindingRule {
    id: "sandbox-no-access",
    category: "filesystem",
    severity: "warning",
    when: "a file that the sandbox user does not own could not be opened or changed",
    setting: "`--mount SRC:DEST[:rw]`, `--file SRC:DEST`",
    source: PROGRAM_STDERR,
};
pub(super) const NOT_SHARED: FindingRule = FindingRule {
    id: "sandbox-not-shared",
    category: "filesystem",
    severity: "info",
    when: "a path in a user folder of the host, which sandboxes do not see, did not exist",
    setting: "`--mount SRC:DEST`, `--file SRC:DEST`",
    source: PROGRAM_STDERR,
};
pub(super) const DISK_FULL: FindingRule = FindingRule {
    id: "sandbox-disk-full",
    category: "resource",
    severity: "warning",
    when: "the disk was full and the program went on, or a file grew larger than the disk",
    setting: "`--disk`, `limits.disk_bytes`",
    source: "the launcher, or standard error of the failed program",
};
pub(super) const PROCESSES: FindingRule = FindingRule {
    id: "sandbox-processes",
    category: "resource",
    severity: "warning",
    when: "a process or thread was refused and the program went on",
    setting: "`--processes`, `limits.processes`",
    source: "the cgroup; without one, standard error of the failed program",
};
pub(super) const MEMORY: FindingRule = FindingRule {
    id: "sandbox-memory",
    category: "resource",
    severity: "warning",
    when: "a process of a command in a long-lived sandbox was killed because memory ran out; or an allocation was refused, \
           where there is no memory cgroup and each process is limited by itself",
    setting: "`--memory`, `limits.memory_bytes`",
    source: "the cgroup, or standard error of the failed program",
};
pub(super) const OPEN_FILES: FindingRule = FindingRule {
    id: "sandbox-open-files",
    category: "resource",
    severity: "warning",
    when: "a process had too many files open",
    setting: "none",
    source: PROGRAM_STDERR,
};
pub(super) const NO_NETWORK: FindingRule = FindingRule {
    id: "sandbox-no-network",
    category: "network",
    severity: "warning",
    when: "a host was not found or not reached, and the execution has no network",
    setting: "`--network HOST[:PORT]`, `network.hosts`; or `--network internet`",
    source: PROGRAM_STDERR,
};
pub(super) const DIRECT_CONNECTION: FindingRule = FindingRule {
    id: "sandbox-direct-connection",
    category: "network",
    severity: "warning",
    when: "a program connected to a host by itself instead of through the proxy, which is the only way out with network \
           modes `hosts` and `internet`",
    setting: "none: the program must use the proxy, see [network](network.md)",
    source: PROGRAM_STDERR,
};
pub(super) const NO_MODULE: FindingRule = FindingRule {
    id: "sandbox-no-module",
    category: "dependencies",
    severity: "info",
    when: "a program imported a module that its sandbox does not have",
    setting: "`--dep NAME`, `dependencies.packages`",
    source: PROGRAM_STDERR,
};

pub(super) const NOT_LIMITED: FindingRule = FindingRule {
    id: "sandbox-not-limited",
    category: "resource",
    severity: "high",
    when: "memory, CPU time or the number of processes was not limited, although the provider should limit it",
    setting: "none: `--require cgroup.memory` refuses such executions",
    source: "the receipt",
};

pub(super) const ARTIFACT: FindingRule = FindingRule {
    id: "artifact-left-out",
    category: "artifacts",
    severity: "warning",
    when: "something below `./artifacts` was not returned: above a limit, a link, a device, or a name that cannot be shown",
    setting: "`artifacts.max_files`, `artifacts.max_file_bytes`, `artifacts.max_bytes`",
    source: "the collection of artifacts",
};

pub(super) const FINDING_RULES: &[&FindingRule] = &[
    &SYSCALL,
    &READ_ONLY,
    &NO_ACCESS,
    &NOT_SHARED,
    &NO_NETWORK,
    &DIRECT_CONNECTION,
    &NO_MODULE,
    &DISK_FULL,
    &PROCESSES,
    &MEMORY,
    &OPEN_FILES,
    &NOT_LIMITED,
    &ARTIFACT,
];

impl FindingRule {
    /// Creates a finding of this kind.
    pub(super) fn finding(&self, message: String, suggestion: String, decided_by: String) -> Finding {
        Finding {
            rule: self.id.to_owned(),
            category: self.category.to_owned(),
            severity: self.severity.to_owned(),
            message,
            line: None,
            column: None,
            suggestion,
            decided_by,
        }
    }
}
