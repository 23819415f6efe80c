//! Prints output as it arrives. A separate thread writes, so that a paused terminal or a slow pipe never
//! delays the clock that ends a run. The queue of a [`View`] needs no bound, because the engine passes on no
//! more than `--output` keeps. Unbounded output goes to a [`StreamView`], whose senders wait for room.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{Sender, channel};

use belljar_engine::packages::Progress;
use belljar_engine::provider::{Sink, SinkControl, Stream};
use tokio::sync::{mpsc, oneshot};

use crate::error::CliError;
use crate::escape::Escaper;
use crate::say;

/// Length of a progress line that fits most terminals.
const MAX_PROGRESS_CHARS: usize = 70;

/// Prints the output of a run on standard output and error.
#[derive(Debug)]
pub(crate) struct View {
    queue: Sender<(Stream, Vec<u8>)>,
    drained: oneshot::Receiver<()>,
    installing: ProgressView,
}

impl View {
    /// Starts the writing thread. With `raw`, control characters reach the terminal unchanged.
    pub(crate) fn start(raw: bool, quiet: bool) -> Result<Self, CliError> {
        let (queue, waiting) = channel();
        let drained = start(raw, move |panes| {
            for next in waiting {
                panes.show(next);
            }
        })?;
        Ok(Self { queue, drained, installing: ProgressView::new(quiet) })
    }

    /// Waits until everything is written.
    pub(crate) async fn finish(self) {
        drop((self.queue, self.installing));
        // An error means that the thread has ended, so there is nothing to wait for.
        let _ = self.drained.await;
    }
}

impl Sink for View {
    fn output(&mut self, stream: Stream, bytes: &[u8]) -> SinkControl {
        if !bytes.is_empty() {
            self.installing.end();
            // The receiving thread ends only after this sender is dropped.
            let _ = self.queue.send((stream, bytes.to_vec()));
        }
        SinkControl::Continue
    }

    fn progress(&mut self, what: &str) {
        self.installing.progress(what);
    }
}

/// Shows a progress line on a terminal until the program writes output. Prints no output itself.
#[derive(Debug)]
pub(crate) struct ProgressView {
    wanted: bool,
    shown: bool,
}

impl ProgressView {
    pub(crate) fn new(quiet: bool) -> Self {
        Self { wanted: !quiet && io::stderr().is_terminal(), shown: false }
    }

    fn end(&mut self) {
        if std::mem::take(&mut self.shown) {
            say::end_progress();
        }
    }
}

impl Sink for ProgressView {
    fn output(&mut self, _stream: Stream, _bytes: &[u8]) -> SinkControl {
        self.end();
        SinkControl::Continue
    }

    fn restart(&mut self) -> bool {
        true
    }

    fn progress(&mut self, what: &str) {
        if self.wanted {
            // Package names come from a registry and must not control the terminal.
            let plain: String = what.chars().filter(|c| !c.is_control()).take(MAX_PROGRESS_CHARS).collect();
            say::progress(&plain);
            self.shown = true;
        }
    }
}

impl Progress for ProgressView {
    fn report(&mut self, what: &str) {
        self.progress(what);
    }
}

impl Drop for ProgressView {
    fn drop(&mut self) {
        self.end();
    }
}

/// Prints unbounded output.
#[derive(Debug)]
pub(crate) struct StreamView {
    queue: mpsc::Sender<(Stream, Vec<u8>)>,
    drained: oneshot::Receiver<()>,
}

impl StreamView {
    /// Maximum number of queued chunks.
    const QUEUE_LENGTH: usize = 16;

    /// Starts the writing thread, like [`View::start`].
    pub(crate) fn start(raw: bool) -> Result<Self, CliError> {
        let (queue, mut waiting) = mpsc::channel(Self::QUEUE_LENGTH);
        let drained = start(raw, move |panes| {
            while let Some(next) = waiting.blocking_recv()
                && panes.show(next)
            {}
        })?;
        Ok(Self { queue, drained })
    }

    /// Queues output as soon as there is room; `false` if the stream is closed.
    pub(crate) async fn show(&self, stream: Stream, bytes: Vec<u8>) -> bool {
        self.queue.send((stream, bytes)).await.is_ok()
    }

    /// Waits until everything is written.
    pub(crate) async fn finish(self) {
        drop(self.queue);
        let _ = self.drained.await;
    }
}

/// Starts the writing thread. The returned receiver completes when it has ended.
fn start(
    raw: bool,
    work: impl FnOnce(&mut Panes) + Send + 'static,
) -> Result<oneshot::Receiver<()>, CliError> {
    let (done, drained) = oneshot::channel();
    let mut panes = Panes {
        stdout: Pane::new(io::stdout(), io::stdout().is_terminal() && !raw),
        stderr: Pane::new(io::stderr(), io::stderr().is_terminal() && !raw),
    };
    std::thread::Builder::new()
        .name("view".to_owned())
        .spawn(move || {
            work(&mut panes);
            panes.stdout.finish();
            panes.stderr.finish();
            // The receiver is gone after a second interrupt.
            let _ = done.send(());
        })
        .map_err(|error| CliError::host(format!("start the thread that shows output: {error}")))?;
    Ok(drained)
}

struct Panes {
    stdout: Pane<io::Stdout>,
    stderr: Pane<io::Stderr>,
}

impl Panes {
    /// Writes a chunk; `false` if the stream is closed.
    fn show(&mut self, (stream, bytes): (Stream, Vec<u8>)) -> bool {
        match stream {
            Stream::Stdout => self.stdout.show(&bytes),
            Stream::Stderr => self.stderr.show(&bytes),
        }
    }
}

/// Standard output or error. After the first failed write it stays silent.
#[derive(Debug)]
struct Pane<W> {
    writer: Option<W>,
    escaper: Option<Escaper>,
}

impl<W: Write> Pane<W> {
    fn new(writer: W, escaped: bool) -> Self {
        Self { writer: Some(writer), escaper: escaped.then(Escaper::default) }
    }

    fn show(&mut self, bytes: &[u8]) -> bool {
        match &mut self.escaper {
            None => self.write(bytes),
            Some(escaper) => {
                let harmless = escaper.push(bytes);
                self.write(&harmless);
            }
        }
        self.writer.is_some()
    }

    fn finish(&mut self) {
        if let Some(rest) = self.escaper.as_mut().map(Escaper::finish) {
            self.write(&rest);
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        let Some(writer) = &mut self.writer else { return };
        if writer.write_all(bytes).and_then(|()| writer.flush()).is_err() {
            self.writer = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer that accepts one write and then fails like a pipe without a reader.
    #[derive(Debug, Default)]
    struct Closing(usize);

    impl Write for Closing {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += 1;
            if self.0 == 1 { Ok(bytes.len()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_closed_pipe_silences_its_stream_only() {
        let mut pane = Pane::new(Closing::default(), false);
        for _ in 0..3 {
            pane.show(b"x");
        }
        assert!(pane.writer.is_none());
    }

    #[test]
    fn only_terminal_output_is_escaped() {
        let mut out = Vec::new();
        let mut plain = Pane::new(&mut out, false);
        plain.show(b"\x1b[2J\xff");
        plain.finish();
        assert_eq!(out, b"\x1b[2J\xff");
        let mut out = Vec::new();
        let mut escaped = Pane::new(&mut out, true);
        escaped.show(b"\x1b[2J\xff");
        escaped.finish();
        assert_eq!(out, b"\\x1b[2J\\xff");
    }
}
