//! Prints Belljar's own messages. A closed pipe is not a failure, so writing is best effort.

use std::io::Write;
use std::process::ExitCode;

use belljar_engine::ErrorCode;
use serde_json::json;

use crate::error::CliError;

const NOTHING_RAN: u8 = 125;
/// Exit status for code that a policy refuses.
pub(crate) const REFUSED: u8 = 126;

/// Prints why nothing ran.
pub(crate) fn failure(failure: &CliError, json: bool) -> ExitCode {
    let object = json!({"error": {"code": failure.code, "message": failure.message}});
    // If standard output itself failed (on a full disk, for example), the message still has to reach the
    // user.
    let printed = json && writeln!(std::io::stdout().lock(), "{object}").is_ok();
    if !printed {
        let _ = writeln!(anstream::stderr().lock(), "belljar: \x1b[1;31merror:\x1b[0m {}", failure.message);
    }
    ExitCode::from(if failure.code == ErrorCode::Refused { REFUSED } else { NOTHING_RAN })
}

/// Prints a message of the flag parser, with its usage text.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    let _ = write!(anstream::stderr().lock(), "belljar: {}", error.render().ansi());
    ExitCode::from(NOTHING_RAN)
}

/// Prints help for a command line without a subcommand, which is not a success.
pub(crate) fn help(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    ExitCode::from(NOTHING_RAN)
}

/// Prints a warning.
pub(crate) fn warning(message: &str) {
    let _ = writeln!(anstream::stderr().lock(), "belljar: \x1b[1;33mwarning:\x1b[0m {message}");
}

/// Prints a note, such as how a run ended.
pub(crate) fn note(message: &str) {
    let _ = writeln!(anstream::stderr().lock(), "belljar: {message}");
}

/// Prints a requested answer on standard output.
pub(crate) fn answer(message: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{message}");
}

/// Escapes what controls a terminal or hides in a text, such as a name that a tenant chose. Quotes stay, because
/// the text is not put in quotes.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\'' | '"' => shown.push(c),
            other => shown.extend(other.escape_debug()),
        }
    }
    shown
}

/// Prints a progress line in place of the previous one; for terminals only.
pub(crate) fn progress(message: &str) {
    let _ = write!(std::io::stderr().lock(), "\r\x1b[2Kbelljar: {message}");
}

/// Erases the progress line.
pub(crate) fn end_progress() {
    let _ = write!(std::io::stderr().lock(), "\r\x1b[2K");
}

/// Ends an incomplete line of a program, so that the next message starts on a new line.
pub(crate) fn end_line() {
    let _ = writeln!(anstream::stderr().lock());
}

/// Clears the terminal for an updated display.
pub(crate) fn clear() {
    let _ = write!(std::io::stdout().lock(), "\x1b[H\x1b[2J");
}
