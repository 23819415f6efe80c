//! Places in a text, and the comments that may excuse a finding.

/// Where lines begin.
pub(crate) struct Positions<'a> {
    code: &'a str,
    starts: Vec<usize>,
}

impl<'a> Positions<'a> {
    pub(crate) fn new(code: &'a str) -> Self {
        let ends = code.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Self { code, starts: std::iter::once(0).chain(ends.map(|(at, _)| at + 1)).collect() }
    }

    /// Line and column of a byte, from 1.
    pub(crate) fn of(&self, at: usize) -> (u32, u32) {
        let at = self.code.floor_char_boundary(at.min(self.code.len()));
        let line = self.starts.partition_point(|start| *start <= at).max(1);
        let column = self.code[self.starts[line - 1]..at].chars().count() + 1;
        (u32::try_from(line).unwrap_or(u32::MAX), u32::try_from(column).unwrap_or(u32::MAX))
    }

    /// Whether `# belljar: allow RULE reason` stands on a line, or on the one above it.
    pub(crate) fn allows(&self, line: u32, rule: &str) -> bool {
        let line = line as usize;
        (line.saturating_sub(1).max(1)..=line).any(|number| excuses(self.line(number), rule))
    }

    fn line(&self, number: usize) -> &'a str {
        let start = self.starts.get(number - 1).copied().unwrap_or(self.code.len());
        let end = self.starts.get(number).copied().unwrap_or(self.code.len());
        &self.code[start..end]
    }
}

fn excuses(text: &str, rule: &str) -> bool {
    let Some((before, words)) = text.split_once("belljar: allow ") else { return false };
    let mut words = words.split_whitespace();
    before.trim_end().ends_with(['#', '/']) && words.next() == Some(rule) && words.next().is_some()
}
