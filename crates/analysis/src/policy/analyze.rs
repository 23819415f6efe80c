//! Applies limits before parsing: code that is too long or nested too deeply is not analyzed, and a fact says
//! so.
//!
//! Code inside code (`sh -c`, `os.system`, `python -c`) is also analyzed. It can be longer and deeper than
//! the text that contains it, so the same limits apply to each piece, and an [`AnalysisBudget`] limits the
//! total.

use std::cell::Cell;
use std::rc::Rc;

use super::fact::{CodeFact, CodePattern, FactKind};
use super::{PolicyLanguage, javascript, python, shell};
use crate::budget::{Budget, TOO_COMPLEX};
use crate::parse_limits::{self, ParseRefusal};

/// Longest code that is analyzed, in bytes.
const MAX_CODE_BYTES: usize = 256 << 10;
/// Deepest nesting of code inside code.
const MAX_NESTED_LEVELS: usize = 4;
/// Total size of code inside code that is analyzed, in bytes.
const MAX_NESTED_BYTES: usize = 256 << 10;

/// Remaining depth and size of code inside code, and the steps that the whole analysis may take.
#[derive(Debug, Clone)]
pub(crate) struct AnalysisBudget {
    levels: usize,
    bytes: Rc<Cell<usize>>,
    pub(crate) budget: Budget,
}

impl AnalysisBudget {
    /// Returns the allowance for a program of `bytes` bytes.
    pub(crate) fn for_code(bytes: usize) -> Self {
        let budget = Budget::for_code(bytes);
        Self { levels: MAX_NESTED_LEVELS, bytes: Rc::new(Cell::new(MAX_NESTED_BYTES)), budget }
    }

    /// Returns the allowance for nested code of `bytes` bytes, or `None` if that exceeds the limits.
    pub(crate) fn nested(&self, bytes: usize) -> Option<Self> {
        let levels = self.levels.checked_sub(1)?;
        self.bytes.set(self.bytes.get().checked_sub(bytes)?);
        Some(Self { levels, bytes: Rc::clone(&self.bytes), budget: self.budget.clone() })
    }
}

/// Returns the fact for code that is too long.
pub(crate) fn too_long_fact(language: PolicyLanguage) -> CodeFact {
    CodeFact { at: 0, language, kind: FactKind::Pattern(CodePattern::NotAnalyzed("more than 256 KB")) }
}

/// Analyzes a whole program, within its budget.
pub(crate) fn analyze(code: &str, language: PolicyLanguage) -> Vec<CodeFact> {
    let allowance = AnalysisBudget::for_code(code.len());
    let facts = analyze_within_limits(code, language, allowance.clone());
    report_exhaustion(facts, language, &allowance)
}

/// Analyzes the arguments of a program that is to be started, and its input, within their budget.
pub(crate) fn analyze_command(words: &[String], input: Option<&str>) -> Vec<CodeFact> {
    let bytes = words.iter().map(String::len).sum::<usize>() + input.map_or(0, str::len);
    let allowance = AnalysisBudget::for_code(bytes);
    let facts = shell::command_facts(words, input, allowance.clone());
    report_exhaustion(facts, PolicyLanguage::Shell, &allowance)
}

/// Adds a fact if the budget was exhausted, because further facts may be missing.
fn report_exhaustion(
    mut facts: Vec<CodeFact>,
    language: PolicyLanguage,
    allowance: &AnalysisBudget,
) -> Vec<CodeFact> {
    if allowance.budget.is_spent() {
        facts.push(CodeFact {
            at: 0,
            language,
            kind: FactKind::Pattern(CodePattern::NotAnalyzed(TOO_COMPLEX)),
        });
    }
    facts
}

/// Analyzes code, unless it exceeds a limit.
pub(crate) fn analyze_within_limits(
    code: &str,
    language: PolicyLanguage,
    allowance: AnalysisBudget,
) -> Vec<CodeFact> {
    let unread =
        |why| vec![CodeFact { at: 0, language, kind: FactKind::Pattern(CodePattern::NotAnalyzed(why)) }];
    if code.len() > MAX_CODE_BYTES {
        return vec![too_long_fact(language)];
    }
    let endless = match language {
        PolicyLanguage::Python => parse_limits::exceeds_python_limits(code),
        PolicyLanguage::JavaScript => parse_limits::exceeds_javascript_limits(code),
        PolicyLanguage::TypeScript => {
            parse_limits::exceeds_javascript_limits(code) || parse_limits::exceeds_typescript_limits(code)
        }
        PolicyLanguage::Shell => parse_limits::exceeds_shell_limits(code),
    };
    if endless {
        return unread("nested too deeply");
    }
    // Parsing costs one step per byte. An exhausted budget is reported once, for the whole program.
    if !allowance.budget.spend(code.len()) {
        return Vec::new();
    }
    let read = || match language {
        PolicyLanguage::Python => python::facts(code, allowance),
        PolicyLanguage::JavaScript => javascript::facts(code, false, allowance),
        PolicyLanguage::TypeScript => javascript::facts(code, true, allowance),
        PolicyLanguage::Shell => shell::facts(code, allowance),
    };
    parse_limits::with_stack_for(code, read).unwrap_or_else(|unfit| match unfit {
        ParseRefusal::TooDeep => unread("nested too deeply"),
        ParseRefusal::ParserPanicked => unread("the parser failed"),
    })
}

/// Analyzes code that other code runs; all its facts get the position of the outer code.
pub(crate) fn analyze_nested(
    code: &str,
    language: PolicyLanguage,
    at: usize,
    allowance: &AnalysisBudget,
) -> Vec<CodeFact> {
    let Some(allowance) = allowance.nested(code.len()) else {
        let kind = FactKind::Pattern(CodePattern::NotAnalyzed("too much nested code"));
        return vec![CodeFact { at, language, kind }];
    };
    let mut facts = analyze_within_limits(code, language, allowance);
    // Syntax errors in nested code are not reported.
    facts.retain(|fact| !matches!(fact.kind, FactKind::Pattern(CodePattern::SyntaxError(_))));
    for fact in &mut facts {
        fact.at = at;
    }
    facts
}
