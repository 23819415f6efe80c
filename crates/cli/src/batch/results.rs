//! Results on their way to standard output. A thread of its own writes, so that a slow reader holds up nobody's clock;
//! it takes all that has gathered at once. What gathers is bounded: [`Results::have_room`] says when to start no more.

use std::io::{self, IsTerminal, Write};

use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::oneshot;

use crate::failure::Failure;
use crate::say;

/// While so many bytes wait, nothing new is started; what runs already may still add to them.
const ENOUGH: usize = 1 << 20;

#[derive(Debug)]
enum Chunk {
    /// Whole lines.
    Results(Vec<u8>),
    /// How things stand.
    Progress(String),
}

/// Results that are being written.
#[derive(Debug)]
pub(super) struct Results {
    gathered: Vec<u8>,
    queue: Sender<Chunk>,
    end: oneshot::Receiver<io::Result<()>>,
    refused: bool,
}

impl Results {
    /// Starts the writing thread.
    pub(super) fn write() -> Result<Self, Failure> {
        let (queue, waiting) = channel(1);
        let (done, end) = oneshot::channel();
        std::thread::Builder::new()
            .name("results".to_owned())
            // Nobody waits any more where the person interrupted a second time.
            .spawn(move || drop(done.send(write_all(waiting))))
            .map_err(|error| Failure::host(format!("start the thread that writes results: {error}")))?;
        Ok(Self { gathered: Vec::new(), queue, end, refused: false })
    }

    /// Adds a result, which is a line.
    pub(super) fn add(&mut self, line: &[u8]) {
        if !self.refused {
            self.gathered.extend_from_slice(line);
        }
    }

    /// Whether something is to be handed over.
    pub(super) fn waiting(&self) -> bool {
        !self.gathered.is_empty()
    }

    /// Whether the reader keeps up.
    pub(super) fn have_room(&self) -> bool {
        self.gathered.len() < ENOUGH
    }

    /// Hands over what has gathered, once the one before is being written; `false` where nobody takes it any more.
    pub(super) async fn hand_over(&mut self) -> bool {
        match self.queue.reserve().await {
            Ok(place) => place.send(Chunk::Results(std::mem::take(&mut self.gathered))),
            Err(_) => {
                self.gathered = Vec::new();
                self.refused = true;
            }
        }
        !self.refused
    }

    /// Shows how things stand, unless there is something more important to write.
    pub(super) fn show(&self, progress: String) {
        let _ = self.queue.try_send(Chunk::Progress(progress));
    }

    /// Waits until everything is written; whether it was. A closed pipe is no failure.
    pub(super) async fn finish(self) -> Result<bool, Failure> {
        drop(self.queue);
        match self.end.await {
            Ok(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            Ok(Err(error)) => Err(Failure::host(format!("write the results to standard output: {error}"))),
            Ok(Ok(())) | Err(_) => Ok(true),
        }
    }
}

fn write_all(mut waiting: Receiver<Chunk>) -> io::Result<()> {
    let mut stdout = io::stdout();
    // Results and progress may share a terminal; then the one is taken away before the other is written.
    let shared = stdout.is_terminal();
    let mut shown = false;
    while let Some(chunk) = waiting.blocking_recv() {
        match chunk {
            Chunk::Progress(line) => {
                say::progress(&line);
                shown = true;
            }
            Chunk::Results(lines) => {
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
