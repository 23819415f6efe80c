//! Generates `docs/findings.md` from the tables.

use std::fmt::Write as _;

use super::rules::FINDING_RULES;
use super::syscalls::{OTHER_SYSCALLS, SYSCALL_ADVICE};

const HEAD: &str = "\
# Findings: what the sandbox denied

The `findings` of a result say what was refused, why, and which setting would allow it. `belljar run` prints them as hints
when an execution failed. Findings of [policies](policy.md), made before the code runs, have the same form.

    $ belljar run -c 'open(\"/etc/motd\", \"w\")'
    …
    OSError: [Errno 30] Read-only file system: '/etc/motd'
    belljar: hint: '/etc/motd' could not be written: the sandbox's root is read-only; write below /workspace, /tmp or home; or
        mount a folder there: --mount SRC:DEST:rw

Facts come from the kernel and the launcher. Standard error of a failed program is only used to explain the failure; the
output of a successful program is not read. Permission errors on files that the program itself made inaccessible are not
explained, and unknown causes are not guessed. What ended an execution (`limit`, `timed_out`) is in `error` instead.

| finding | reported when | allowed by | source |
|---|---|---|---|
";

const CALLS_HEAD: &str = "
## System calls

Each refused call is reported once with its count, at most 16 different calls. After 256 refused calls in one execution
further ones are not recorded: from then on the kernel answers ENOSYS instead of EPERM.

| calls | category | refused because | instead |
|---|---|---|---|
";

const CALLS_FOOT: &str = "
Calls that runtimes try and do without, such as `clone3`, `io_uring_setup` and `userfaultfd`, are answered as by a kernel
that lacks them, and are not reported.
";

/// Returns the page as Markdown.
pub fn findings_page() -> String {
    let mut page = HEAD.to_owned();
    for rule in FINDING_RULES {
        let _ = writeln!(page, "| `{}` | {} | {} | {} |", rule.id, rule.when, rule.setting, rule.source);
    }
    page.push_str(CALLS_HEAD);
    for calls in SYSCALL_ADVICE.iter().chain([&OTHER_SYSCALLS]) {
        let names: Vec<_> = calls.names.iter().map(|name| format!("`{name}`")).collect();
        let names = if names.is_empty() { "all others".to_owned() } else { names.join(", ") };
        let _ = writeln!(page, "| {names} | {} | {} | {} |", calls.category, calls.reason, calls.suggestion);
    }
    page.push_str(CALLS_FOOT);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_docs_are_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/findings.md");
        if std::env::var_os("BELLJAR_WRITE_DOCS").is_some() {
            std::fs::write(path, findings_page()).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            written == findings_page(),
            "docs/findings.md is out of date; BELLJAR_WRITE_DOCS=1 regenerates it"
        );
    }

    #[test]
    fn each_call_is_listed_once() {
        let names: Vec<_> = SYSCALL_ADVICE.iter().flat_map(|calls| calls.names).collect();
        let unique: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
    }
}
