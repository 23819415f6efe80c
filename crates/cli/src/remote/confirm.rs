//! Asks for confirmation before something is removed.

use std::io::{self, BufRead, IsTerminal};

use crate::error::CliError;
use crate::say;

/// Asks on the terminal whether to remove something. Without a terminal, `--yes` is required.
pub(super) fn confirm_removal(what: &str) -> Result<(), CliError> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(CliError::invalid(format!("this would remove {what}; add --yes to confirm")));
    }
    say::note(&format!("remove {what}? [y/N]"));
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    match answer.trim() {
        "y" | "Y" | "yes" if read.is_ok() => Ok(()),
        _ => Err(CliError::invalid("nothing was removed")),
    }
}
