//! Finds the packages that code needs beyond its standard library: finds imports, maps them to packages, and
//! checks the packages before anything is installed.
//!
//! ```text
//! code ── detect() ──▶ DetectedImports { imports, declared } python.rs, javascript.rs, comments.rs
//! requirements.txt, uv.lock … ──▶ Requirement                requirement.rs, npm.rs, manifest.rs, lock.rs
//!                        └── Resolver::resolve() ──▶ PackageResolution { packages, unresolved }
//!                            built-in table, known names, typos, administrator's settings
//! ```
//!
//! A name that is in no table is never guessed: installing packages for unknown imports is how impostor
//! packages get in.

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
mod specifier;
mod stdlib;
mod typos;

use std::collections::{BTreeSet, HashMap};

use serde::Serialize;

use crate::budget::Budget;
use crate::parse_limits::{self, ParseRefusal};

pub use lock::LockFile;
pub use manifest::{package_json, pyproject, requirements_txt};
pub use requirement::Requirement;
pub use resolve::{
    EcosystemRules, PackageReason, PackageResolution, ResolvedPackage, Resolver, ResolverSettings,
    UnresolvedName, UnresolvedReason,
};
pub use stdlib::PythonVersion;
pub use typos::edit_distance;

/// Maximum size of code that is searched for imports, in bytes.
pub const MAX_SEARCHED_BYTES: usize = 1 << 20;

/// Maximum number of imports; real programs have far fewer.
const MAX_IMPORTS: usize = 2_000;

/// Why imports or requirements could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The code is larger than [`MAX_SEARCHED_BYTES`].
    #[error("the code is larger than 1 MB, too large to search for imports; list its packages explicitly")]
    TooLarge,
    /// The code might nest deeper than the parser's stack allows, or takes too many steps to search.
    #[error("the code is too complex to search for imports; list its packages explicitly")]
    TooComplex,
    /// The code has too many imports.
    #[error("the code has more than 2000 imports; list its packages explicitly")]
    TooManyImports,
    /// The parser panicked.
    #[error("the code could not be searched for imports; list its packages explicitly")]
    Unreadable,
    /// A requirement is invalid or not allowed.
    #[error("'{}': {why}", text.escape_debug())]
    Requirement {
        /// The requirement as given.
        text: String,
        /// The problem, and what to write instead.
        why: &'static str,
    },
    /// A manifest file is invalid.
    #[error("{name}: {why}")]
    Manifest {
        /// Name of the file.
        name: &'static str,
        /// Why it is invalid.
        why: String,
    },
}

/// Languages in which imports can be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ImportLanguage {
    /// Python.
    Python,
    /// JavaScript, with JSX.
    JavaScript,
    /// TypeScript; parsed as TSX if it is not valid otherwise.
    TypeScript,
}

impl ImportLanguage {
    /// Returns the language with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "python" => Some(Self::Python),
            "javascript" => Some(Self::JavaScript),
            "typescript" => Some(Self::TypeScript),
            _ => None,
        }
    }

    /// Returns the registry of the language's packages.
    pub fn registry(self) -> PackageRegistry {
        match self {
            Self::Python => PackageRegistry::Pypi,
            Self::JavaScript | Self::TypeScript => PackageRegistry::Npm,
        }
    }
}

/// A package registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PackageRegistry {
    /// The Python Package Index.
    Pypi,
    /// The npm registry.
    Npm,
}

/// How an import or requirement was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ImportOrigin {
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
    /// A requirement from the caller.
    Given,
}

/// An import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Import {
    /// Module as imported (`google.cloud`), or package of a specifier (`lodash` for `lodash/fp`).
    pub name: String,
    /// Names imported from the module, which may be modules of other packages (`storage` from
    /// `google.cloud`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<String>,
    /// Version in the specifier itself (`npm:chalk@5`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Line of the first occurrence, from 1.
    pub line: u32,
    /// Whether the code handles its absence.
    pub optional: bool,
    /// How the import was found.
    pub how: ImportOrigin,
}

/// A requirement that the code itself declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredRequirement {
    /// The requirement as written.
    pub text: String,
    /// Line, from 1.
    pub line: u32,
    /// Whether it was in a script block or a comment.
    pub how: ImportOrigin,
}

/// Imports and requirements found in code.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DetectedImports {
    /// Imports of neither the standard library nor local modules, in line order, without duplicates.
    pub imports: Vec<Import>,
    /// Requirements that the code declares.
    pub declared: Vec<DeclaredRequirement>,
    /// Whether the code has syntax errors, so that imports may have been missed.
    pub broken: bool,
}

/// Code to search for imports.
#[derive(Debug, Clone, Copy)]
pub struct SourceCode<'a> {
    /// The code.
    pub code: &'a str,
    /// Language of the code.
    pub language: ImportLanguage,
    /// Version of Python that will run the code, if it is Python.
    pub python: PythonVersion,
    /// Names of accompanying files and directories, such as `helpers.py` and `lib`.
    pub local: &'a BTreeSet<String>,
}

/// Finds the imports of code without running it.
pub fn detect(source: SourceCode<'_>) -> Result<DetectedImports, Error> {
    if source.code.len() > MAX_SEARCHED_BYTES {
        return Err(Error::TooLarge);
    }
    let endless = match source.language {
        ImportLanguage::Python => parse_limits::exceeds_python_limits(source.code),
        ImportLanguage::JavaScript => parse_limits::exceeds_javascript_limits(source.code),
        ImportLanguage::TypeScript => {
            parse_limits::exceeds_javascript_limits(source.code)
                || parse_limits::exceeds_typescript_limits(source.code)
        }
    };
    if endless {
        return Err(Error::TooComplex);
    }
    let budget = Budget::for_code(source.code.len());
    let found = parse_limits::with_stack_for(source.code, || find_imports(&source, &budget));
    let mut found = found.map_err(|unfit| match unfit {
        ParseRefusal::TooDeep => Error::TooComplex,
        ParseRefusal::ParserPanicked => Error::Unreadable,
    })?;
    if budget.is_spent() {
        return Err(Error::TooComplex);
    }
    if found.imports.len() > MAX_IMPORTS || found.declared.len() > MAX_IMPORTS {
        return Err(Error::TooManyImports);
    }
    found.imports = merge_duplicates(found.imports);
    Ok(found)
}

fn find_imports(source: &SourceCode<'_>, budget: &Budget) -> DetectedImports {
    match source.language {
        ImportLanguage::Python => python::find_imports(source, budget),
        ImportLanguage::JavaScript | ImportLanguage::TypeScript => {
            javascript::find_imports(source.code, source.language, budget)
        }
    }
}

/// Merges duplicates: an import keeps its first line, and is required if any of its occurrences is.
fn merge_duplicates(mut imports: Vec<Import>) -> Vec<Import> {
    imports.sort_by_key(|import| import.line);
    let (mut merged, mut places): (Vec<Import>, HashMap<_, usize>) = (Vec::new(), HashMap::new());
    for import in imports {
        let key = (import.name.clone(), import.version.clone());
        match places.get(&key).and_then(|at| merged.get_mut(*at)) {
            Some(first) => {
                first.optional &= import.optional;
                first.members.extend(import.members);
            }
            None => {
                places.insert(key, merged.len());
                merged.push(import);
            }
        }
    }
    for import in &mut merged {
        import.members.sort();
        import.members.dedup();
    }
    merged
}
