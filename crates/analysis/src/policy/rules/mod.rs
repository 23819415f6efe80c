//! The table of rules. Each rule has cases that it must and must not match; tests, documentation and checks
//! use the same table.

pub(crate) mod commands;
mod javascript;
mod python;
mod shared;
mod shell;

use std::collections::HashMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::fact::{Fact, Kind, Shape};
use super::{Language, Policy};

/// Categories of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Category {
    /// Starts or controls other programs.
    Process,
    /// Writes or deletes files.
    Filesystem,
    /// Uses the network.
    Network,
    /// Executes text as code.
    CodeExecution,
    /// Uses native code or memory.
    Native,
    /// Accesses internals of the interpreter.
    Introspection,
    /// Uses up memory, time or processes.
    Resource,
    /// Hides what the code does.
    Obfuscation,
    /// Destroys data or systems.
    DestructiveCommand,
    /// Reads keys or passwords.
    Secrets,
}

impl Category {
    /// Returns the category's name in policies and findings.
    pub fn word(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Filesystem => "filesystem",
            Self::Network => "network",
            Self::CodeExecution => "code-execution",
            Self::Native => "native",
            Self::Introspection => "introspection",
            Self::Resource => "resource",
            Self::Obfuscation => "obfuscation",
            Self::DestructiveCommand => "destructive-command",
            Self::Secrets => "secrets",
        }
    }
}

/// Severity of a finding, as if the code ran without a jail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// Rarely a problem.
    Low,
    /// A problem with untrusted input.
    Medium,
    /// Gives the code full control.
    High,
    /// Only useful for an attack.
    Critical,
}

impl Severity {
    /// Returns the severity's name in findings.
    pub fn word(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Critical => "critical",
        }
    }
}

/// A rule.
#[derive(Debug)]
pub struct Rule {
    /// Stable id: `PY-…`, `JS-…`, `SH-…`.
    pub id: &'static str,
    /// Category of the rule.
    pub category: Category,
    /// Severity of its findings.
    pub severity: Severity,
    /// Message of a finding; `{}` is replaced with the name that was found.
    pub message: &'static str,
    /// Alternative to suggest.
    pub suggestion: &'static str,
    pub(crate) when: &'static [When],
    /// Code that the rule matches.
    pub matches: &'static [&'static str],
    /// Similar code that the rule does not match.
    pub leaves: &'static [&'static str],
}

/// A condition of a rule. A pattern may end with `*` to match any name with that prefix.
#[derive(Debug)]
pub(crate) enum When {
    Import(&'static [&'static str]),
    /// A name is called or passed as a value.
    Name(&'static [&'static str]),
    /// A name is passed as a value, not called.
    HandedOn(&'static [&'static str]),
    CallWith(&'static [&'static str], fn(&[Option<String>]) -> bool),
    /// Called in a way that writes, with a path as the first argument.
    Writes(&'static [&'static str], fn(&[Option<String>]) -> bool),
    Member(&'static [&'static str]),
    Command(&'static [&'static str]),
    CommandWith(&'static [&'static str], fn(&[Option<String>]) -> bool),
    Redirect(fn(&str) -> bool),
    ForkBomb,
    UnknownCode,
    Download,
    Decoded,
    Assembled,
    Syntax,
    Unread,
    /// Modules and calls that the policy lists.
    ListedModule,
    ListedCall,
}

/// The thing that a rule matched.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    pub(crate) kind: &'static str,
    pub(crate) name: String,
    /// The affected file, if known.
    pub(crate) path: Option<String>,
}

impl Subject {
    fn new(kind: &'static str, name: &str) -> Self {
        Self { kind, name: name.to_owned(), path: None }
    }

    /// Returns whether the subject is the module or something in it.
    pub(crate) fn belongs_to(&self, module: &str) -> bool {
        matches!(self.kind, "import" | "call" | "value") && within(&self.name, module)
    }
}

fn within(name: &str, module: &str) -> bool {
    name.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '/']))
}

/// All rules, by language and then by topic.
pub static RULES: &[&[&[Rule]]] = &[python::RULES, javascript::RULES, shell::RULES];

/// Returns the rule with this id.
pub(crate) fn named(id: &str) -> Option<&'static Rule> {
    RULES.iter().copied().flatten().copied().flatten().find(|rule| rule.id == id)
}

/// Rules of one language, indexed by the first component of their patterns, so that a name is compared with
/// few rules.
struct Index {
    named: HashMap<&'static str, Vec<&'static Rule>>,
    /// Rules that also match something other than names.
    others: Vec<&'static Rule>,
}

impl Index {
    fn new(rules: &'static [&'static [Rule]]) -> Self {
        let (mut named, mut others): (HashMap<_, Vec<_>>, Vec<_>) = (HashMap::new(), Vec::new());
        for rule in rules.iter().copied().flatten() {
            let names = || rule.when.iter().flat_map(|when| when.words());
            for name in names() {
                let rules = named.entry(first_part(name)).or_default();
                if !rules.iter().any(|known: &&Rule| known.id == rule.id) {
                    rules.push(rule);
                }
            }
            if rule.when.iter().any(|when| when.words().is_empty()) {
                others.push(rule);
            }
        }
        Self { named, others }
    }

    fn candidates(&self, fact: &Fact) -> impl Iterator<Item = &'static Rule> {
        let name = match &fact.kind {
            Kind::Import(name) | Kind::Member(name) => Some(name),
            Kind::Name { path, .. } => Some(path),
            Kind::Command { name, .. } => Some(name),
            Kind::Write(_) | Kind::Shape(_) => None,
        };
        let named = name.and_then(|name| self.named.get(first_part(name)));
        named.into_iter().flatten().chain(&self.others).copied()
    }
}

