//! Places in a text, and the comments that may excuse a finding.

/// Turns bytes into lines and columns. Facts come nearly in order, so it goes on from where it was.
pub(crate) struct Positions<'a> {
    code: &'a str,
    starts: Vec<usize>,
}

impl<'a> Positions<'a> {
    pub(crate) fn new(code: &'a str) -> Self {
        Self { code, starts: Vec::new() }
    }

    /// Line and column, from 1.
    pub(crate) fn of(&mut self, at: usize) -> (u32, u32) {
        if self.starts.is_empty() {
            self.starts = std::iter::once(0)
                .chain(self.code.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i + 1))
                .collect();
        }
        let at = self.code.floor_char_boundary(at.min(self.code.len()));
        let line = self.starts.partition_point(|start| *start <= at).max(1);
        // A line of megabytes need not be counted to its end.
        let column = self.code[self.starts[line - 1]..at].chars().take(100_000).count() + 1;
        (u32::try_from(line).unwrap_or(u32::MAX), u32::try_from(column).unwrap_or(u32::MAX))
    }
}

/// Whether `# belljar: allow RULE reason` stands on a line or on the one above it, and where.
pub(crate) fn allowing_comment(code: &str, line: u32, rule: &str) -> Option<u32> {
    let excuses = |text: &str| {
        let Some((before, words)) = text.split_once("belljar: allow ") else { return false };
        let comment = before.trim_end().ends_with(['#', '/']);
        let mut words = words.split_whitespace();
        comment && words.next() == Some(rule) && words.next().is_some()
    };
    let above = line.saturating_sub(1).max(1);
    (above..=line).find(|number| code.lines().nth(*number as usize - 1).is_some_and(excuses))
}
