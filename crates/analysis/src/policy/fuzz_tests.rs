//! Fuzz targets, one for each front end: whatever the code, no reader fails, takes its time, or names a place outside of it.
//!
//! `cargo test` tries a few dozen texts, and names the seed of one that fails: `BOLERO_RANDOM_SEED` tries it again.
//! `cargo bolero test -p belljar-analysis policy::fuzz_tests::python` goes on and on, guided by what each text reaches.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use bolero::{TypeGenerator, ValueGenerator, check, produce};

use super::budget_tests::steps;
use super::hostile_tests::{NESTS, findings};
use super::*;
use crate::imports;

/// Text that no rule's cases have.
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
enum Piece {
    /// One of the table.
    Whole(u16),
    /// A part of one, by its ends.
    Part(u16, u16, u16),
    /// One, many times.
    Often(u16, u8),
    /// Anything.
    Text(String),
}

/// Every rule's cases, what they must find and what they must leave, and what nests: where fuzzing begins.
static TABLE: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let rules = RULES.iter().copied().flatten().copied().flatten();
    let cases = rules.flat_map(|rule| rule.matches.iter().chain(rule.leaves)).copied();
    cases.chain(NESTS.iter().flat_map(|(open, close)| [*open, *close])).chain(ODD.iter().copied()).collect()
});

impl Piece {
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

fn pieces() -> impl ValueGenerator<Output = Vec<Piece>> {
    produce::<Vec<Piece>>().with().len(1..=8_usize)
}

fn code(pieces: &[Piece]) -> String {
    let mut code = String::new();
    pieces.iter().for_each(|piece| piece.add_to(&mut code));
    code
}

/// Findings are about places that are there, and the budget holds.
fn read(code: &str, language: Language) {
    steps(code, language);
    let lines = code.matches('\n').count() + 1;
    for finding in findings(code, language) {
        assert!(finding.line.unwrap() as usize <= lines && finding.column.unwrap() > 0, "{code:?}");
    }
}

/// So are imports.
fn look_for_imports(code: &str, language: imports::Language) {
    let local = BTreeSet::new();
    let python = imports::PythonVersion::default();
    match imports::detect(imports::Source { code, language, python, local: &local }) {
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
        read(&code, Language::Python);
        look_for_imports(&code, imports::Language::Python);
    });
}

#[test]
fn javascript() {
    check!().with_iterations(rounds()).with_generator(pieces()).for_each(|pieces| {
        let code = code(pieces);
        read(&code, Language::JavaScript);
        read(&code, Language::TypeScript);
        look_for_imports(&code, imports::Language::JavaScript);
        look_for_imports(&code, imports::Language::TypeScript);
    });
}

#[test]
fn shell() {
    check!()
        .with_iterations(rounds())
        .with_generator(pieces())
        .for_each(|pieces| read(&code(pieces), Language::Shell));
}
