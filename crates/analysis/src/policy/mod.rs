//! Reads code and says what in it a policy minds, before anything runs.
//!
//! This is **not** the boundary. Whoever wants to hide a call from a reader of code can; the jail holds whatever the
//! code says. What this gives is an early, exact answer: a person or a model learns which line will fail, or is not
//! wanted, and what to do instead.
//!
//! ```text
//! code → front end (python, javascript, shell) → facts → rules → policy → findings and a verdict
//! ```
//!
//! Front ends resolve names on real syntax trees; rules and policies are data.

mod decide;
pub mod docs;
mod fact;
mod guard;
mod javascript;
mod python;
mod rules;
mod shell;
mod text;

#[cfg(test)]
mod tests;

use serde::Serialize;

pub use decide::{Action, Context, Network, Policy, UnknownPolicy};
pub use rules::{Category, RULES, Rule, Severity};

/// What can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// Python.
    Python,
    /// JavaScript.
    JavaScript,
    /// TypeScript.
    TypeScript,
    /// Bash and its kin.
    Shell,
}

impl Language {
    /// By the name that requests use; nothing where there is no reader for it.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "python" => Some(Self::Python),
            "javascript" => Some(Self::JavaScript),
            "typescript" => Some(Self::TypeScript),
            "bash" => Some(Self::Shell),
            _ => None,
        }
    }
}

/// Something in the code that the policy minds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Id of the rule.
    pub rule: &'static str,
    /// What it is about.
    pub category: Category,
    /// How bad it would be.
    pub severity: Severity,
    /// What was found.
    pub message: String,
    /// From 1.
    pub line: u32,
    /// In characters, from 1.
    pub column: u32,
    /// What to do instead.
    pub suggestion: String,
    /// The line of the policy that decided.
    pub decided_by: String,
    /// Whether it stops the code from running.
    #[serde(skip)]
    pub refused: bool,
    /// `call 'os.system'` and its kin, for the one-line summary.
    #[serde(skip)]
    pub subject: String,
}

/// What came of reading.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// In the order of the code.
    pub findings: Vec<Finding>,
}

impl Verdict {
    /// Why the code may not run, in one line; nothing where it may.
    pub fn refusal(&self) -> Option<String> {
        let first = self.findings.iter().find(|finding| finding.refused)?;
        Some(format!("Security validation failed: dangerous {} (line {})", first.subject, first.line))
    }
}

/// More findings than this help nobody.
const MAX_FINDINGS: usize = 200;

/// Reads code as the policy wants it read.
pub fn check(code: &str, language: Language, policy: &Policy, context: &Context) -> Verdict {
    if policy.reads_nothing() {
        return Verdict::default();
    }
    let facts = guard::within_bounds(code, language);
    let positions = text::Positions::new(code);
    let mut findings: Vec<Finding> = Vec::new();
    let mut refused = false;
    for fact in &facts {
        for (rule, subject) in rules::matching(language, fact, policy) {
            let place = positions.of(fact.at);
            let known = |other: &Finding| (other.rule, (other.line, other.column)) == (rule.id, place);
            if findings.iter().rev().take(16).any(known) {
                continue;
            }
            let comment = || positions.allows(place.0, rule.id);
            let found = decide::decide(rule, &subject, place, policy, context, comment);
            // What refuses is not lost behind any number of warnings.
            if let Some(finding) = found.filter(|f| findings.len() < MAX_FINDINGS || (f.refused && !refused))
            {
                refused |= finding.refused;
                findings.push(finding);
            }
        }
        if findings.len() >= MAX_FINDINGS && refused {
            break;
        }
    }
    findings.sort_by_key(|finding| (finding.line, finding.column));
    Verdict { findings }
}
