//! Bounds before parsing: what is too long or nested too deep is not read, and that is said.
//!
//! Code inside code (`sh -c`, `os.system`, `python -c`) is read as well. It can be longer and deeper than the text that it
//! came from, so it has the same bounds, and all of it together has an [`Allowance`].

use std::cell::Cell;
use std::rc::Rc;

use super::fact::{Fact, Kind, Shape};
use super::{Language, javascript, python, shell};
use crate::budget::{Budget, TOO_COMPLEX};
use crate::room::{self, Unfit};

/// The longest code that is read.
const MAX_CODE: usize = 256 << 10;
/// How deep code inside code is followed.
const MAX_NESTED: usize = 4;
/// How much code inside code is read in all.
const MAX_INSIDE: usize = 256 << 10;

/// What may still be read of code inside code, and the steps that everything together may take.
#[derive(Debug, Clone)]
pub(crate) struct Allowance {
    levels: usize,
    bytes: Rc<Cell<usize>>,
    pub(crate) budget: Budget,
}

impl Allowance {
    /// Returns the allowance for a program of this many bytes.
    pub(crate) fn for_code(bytes: usize) -> Self {
        let budget = Budget::for_code(bytes);
        Self { levels: MAX_NESTED, bytes: Rc::new(Cell::new(MAX_INSIDE)), budget }
    }

    /// For code of so many bytes inside what is being read; nothing where that would be too much.
    pub(crate) fn inside(&self, bytes: usize) -> Option<Self> {
        let levels = self.levels.checked_sub(1)?;
        self.bytes.set(self.bytes.get().checked_sub(bytes)?);
        Some(Self { levels, bytes: Rc::clone(&self.bytes), budget: self.budget.clone() })
    }
}

/// What is said of code that is longer than is read.
pub(crate) fn too_long(language: Language) -> Fact {
    Fact { at: 0, language, kind: Kind::Shape(Shape::Unread("more than 256 KB")) }
}

/// Reads a whole program, within its budget.
pub(crate) fn read(code: &str, language: Language) -> Vec<Fact> {
    let allowance = Allowance::for_code(code.len());
    let facts = facts(code, language, allowance.clone());
    within(facts, language, &allowance)
}

/// Reads the words of a program that is to be started, and its input, within their budget.
pub(crate) fn read_command(words: &[String], input: Option<&str>) -> Vec<Fact> {
    let bytes = words.iter().map(String::len).sum::<usize>() + input.map_or(0, str::len);
    let allowance = Allowance::for_code(bytes);
    let facts = shell::command(words, input, allowance.clone());
    within(facts, Language::Shell, &allowance)
}

/// Says where the budget did not suffice: facts behind that are missing.
fn within(mut facts: Vec<Fact>, language: Language, allowance: &Allowance) -> Vec<Fact> {
    if allowance.budget.is_spent() {
        facts.push(Fact { at: 0, language, kind: Kind::Shape(Shape::Unread(TOO_COMPLEX)) });
    }
    facts
}

/// Reads code that is within its bounds.
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
        return unread("nested too deep");
    }
    // Parsing is a step a byte. Whoever is out of steps says so for the whole program.
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
        Unfit::Deep => unread("nested too deep"),
        Unfit::Broke => unread("the parser failed"),
    })
}

/// Reads code that other code runs; everything is at one place of that.
pub(crate) fn inside(code: &str, language: Language, at: usize, allowance: &Allowance) -> Vec<Fact> {
    let Some(allowance) = allowance.inside(code.len()) else {
        let kind = Kind::Shape(Shape::Unread("too much code inside code"));
        return vec![Fact { at, language, kind }];
    };
    let mut facts = facts(code, language, allowance);
    // Whether text that somebody else will run is well written is not said.
    facts.retain(|fact| !matches!(fact.kind, Kind::Shape(Shape::Syntax(_))));
    for fact in &mut facts {
        fact.at = at;
    }
    facts
}
