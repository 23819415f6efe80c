//! What a piece of code needs that does not come with its language: found in the code, named as packages, and checked
//! before anything is installed.
//!
//! ```text
//! code ── detect() ──▶ Found { imports, declared }           python.rs, javascript.rs, comments.rs
//! requirements.txt, uv.lock … ──▶ Requirement                requirement.rs, npm.rs, manifest.rs, lock.rs
//!                        └── Resolver::resolve() ──▶ Answer { packages, unresolved }
//!                            curated table, known names, misspellings, an administrator's settings
//! ```
//!
//! A name that is in no table is never guessed: an import that nobody knows is how impostors get installed.

mod catalog;
mod comments;
mod javascript;
mod lock;
mod lock_npm;
mod manifest;
mod npm;
mod python;
mod requirement;
mod resolve;
mod similar;
mod specifier;
mod stdlib;

use std::collections::{BTreeSet, HashMap};

use serde::Serialize;

use crate::budget::Budget;
use crate::room::{self, Unfit};

pub use lock::Lock;
pub use manifest::{package_json, pyproject, requirements_txt};
pub use requirement::Requirement;
pub use resolve::{Answer, Ecosystem, Package, Reason, Resolver, Settings, Unresolved, Why};
pub use similar::distance;
pub use stdlib::PythonVersion;

/// More code than this is not searched.
pub const MAX_CODE: usize = 1 << 20;

/// More findings than this are no program that somebody wrote.
const MAX_IMPORTS: usize = 2_000;

/// Why something could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The code is more than [`MAX_CODE`].
    #[error("the code is more than 1 MB, too much to look for imports in; name its packages yourself")]
    TooLarge,
    /// The code could nest deeper than the parser has room for.
    #[error("the code is too intricate to look for imports in; name its packages yourself")]
    TooIntricate,
    /// The code has more imports than are looked at.
    #[error("the code has more than 2000 imports; name its packages yourself")]
    TooMany,
    /// The parser failed.
    #[error("the code could not be searched for imports; name its packages yourself")]
    Unreadable,
    /// A requirement that is not understood or not allowed.
    #[error("'{}': {why}", text.escape_debug())]
    Requirement {
        /// As it was given.
        text: String,
        /// What is wrong, and what to write instead.
        why: &'static str,
    },
    /// A manifest as a whole.
    #[error("{name}: {why}")]
    Manifest {
        /// Its file name.
        name: &'static str,
        /// What is wrong with it.
        why: String,
    },
}

/// Languages whose imports are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// Python.
    Python,
    /// JavaScript, with JSX.
    JavaScript,
    /// TypeScript, with TSX where it cannot be read otherwise.
    TypeScript,
}

impl Language {
    /// The language of this name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "python" => Some(Self::Python),
            "javascript" => Some(Self::JavaScript),
            "typescript" => Some(Self::TypeScript),
            _ => None,
        }
    }

    /// Where its packages come from.
    pub fn registry(self) -> Registry {
        match self {
            Self::Python => Registry::Pypi,
            Self::JavaScript | Self::TypeScript => Registry::Npm,
        }
    }
}

/// Where packages come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Registry {
    /// Python's.
    Pypi,
    /// JavaScript's.
    Npm,
}

/// How an import was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum How {
    /// An `import` statement.
    Import,
    /// A call that imports by a literal name: `import_module("x")`, `import("x")`.
    Dynamic,
    /// `require("x")`.
    Require,
    /// `export … from "x"`.
    Reexport,
    /// A `# /// script` block (PEP 723).
    Script,
    /// A comment such as `# requires: x`.
    Comment,
    /// The caller named it.
    Given,
}

/// One import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Import {
    /// The module as imported (`google.cloud`), or the package of a specifier (`lodash` of `lodash/fp`).
    pub name: String,
    /// What is taken from it, which may be a module of another package (`storage` of `google.cloud`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<String>,
    /// The version that the specifier itself names (`npm:chalk@5`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Line of its first occurrence, from 1.
    pub line: u32,
    /// Whether the code says how to do without.
    pub optional: bool,
    /// How it was found.
    pub how: How,
}

/// A requirement that the code states itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    /// As it is written.
    pub text: String,
    /// Line, from 1.
    pub line: u32,
    /// A block or a comment.
    pub how: How,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Imports of neither the standard library nor local modules, in the order of their lines, each once.
    pub imports: Vec<Import>,
    /// Requirements that the code states.
    pub declared: Vec<Declared>,
    /// Whether the code has errors, so that something may have been missed.
    pub broken: bool,
}

/// Code to search.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// The code.
    pub code: &'a str,
    /// Its language.
    pub language: Language,
    /// The interpreter that will run it, where that is Python.
    pub python: PythonVersion,
    /// Names of files and folders that come along, such as `helpers.py` and `lib`.
    pub local: &'a BTreeSet<String>,
}

/// Finds what the code imports. Nothing of it is run.
pub fn detect(source: Source<'_>) -> Result<Found, Error> {
    if source.code.len() > MAX_CODE {
        return Err(Error::TooLarge);
    }
    let endless = match source.language {
        Language::Python => room::is_endless_python(source.code),
        Language::JavaScript => room::is_endless(source.code),
        Language::TypeScript => room::is_endless(source.code) || room::is_endless_typescript(source.code),
    };
    if endless {
        return Err(Error::TooIntricate);
    }
    let budget = Budget::for_code(source.code.len());
    let found = room::with_room(source.code, || find(&source, &budget));
    let mut found = found.map_err(|unfit| match unfit {
        Unfit::Deep => Error::TooIntricate,
        Unfit::Broke => Error::Unreadable,
    })?;
    if budget.is_spent() {
        return Err(Error::TooIntricate);
    }
    if found.imports.len() > MAX_IMPORTS || found.declared.len() > MAX_IMPORTS {
        return Err(Error::TooMany);
    }
    found.imports = once(found.imports);
    Ok(found)
}

fn find(source: &Source<'_>, budget: &Budget) -> Found {
    match source.language {
        Language::Python => python::find(source, budget),
        Language::JavaScript | Language::TypeScript => javascript::find(source.code, source.language, budget),
    }
}

/// Each import once, at its first line; needed where one of its occurrences is.
fn once(mut imports: Vec<Import>) -> Vec<Import> {
    imports.sort_by_key(|import| import.line);
    let (mut kept, mut places): (Vec<Import>, HashMap<_, usize>) = (Vec::new(), HashMap::new());
    for import in imports {
        let key = (import.name.clone(), import.version.clone());
        match places.get(&key).and_then(|at| kept.get_mut(*at)) {
            Some(first) => {
                first.optional &= import.optional;
                first.members.extend(import.members);
            }
            None => {
                places.insert(key, kept.len());
                kept.push(import);
            }
        }
    }
    for import in &mut kept {
        import.members.sort();
        import.members.dedup();
    }
    kept
}
