//! Admission of commands in a sandbox.

use belljar_model::command::{CommandRequest, SignalSpec, TerminalSizeSpec};

use super::{AdmittedSandbox, admit_timeout};
use crate::Error;
use crate::admit::{AdmissionRules, MAX_STDIN_BYTES, check_argv};
use crate::explain::signal_number;
use crate::finding::Finding;
use crate::policy::{self, PolicyCheck, Verdict};
use crate::profile::check_env;
use crate::quantity::show_bytes;
use crate::sandbox_handle::{CommandLine, StartCommand, StdinMode, TerminalSize};

/// Allowed range of `keep_bytes`.
const KEEP_BYTES_RANGE: std::ops::RangeInclusive<u64> = (64 << 10)..=(64 << 20);
/// Default of `keep_bytes`, in a sandbox with enough memory.
const DEFAULT_KEEP_BYTES: u64 = 1 << 20;
/// Divisor of a small sandbox's memory that gives its default of `keep_bytes`.
const KEEP_MEMORY_DIVISOR: u64 = 64;
/// Maximum standard input of a background command: the capacity of a pipe, so that the server need not hold
/// the rest.
const MAX_BACKGROUND_STDIN_BYTES: usize = 64 << 10;
const MAX_WORKDIR_BYTES: usize = 4_096;

/// Checks the size of a terminal.
///
/// # Errors
/// Fails if rows or columns are zero.
pub fn admit_terminal_size(size: TerminalSizeSpec) -> Result<TerminalSize, Error> {
    let TerminalSizeSpec { rows, columns } = size;
    if rows == 0 || columns == 0 {
        return Err(Error::invalid("terminal", "rows and columns must be above zero"));
    }
    Ok(TerminalSize { rows, columns })
}

/// Returns the number of a signal.
///
/// # Errors
/// Fails if there is no such signal.
pub fn admit_signal(signal: &SignalSpec) -> Result<i32, Error> {
    let found = match signal {
        SignalSpec::Name(name) => signal_number(name),
        SignalSpec::Number(number) => i32::try_from(*number).ok().filter(|number| (1..=31).contains(number)),
    };
    found.ok_or_else(|| Error::invalid("signal", "no such signal; write e.g. SIGTERM, TERM or 15"))
}

/// A command that passed admission.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AdmittedCommand {
    /// The command to start.
    pub start: StartCommand,
    /// Bytes to write to standard input.
    pub stdin: Option<Vec<u8>>,
    /// Whether to close standard input after that.
    pub close_stdin: bool,
    /// Whether to return without waiting for the command.
    pub background: bool,
    /// Findings of the policies.
    pub findings: Vec<Finding>,
}

/// Checks a command for a sandbox.
///
/// # Errors
/// Names the invalid field and how to fix it.
pub fn admit_command(
    sandbox: &AdmittedSandbox,
    request: CommandRequest,
    rules: &AdmissionRules<'_>,
) -> Result<AdmittedCommand, Error> {
    let mut whole = sandbox.plan.env.clone();
    whole.extend(request.env.clone());
    check_env(&whole)?;
    let stdin = request.stdin.map(String::into_bytes);
    if stdin.as_ref().is_some_and(|stdin| stdin.len() > MAX_STDIN_BYTES) {
        return Err(Error::invalid("stdin", "more than 64 MB; put it into a file instead"));
    }
    if request.background && stdin.as_ref().is_some_and(|stdin| stdin.len() > MAX_BACKGROUND_STDIN_BYTES) {
        return Err(Error::invalid(
            "stdin",
            "more than 64 KB for a command in the background; write it later",
        ));
    }
    let reads = stdin.is_some() || request.stdin_open;
    let limits = &sandbox.plan.limits;
    let timeout = match request.timeout_ms {
        Some(_) => Some(admit_timeout(request.timeout_ms, rules.ceiling.timeout)?),
        None => (!request.background).then_some(limits.timeout),
    };
    let start = StartCommand {
        command: admit_command_line(request.command, request.shell)?,
        env: request.env.into_iter().collect(),
        workdir: admit_workdir(request.workdir)?,
        stdin: if reads { StdinMode::Open } else { StdinMode::Closed },
        terminal: request.terminal.map(admit_terminal_size).transpose()?,
        timeout_ms: timeout.map(|timeout| timeout.as_millis() as u64),
        keep_bytes: admit_keep_bytes(request.keep_bytes, limits.memory_bytes)?,
    };
    let policies = policy::add_policies(rules.policies, sandbox.policies.clone(), [rules.policy_floor])?;
    let reading = PolicyCheck { policies: &policies, plan: &sandbox.plan };
    let Verdict { findings, refusal } =
        reading.check_command(&start.command, stdin.as_deref().unwrap_or_default());
    if let Some(message) = refusal {
        return Err(Error::Refused { message, findings });
    }
    let close_stdin = stdin.is_some() && !request.stdin_open;
    Ok(AdmittedCommand { start, stdin, close_stdin, background: request.background, findings })
}

fn admit_command_line(command: Option<Vec<String>>, shell: Option<String>) -> Result<CommandLine, Error> {
    match (command, shell) {
        (Some(command), None) => {
            check_argv("command", &command)?;
            Ok(CommandLine::Program(command))
        }
        (None, Some(line)) => {
            check_argv("shell", std::slice::from_ref(&line))?;
            Ok(CommandLine::Shell(line))
        }
        (Some(_), Some(_)) => Err(Error::invalid("shell", "cannot be combined with command")),
        (None, None) => {
            Err(Error::invalid("command", "is missing; give a program and its arguments, or a line as shell"))
        }
    }
}

fn admit_workdir(given: Option<String>) -> Result<Option<String>, Error> {
    match given {
        Some(path) if path.contains('\0') || path.len() > MAX_WORKDIR_BYTES => {
            Err(Error::invalid("workdir", "has a NUL or more than 4096 bytes"))
        }
        given => Ok(given),
    }
}

fn admit_keep_bytes(given: Option<i64>, memory_bytes: u64) -> Result<u32, Error> {
    let usual = (memory_bytes / KEEP_MEMORY_DIVISOR).clamp(*KEEP_BYTES_RANGE.start(), DEFAULT_KEEP_BYTES);
    let wanted = given.map_or(Some(usual), |given| u64::try_from(given).ok());
    wanted
        .filter(|bytes| KEEP_BYTES_RANGE.contains(bytes))
        .and_then(|bytes| u32::try_from(bytes).ok())
        .ok_or_else(|| {
            let (least, most) = (show_bytes(*KEEP_BYTES_RANGE.start()), show_bytes(*KEEP_BYTES_RANGE.end()));
            Error::invalid("keep_bytes", format!("must be from {least} to {most}"))
        })
}

#[cfg(test)]
#[path = "command_tests.rs"]
mod tests;
