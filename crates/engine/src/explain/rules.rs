//! The findings that there are. `docs/findings.md` is made from this table.

use crate::finding::Finding;

/// One kind of finding.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) id: &'static str,
    pub(super) category: &'static str,
    pub(super) severity: &'static str,
    /// When there is one.
    pub(super) when: &'static str,
    /// The setting that would allow it.
    pub(super) setting: &'static str,
    /// How it is known.
    pub(super) source: &'static str,
}

const OWN_WORDS: &str = "what the program wrote when it failed";

pub(super) const SYSCALL: Rule = Rule {
    id: "sandbox-syscall",
    category: "by the call, below",
    severity: "warning",
    when: "the filter refused a system call with EPERM",
    setting: "by the call, below",
    source: "the kernel",
};
pub(super) const READ_ONLY: Rule = Rule {
    id: "sandbox-read-only",
    category: "filesystem",
    severity: "warning",
    when: "something was to be written where nothing can be",
    setting: "`--mount SRC:DEST:rw`, `--workspace DIR`",
    source: OWN_WORDS,
};
pub(super) const NO_ACCESS: Rule = Rule {
    id: "sandbox-no-access",
    category: "filesystem",
    severity: "warning",
    when: "a file outside of what the sandbox user owns could not be opened or changed",
    setting: "`--mount SRC:DEST[:rw]`, `--file SRC:DEST`",
    source: OWN_WORDS,
};
pub(super) const NOT_SHARED: Rule = Rule {
    id: "sandbox-not-shared",
    category: "filesystem",
    severity: "info",
    when: "a path was not there that belongs to people's folders on the host, of which a sandbox sees none",
    setting: "`--mount SRC:DEST`, `--file SRC:DEST`",
    source: OWN_WORDS,
};
pub(super) const DISK_FULL: Rule = Rule {
    id: "sandbox-disk-full",
    category: "resource",
    severity: "warning",
    when: "the disk was full and the program went on, or a file grew longer than the disk",
    setting: "`--disk`, `limits.disk_bytes`",
    source: "the launcher, or what the program wrote when it failed",
};
pub(super) const PROCESSES: Rule = Rule {
    id: "sandbox-processes",
    category: "resource",
    severity: "warning",
    when: "a process or thread was refused and the program went on",
    setting: "`--processes`, `limits.processes`",
    source: "the control group; where there is none, what the program wrote when it failed",
};
pub(super) const MEMORY: Rule = Rule {
    id: "sandbox-memory",
    category: "resource",
    severity: "warning",
    when: "a command of a sandbox that stays had a process killed because memory ran out; or memory was refused, where no \
           control group holds it and each process is held for itself",
    setting: "`--memory`, `limits.memory_bytes`",
    source: "the control group, or what the program wrote when it failed",
};
pub(super) const OPEN_FILES: Rule = Rule {
    id: "sandbox-open-files",
    category: "resource",
    severity: "warning",
    when: "a process had too many files open",
    setting: "none",
    source: OWN_WORDS,
};
pub(super) const NO_NETWORK: Rule = Rule {
    id: "sandbox-no-network",
    category: "network",
    severity: "warning",
    when: "a host was not found or not reached, and the run has no network",
    setting: "`--network HOST[:PORT]`, `network.hosts`; or `--network full`",
    source: OWN_WORDS,
};

pub(super) const NOT_LIMITED: Rule = Rule {
    id: "sandbox-not-limited",
    category: "resource",
    severity: "high",
    when: "memory, processor time or the number of processes had no limit, though the provider should set one",
    setting: "none: limits belong there; `--require cgroup.memory` refuses instead",
    source: "the receipt",
};

pub(super) const ALL: &[&Rule] = &[
    &SYSCALL,
    &READ_ONLY,
    &NO_ACCESS,
    &NOT_SHARED,
    &NO_NETWORK,
    &DISK_FULL,
    &PROCESSES,
    &MEMORY,
    &OPEN_FILES,
    &NOT_LIMITED,
];

impl Rule {
    /// A finding of this kind.
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
