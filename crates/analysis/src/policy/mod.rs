//! Checks code against a policy before anything runs.
//!
//! This is **not** the security boundary. Code can hide a call from static analysis; the jail confines it
//! anyway. A check gives an early, exact answer: it tells a person or a model which line will fail or is
//! unwanted, and what to do instead.
//!
//! ```text
//! code → front end (python, javascript, shell) → facts → rules → policy → findings and a verdict
//! ```
//!
//! Front ends resolve names on real syntax trees; rules and policies are data.

mod analyze;
mod decide;
pub mod docs;
mod fact;
mod javascript;
mod positions;
mod python;
mod rules;
mod shell;
mod spec;

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
use self::fact::CodeFact;
use self::positions::Positions;

pub use decide::{Action, NetworkAccess, Policy, RunContext};
pub use positions::is_displayable;
pub use rules::{Category, PolicyRule, RULES, Severity};
pub use spec::{DEFAULT_POLICY, Policies, PolicyError, PolicySpec};

/// Languages that can be analyzed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyLanguage {
    /// Python.
    Python,
    /// JavaScript.
    JavaScript,
    /// TypeScript.
    TypeScript,
    /// Bash and related shells.
    Shell,
}

impl PolicyLanguage {
    /// Returns the language with this name in requests, or `None` if it cannot be analyzed.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "python" => Some(Self::Python),
            "javascript" => Some(Self::JavaScript),
            "typescript" => Some(Self::TypeScript),
            "bash" => Some(Self::Shell),
            _ => None,
        }
    }
}

/// A problem that a rule found in the code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PolicyFinding {
    /// Id of the rule.
    pub rule: &'static str,
    /// Category of the rule.
    pub category: Category,
    /// Severity of the rule.
    pub severity: Severity,
    /// Description of the problem.
    pub message: String,
    /// Line in the code, from 1; `None` if a command was checked instead of code.
    pub line: Option<u32>,
    /// Column in characters, from 1.
    pub column: Option<u32>,
    /// Alternative to suggest.
    pub suggestion: String,
    /// The policy entry that decided.
    pub decided_by: String,
    /// Whether it prevents the code from running.
    #[serde(skip)]
    pub refused: bool,
    /// The finding in a few words, such as `call 'os.system'`, for the one-line summary.
    #[serde(skip)]
    pub subject: String,
}

/// Result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyVerdict {
    /// Findings in the order of the code.
    pub findings: Vec<PolicyFinding>,
}

impl PolicyVerdict {
    /// Returns why the code may not run, in one line, or `None` if it may run.
    pub fn refusal(&self) -> Option<String> {
        let first = self.findings.iter().find(|finding| finding.refused)?;
        let line = first.line.map(|line| format!(" (line {line})")).unwrap_or_default();
        Some(format!("Security validation failed: dangerous {}{line}", first.subject))
    }
}

/// Maximum number of findings.
const MAX_FINDINGS: usize = 200;

/// Checks code against policies. If there are several, the strictest action counts.
pub fn check(
    code: &str,
    language: PolicyLanguage,
    policies: &[impl Borrow<Policy>],
    context: &RunContext,
) -> PolicyVerdict {
    if policies.iter().all(|policy| policy.borrow().allows_everything()) {
        return PolicyVerdict::default();
    }
    evaluate(analyze::analyze(code, language), Some(&Positions::new(code)), policies, context)
}

/// Checks the arguments of a program that is to be started, and its input, if known.
pub fn check_command(
    words: &[String],
    input: Option<&str>,
    policies: &[impl Borrow<Policy>],
    context: &RunContext,
) -> PolicyVerdict {
    if policies.iter().all(|policy| policy.borrow().allows_everything()) {
        return PolicyVerdict::default();
    }
    evaluate(analyze::analyze_command(words, input), None, policies, context)
}

/// Returns the verdict on code that is too large to be analyzed.
pub fn unread_verdict(
    language: PolicyLanguage,
    policies: &[impl Borrow<Policy>],
    context: &RunContext,
) -> PolicyVerdict {
    evaluate(vec![analyze::too_long_fact(language)], Some(&Positions::new("")), policies, context)
}

fn evaluate(
    mut facts: Vec<CodeFact>,
    positions: Option<&Positions<'_>>,
    policies: &[impl Borrow<Policy>],
    context: &RunContext,
) -> PolicyVerdict {
    // In the order of the code, so that the columns of a long line are only counted once.
    facts.sort_by_key(|fact| fact.at);
    let mut found = FindingList::default();
    for (fact, policy) in facts.iter().flat_map(|fact| policies.iter().map(move |policy| (fact, policy))) {
        if found.is_full() {
            break;
        }
        let policy = policy.borrow();
        for (rule, subject) in rules::matching_rules(fact, policy) {
            let decision = Decision::decide(policy, rule, &subject, context);
            let Some(decision) = decision.filter(|decision| found.accepts(decision.refuses)) else {
                continue;
            };
            let place = positions.map(|positions| positions.line_and_column(fact.at));
            let excused = |positions: &Positions<'_>| {
                place.is_some_and(|(line, _)| positions.is_suppressed(line, rule.id))
            };
            if !(policy.comments && positions.is_some_and(excused)) {
                found.add(decision.finding(rule, &subject, place));
            }
        }
    }
    let FindingList { mut findings, .. } = found;
    // Findings that refuse come first among those at the same position.
    findings.sort_by_key(|finding| (finding.line, finding.column, !finding.refused));
    PolicyVerdict { findings }
}

/// A bounded list of findings. A refusal is never lost behind warnings.
#[derive(Default)]
struct FindingList {
    findings: Vec<PolicyFinding>,
    refused: bool,
}

impl FindingList {
    fn is_full(&self) -> bool {
        self.findings.len() >= MAX_FINDINGS && self.refused
    }

    fn accepts(&self, refuses: bool) -> bool {
        self.findings.len() < MAX_FINDINGS || (refuses && !self.refused)
    }

    /// Adds a finding. Of two findings of one rule at one position, the one that refuses is kept.
    fn add(&mut self, finding: PolicyFinding) {
        self.refused |= finding.refused;
        let same = |other: &&mut PolicyFinding| {
            (other.rule, other.line, other.column) == (finding.rule, finding.line, finding.column)
        };
        match self.findings.iter_mut().rev().take(16).find(same) {
            Some(known) if known.refused || !finding.refused => {}
            Some(known) => *known = finding,
            None => self.findings.push(finding),
        }
    }
}
