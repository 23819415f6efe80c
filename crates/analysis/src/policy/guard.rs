//! Applies limits before parsing: code that is too long or nested too deeply is not analyzed, and a fact says
//! so.
//!
//! Code inside code (`sh -c`, `os.system`, `python -c`) is also analyzed. It can be longer and deeper than
//! the text that contains it, so the same limits apply to each piece, and an [`Allowance`] limits the total.

use std::cell::Cell;
use std::rc::Rc;

use super::fact::{Fact, Kind, Shape};
use super::{Language, javascript, python, shell};
use crate::budget::{Budget, TOO_COMPLEX};
use crate::room::{self, Unfit};

/// Longest code that is analyzed, in bytes.
const MAX_CODE: usize = 256 << 10;
/// Deepest nesting of code inside code.
const MAX_NESTED: usize = 4;
/// Total size of code inside code that is analyzed, in bytes.
const MAX_INSIDE: usize = 256 << 10;

/// Remaining depth and size of code inside code, and the steps that the whole analysis may take.
#[derive(Debug, Clone)]
pub(crate) struct Allowance {
    levels: usize,
    bytes: Rc<Cell<usize>>,
    pub(crate) budget: Budget,
}

impl Allowance {
    /// Returns the allowance for a program of `bytes` bytes.
    pub(crate) fn for_code(bytes: usize) -> Self {
        let budget = Budget::for_code(bytes);
        Self { levels: MAX_NESTED, bytes: Rc::new(Cell::new(MAX_INSIDE)), budget }
    }

    /// Returns the allowance for nested code of `bytes` bytes, or `None` if that exceeds the limits.
    pub(crate) fn inside(&self, bytes: usize) -> Option<Self> {
        let levels = self.levels.checked_sub(1)?;
        self.bytes.set(self.bytes.get().checked_sub(bytes)?);
        Some(Self { levels, bytes: Rc::clone(&self.bytes), budget: self.budget.clone() })
    }
}

/// Returns the fact for code that is too long.
pub(crate) fn too_long(language: Language) -> Fact {
    Fact { at: 0, language, kind: Kind::Shape(Shape::Unread("more than 256 KB")) }
}

/// Analyzes a whole program, within its budget.
pub(crate) fn read(code: &str, language: Language) -> Vec<Fact> {
    let allowance = Allowance::for_code(code.len());
    let facts = facts(code, language, allowance.clone());
    within(facts, language, &allowance)
}

/// Analyzes the arguments of a program that is to be started, and its input, within their budget.
pub(crate) fn read_command(words: &[String], input: Option<&str>) -> Vec<Fact> {
    let bytes = words.iter().map(String::len).sum::<usize>() + input.map_or(0, str::len);
    let allowance = Allowance::for_code(bytes);
    let facts = shell::command(words, input, allowance.clone());
    within(facts, Language::Shell, &allowance)
}

/// Adds a fact if the budget was exhausted, because further facts may be missing.
fn within(mut facts: Vec<Fact>, language: Language, allowance: &Allowance) -> Vec<Fact> {
    if allowance.budget.is_spent() {
        facts.push(Fact { at: 0, language, kind: Kind::Shape(Shape::Unread(TOO_COMPLEX)) });
    }
    facts
}

/// Analyzes code, unless it exceeds a limit.
pub(crate) fn facts(code: &str, language: Language, allowance: Allowance) -> Vec<Fact> {
    let unread = |why| vec![Fact { at: 0, language, kind: Kind::Shape(Shape::Unread(why)) }];
    if code.len() > MAX_CODE {
        return vec![too_long(language)];
    }
    let endless = match language {
        Language::Python => room::is_endless_python(code),
        Language::JavaScript => room::is_endless(code),
        Language::TypeScript => room::is_endless(code) || room::is_endless_typescript(code),
        Language::Shell => room::is_endless_shell(code),
    };
    if endless {
        return unread("nested too deeply");
    }
    // Parsing costs one step per byte. An exhausted budget is reported once, for the whole program.
    if !allowance.budget.spend(code.len()) {
        return Vec::new();
    }
    let read = || match language {
        Language::Python => python::facts(code, allowance),
        Language::JavaScript => javascript::facts(code, false, allowance),
        Language::TypeScript => javascript::facts(code, true, allowance),
        Language::Shell => shell::facts(code, allowance),
    };
    room::with_room(code, read).unwrap_or_else(|unfit| match unfit {
        Unfit::Deep => unread("nested too deeply"),
        Unfit::Broke => unread("the parser failed"),
    })
}

/// Analyzes code that other code runs; all its facts get the position of the outer code.
pub(crate) fn inside(code: &str, language: Language, at: usize, allowance: &Allowance) -> Vec<Fact> {
    let Some(allowance) = allowance.inside(code.len()) else {
        let kind = Kind::Shape(Shape::Unread("too much nested code"));
        return vec![Fact { at, language, kind }];
    };
    let mut facts = facts(code, language, allowance);
    // Syntax errors in nested code are not reported.
    facts.retain(|fact| !matches!(fact.kind, Kind::Shape(Shape::Syntax(_))));
    for fact in &mut facts {
        fact.at = at;
    }
    facts
}
