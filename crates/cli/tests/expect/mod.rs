//! Assertions on results, and the conditions under which a test is skipped.
#![allow(
    dead_code,
    clippy::print_stdout,
    reason = "each test program uses its part; a skipped test says why"
)]

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::{Answer, run};

pub(crate) trait Expect {
    /// Returns the value that `main` returned.
    fn value(&self) -> Option<&Value>;
    fn succeeded(&self) -> &Self;
    fn printed(&self, output: &str);
    /// Asserts that the program failed with this text on standard error.
    fn failed_with(&self, complaint: &str);
    /// Asserts that nothing ran, with this text in the error.
    fn refused_with(&self, reason: &str);
}

impl Expect for Answer {
    fn value(&self) -> Option<&Value> {
        (self.json["result"]["present"] == true).then_some(&self.json["result"]["value"])
    }

    #[track_caller]
    fn succeeded(&self) -> &Self {
        assert_eq!((self.status(), self.code), ("succeeded", Some(0)), "{self:#?}");
        self
    }

    #[track_caller]
    fn printed(&self, output: &str) {
        assert_eq!(self.succeeded().text("stdout"), output, "{self:#?}");
    }

    #[track_caller]
    fn failed_with(&self, complaint: &str) {
        assert_eq!(self.status(), "failed", "{self:#?}");
        assert!(self.text("stderr").contains(complaint), "no '{complaint}' in {self:#?}");
    }

    #[track_caller]
    fn refused_with(&self, reason: &str) {
        assert_eq!(self.code, Some(125), "{self:#?}");
        assert!(self.error_message().contains(reason), "no '{reason}' in {self:#?}");
    }
}

/// Runs code in a language, with further arguments.
pub(crate) fn run_code(language: &str, code: &str, arguments: &[&str]) -> Answer {
    run([&["--language", language, "-c", code], arguments].concat())
}

/// Reports that a test was skipped. `./test` counts these messages and prints them at the end.
pub(crate) fn skip(test: &str, reason: &str) {
    println!("skipped: {test}: {reason}");
}

/// Returns whether the second tier of tests runs as well.
pub(crate) fn everything() -> bool {
    std::env::var_os("BELLJAR_TEST_ALL").is_some_and(|value| value == "1")
}

/// Returns a folder of packages that `./test` installed, if it exists.
pub(crate) fn packages(name: &str) -> Option<PathBuf> {
    let base = std::env::var_os("BELLJAR_TEST_PACKAGES").map(PathBuf::from);
    let base =
        base.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/test-packages"));
    std::fs::canonicalize(base.join(name)).ok()
}
