//! Bounds before parsing: what is too long or nested too deep is not read, and that is said.
//!
//! A tree can be as deep as its text is long, and parsers, visitors and destructors go down it by recursion. So the text
//! has a bound, reading has a stack that is large enough for the deepest tree of such a text (its pages are taken only
//! when they are touched), and brackets, which cost parsers the most, are counted first.

use super::fact::{Fact, Kind, Shape};
use super::{Language, javascript, python, shell};

/// The longest code that is read.
const MAX_CODE: usize = 256 << 10;
/// The deepest brackets, and the most of them in all, whatever strings may hide.
const MAX_DEPTH: usize = 200;
const MAX_BRACKETS: usize = 60_000;
/// Stack for each byte of code, and the least.
const STACK_PER_BYTE: usize = if cfg!(debug_assertions) { 16 << 10 } else { 4 << 10 };
const MIN_STACK: usize = 1 << 20;

/// Reads code that is within its bounds.
pub(crate) fn within_bounds(code: &str, language: Language) -> Vec<Fact> {
    if let Some(why) = too_much(code) {
        return vec![Fact { at: 0, kind: Kind::Shape(Shape::Unread(why)) }];
    }
    stacker::grow(MIN_STACK + code.len() * STACK_PER_BYTE, || match language {
        Language::Python => python::facts(code),
        Language::JavaScript => javascript::facts(code, false),
        Language::TypeScript => javascript::facts(code, true),
        Language::Shell => shell::facts(code),
    })
}

fn too_much(code: &str) -> Option<&'static str> {
    if code.len() > MAX_CODE {
        return Some("more than 256 KB");
    }
    let (mut depth, mut deepest, mut total) = (0_usize, 0_usize, 0_usize);
    for byte in code.bytes() {
        match byte {
            b'(' | b'[' | b'{' => {
                depth += 1;
                total += 1;
                deepest = deepest.max(depth);
            }
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    (deepest > MAX_DEPTH || total > MAX_BRACKETS).then_some("nested too deep")
}
