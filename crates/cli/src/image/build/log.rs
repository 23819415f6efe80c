//! Captures a builder's output: shows the last line on a terminal, and keeps the last few for an error
//! message.

use std::collections::VecDeque;

use belljar_engine::packages::Progress;
use belljar_engine::provider::{Sink, SinkControl, Stream};

use crate::view::ProgressView;

/// Number of lines to keep, and characters of each.
const LINES: usize = 8;
const WIDTH: usize = 300;

/// Shows output lines and keeps the last ones.
#[derive(Debug)]
pub(super) struct BuildLog {
    shown: ProgressView,
    lines: VecDeque<String>,
}

impl BuildLog {
    pub(super) fn new(quiet: bool) -> Self {
        Self { shown: ProgressView::new(quiet), lines: VecDeque::new() }
    }

    /// Returns the last lines, without control characters.
    pub(super) fn last_lines(&self) -> String {
        self.lines.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
    }
}

impl Sink for BuildLog {
    fn output(&mut self, stream: Stream, bytes: &[u8]) -> SinkControl {
        self.shown.output(stream, bytes)
    }

    fn progress(&mut self, what: &str) {
        let plain: String = what.chars().filter(|c| !c.is_control()).take(WIDTH).collect();
        if plain.is_empty() {
            return;
        }
        self.shown.progress(&plain);
        if self.lines.len() == LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(plain);
    }
}

impl Progress for BuildLog {
    fn report(&mut self, what: &str) {
        self.progress(what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept() {
        let mut tail = BuildLog::new(true);
        for line in ["", "a\u{1b}[2Jb"].into_iter().chain(["x"; 20]) {
            tail.progress(line);
        }
        assert_eq!(tail.last_lines().lines().count(), LINES);
        tail.progress("a\u{1b}[2Jb");
        assert!(tail.last_lines().ends_with("\n  a[2Jb"));
    }
}
