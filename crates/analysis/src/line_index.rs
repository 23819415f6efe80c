//! Maps byte offsets to line numbers.

/// Start offsets of lines.
#[derive(Debug)]
pub(crate) struct LineIndex(Vec<usize>);

impl LineIndex {
    pub(crate) fn new(code: &str) -> Self {
        let ends = code.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Self(std::iter::once(0).chain(ends.map(|(offset, _)| offset + 1)).collect())
    }

    /// Returns the line of an offset, counted from 1.
    pub(crate) fn line_of(&self, offset: usize) -> u32 {
        let before = self.0.partition_point(|start| *start <= offset);
        u32::try_from(before).unwrap_or(u32::MAX)
    }

    /// Returns the offset of a line's first byte, or `None` if there are not that many lines. Lines count
    /// from 1.
    pub(crate) fn line_start(&self, line: u32) -> Option<usize> {
        self.0.get(line.checked_sub(1)? as usize).copied()
    }
}
