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

use super::fact::{CodeFact, CodePattern, FactKind};
use super::{Policy, PolicyLanguage};

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
    pub fn as_str(self) -> &'static str {
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
    pub fn as_str(self) -> &'static str {
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
pub struct PolicyRule {
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
    pub(crate) matchers: &'static [Matcher],
    /// Code that the rule matches.
    pub matches: &'static [&'static str],
    /// Similar code that the rule does not match.
    pub non_matches: &'static [&'static str],
}

/// Suggestions for code that a policy refuses, for rules whose own suggestion would then be refused, too.
static SUGGESTIONS_WHEN_REFUSED: &[(&str, &str)] = &[
    ("PY-SHELL", "do it in Python"),
    ("PY-EXEC-PROGRAM", "do it in Python"),
    ("PY-FORK", "do the work in this process, with threads if there is much"),
    ("PY-MULTIPROCESSING", "do the work in this process, with threads if there is much"),
    ("PY-KILL", "let the program end by itself"),
    ("PY-SOCKET", DATA_AS_FILES),
    ("PY-HTTP", DATA_AS_FILES),
    ("PY-MAIL-FTP", DATA_AS_FILES),
    ("PY-CLOUD", DATA_AS_FILES),
    ("PY-SERVER", RESULT_INSTEAD),
    ("JS-WORKER", "do the work in this process"),
    ("JS-KILL", "let the program end by itself"),
    ("JS-FETCH", DATA_AS_FILES),
    ("JS-HTTP", DATA_AS_FILES),
    ("JS-SOCKET", DATA_AS_FILES),
    ("JS-SERVER", RESULT_INSTEAD),
    ("SH-DOWNLOAD", DATA_AS_FILES),
    ("SH-CONNECT", DATA_AS_FILES),
    ("SH-GIT", DATA_AS_FILES),
    ("SH-PIPE-TO-SHELL", "pass the script as a file, and run that"),
    ("SH-KILL-BY-NAME", "let the programs end by themselves"),
];
const DATA_AS_FILES: &str = "pass the data as files";
const RESULT_INSTEAD: &str = "return or print the result instead of serving it";

impl PolicyRule {
    /// Returns the alternative to suggest for code that a policy refuses, or only warns about.
    pub(crate) fn suggestion_for(&self, refused: bool) -> &'static str {
        let other = SUGGESTIONS_WHEN_REFUSED.iter().find(|(id, _)| refused && *id == self.id);
        other.map_or(self.suggestion, |(_, suggestion)| *suggestion)
    }
}

/// A condition of a rule. A pattern may end with `*` to match any name with that prefix.
#[derive(Debug)]
pub(crate) enum Matcher {
    Import(&'static [&'static str]),
    /// A name is called or passed as a value.
    Name(&'static [&'static str]),
    /// A name is passed as a value, not called.
    PassedAsValue(&'static [&'static str]),
    CallWith(&'static [&'static str], fn(&[Option<String>]) -> bool),
    /// Called in a way that writes, with a path as the first argument.
    Writes(&'static [&'static str], fn(&[Option<String>]) -> bool),
    Member(&'static [&'static str]),
    Command(&'static [&'static str]),
    CommandWith(&'static [&'static str], fn(&[Option<String>]) -> bool),
    Redirect(fn(&str) -> bool),
    ForkBomb,
    UnknownCode,
    PipedDownload,
    DecodedCode,
    AssembledName,
    SyntaxError,
    NotAnalyzed,
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
        matches!(self.kind, "import" | "call" | "value") && is_in_module(&self.name, module)
    }
}

fn is_in_module(name: &str, module: &str) -> bool {
    name.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '/']))
}

/// All rules, by language and then by topic.
pub static RULES: &[&[&[PolicyRule]]] = &[python::RULES, javascript::RULES, shell::RULES];

/// Returns the rule with this id.
pub(crate) fn find_rule(id: &str) -> Option<&'static PolicyRule> {
    RULES.iter().copied().flatten().copied().flatten().find(|rule| rule.id == id)
}

/// Rules of one language, indexed by the first component of their patterns, so that a name is compared with
/// few rules.
struct RuleIndex {
    by_name: HashMap<&'static str, Vec<&'static PolicyRule>>,
    /// Rules that also match something other than names.
    unnamed: Vec<&'static PolicyRule>,
}

impl RuleIndex {
    fn new(rules: &'static [&'static [PolicyRule]]) -> Self {
        let (mut named, mut others): (HashMap<_, Vec<_>>, Vec<_>) = (HashMap::new(), Vec::new());
        for rule in rules.iter().copied().flatten() {
            let names = || rule.matchers.iter().flat_map(|when| when.pattern_names());
            for name in names() {
                let rules = named.entry(first_component(name)).or_default();
                if !rules.iter().any(|known: &&PolicyRule| known.id == rule.id) {
                    rules.push(rule);
                }
            }
            if rule.matchers.iter().any(|when| when.pattern_names().is_empty()) {
                others.push(rule);
            }
        }
        Self { by_name: named, unnamed: others }
    }

    fn candidates(&self, fact: &CodeFact) -> impl Iterator<Item = &'static PolicyRule> {
        let name = match &fact.kind {
            FactKind::Import(name) | FactKind::Member(name) => Some(name),
            FactKind::Name { path, .. } => Some(path),
            FactKind::Command { name, .. } => Some(name),
            FactKind::FileWrite(_) | FactKind::Pattern(_) => None,
        };
        let named = name.and_then(|name| self.by_name.get(first_component(name)));
        named.into_iter().flatten().chain(&self.unnamed).copied()
    }
}

