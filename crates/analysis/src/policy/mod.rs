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
mod spec;
mod text;

#[cfg(test)]
mod budget_tests;
#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod tests;

use std::borrow::Borrow;

use serde::Serialize;

use self::decide::Decision;
use self::fact::Fact;
use self::text::Positions;

pub use decide::{Action, Context, Network, Policy};
pub use rules::{Category, RULES, Rule, Severity};
pub use spec::{Policies, PolicyError, PolicySpec, USUAL};
pub use text::is_plain;

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
    /// From 1; nothing where a command was read and no text.
    pub line: Option<u32>,
    /// In characters, from 1.
    pub column: Option<u32>,
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
        let line = first.line.map(|line| format!(" (line {line})")).unwrap_or_default();
        Some(format!("Security validation failed: dangerous {}{line}", first.subject))
    }
}

/// More findings than this help nobody.
const MAX_FINDINGS: usize = 200;

/// Reads code as policies want it read. Where there are several, the strictest word counts.
pub fn check(code: &str, language: Language, policies: &[impl Borrow<Policy>], context: &Context) -> Verdict {
    if policies.iter().all(|policy| policy.borrow().reads_nothing()) {
        return Verdict::default();
    }
    judge(guard::read(code, language), Some(&Positions::new(code)), policies, context)
}

/// Reads the words of a program that is to be started, and what it will read, where that is known.
pub fn check_command(
    words: &[String],
    input: Option<&str>,
    policies: &[impl Borrow<Policy>],
    context: &Context,
) -> Verdict {
    if policies.iter().all(|policy| policy.borrow().reads_nothing()) {
        return Verdict::default();
    }
    judge(guard::read_command(words, input), None, policies, context)
}

/// What is said of code that is too much to be read.
pub fn unread(language: Language, policies: &[impl Borrow<Policy>], context: &Context) -> Verdict {
    judge(vec![guard::too_long(language)], Some(&Positions::new("")), policies, context)
}

fn judge(
    mut facts: Vec<Fact>,
    positions: Option<&Positions<'_>>,
    policies: &[impl Borrow<Policy>],
    context: &Context,
) -> Verdict {
    // In the order of the code, so that columns of one long line are counted once.
    facts.sort_by_key(|fact| fact.at);
    let mut found = Found::default();
    for (fact, policy) in facts.iter().flat_map(|fact| policies.iter().map(move |policy| (fact, policy))) {
        if found.is_full() {
            break;
        }
        let policy = policy.borrow();
        for (rule, subject) in rules::matching(fact, policy) {
            let decision = Decision::of(policy, rule, &subject, context);
            let Some(decision) = decision.filter(|decision| found.wants(decision.refuses)) else { continue };
            let place = positions.map(|positions| positions.of(fact.at));
            let excused =
                |positions: &Positions<'_>| place.is_some_and(|(line, _)| positions.allows(line, rule.id));
            if !(policy.comments && positions.is_some_and(excused)) {
                found.add(decision.finding(rule, &subject, place));
            }
        }
    }
    let Found { mut findings, .. } = found;
    // Of what was found in one place, what refuses comes first.
    findings.sort_by_key(|finding| (finding.line, finding.column, !finding.refused));
    Verdict { findings }
}

/// Findings up to a bound. What refuses is not lost behind any number of warnings.
#[derive(Default)]
struct Found {
    findings: Vec<Finding>,
    refused: bool,
}

impl Found {
    fn is_full(&self) -> bool {
        self.findings.len() >= MAX_FINDINGS && self.refused
    }

    fn wants(&self, refuses: bool) -> bool {
        self.findings.len() < MAX_FINDINGS || (refuses && !self.refused)
    }

    /// Of one thing found twice, what refuses counts.
    fn add(&mut self, finding: Finding) {
        self.refused |= finding.refused;
        let same = |other: &&mut Finding| {
            (other.rule, other.line, other.column) == (finding.rule, finding.line, finding.column)
        };
        match self.findings.iter_mut().rev().take(16).find(same) {
            Some(known) if known.refused || !finding.refused => {}
            Some(known) => *known = finding,
            None => self.findings.push(finding),
        }
    }
}
