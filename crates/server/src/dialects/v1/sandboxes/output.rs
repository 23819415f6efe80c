//! Output of a command, as server-sent events or as a page.
//!
//! ```text
//! started {"id","pid"} · output {"stream","offset","text"[,"base64"]} · lost {"offset","bytes"} · ended Command
//! ```

use std::collections::VecDeque;

use axum::body::Bytes;
use belljar_engine::provider::Stream;
use belljar_engine::report::{CommandReport, OutputCapture, OutputReport, text_and_base64};
use belljar_engine::sandbox_handle::OutputEvent;
use schemars::JsonSchema;
use serde::Serialize;

use crate::error::Error;
use crate::http::events::{EventProducer, event, typed_event};
use crate::http::problem::error_json;
use crate::http::utf8::incomplete_suffix_len;
use crate::sandboxes::command_process::CommandInProgress;
use crate::sandboxes::command_reader::CommandReader;

/// Payload of the event `started`.
#[derive(Serialize)]
struct StartedEvent {
    id: u64,
    pid: u32,
}

/// Payload of the event `output`.
#[derive(Serialize)]
struct ChunkEvent {
    /// The bytes, if they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
    offset: u64,
    stream: &'static str,
    text: String,
}

/// Payload of the event `lost`: output that is no longer stored.
#[derive(Debug, Serialize)]
pub(super) struct LostEvent {
    pub(super) bytes: u64,
    pub(super) offset: u64,
}

/// The source of a command's events.
#[derive(Debug)]
enum CommandSource {
    /// A command that is killed when the client disconnects.
    KilledOnDrop(CommandInProgress),
    Watched(CommandReader),
}

impl CommandSource {
    async fn next(&mut self) -> Result<Option<OutputEvent>, Error> {
        match self {
            Self::KilledOnDrop(started) => started.next().await,
            Self::Watched(reader) => reader.next().await,
        }
    }

    fn report(&self) -> CommandReport {
        match self {
            Self::KilledOnDrop(started) => started.report(),
            Self::Watched(reader) => reader.report(),
        }
    }
}

/// The event stream of a command.
#[derive(Debug)]
pub(super) struct CommandEvents {
    source: CommandSource,
    /// Offset at which to stop; `None` to follow until the end.
    until: Option<u64>,
    pieces: Utf8Chunks,
    /// Events that are ready to be sent.
    queue: VecDeque<Bytes>,
    finished: bool,
}

impl CommandEvents {
    /// Streams the events of a command that was just started.
    pub(super) fn started(started: CommandInProgress) -> Self {
        let report = started.report();
        let first = typed_event("started", &StartedEvent { id: report.id, pid: report.pid });
        Self { queue: VecDeque::from([first]), ..Self::new(CommandSource::KilledOnDrop(started), None) }
    }

    /// Streams the events of an existing command, until its end or up to its current output.
    pub(super) fn watched(reader: CommandReader, follow: bool) -> Self {
        // For an ended command, the end event is sent even without following.
        let until = (!follow && reader.info().ending.is_none()).then_some(reader.info().output_bytes);
        Self::new(CommandSource::Watched(reader), until)
    }

    fn new(source: CommandSource, until: Option<u64>) -> Self {
        Self { source, until, pieces: Utf8Chunks::default(), queue: VecDeque::new(), finished: false }
    }

    fn is_at_end(&self) -> bool {
        match (&self.source, self.until) {
            (CommandSource::Watched(reader), Some(until)) => reader.offset() >= until,
            _ => false,
        }
    }

    fn push_event(&mut self, next: Result<Option<OutputEvent>, Error>) {
        match next {
            Ok(Some(OutputEvent::Bytes { stream, offset, bytes })) => {
                let pieces = self.pieces.split_whole(CommandOutputChunk { stream, offset, bytes });
                self.queue.extend(pieces.map(CommandOutputChunk::event));
            }
            Ok(Some(OutputEvent::Lost { offset, bytes })) => {
                self.flush();
                self.queue.push_back(typed_event("lost", &LostEvent { bytes, offset }));
            }
            Ok(Some(OutputEvent::Ended { .. })) => {
                self.finish();
                self.queue.push_back(typed_event("ended", &self.source.report()));
            }
            Ok(None) => self.finish(),
            Err(error) => {
                self.finish();
                self.queue.push_back(event("error", error_json(&error).as_bytes()));
            }
        }
    }

    fn finish(&mut self) {
        self.flush();
        self.finished = true;
    }

    fn flush(&mut self) {
        self.queue.extend(self.pieces.incomplete.take().map(CommandOutputChunk::event));
    }
}

