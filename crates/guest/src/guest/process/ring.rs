//! The end of a process's output, in order, with where each byte came from. What does not fit is dropped from the
//! front, and the numbers of bytes stay right.

use std::collections::VecDeque;

use crate::protocol::Stream;

/// Output is dropped in pieces of this.
pub(super) const PIECE: usize = 16 << 10;
/// What a piece costs beside its bytes, so that many tiny ones are not a way around the bound.
const PIECE_COST: usize = 64;

#[derive(Debug)]
struct Piece {
    stream: Stream,
    offset: u64,
    bytes: Vec<u8>,
}

impl Piece {
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }

    fn cost(&self) -> usize {
        self.bytes.len() + PIECE_COST
    }
}

/// What there is from a certain byte on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found<'a> {
    /// Output, up to a change of streams or the end of a piece.
    Bytes(Stream, &'a [u8]),
    /// So many bytes are no longer kept.
    Lost(u64),
    /// Nothing yet.
    Nothing,
}

/// Output of one process.
#[derive(Debug)]
pub(super) struct Ring {
    pieces: VecDeque<Piece>,
    cost: usize,
    bound: usize,
    end: u64,
}

impl Ring {
    pub(super) fn new(bound: usize) -> Self {
        Self { pieces: VecDeque::new(), cost: 0, bound, end: 0 }
    }

    /// The most that it takes.
    pub(super) fn bound(&self) -> usize {
        self.bound
    }

    /// How many bytes came in all.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Takes the next bytes.
    pub(super) fn push(&mut self, stream: Stream, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (head, rest) = bytes.split_at(bytes.len().min(self.room(stream)));
            bytes = rest;
            if head.is_empty() {
                self.pieces.push_back(Piece { stream, offset: self.end, bytes: Vec::new() });
                self.cost += PIECE_COST;
                continue;
            }
            if let Some(last) = self.pieces.back_mut() {
                last.bytes.extend_from_slice(head);
            }
            self.cost += head.len();
            self.end += head.len() as u64;
        }
        while self.cost > self.bound {
            let Some(first) = self.pieces.pop_front() else { return };
            self.cost -= first.cost();
        }
    }

    /// How many bytes of this stream the last piece can still take.
    fn room(&self, stream: Stream) -> usize {
        match self.pieces.back() {
            Some(last) if last.stream == stream => PIECE - last.bytes.len(),
            _ => 0,
        }
    }

    /// Whether one more piece can come without dropping anything from byte `unseen` on.
    pub(super) fn has_room_before(&self, unseen: u64) -> bool {
        let mut cost = self.cost + PIECE + 2 * PIECE_COST;
        for piece in &self.pieces {
            if cost <= self.bound {
                return true;
            }
            if piece.end() > unseen {
                return false;
            }
            cost -= piece.cost();
        }
        true
    }

    /// What there is from a byte on.
    pub(super) fn find(&self, from: u64) -> Found<'_> {
        if from >= self.end {
            return Found::Nothing;
        }
        let kept_from = self.pieces.front().map_or(self.end, |first| first.offset);
        if from < kept_from {
            return Found::Lost(kept_from - from);
        }
        let at = self.pieces.partition_point(|piece| piece.end() <= from);
        match self.pieces.get(at) {
            Some(piece) => Found::Bytes(piece.stream, &piece.bytes[(from - piece.offset) as usize..]),
            None => Found::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Stream::{Stderr, Stdout};

    #[test]
    fn streams_stay_in_order_and_apart() {
        let mut ring = Ring::new(64 << 10);
        ring.push(Stdout, b"ab");
        ring.push(Stdout, b"c");
        ring.push(Stderr, b"de");
        assert_eq!(ring.find(0), Found::Bytes(Stdout, b"abc"));
        assert_eq!(ring.find(2), Found::Bytes(Stdout, b"c"));
        assert_eq!(ring.find(3), Found::Bytes(Stderr, b"de"));
        assert_eq!(ring.find(5), Found::Nothing);
    }

    #[test]
    fn the_front_is_dropped_and_told() {
        let mut ring = Ring::new(40 << 10);
        for number in 0..10_u8 {
            ring.push(Stdout, &[number; PIECE]);
        }
        assert_eq!(ring.end(), 10 * PIECE as u64);
        assert_eq!(ring.find(0), Found::Lost(8 * PIECE as u64));
        assert_eq!(ring.find(8 * PIECE as u64), Found::Bytes(Stdout, &[8; PIECE]));
    }

    #[test]
    fn tiny_pieces_cost_what_they_take() {
        let mut ring = Ring::new(32 << 10);
        for number in 0..100_000 {
            ring.push(if number % 2 == 0 { Stdout } else { Stderr }, b"x");
        }
        assert!(ring.pieces.len() <= (32 << 10) / PIECE_COST);
    }

    #[test]
    fn nothing_unseen_is_dropped_where_somebody_waits() {
        let mut ring = Ring::new(40 << 10);
        let mut pushed = 0;
        while ring.has_room_before(10) {
            ring.push(Stdout, &[0; 1000]);
            pushed += 1000;
        }
        assert_eq!(ring.find(10), Found::Bytes(Stdout, &[0; PIECE][10..]));
        assert!(ring.has_room_before(pushed));
    }
}
