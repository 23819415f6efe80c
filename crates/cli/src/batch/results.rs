//! Writes results to standard output. A separate thread writes, so that a slow reader delays no run's clock;
//! it takes all pending results at once. [`ResultWriter::has_room`] bounds them: while it is false, no new
//! request starts.

use std::io::{self, IsTerminal, Write};

use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::oneshot;

use crate::error::CliError;
use crate::say;

/// Number of pending bytes at which no new request starts. Requests that are already running may still exceed
/// it.
const MAX_PENDING_BYTES: usize = 1 << 20;

#[derive(Debug)]
enum WriterMessage {
    /// Whole lines.
    Results(Vec<u8>),
    /// The progress line.
    Progress(String),
}

/// Queues results and hands them to the writing thread.
#[derive(Debug)]
pub(super) struct ResultWriter {
    gathered: Vec<u8>,
    queue: Sender<WriterMessage>,
    end: oneshot::Receiver<io::Result<()>>,
    refused: bool,
}

impl ResultWriter {
    /// Starts the writing thread.
    pub(super) fn start() -> Result<Self, CliError> {
        let (queue, waiting) = channel(1);
        let (done, end) = oneshot::channel();
        std::thread::Builder::new()
            .name("results".to_owned())
            // The receiver is gone after a second interrupt; then the outcome does not matter.
            .spawn(move || drop(done.send(write_all(waiting))))
            .map_err(|error| CliError::host(format!("start the thread that writes results: {error}")))?;
        Ok(Self { gathered: Vec::new(), queue, end, refused: false })
    }

    /// Adds a result line.
    pub(super) fn add(&mut self, line: &[u8]) {
        if !self.refused {
            self.gathered.extend_from_slice(line);
        }
    }

    /// Returns whether results are pending.
    pub(super) fn has_pending(&self) -> bool {
        !self.gathered.is_empty()
    }

    /// Returns whether the reader keeps up, so that new requests may start.
    pub(super) fn has_room(&self) -> bool {
        self.gathered.len() < MAX_PENDING_BYTES
    }

    /// Sends the pending results once the previous batch is being written; `false` when standard output is
    /// closed.
    pub(super) async fn send_pending(&mut self) -> bool {
        match self.queue.reserve().await {
            Ok(permit) => permit.send(WriterMessage::Results(std::mem::take(&mut self.gathered))),
            Err(_) => {
                self.gathered = Vec::new();
                self.refused = true;
            }
        }
        !self.refused
    }

    /// Shows the progress line, unless results are being written.
    pub(super) fn show_progress(&self, progress: String) {
        let _ = self.queue.try_send(WriterMessage::Progress(progress));
    }

    /// Waits until everything is written. Returns `false` if standard output was closed, which is not a
    /// failure.
    pub(super) async fn finish(self) -> Result<bool, CliError> {
        drop(self.queue);
        match self.end.await {
            Ok(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            Ok(Err(error)) => Err(CliError::host(format!("write the results to standard output: {error}"))),
            Ok(Ok(())) | Err(_) => Ok(true),
        }
    }
}

fn write_all(mut waiting: Receiver<WriterMessage>) -> io::Result<()> {
    let mut stdout = io::stdout();
    // Results and progress may share a terminal; then the progress line is erased before results are written.
    let shared = stdout.is_terminal();
    let mut shown = false;
    while let Some(chunk) = waiting.blocking_recv() {
        match chunk {
            WriterMessage::Progress(line) => {
                say::progress(&line);
                shown = true;
            }
            WriterMessage::Results(lines) => {
                if shared && std::mem::take(&mut shown) {
                    say::end_progress();
                }
                stdout.write_all(&lines)?;
                stdout.flush()?;
            }
        }
    }
    if shown {
        say::end_progress();
    }
    Ok(())
}
