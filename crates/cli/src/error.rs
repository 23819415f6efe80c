//! Errors of the command line, in the two forms that they are shown in: a code for programs and a line for
//! people.

use std::path::Path;

use belljar_engine::{Error, ErrorCode};

/// An error that ends the command line with status 125.
#[derive(Debug, Clone)]
pub(crate) struct CliError {
    pub(crate) code: ErrorCode,
    pub(crate) message: String,
}

impl CliError {
    /// Creates an error that the caller has to fix.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self { code: ErrorCode::InvalidRequest, message: message.into() }
    }

    /// Creates an error of this machine.
    pub(crate) fn host(message: impl Into<String>) -> Self {
        Self { code: ErrorCode::SetupFailed, message: message.into() }
    }

    /// Converts an error of the flag parser to one line, without its usage text.
    pub(crate) fn usage(error: &clap::Error) -> Self {
        let text = error.render().to_string();
        let first = text.split("\n\n").next().unwrap_or_default();
        let words: Vec<_> = first.split_whitespace().collect();
        let line = words.join(" ");
        Self::invalid(line.strip_prefix("error: ").unwrap_or(&line))
    }
}

impl From<Error> for CliError {
    fn from(error: Error) -> Self {
        Self { code: error.code(), message: error.to_string() }
    }
}

/// Formats a path for a message. Names may contain control characters, so they are escaped.
pub(crate) fn quote_path(path: &Path) -> String {
    format!("'{}'", path.display().to_string().escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parser_error_becomes_one_line() {
        let error = clap::Command::new("x").try_get_matches_from(["x", "--nope"]).unwrap_err();
        assert_eq!(CliError::usage(&error).message, "unexpected argument '--nope' found");
    }

    #[test]
    fn paths_are_escaped() {
        assert_eq!(quote_path(Path::new("a\u{1b}[2Jb")), "'a\\u{1b}[2Jb'");
    }
}
