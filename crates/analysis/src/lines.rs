//! Where lines begin.

/// Line numbers of offsets.
#[derive(Debug)]
pub(crate) struct Lines(Vec<usize>);

impl Lines {
    pub(crate) fn of(code: &str) -> Self {
        let ends = code.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Self(std::iter::once(0).chain(ends.map(|(offset, _)| offset + 1)).collect())
    }

    /// From 1.
    pub(crate) fn at(&self, offset: usize) -> u32 {
        let before = self.0.partition_point(|start| *start <= offset);
        u32::try_from(before).unwrap_or(u32::MAX)
    }

    /// The first byte of a line, counted from 1; nothing where there are not so many.
    pub(crate) fn start(&self, line: u32) -> Option<usize> {
        self.0.get(line.checked_sub(1)? as usize).copied()
    }
}