fn first_part(name: &str) -> &str {
    name.split(['.', '/', '(']).next().unwrap_or(name)
}

static PYTHON: LazyLock<Index> = LazyLock::new(|| Index::new(python::RULES));
static JAVASCRIPT: LazyLock<Index> = LazyLock::new(|| Index::new(javascript::RULES));
static SHELL: LazyLock<Index> = LazyLock::new(|| Index::new(shell::RULES));

/// Returns the rules that match a fact, each with what it matched.
pub(crate) fn matching<'a>(
    fact: &'a Fact,
    policy: &'a Policy,
) -> impl Iterator<Item = (&'static Rule, Subject)> + 'a {
    let index = match fact.language {
        Language::Python => &PYTHON,
        Language::JavaScript | Language::TypeScript => &JAVASCRIPT,
        Language::Shell => &SHELL,
    };
    index.candidates(fact).filter_map(|rule| {
        let subject = rule.when.iter().find_map(|when| when.found(&fact.kind, policy))?;
        Some((rule, subject))
    })
}

impl Rule {
    /// Returns whether the rule reports that code could not be analyzed, entirely or in part.
    pub(crate) fn is_about_reading(&self) -> bool {
        self.when.iter().any(|when| matches!(when, When::Syntax | When::Unread))
    }
}

impl When {
    /// Returns the names that the condition matches.
    fn words(&self) -> &'static [&'static str] {
        match self {
            Self::Import(names)
            | Self::Name(names)
            | Self::HandedOn(names)
            | Self::CallWith(names, _)
            | Self::Writes(names, _)
            | Self::Member(names)
            | Self::Command(names)
            | Self::CommandWith(names, _) => names,
            _ => &[],
        }
    }

    fn found(&self, kind: &Kind, policy: &Policy) -> Option<Subject> {
        match (self, kind) {
            (Self::Import(names), Kind::Import(name)) => {
                names.iter().any(|module| within(name, module)).then(|| Subject::new("import", name))
            }
            (Self::ListedModule, Kind::Import(name)) => {
                let listed = policy.listed_modules.iter().any(|module| within(name, module));
                listed.then(|| Subject::new("import", name))
            }
            (Self::ListedCall, Kind::Name { path, .. }) => {
                policy.listed_calls.iter().any(|listed| listed == path).then(|| Subject::new("call", path))
            }
            (_, Kind::Name { path, arguments }) => self.names(path, arguments.as_deref()),
            (Self::Member(names), Kind::Member(name)) => {
                names.contains(&name.as_str()).then(|| Subject::new("attribute", name))
            }
            (_, Kind::Command { name, words }) => self.command(name, words),
            (Self::Redirect(test), Kind::Write(path)) => {
                let subject = Subject { kind: "write to", name: path.clone(), path: Some(path.clone()) };
                test(path).then_some(subject)
            }
            (_, Kind::Shape(shape)) => self.shape(shape),
            _ => None,
        }
    }

    fn names(&self, path: &str, arguments: Option<&[Option<String>]>) -> Option<Subject> {
        let found = |names: &[&str]| names.iter().any(|pattern| fits(path, pattern));
        let subject = || Subject::new("call", path);
        match (self, arguments) {
            (Self::Name(names), _) => found(names).then(subject),
            (Self::HandedOn(names), None) => found(names).then(|| Subject::new("value", path)),
            (Self::CallWith(names, test), Some(arguments)) => (found(names) && test(arguments)).then(subject),
            (Self::Writes(names, test), Some(arguments)) => {
                let file = arguments.first().cloned().flatten();
                (found(names) && test(arguments)).then(|| Subject { path: file, ..subject() })
            }
            _ => None,
        }
    }

    fn command(&self, name: &str, words: &[Option<String>]) -> Option<Subject> {
        let subject = || Subject::new("command", name);
        match self {
            Self::Command(names) => names.contains(&name).then(subject),
            Self::CommandWith(names, test) => (names.contains(&name) && test(words)).then(subject),
            _ => None,
        }
    }

    fn shape(&self, shape: &Shape) -> Option<Subject> {
        match (self, shape) {
            (Self::ForkBomb, Shape::ForkBomb) => Some(Subject::new("code", "fork bomb")),
            (Self::UnknownCode, Shape::UnknownCode(by)) => Some(Subject::new("call", by)),
            (Self::Download, Shape::Download) => Some(Subject::new("code", "download | sh")),
            (Self::Decoded, Shape::Decoded) => Some(Subject::new("code", "decoded text")),
            (Self::Assembled, Shape::Assembled(name)) => Some(Subject::new("name", name)),
            (Self::Syntax, Shape::Syntax(why)) => Some(Subject::new("syntax", why)),
            (Self::Unread, Shape::Unread(why)) => Some(Subject::new("code", why)),
            _ => None,
        }
    }
}

fn fits(path: &str, pattern: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => path.starts_with(start),
        None => path == pattern,
    }
}
