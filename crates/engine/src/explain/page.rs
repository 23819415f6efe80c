//! `docs/findings.md`, made from the tables.

use std::fmt::Write as _;

use super::calls::{CALLS, OTHERS};
use super::rules::ALL;

const HEAD: &str = "\
# Findings: what the sandbox kept a program from

A result says in `findings` what was refused, why, and which setting would allow it; `belljar run` shows that of a run that
failed as a hint. Findings of [policies](policy.md), made before the run, have the same form.

    $ belljar run -c 'open(\"/etc/motd\", \"w\")'
    …
    OSError: [Errno 30] Read-only file system: '/etc/motd'
    belljar: hint: '/etc/motd' could not be written: the sandbox's root is read-only; write below /workspace, /tmp or home; or
      have a folder mounted there: --mount SRC:DEST:rw

What the kernel and the launcher saw is known. What a program wrote on standard error when it failed is its own text: it is
used to explain a failure, and for nothing else. A program that succeeds is not read, what a program itself made unreadable
is not explained, and what is not known is not guessed. What ended a run (`limit`, `timed_out`) is in `error` instead.

| finding | there is one when | what allows it | known from |
|---|---|---|---|
";

const CALLS_HEAD: &str = "
## System calls

Each call that was refused is told of once, with how often; at most 16 of them. Of a run that is refused more than 256
calls the rest is not looked at: from then on the kernel answers ENOSYS in place of EPERM.

| calls | category | refused because | instead |
|---|---|---|---|
";

const CALLS_FOOT: &str = "
Calls that runtimes try and get over by themselves, such as `clone3`, `io_uring_setup` and `userfaultfd`, are answered as by a
kernel that does not have them, and are no findings.
";

/// The page.
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    for rule in ALL {
        let _ = writeln!(page, "| `{}` | {} | {} | {} |", rule.id, rule.when, rule.setting, rule.source);
    }
    page.push_str(CALLS_HEAD);
    for calls in CALLS.iter().chain([&OTHERS]) {
        let names: Vec<_> = calls.names.iter().map(|name| format!("`{name}`")).collect();
        let names = if names.is_empty() { "all others".to_owned() } else { names.join(", ") };
        let _ = writeln!(page, "| {names} | {} | {} | {} |", calls.category, calls.reason, calls.instead);
    }
    page.push_str(CALLS_FOOT);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_in_step_with_the_tables() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/findings.md");
        if std::env::var_os("BELLJAR_WRITE_DOCS").is_some() {
            std::fs::write(path, page()).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert!(written == page(), "docs/findings.md is old; BELLJAR_WRITE_DOCS=1 writes it anew");
    }

    #[test]
    fn each_call_is_listed_once() {
        let names: Vec<_> = CALLS.iter().flat_map(|calls| calls.names).collect();
        let unique: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
    }
}
