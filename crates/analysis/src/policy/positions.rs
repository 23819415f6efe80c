//! Positions in code, and comments that suppress findings.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use crate::line_index::LineIndex;

/// Converts offsets to lines and columns.
pub(crate) struct Positions<'a> {
    code: &'a str,
    lines: LineIndex,
    ascii: bool,
    /// Last offset and its column, to count on from: many positions in one long line would take a long time
    /// otherwise.
    last_position: Cell<(usize, u32)>,
    /// The rule that each line suppresses, cached so that a long line with many findings is searched once.
    suppressions: RefCell<HashMap<u32, Option<&'a str>>>,
}

impl<'a> Positions<'a> {
    pub(crate) fn new(code: &'a str) -> Self {
        let (lines, ascii, last) = (LineIndex::new(code), code.is_ascii(), Cell::new((0, 1)));
        Self { code, lines, ascii, last_position: last, suppressions: RefCell::default() }
    }

    /// Returns the line and column of an offset, both from 1.
    pub(crate) fn line_and_column(&self, at: usize) -> (u32, u32) {
        let at = self.code.floor_char_boundary(at.min(self.code.len()));
        let line = self.lines.line_of(at);
        let start = self.lines.line_start(line).unwrap_or(0);
        (line, if self.ascii { column(at - start) } else { self.column(start, at) })
    }

    fn column(&self, start: usize, at: usize) -> u32 {
        let (from, before) = match self.last_position.get() {
            (last, column) if (start..=at).contains(&last) => (last, column),
            _ => (start, 1),
        };
        let column = before.saturating_add(column(self.code[from..at].chars().count()) - 1);
        self.last_position.set((at, column));
        column
    }

    /// Returns whether the line or the one above it has `# belljar: allow RULE reason`.
    pub(crate) fn is_suppressed(&self, line: u32, rule: &str) -> bool {
        (line.saturating_sub(1).max(1)..=line).any(|number| self.suppressed_rule(number) == Some(rule))
    }

    fn suppressed_rule(&self, number: u32) -> Option<&'a str> {
        *self.suppressions.borrow_mut().entry(number).or_insert_with(|| parse_suppression(self.line(number)))
    }

    fn line(&self, number: u32) -> &'a str {
        let start = self.lines.line_start(number).unwrap_or(self.code.len());
        let end = self.lines.line_start(number + 1).unwrap_or(self.code.len());
        &self.code[start..end]
    }
}

fn column(characters: usize) -> u32 {
    u32::try_from(characters).map_or(u32::MAX, |characters| characters.saturating_add(1))
}

/// Returns the rule that a comment on this line suppresses. The comment must give a reason.
fn parse_suppression(text: &str) -> Option<&str> {
    let (before, words) = text.split_once("belljar: allow ")?;
    let mut words = words.split_whitespace();
    let rule = words.next()?;
    (before.trim_end().ends_with(['#', '/']) && words.next().is_some()).then_some(rule)
}

/// Maximum number of characters of a name in a message.
const MAX_NAME_CHARS: usize = 200;

/// Makes a name from the code safe to include in a message.
pub(super) fn sanitize_name(name: &str) -> String {
    name.chars()
        .take(MAX_NAME_CHARS)
        .map(|c| if is_displayable(c) { c } else { char::REPLACEMENT_CHARACTER })
        .collect()
}

/// Returns whether a character only displays itself: it does not control a terminal, change the text
/// direction or hide.
pub fn is_displayable(c: char) -> bool {
    let hides = matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    !c.is_control() && !hides
}
