//! Starts commands and waits for their end. If the client of a foreground command disconnects, the command's
//! process group is killed.

use std::sync::Arc;
use std::time::Instant;

use belljar_engine::finding::Finding;
use belljar_engine::living::{Attach, FailureKind, LivingError, OutputEvent, ProcessId};
use belljar_engine::report::{CommandReport, Written};
use belljar_engine::sandbox::AdmittedCommand;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::look::Look;
use super::open::{Open, Used};
use crate::body::RequestHold;
use crate::error::Error;
use crate::live::Awaited;
use crate::world::World;

const KILL: i32 = 9;

/// A started command. Dropping it before the command ends kills the command.
#[derive(Debug)]
pub(super) struct Started {
    look: Look,
    leash: Leash,
    feed: Option<Feed>,
    /// Findings of the policies.
    findings: Vec<Finding>,
    since: Instant,
    _awaited: Awaited,
}

impl Started {
    /// Starts a command, in a separate task, so that a command whose client disconnects meanwhile is still
    /// killed.
    pub(super) async fn new(
        world: &Arc<World>,
        used: Used,
        command: AdmittedCommand,
        hold: RequestHold,
    ) -> Result<Self, Error> {
        if world.live.is_closed() {
            return Err(Error::ShuttingDown);
        }
        let awaited = Awaited::new(world);
        let (tell, told) = oneshot::channel();
        tokio::spawn(async move { tell.send(Self::start(used, command, hold, awaited).await) });
        told.await.map_err(|_| Error::Internal)?
    }

    async fn start(
        used: Used,
        command: AdmittedCommand,
        hold: RequestHold,
        awaited: Awaited,
    ) -> Result<Self, Error> {
        let since = Instant::now();
        let AdmittedCommand { start, stdin, close_stdin, background, findings, .. } = command;
        // A background command has no reader, so its output must not block on one.
        let attach = Attach { from: 0, hold: !background };
        let (id, output) = used.living.commands().start_attached(start, attach).await.map_err(refusal)?;
        let leash = Leash { open: Arc::clone(used.open()), id, tight: true };
        let feed = stdin.map(|bytes| Feed::new(used.open(), id, bytes, close_stdin, hold));
        let info = super::look::info(&used, &id.0.to_string()).await?;
        Ok(Self { look: Look::new(used, info, output), leash, feed, findings, since, _awaited: awaited })
    }

    /// Detaches the command, so that it runs in the background.
    pub(super) fn let_go(mut self) -> CommandReport {
        self.leash.tight = false;
        if let Some(feed) = &mut self.feed {
            feed.tight = false;
        }
        self.report()
    }

    pub(super) fn report(&self) -> CommandReport {
        let report = self.look.report();
        CommandReport { findings: [self.findings.clone(), report.findings].concat(), ..report }
    }

    /// Returns the next event of its output. Once the command has ended, there is nothing left to kill.
    pub(super) async fn next(&mut self) -> Result<Option<OutputEvent>, Error> {
        let event = self.look.next().await?;
        if let Some(OutputEvent::Ended { .. }) | None = event {
            self.leash.tight = false;
        }
        Ok(event)
    }

    /// Waits for the end. Keeps up to `bound` bytes of each stream.
    pub(super) async fn whole(mut self, bound: u64) -> Result<CommandReport, Error> {
        let mut written = Written::new(bound);
        while let Some(event) = self.next().await? {
            match event {
                OutputEvent::Bytes { stream, bytes, .. } => written.push(stream, &bytes),
                // Output is held back until it is read, so none is lost.
                OutputEvent::Lost { .. } => {}
                OutputEvent::Ended { .. } => break,
            }
        }
        Ok(self.report().with(written.report(), self.since.elapsed()))
    }
}

/// Maps an error of starting a command. A missing program or directory is an invalid request, not a 404.
fn refusal(error: LivingError) -> Error {
    match error {
        LivingError::Failed(failure) if !matches!(failure.kind, FailureKind::Busy | FailureKind::NoSpace) => {
            Error::Invalid { field: "command", message: failure.to_string() }
        }
        other => other.into(),
    }
}

/// Kills a command when dropped, which happens when its client disconnects.
#[derive(Debug)]
struct Leash {
    open: Arc<Open>,
    id: ProcessId,
    tight: bool,
}

impl Drop for Leash {
    fn drop(&mut self) {
        if let (true, Ok(runtime)) = (self.tight, Handle::try_current()) {
            let (open, id) = (Arc::clone(&self.open), self.id);
            // A failure means that the command has already ended.
            runtime.spawn(async move {
                let _killed = open.when_awake(|| open.living.commands().signal(id, KILL)).await;
            });
        }
    }
}

/// Writes standard input while the output is being read.
#[derive(Debug)]
struct Feed {
    task: JoinHandle<()>,
    tight: bool,
}

impl Feed {
    fn new(open: &Arc<Open>, id: ProcessId, bytes: Vec<u8>, close: bool, hold: RequestHold) -> Self {
        let open = Arc::clone(open);
        let task = tokio::spawn(async move {
            // Fails if the program has ended or closed its input, which is fine.
            let _fed = open.when_awake(|| open.living.commands().write_stdin(id, &bytes)).await;
            if close {
                let _closed = open.when_awake(|| open.living.commands().close_stdin(id)).await;
            }
            drop(hold);
        });
        Self { task, tight: true }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        if self.tight {
            self.task.abort();
        }
    }
}
