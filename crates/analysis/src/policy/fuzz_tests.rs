//! Fuzz targets, one per front end: for any code, analysis does not panic, takes bounded time, and reports
//! valid positions.
//!
//! `cargo test` tries a few dozen inputs and prints the seed of a failing one; `BOLERO_RANDOM_SEED` repeats
//! it.
//! `cargo bolero test -p belljar-analysis policy::fuzz_tests::python` runs until stopped, guided by coverage.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use bolero::{TypeGenerator, ValueGenerator, check, produce};

use super::budget_tests::steps;
use super::hostile_tests::{NESTS, findings};
use super::*;
use crate::imports;

/// Text that does not occur in the cases of rules.
const ODD: &[&str] = &[
    "\n",
    "\t",
    "\r\n",
    "é",
    "\u{2028}",
    "\0",
    "\u{feff}",
    "#!",
    "\\\n",
    "\"\"\"",
    "//",
    "/*",
    "<<E\n",
    "0x",
    "1e9",
    "\u{1b}[2J",
    "🦀",
    "# requires: ",
    "# /// script\n",
    "# ///\n",
    "import x from '",
    "require('",
    "from . import ",
    "@",
];

/// A piece of code.
#[derive(Debug, TypeGenerator)]
enum CodePiece {
    /// An entry of the table.
    Whole(u16),
    /// Part of an entry, by its ends.
    Part(u16, u16, u16),
    /// An entry, repeated.
    Often(u16, u8),
    /// Arbitrary text.
    Text(String),
}

/// Seed corpus: the cases of every rule, matching or not, and nesting constructs.
static TABLE: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let rules = RULES.iter().copied().flatten().copied().flatten();
    let cases = rules.flat_map(|rule| rule.matches.iter().chain(rule.non_matches)).copied();
    cases.chain(NESTS.iter().flat_map(|(open, close)| [*open, *close])).chain(ODD.iter().copied()).collect()
});

impl CodePiece {
    fn add_to(&self, code: &mut String) {
        let entry = |at: u16| TABLE[usize::from(at) % TABLE.len()];
        match self {
            Self::Whole(at) => code.push_str(entry(*at)),
            Self::Part(at, one, other) => {
                let whole = entry(*at);
                let end = |at: u16| whole.floor_char_boundary(usize::from(at) % (whole.len() + 1));
                let (one, other) = (end(*one), end(*other));
                code.push_str(&whole[one.min(other)..one.max(other)]);
            }
            Self::Often(at, times) => code.push_str(&entry(*at).repeat(usize::from(*times))),
            Self::Text(text) => code.push_str(text),
        }
    }
}

fn rounds() -> usize {
    if std::env::var_os("BELLJAR_TEST_ALL").is_some_and(|all| all != "0") { 5_000 } else { 60 }
}

fn pieces() -> impl ValueGenerator<Output = Vec<CodePiece>> {
    produce::<Vec<CodePiece>>().with().len(1..=8_usize)
}

fn code(pieces: &[CodePiece]) -> String {
    let mut code = String::new();
    pieces.iter().for_each(|piece| piece.add_to(&mut code));
    code
}

/// Checks that findings are at valid positions, and that the budget holds.
fn read(code: &str, language: PolicyLanguage) {
    steps(code, language);
    let lines = code.matches('\n').count() + 1;
    for finding in findings(code, language) {
        assert!(finding.line.unwrap() as usize <= lines && finding.column.unwrap() > 0, "{code:?}");
    }
}

/// Checks that imports are at valid positions.
fn look_for_imports(code: &str, language: imports::ImportLanguage) {
    let local = BTreeSet::new();
    let python = imports::PythonVersion::default();
    match imports::detect(imports::SourceCode { code, language, python, local: &local }) {
        Ok(found) => {
            let lines = code.lines().count() + 1;
            assert!(found.imports.iter().all(|import| import.line as usize <= lines), "{code:?}");
        }
        Err(error) => assert!(!matches!(error, imports::Error::Unreadable), "{error} {code:?}"),
    }
}

#[test]
fn python() {
    check!().with_iterations(rounds()).with_generator(pieces()).for_each(|pieces| {
        let code = code(pieces);
        read(&code, PolicyLanguage::Python);
        look_for_imports(&code, imports::ImportLanguage::Python);
    });
}

#[test]
fn javascript() {
    check!().with_iterations(rounds()).with_generator(pieces()).for_each(|pieces| {
        let code = code(pieces);
        read(&code, PolicyLanguage::JavaScript);
        read(&code, PolicyLanguage::TypeScript);
        look_for_imports(&code, imports::ImportLanguage::JavaScript);
        look_for_imports(&code, imports::ImportLanguage::TypeScript);
    });
}

#[test]
fn shell() {
    check!()
        .with_iterations(rounds())
        .with_generator(pieces())
        .for_each(|pieces| read(&code(pieces), PolicyLanguage::Shell));
}
