//! The most recent output of a process, in order and with the stream of each byte: offsets count the bytes of
//! both streams. The oldest output is dropped when the ring is full; offsets stay valid.

use std::collections::VecDeque;

use crate::protocol::Stream;

/// Size of a chunk, the unit in which output is dropped.
pub(super) const OUTPUT_CHUNK_BYTES: usize = 16 << 10;
/// Cost of a chunk in addition to its bytes, so that many tiny chunks cannot exceed the bound.
const OUTPUT_CHUNK_COST: usize = 64;

#[derive(Debug)]
struct OutputChunk {
    stream: Stream,
    offset: u64,
    bytes: Vec<u8>,
}

impl OutputChunk {
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }

    fn cost(&self) -> usize {
        self.bytes.len() + OUTPUT_CHUNK_COST
    }
}

/// The output at a certain offset.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RingChunk<'a> {
    /// Output, up to a change of streams or the end of a chunk.
    Bytes(Stream, &'a [u8]),
    /// This many bytes have been dropped.
    Lost(u64),
    /// No output yet.
    Nothing,
}

/// The output of one process.
#[derive(Debug)]
pub(super) struct OutputRing {
    pieces: VecDeque<OutputChunk>,
    cost: usize,
    max_bytes: usize,
    end: u64,
}

impl OutputRing {
    pub(super) fn new(bound: usize) -> Self {
        Self { pieces: VecDeque::new(), cost: 0, max_bytes: bound, end: 0 }
    }

    /// Returns the maximum size.
    pub(super) fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// Returns the number of bytes received in total.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Appends bytes.
    pub(super) fn push(&mut self, stream: Stream, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (head, rest) = bytes.split_at(bytes.len().min(self.room_in_last_chunk(stream)));
            bytes = rest;
            if head.is_empty() {
                self.pieces.push_back(OutputChunk { stream, offset: self.end, bytes: Vec::new() });
                self.cost += OUTPUT_CHUNK_COST;
                continue;
            }
            if let Some(last) = self.pieces.back_mut() {
                last.bytes.extend_from_slice(head);
            }
            self.cost += head.len();
            self.end += head.len() as u64;
        }
        while self.cost > self.max_bytes {
            let Some(first) = self.pieces.pop_front() else { return };
            self.cost -= first.cost();
        }
    }

    /// Returns how many bytes of this stream the last chunk can still take.
    fn room_in_last_chunk(&self, stream: Stream) -> usize {
        match self.pieces.back() {
            Some(last) if last.stream == stream => OUTPUT_CHUNK_BYTES - last.bytes.len(),
            _ => 0,
        }
    }

    /// Returns whether one more chunk fits without dropping bytes from offset `unseen` on.
    pub(super) fn has_room_before(&self, unseen: u64) -> bool {
        let mut cost = self.cost + OUTPUT_CHUNK_BYTES + 2 * OUTPUT_CHUNK_COST;
        for piece in &self.pieces {
            if cost <= self.max_bytes {
                return true;
            }
            if piece.end() > unseen {
                return false;
            }
            cost -= piece.cost();
        }
        true
    }

    /// Returns the output at an offset.
    pub(super) fn find(&self, from: u64) -> RingChunk<'_> {
        if from >= self.end {
            return RingChunk::Nothing;
        }
        let kept_from = self.pieces.front().map_or(self.end, |first| first.offset);
        if from < kept_from {
            return RingChunk::Lost(kept_from - from);
        }
        let at = self.pieces.partition_point(|piece| piece.end() <= from);
        match self.pieces.get(at) {
            Some(piece) => RingChunk::Bytes(piece.stream, &piece.bytes[(from - piece.offset) as usize..]),
            None => RingChunk::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Stream::{Stderr, Stdout};

    #[test]
    fn streams_stay_ordered_and_separate() {
        let mut ring = OutputRing::new(64 << 10);
        ring.push(Stdout, b"ab");
        ring.push(Stdout, b"c");
        ring.push(Stderr, b"de");
        assert_eq!(ring.find(0), RingChunk::Bytes(Stdout, b"abc"));
        assert_eq!(ring.find(2), RingChunk::Bytes(Stdout, b"c"));
        assert_eq!(ring.find(3), RingChunk::Bytes(Stderr, b"de"));
        assert_eq!(ring.find(5), RingChunk::Nothing);
    }

    #[test]
    fn dropped_output_is_reported() {
        let mut ring = OutputRing::new(40 << 10);
        for number in 0..10_u8 {
            ring.push(Stdout, &[number; OUTPUT_CHUNK_BYTES]);
        }
        assert_eq!(ring.end(), 10 * OUTPUT_CHUNK_BYTES as u64);
        assert_eq!(ring.find(0), RingChunk::Lost(8 * OUTPUT_CHUNK_BYTES as u64));
        assert_eq!(
            ring.find(8 * OUTPUT_CHUNK_BYTES as u64),
            RingChunk::Bytes(Stdout, &[8; OUTPUT_CHUNK_BYTES])
        );
    }

    #[test]
    fn tiny_chunks_have_a_cost() {
        let mut ring = OutputRing::new(32 << 10);
        for number in 0..100_000 {
            ring.push(if number % 2 == 0 { Stdout } else { Stderr }, b"x");
        }
        assert!(ring.pieces.len() <= (32 << 10) / OUTPUT_CHUNK_COST);
    }

    #[test]
    fn output_that_a_viewer_needs_is_not_dropped() {
        let mut ring = OutputRing::new(40 << 10);
        let mut pushed = 0;
        while ring.has_room_before(10) {
            ring.push(Stdout, &[0; 1000]);
            pushed += 1000;
        }
        assert_eq!(ring.find(10), RingChunk::Bytes(Stdout, &[0; OUTPUT_CHUNK_BYTES][10..]));
        assert!(ring.has_room_before(pushed));
    }
}
