//! Keeps the head and the tail of an output stream of any length.

use std::collections::VecDeque;

/// A bounded capture of one output stream: half of the bound for the head, half for the tail.
#[derive(Debug)]
pub struct Capture {
    head: Vec<u8>,
    head_bound: usize,
    tail: VecDeque<u8>,
    tail_bound: usize,
    total: u64,
}

impl Capture {
    /// Creates a capture that keeps at most `bound` bytes.
    pub fn new(bound: u64) -> Self {
        let bound = usize::try_from(bound).unwrap_or(usize::MAX);
        let tail_bound = bound / 2;
        Self { head: Vec::new(), head_bound: bound - tail_bound, tail: VecDeque::new(), tail_bound, total: 0 }
    }

    /// Appends bytes. Returns the part that belongs to the head, which a live view may show at once.
    pub fn push<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        self.total += bytes.len() as u64;
        let (head, rest) = bytes.split_at(bytes.len().min(self.head_bound - self.head.len()));
        self.head.extend_from_slice(head);
        let rest = &rest[rest.len().saturating_sub(self.tail_bound)..];
        let excess = (self.tail.len() + rest.len()).saturating_sub(self.tail_bound);
        self.tail.drain(..excess);
        self.tail.extend(rest);
        head
    }

    /// Discards everything captured so far.
    pub fn clear(&mut self) {
        self.head.clear();
        self.tail.clear();
        self.total = 0;
    }

    /// Returns the number of bytes received in all.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns whether bytes were dropped between head and tail.
    pub fn is_truncated(&self) -> bool {
        self.left_out() > 0
    }

    fn left_out(&self) -> u64 {
        self.total - (self.head.len() + self.tail.len()) as u64
    }

    /// Returns what follows the head: a note if bytes were dropped, then the tail.
    pub fn gap_and_tail(&self) -> Vec<u8> {
        let mut rest = Vec::new();
        if self.is_truncated() {
            rest.extend_from_slice(format!("\n[… {} bytes left out …]\n", self.left_out()).as_bytes());
        }
        rest.extend(&self.tail);
        rest
    }

    /// Returns everything captured, in order.
    pub fn bytes(&self) -> Vec<u8> {
        let mut all = self.head.clone();
        all.extend(self.gap_and_tail());
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_output_is_kept_whole() {
        let mut capture = Capture::new(10);
        assert_eq!(capture.push(b"hel"), b"hel");
        capture.push(b"lo world"[..5].as_ref());
        assert_eq!(capture.bytes(), b"hello wo");
        assert!(!capture.is_truncated());
    }

    #[test]
    fn head_and_tail_survive_a_flood() {
        let mut capture = Capture::new(8);
        for chunk in b"abcdefghijklmnopqrstuvwxyz".chunks(3) {
            capture.push(chunk);
        }
        assert_eq!(capture.bytes(), "abcd\n[… 18 bytes left out …]\nwxyz".as_bytes());
        assert!(capture.is_truncated());
        assert_eq!(capture.total(), 26);
    }

    #[test]
    fn one_huge_chunk_and_a_bound_of_one() {
        let mut capture = Capture::new(1);
        assert_eq!(capture.push(&[7; 1000]), &[7]);
        assert!(capture.is_truncated());
    }
}
