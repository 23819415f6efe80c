//! Rules that languages have in common, each with cases of its own.

use super::{Category::*, Rule, Severity::*, When};

type Cases = &'static [&'static str];

/// Nested deeper than anything is read.
const DEEP: &str = concat!(
    "((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((",
    "((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((",
    "((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((",
);

pub(super) const fn unknown_import(id: &'static str, matches: Cases, leaves: Cases) -> Rule {
    Rule {
        id,
        category: CodeExecution,
        severity: Medium,
        message: "which module `{}` loads cannot be told",
        suggestion: "write an import statement",
        when: &[When::UnknownCode],
        matches,
        leaves,
    }
}

pub(super) const fn fork_bomb(id: &'static str, matches: Cases, leaves: Cases) -> Rule {
    Rule {
        id,
        category: DestructiveCommand,
        severity: Critical,
        message: "a {}: processes that multiply without an end",
        suggestion: "start a fixed number of workers",
        when: &[When::ForkBomb],
        matches,
        leaves,
    }
}

pub(super) const fn assembled(id: &'static str, matches: Cases, leaves: Cases) -> Rule {
    Rule {
        id,
        category: Obfuscation,
        severity: High,
        message: "`{}` was put together from parts before it was used",
        suggestion: "write the name plainly",
        when: &[When::Assembled],
        matches,
        leaves,
    }
}

pub(super) const fn listed_module(id: &'static str, matches: Cases, leaves: Cases) -> Rule {
    Rule {
        id,
        category: CodeExecution,
        severity: Medium,
        message: "this policy lists the module `{}`",
        suggestion: "use another module",
        when: &[When::ListedModule],
        matches,
        leaves,
    }
}

pub(super) const fn listed_call(id: &'static str, matches: Cases, leaves: Cases) -> Rule {
    Rule {
        id,
        category: CodeExecution,
        severity: Medium,
        message: "this policy lists `{}`",
        suggestion: "do without it",
        when: &[When::ListedCall],
        matches,
        leaves,
    }
}

pub(super) const fn syntax(id: &'static str, matches: Cases, leaves: Cases) -> Rule {
    Rule {
        id,
        category: CodeExecution,
        severity: Info,
        message: "not understood: {}",
        suggestion: "correct the code",
        when: &[When::Syntax],
        matches,
        leaves,
    }
}

pub(super) const fn unread(id: &'static str, leaves: Cases) -> Rule {
    Rule {
        id,
        category: Obfuscation,
        severity: Medium,
        message: "not read: {}",
        suggestion: "make the code smaller, and pass data as files",
        when: &[When::Unread],
        matches: &[DEEP],
        leaves,
    }
}