fn first_component(name: &str) -> &str {
    name.split(['.', '/', '(']).next().unwrap_or(name)
}

static PYTHON: LazyLock<RuleIndex> = LazyLock::new(|| RuleIndex::new(python::RULES));
static JAVASCRIPT: LazyLock<RuleIndex> = LazyLock::new(|| RuleIndex::new(javascript::RULES));
static SHELL: LazyLock<RuleIndex> = LazyLock::new(|| RuleIndex::new(shell::RULES));

/// Returns the rules that match a fact, each with what it matched.
pub(crate) fn matching_rules<'a>(
    fact: &'a CodeFact,
    policy: &'a Policy,
) -> impl Iterator<Item = (&'static PolicyRule, Subject)> + 'a {
    let index = match fact.language {
        PolicyLanguage::Python => &PYTHON,
        PolicyLanguage::JavaScript | PolicyLanguage::TypeScript => &JAVASCRIPT,
        PolicyLanguage::Shell => &SHELL,
    };
    index.candidates(fact).filter_map(|rule| {
        let subject = rule.matchers.iter().find_map(|when| when.match_fact(&fact.kind, policy))?;
        Some((rule, subject))
    })
}

impl PolicyRule {
    /// Returns whether the rule reports that code could not be analyzed, entirely or in part.
    pub(crate) fn reports_unread_code(&self) -> bool {
        self.matchers.iter().any(|when| matches!(when, Matcher::SyntaxError | Matcher::NotAnalyzed))
    }
}

impl Matcher {
    /// Returns the names that the condition matches.
    fn pattern_names(&self) -> &'static [&'static str] {
        match self {
            Self::Import(names)
            | Self::Name(names)
            | Self::PassedAsValue(names)
            | Self::CallWith(names, _)
            | Self::Writes(names, _)
            | Self::Member(names)
            | Self::Command(names)
            | Self::CommandWith(names, _) => names,
            _ => &[],
        }
    }

    fn match_fact(&self, kind: &FactKind, policy: &Policy) -> Option<Subject> {
        match (self, kind) {
            (Self::Import(names), FactKind::Import(name)) => {
                names.iter().any(|module| is_in_module(name, module)).then(|| Subject::new("import", name))
            }
            (Self::ListedModule, FactKind::Import(name)) => {
                let listed = policy.listed_modules.iter().any(|module| is_in_module(name, module));
                listed.then(|| Subject::new("import", name))
            }
            (Self::ListedCall, FactKind::Name { path, .. }) => {
                policy.listed_calls.iter().any(|listed| listed == path).then(|| Subject::new("call", path))
            }
            (_, FactKind::Name { path, arguments }) => self.match_name(path, arguments.as_deref()),
            (Self::Member(names), FactKind::Member(name)) => {
                names.contains(&name.as_str()).then(|| Subject::new("attribute", name))
            }
            (_, FactKind::Command { name, words }) => self.match_command(name, words),
            (Self::Redirect(test), FactKind::FileWrite(path)) => {
                let subject = Subject { kind: "write to", name: path.clone(), path: Some(path.clone()) };
                test(path).then_some(subject)
            }
            (_, FactKind::Pattern(shape)) => self.match_pattern(shape),
            _ => None,
        }
    }

    fn match_name(&self, path: &str, arguments: Option<&[Option<String>]>) -> Option<Subject> {
        let found = |names: &[&str]| names.iter().any(|pattern| matches_pattern(path, pattern));
        let subject = || Subject::new("call", path);
        match (self, arguments) {
            (Self::Name(names), _) => found(names).then(subject),
            (Self::PassedAsValue(names), None) => found(names).then(|| Subject::new("value", path)),
            (Self::CallWith(names, test), Some(arguments)) => (found(names) && test(arguments)).then(subject),
            (Self::Writes(names, test), Some(arguments)) => {
                let file = arguments.first().cloned().flatten();
                (found(names) && test(arguments)).then(|| Subject { path: file, ..subject() })
            }
            _ => None,
        }
    }

    fn match_command(&self, name: &str, words: &[Option<String>]) -> Option<Subject> {
        let subject = || Subject::new("command", name);
        match self {
            Self::Command(names) => names.contains(&name).then(subject),
            Self::CommandWith(names, test) => (names.contains(&name) && test(words)).then(subject),
            _ => None,
        }
    }

    fn match_pattern(&self, shape: &CodePattern) -> Option<Subject> {
        match (self, shape) {
            (Self::ForkBomb, CodePattern::ForkBomb) => Some(Subject::new("code", "fork bomb")),
            (Self::UnknownCode, CodePattern::UnknownCode(by)) => Some(Subject::new("call", by)),
            (Self::PipedDownload, CodePattern::PipedDownload) => Some(Subject::new("code", "download | sh")),
            (Self::DecodedCode, CodePattern::DecodedCode) => Some(Subject::new("code", "decoded text")),
            (Self::AssembledName, CodePattern::AssembledName(name)) => Some(Subject::new("name", name)),
            (Self::SyntaxError, CodePattern::SyntaxError(why)) => Some(Subject::new("syntax", why)),
            (Self::NotAnalyzed, CodePattern::NotAnalyzed(why)) => Some(Subject::new("code", why)),
            _ => None,
        }
    }
}

fn matches_pattern(path: &str, pattern: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => path.starts_with(start),
        None => path == pattern,
    }
}
