//! Reads the requests of a batch, or the inputs of a program, one per line. A separate thread reads and parses a few lines ahead, because
//! a pipe may pause for long and must not delay running requests.

use std::io::{self, BufRead, BufReader, Read};

use belljar_engine::admit::MAX_REQUEST_BYTES;
use belljar_engine::batch::BatchEntry;
use belljar_engine::{Error, request};
use tokio::sync::mpsc::{Receiver, channel};

use crate::error::CliError;

/// Lines parsed ahead: enough that a run never waits for the parser, and cheap to hold.
const LINES_AHEAD: usize = 8;
/// Buffer capacity that is kept between lines; a longer line's buffer is shrunk to this size.
const KEPT_LINE_BYTES: usize = 1 << 20;

/// The parsed lines of a batch, in order.
#[derive(Debug)]
pub(super) struct ParsedLines<T>(Receiver<io::Result<BatchEntry<T>>>);

impl<T: Send + 'static> ParsedLines<T> {
    /// Starts the reading thread. `parse` parses a line.
    pub(super) fn read(
        source: Box<dyn Read + Send>,
        parse: impl Fn(&[u8]) -> Result<T, Error> + Send + 'static,
    ) -> Result<Self, CliError> {
        let (queue, lines) = channel(LINES_AHEAD);
        let mut reader = LineReader::new(BufReader::with_capacity(64 << 10, source));
        let read_all = move || {
            while let Some(entry) = reader.next(&parse).transpose() {
                let last = entry.is_err();
                if queue.blocking_send(entry).is_err() || last {
                    return;
                }
            }
        };
        std::thread::Builder::new()
            .name("lines".to_owned())
            .spawn(read_all)
            .map_err(|error| CliError::host(format!("start the thread that reads the batch: {error}")))?;
        Ok(Self(lines))
    }

    /// Returns the next line, or `None` at the end of the input.
    pub(super) async fn next(&mut self) -> Option<io::Result<BatchEntry<T>>> {
        self.0.recv().await
    }
}

#[derive(Debug)]
struct LineReader<R> {
    source: R,
    line: Vec<u8>,
    index: u64,
}

impl<R: BufRead> LineReader<R> {
    fn new(source: R) -> Self {
        Self { source, line: Vec::new(), index: 0 }
    }

    fn next<T>(&mut self, parse: impl Fn(&[u8]) -> Result<T, Error>) -> io::Result<Option<BatchEntry<T>>> {
        while let Some(fits) = self.read_line()? {
            let index = self.index;
            self.index += 1;
            if fits && self.line.trim_ascii().is_empty() {
                continue;
            }
            let request = if fits { parse(&self.line) } else { Err(request::too_long()) };
            return Ok(Some(BatchEntry { index, request }));
        }
        Ok(None)
    }

    /// Reads a line and returns whether it is within `MAX_REQUEST`, or `None` at the end. An oversized line
    /// is discarded.
    fn read_line(&mut self) -> io::Result<Option<bool>> {
        self.line.clear();
        self.line.shrink_to(KEPT_LINE_BYTES);
        let bound = MAX_REQUEST_BYTES as u64 + 1;
        if self.source.by_ref().take(bound).read_until(b'\n', &mut self.line)? == 0 {
            return Ok(None);
        }
        let fits = self.line.pop_if(|byte| *byte == b'\n').is_some() || self.line.len() <= MAX_REQUEST_BYTES;
        if !fits {
            self.line.clear();
            self.source.skip_until(b'\n')?;
        }
        Ok(Some(fits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: impl BufRead) -> Vec<(u64, Result<Option<String>, String>)> {
        let mut reader = LineReader::new(text);
        let mut lines = Vec::new();
        while let Some(entry) = reader.next(request::parse).unwrap() {
            let code = entry.request.map(|request| request.code).map_err(|error| error.to_string());
            lines.push((entry.index, code));
        }
        lines
    }

    #[test]
    fn blank_lines_are_counted_and_the_final_newline_is_optional() {
        let lines = read(&b"\n{\"code\":\"a\"}\r\n \t\r\n{\n{\"code\":\"b\"}"[..]);
        assert_eq!(lines[0], (1, Ok(Some("a".to_owned()))));
        assert!(matches!(&lines[1], (3, Err(why)) if why.starts_with("request: not JSON")));
        assert_eq!(lines[2..], [(4, Ok(Some("b".to_owned())))]);
        assert!(read(&b""[..]).is_empty() && read(&b"\n\n"[..]).is_empty());
    }

    #[test]
    fn an_oversized_line_is_skipped_and_its_buffer_freed() {
        let text = |size| io::repeat(b' ').take(size).chain(&b"\n{\"code\":\"b\"}\n"[..]);
        let fitting = BufReader::new(text(MAX_REQUEST_BYTES as u64));
        assert_eq!(read(fitting), [(1, Ok(Some("b".to_owned())))]);
        let mut reader = LineReader::new(BufReader::new(text(MAX_REQUEST_BYTES as u64 + 1)));
        let long = reader.next(request::parse).unwrap().unwrap();
        assert_eq!(long.request.unwrap_err().to_string(), request::too_long().to_string());
        let next = reader.next(request::parse).unwrap().unwrap();
        assert_eq!((next.index, next.request.is_ok()), (1, true));
        assert!(reader.line.capacity() <= KEPT_LINE_BYTES);
    }
}
