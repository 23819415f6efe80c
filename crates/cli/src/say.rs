//! Everything that Belljar itself says. Nobody listening (a closed pipe) is no reason to fail, so writing is best effort.

use std::io::Write;
use std::process::ExitCode;

use belljar_engine::ErrorCode;
use serde_json::json;

use crate::failure::Failure;

const NOTHING_RAN: u8 = 125;
/// A policy does not let it run.
pub(crate) const REFUSED: u8 = 126;

/// Says why nothing ran.
pub(crate) fn failure(failure: &Failure, json: bool) -> ExitCode {
    let object = json!({"error": {"code": failure.code, "message": failure.message}});
    // Where standard output itself is what failed (a full disk, say), the message still has to arrive.
    let told = json && writeln!(std::io::stdout().lock(), "{object}").is_ok();
    if !told {
        let _ = writeln!(anstream::stderr().lock(), "belljar: \x1b[1;31merror:\x1b[0m {}", failure.message);
    }
    ExitCode::from(if failure.code == ErrorCode::Refused { REFUSED } else { NOTHING_RAN })
}

/// Passes on what the parser of flags says, with its usage text.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    let _ = write!(anstream::stderr().lock(), "belljar: {}", error.render().ansi());
    ExitCode::from(NOTHING_RAN)
}

/// Answers a command line without a command: the help, but no success.
pub(crate) fn help(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    ExitCode::from(NOTHING_RAN)
}

/// A caution that does not stop anything.
pub(crate) fn warning(message: &str) {
    let _ = writeln!(anstream::stderr().lock(), "belljar: \x1b[1;33mwarning:\x1b[0m {message}");
}

/// A line about how a run ended.
pub(crate) fn note(message: &str) {
    let _ = writeln!(anstream::stderr().lock(), "belljar: {message}");
}

/// A line that somebody asked for.
pub(crate) fn answer(message: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{message}");
}

/// A line about how things stand, in place of the one before; for terminals only.
pub(crate) fn progress(message: &str) {
    let _ = write!(std::io::stderr().lock(), "\r\x1b[2Kbelljar: {message}");
}

/// Takes the last such line away.
pub(crate) fn end_progress() {
    let _ = write!(std::io::stderr().lock(), "\r\x1b[2K");
}

/// Ends a line that a program left open, so that ours starts at the margin.
pub(crate) fn end_line() {
    let _ = writeln!(anstream::stderr().lock());
}

/// Empties the terminal for what is told again.
pub(crate) fn clear() {
    let _ = write!(std::io::stdout().lock(), "\x1b[H\x1b[2J");
}
