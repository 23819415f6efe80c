//! The one-line `error` of a report, in words a person can act on.

use crate::limits::Limits;
use crate::outcome::{Ending, Limit};
use crate::quantity::{show_bytes, show_duration};

/// Describes an ending in one line; returns `None` for a successful exit.
pub(crate) fn error_line(ending: Ending, limits: &Limits, stderr: &str) -> Option<String> {
    match ending {
        Ending::Exited(0) => None,
        Ending::Exited(status) => Some(
            last_error_line(stderr).unwrap_or_else(|| format!("the program exited with status {status}")),
        ),
        Ending::Signalled(signal) => Some(format!("the program was killed by {}", signal_name(signal))),
        Ending::TimedOut => {
            let limit = show_duration(limits.timeout);
            Some(format!("Execution timeout after {limit}; limits.timeout_ms (--timeout) raises it"))
        }
        Ending::Cancelled => Some("the execution was canceled".to_owned()),
        Ending::LimitHit(limit, _) => Some(limit_line(limit, limits)),
    }
}

fn limit_line(limit: Limit, limits: &Limits) -> String {
    match limit {
        Limit::Memory => format!(
            "memory limit of {} exceeded; limits.memory_bytes (--memory) raises it",
            show_bytes(limits.memory_bytes)
        ),
        Limit::Disk => format!(
            "disk limit of {} exceeded; limits.disk_bytes (--disk) raises it",
            show_bytes(limits.disk_bytes)
        ),
        Limit::Processes => format!(
            "limit of {} processes and threads exceeded; limits.processes (--processes) raises it",
            limits.processes
        ),
        Limit::Output => format!(
            "output limit of {} exceeded; limits.output_bytes (--output) raises it",
            show_bytes(limits.output_bytes)
        ),
    }
}

/// Returns the line of standard error that names the problem: the last `SomeError: reason`, else a compiler's
/// first error (later ones may be consequences of it), else the last line.
pub(super) fn last_error_line(stderr: &str) -> Option<String> {
    let lines = || stderr.lines().map(str::trim_end).filter(|line| !line.trim().is_empty());
    let named = lines().rev().take(200).find(|line| names_an_error(line));
    let compiler = || lines().take(200).find(|line| is_compiler_error(line));
    let line = named.or_else(compiler).or_else(|| lines().next_back());
    line.map(|line| line.trim().chars().take(500).collect())
}

/// Matches `main.c:1:2: error: reason` (gcc, clang, javac) and `error[E0425]: reason` (rustc).
fn is_compiler_error(line: &str) -> bool {
    [": error: ", ": fatal error: "].iter().any(|mark| line.contains(mark))
        || ["error: ", "error["].iter().any(|start| line.starts_with(start))
}

fn names_an_error(line: &str) -> bool {
    let Some((head, _)) = line.split_once(':') else { return false };
    let word = head.strip_prefix("Uncaught ").unwrap_or(head);
    let class = word.split(' ').next().unwrap_or_default();
    (class.ends_with("Error") || class.ends_with("Exception"))
        && class.chars().next().is_some_and(char::is_alphabetic)
        && class.chars().all(|c| c.is_alphanumeric() || matches!(c, '.' | '_'))
}

/// Signal names from number 1 on, numbered as on x86-64 and aarch64.
const SIGNALS: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
    "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
    "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

/// Returns the name of a signal, e.g. `SIGSEGV`.
pub(crate) fn signal_name(signal: i32) -> String {
    let known = usize::try_from(signal - 1).ok().and_then(|index| SIGNALS.get(index));
    known.map_or_else(|| format!("SIG{signal}"), |name| format!("SIG{name}"))
}

/// Returns the number of a signal, given its name with or without `SIG`.
pub(crate) fn signal_number(name: &str) -> Option<i32> {
    let name = name.strip_prefix("SIG").unwrap_or(name);
    let index = SIGNALS.iter().position(|known| *known == name)?;
    i32::try_from(index + 1).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_line_is_found() {
        let python = "Traceback (most recent call last):\n  File \"main.py\", line 1\nNameError: name 'x' is not defined\n";
        assert_eq!(last_error_line(python).unwrap(), "NameError: name 'x' is not defined");
        let node = "/workspace/main.js:1\nx()\n^\n\nReferenceError: x is not defined\n    at main.js:1\n\nNode.js v20\n";
        assert_eq!(last_error_line(node).unwrap(), "ReferenceError: x is not defined");
        assert_eq!(
            last_error_line("main.sh: line 1: foo: command not found\n").unwrap(),
            "main.sh: line 1: foo: command not found"
        );
        assert_eq!(last_error_line(" \n"), None);
    }

    #[test]
    fn the_first_compiler_error_is_used() {
        let gcc = "main.c: In function 'main':\nmain.c:1:9: error: one\n    1 | x\n      | ^\nmain.c:2:1: error: two\n";
        assert_eq!(last_error_line(gcc).unwrap(), "main.c:1:9: error: one");
        let rustc =
            "warning: unused\nerror[E0425]: cannot find value\n --> main.rs:1:13\n\nerror: aborting\n";
        assert_eq!(last_error_line(rustc).unwrap(), "error[E0425]: cannot find value");
    }

    #[test]
    fn signals_have_names() {
        assert_eq!(signal_name(9), "SIGKILL");
        assert_eq!(signal_name(31), "SIGSYS");
        assert_eq!(signal_name(64), "SIG64");
        assert_eq!(signal_name(0), "SIG0");
        assert!((1..=31).all(|signal| signal_number(&signal_name(signal)) == Some(signal)));
        assert_eq!((signal_number("INT"), signal_number("SIG64"), signal_number("")), (Some(2), None, None));
    }
}