impl EventProducer for CommandEvents {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Some(event);
            }
            if self.finished {
                return None;
            }
            if self.is_at_end() {
                self.finish();
                continue;
            }
            let event = self.source.next().await;
            self.push_event(event);
        }
    }
}

/// A chunk of output of one stream.
#[derive(Debug, PartialEq, Eq)]
struct CommandOutputChunk {
    stream: Stream,
    /// Offset of its first byte.
    offset: u64,
    bytes: Vec<u8>,
}

impl CommandOutputChunk {
    fn event(self) -> Bytes {
        let stream = match self.stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        let (text, base64) = text_and_base64(self.bytes);
        typed_event("output", &ChunkEvent { base64, offset: self.offset, stream, text })
    }
}

/// Keeps UTF-8 characters whole. A split character is held back until its rest arrives, or until other output
/// does.
#[derive(Debug, Default)]
struct Utf8Chunks {
    incomplete: Option<CommandOutputChunk>,
}

impl Utf8Chunks {
    fn split_whole(
        &mut self,
        mut piece: CommandOutputChunk,
    ) -> impl Iterator<Item = CommandOutputChunk> + use<> {
        let mut before = self.incomplete.take();
        if let Some(held) = before.take_if(|held| held.stream == piece.stream) {
            piece = CommandOutputChunk { bytes: [held.bytes, piece.bytes].concat(), ..held };
        }
        let whole = piece.bytes.len() - incomplete_suffix_len(&piece.bytes);
        let rest = piece.bytes.split_off(whole);
        if !rest.is_empty() {
            let offset = piece.offset + whole as u64;
            self.incomplete = Some(CommandOutputChunk { stream: piece.stream, offset, bytes: rest });
        }
        before.into_iter().chain((whole > 0).then_some(piece))
    }
}

/// A contiguous part of a command's stored output.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CommandOutput")]
pub(super) struct OutputPage {
    /// Offset of the first byte.
    from: u64,
    /// Offset to continue reading from.
    next: u64,
    /// Number of requested bytes that are no longer stored.
    lost_bytes: u64,
    #[serde(flatten)]
    written: OutputReport,
    /// The command.
    command: CommandReport,
}

impl OutputPage {
    /// Reads about `bound` bytes of the current output.
    pub(super) async fn read(mut reader: CommandReader, bound: u64) -> Result<Self, Error> {
        let (from, until) = (reader.offset(), reader.info().output_bytes);
        let (mut seen, mut lost_bytes) = (0, 0);
        // The loop bounds the size, so nothing is cut out of the middle.
        let mut written = OutputCapture::new(u64::MAX);
        while seen < bound && reader.offset() < until {
            match reader.next().await? {
                Some(OutputEvent::Bytes { stream, bytes, .. }) => {
                    seen += bytes.len() as u64;
                    written.push(stream, &bytes);
                }
                Some(OutputEvent::Lost { bytes, .. }) => lost_bytes += bytes,
                Some(OutputEvent::Ended { .. }) | None => break,
            }
        }
        let (next, written, command) = (reader.offset(), written.report(), reader.report());
        Ok(Self { from, next, lost_bytes, written, command })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Stream::{Stderr, Stdout};

    #[test]
    fn characters_stay_whole_and_offsets_right() {
        let piece =
            |stream, offset, bytes: &[u8]| CommandOutputChunk { stream, offset, bytes: bytes.to_vec() };
        let all = "aé€😀z".as_bytes();
        for cut in 0..=all.len() {
            let mut pieces = Utf8Chunks::default();
            let chunks: Vec<_> = pieces
                .split_whole(piece(Stdout, 5, &all[..cut]))
                .chain(pieces.split_whole(piece(Stdout, 5 + cut as u64, &all[cut..])))
                .collect();
            assert!(chunks.iter().all(|piece| std::str::from_utf8(&piece.bytes).is_ok()), "{cut}");
            let mut next = 5;
            for piece in &chunks {
                assert_eq!(piece.offset, next, "{cut}");
                next += piece.bytes.len() as u64;
            }
            assert_eq!((next, pieces.incomplete), (5 + all.len() as u64, None));
        }
        // Offsets have no gaps, so output of the other stream splits the character.
        let mut pieces = Utf8Chunks::default();
        assert_eq!(
            pieces.split_whole(piece(Stdout, 0, b"a\xe2")).collect::<Vec<_>>(),
            [piece(Stdout, 0, b"a")]
        );
        let chunks: Vec<_> = pieces.split_whole(piece(Stderr, 2, b"b")).collect();
        assert_eq!(chunks, [piece(Stdout, 1, b"\xe2"), piece(Stderr, 2, b"b")]);
    }
}
