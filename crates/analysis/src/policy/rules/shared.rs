//! Rules that several languages share, each with cases of its own.

use super::{Category::*, Matcher, PolicyRule, Severity::*};

type Cases = &'static [&'static str];

/// Brackets nested deeper than the limit.
const DEEP: &str = concat!(
    "((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((",
    "((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((",
    "((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((",
);

pub(super) const fn unknown_import(id: &'static str, matches: Cases, leaves: Cases) -> PolicyRule {
    PolicyRule {
        id,
        category: CodeExecution,
        severity: Medium,
        message: "`{}` loads a module whose name cannot be determined",
        suggestion: "use a plain import statement",
        matchers: &[Matcher::UnknownCode],
        matches,
        non_matches: leaves,
    }
}

pub(super) const fn fork_bomb(id: &'static str, matches: Cases, leaves: Cases) -> PolicyRule {
    PolicyRule {
        id,
        category: DestructiveCommand,
        severity: Critical,
        message: "a {} creates processes without limit",
        suggestion: "start a fixed number of workers",
        matchers: &[Matcher::ForkBomb],
        matches,
        non_matches: leaves,
    }
}

pub(super) const fn assembled(id: &'static str, matches: Cases, leaves: Cases) -> PolicyRule {
    PolicyRule {
        id,
        category: Obfuscation,
        severity: High,
        message: "`{}` is assembled from parts at run time",
        suggestion: "write the name literally",
        matchers: &[Matcher::AssembledName],
        matches,
        non_matches: leaves,
    }
}

pub(super) const fn listed_module(id: &'static str, matches: Cases, leaves: Cases) -> PolicyRule {
    PolicyRule {
        id,
        category: CodeExecution,
        severity: Medium,
        message: "the policy lists the module `{}`",
        suggestion: "use another module",
        matchers: &[Matcher::ListedModule],
        matches,
        non_matches: leaves,
    }
}

pub(super) const fn listed_call(id: &'static str, matches: Cases, leaves: Cases) -> PolicyRule {
    PolicyRule {
        id,
        category: CodeExecution,
        severity: Medium,
        message: "the policy lists `{}`",
        suggestion: "avoid this call",
        matchers: &[Matcher::ListedCall],
        matches,
        non_matches: leaves,
    }
}

pub(super) const fn syntax(id: &'static str, matches: Cases, leaves: Cases) -> PolicyRule {
    PolicyRule {
        id,
        category: CodeExecution,
        severity: Info,
        message: "cannot be parsed: {}",
        suggestion: "fix the syntax",
        matchers: &[Matcher::SyntaxError],
        matches,
        non_matches: leaves,
    }
}

pub(super) const fn unread(id: &'static str, leaves: Cases) -> PolicyRule {
    PolicyRule {
        id,
        category: Obfuscation,
        severity: Medium,
        message: "not read: {}",
        suggestion: "make the code smaller, and pass data as files",
        matchers: &[Matcher::NotAnalyzed],
        matches: &[DEEP],
        non_matches: leaves,
    }
}
