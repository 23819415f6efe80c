//! A command for a sandbox as callers ask for it, and its admission.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{AdmittedSandbox, admit_timeout};
use crate::Error;
use crate::admit::{MAX_STDIN, Rules, check_env, check_words};
use crate::explain::signal_number;
use crate::finding::Finding;
use crate::living::{CommandLine, StartCommand, Stdin, TerminalSize};
use crate::policy::{self, Reading, Verdict};
use crate::quantity::show_bytes;

/// The least and the most of its output that a command may have kept.
const KEEP: std::ops::RangeInclusive<u64> = (64 << 10)..=(64 << 20);
/// What is kept where nobody says anything, in a sandbox with enough memory.
const USUAL_KEEP: u64 = 1 << 20;
/// The part of a small sandbox's memory that is kept of each command instead.
const KEEP_PART: u64 = 64;
/// What a pipe takes at once, so that nothing of a command in the background waits out here.
const MAX_LEFT_STDIN: usize = 64 << 10;
const MAX_PATH: usize = 4_096;

/// A command to start. Unknown fields are refused by name.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CommandRequest {
    /// A program and its arguments.
    pub command: Option<Vec<String>>,
    /// A line for the shell, instead.
    pub shell: Option<String>,
    /// Environment, beside the sandbox's.
    pub env: BTreeMap<String, String>,
    /// Where it starts: absolute, or relative to the workspace.
    pub workdir: Option<String>,
    /// What it reads.
    pub stdin: Option<String>,
    /// Whether more may be written to it later.
    pub stdin_open: bool,
    /// A terminal of its own.
    pub terminal: Option<SizeSpec>,
    /// Its time; for one in the background, none unless given.
    pub timeout_ms: Option<i64>,
    /// So much of its output is kept.
    pub keep_bytes: Option<i64>,
    /// Whether it goes on by itself.
    pub background: bool,
}

/// The size of a terminal, as a caller gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SizeSpec {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub columns: u16,
}

impl SizeSpec {
    /// A size in which something can be seen.
    ///
    /// # Errors
    /// There are no rows or no columns.
    pub fn admit(self) -> Result<TerminalSize, Error> {
        let Self { rows, columns } = self;
        if rows == 0 || columns == 0 {
            return Err(Error::invalid("terminal", "rows and columns must be above zero"));
        }
        Ok(TerminalSize { rows, columns })
    }
}

/// A signal by its name, with or without `SIG`, or by its number.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum SignalSpec {
    /// `SIGINT` or `INT`.
    Name(String),
    /// 2.
    Number(i64),
}

impl SignalSpec {
    /// Its number.
    ///
    /// # Errors
    /// There is no such signal.
    pub fn admit(&self) -> Result<i32, Error> {
        let found = match self {
            Self::Name(name) => signal_number(name),
            Self::Number(number) => i32::try_from(*number).ok().filter(|number| (1..=31).contains(number)),
        };
        found.ok_or_else(|| Error::invalid("signal", "no such signal; SIGTERM, TERM and 15 are the same one"))
    }
}

/// A command that may be started.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AdmittedCommand {
    /// What to start.
    pub start: StartCommand,
    /// What to write to it, if anything.
    pub stdin: Option<Vec<u8>>,
    /// Whether its input is to be closed behind that.
    pub close_stdin: bool,
    /// Whether it goes on by itself.
    pub background: bool,
    /// What policies say of it.
    pub findings: Vec<Finding>,
}

/// Checks a command that is to be started in a sandbox.
///
/// # Errors
/// Names the field that is wrong and what to do about it.
pub fn admit_command(
    sandbox: &AdmittedSandbox,
    request: CommandRequest,
    rules: &Rules<'_>,
) -> Result<AdmittedCommand, Error> {
    let mut whole = sandbox.plan.env.clone();
    whole.extend(request.env.clone());
    check_env(&whole)?;
    let stdin = request.stdin.map(String::into_bytes);
    if stdin.as_ref().is_some_and(|stdin| stdin.len() > MAX_STDIN) {
        return Err(Error::invalid("stdin", "more than 64 MB; put it into a file instead"));
    }
    if request.background && stdin.as_ref().is_some_and(|stdin| stdin.len() > MAX_LEFT_STDIN) {
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
        command: admit_line(request.command, request.shell)?,
        env: request.env.into_iter().collect(),
        workdir: admit_workdir(request.workdir)?,
        stdin: if reads { Stdin::Open } else { Stdin::Closed },
        terminal: request.terminal.map(SizeSpec::admit).transpose()?,
        timeout_ms: timeout.map(|timeout| timeout.as_millis() as u64),
        keep_bytes: admit_keep(request.keep_bytes, limits.memory_bytes)?,
    };
    let policies = policy::add(rules.policies, sandbox.policies.clone(), [rules.floor])?;
    let reading = Reading { policies: &policies, plan: &sandbox.plan };
    let Verdict { findings, refusal } = reading.command(&start.command, stdin.as_deref().unwrap_or_default());
    if let Some(message) = refusal {
        return Err(Error::Refused { message, findings });
    }
    let close_stdin = stdin.is_some() && !request.stdin_open;
    Ok(AdmittedCommand { start, stdin, close_stdin, background: request.background, findings })
}

fn admit_line(command: Option<Vec<String>>, shell: Option<String>) -> Result<CommandLine, Error> {
    match (command, shell) {
        (Some(command), None) => {
            check_words("command", &command)?;
            Ok(CommandLine::Program(command))
        }
        (None, Some(line)) => {
            check_words("shell", std::slice::from_ref(&line))?;
            Ok(CommandLine::Shell(line))
        }
        (Some(_), Some(_)) => Err(Error::invalid("shell", "stands instead of command; give one of them")),
        (None, None) => {
            Err(Error::invalid("command", "is missing; give a list of words, or a line as shell"))
        }
    }
}

fn admit_workdir(given: Option<String>) -> Result<Option<String>, Error> {
    match given {
        Some(path) if path.contains('\0') || path.len() > MAX_PATH => {
            Err(Error::invalid("workdir", "has a NUL or more than 4096 bytes"))
        }
        given => Ok(given),
    }
}

fn admit_keep(given: Option<i64>, memory_bytes: u64) -> Result<u32, Error> {
    let usual = (memory_bytes / KEEP_PART).clamp(*KEEP.start(), USUAL_KEEP);
    let wanted = given.map_or(Some(usual), |given| u64::try_from(given).ok());
    wanted.filter(|bytes| KEEP.contains(bytes)).and_then(|bytes| u32::try_from(bytes).ok()).ok_or_else(|| {
        let (least, most) = (show_bytes(*KEEP.start()), show_bytes(*KEEP.end()));
        Error::invalid("keep_bytes", format!("must be from {least} to {most}"))
    })
}

#[cfg(test)]
#[path = "command_tests.rs"]
mod tests;
