//! Rules that several languages share, each with cases of its own.

use super::{Category::*, Rule, Severity::*, When};

type Cases = &'static [&'static str];

/// Brackets nested deeper than the limit.
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
        message: "`{}` loads a module whose name cannot be determined",
        suggestion: "use a plain import statement",
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
        message: "a {} creates processes without limit",
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
        message: "`{}` is assembled from parts at run time",
        suggestion: "write the name literally",
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
        message: "the policy lists the module `{}`",
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
        message: "the policy lists `{}`",
        suggestion: "avoid this call",
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
        message: "cannot be parsed: {}",
        suggestion: "fix the syntax",
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
