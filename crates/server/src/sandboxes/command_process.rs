//! Starts commands and waits for their end. If the client of a foreground command disconnects, the command's
//! process group is killed.

use std::sync::Arc;
use std::time::Instant;

use belljar_engine::finding::Finding;
use belljar_engine::report::{CommandReport, OutputCapture, with_output};
use belljar_engine::sandbox::{AdmittedCommand, CommandRequest};
use belljar_engine::sandbox_handle::{AttachOptions, FailureKind, OutputEvent, ProcessId, SandboxError};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::command_reader::{CommandReader, command_info};
use super::live_sandbox::{LiveSandbox, SandboxInUse};
use crate::app_state::AppState;
use crate::authentication::Caller;
use crate::body_memory::{BodyReservation, RequestReservation};
use crate::error::Error;
use crate::executions::check_quota;
use crate::executions::live_executions::{AwaitedCommand, LiveExecutions};

const SIGKILL: i32 = 9;

/// A started command. Dropping it before the command ends kills the command.
#[derive(Debug)]
pub(crate) struct CommandInProgress {
    /// Whether no client waits for its end.
    pub(crate) background: bool,
    reader: CommandReader,
    kill_on_drop: KillOnDrop,
    feed: Option<StdinFeed>,
    /// Findings of the policies.
    findings: Vec<Finding>,
    since: Instant,
    _awaited: AwaitedCommand,
}

impl CommandInProgress {
    /// Checks a command against the policies, and starts it.
    pub(crate) async fn start(
        state: &Arc<AppState>,
        caller: &Caller,
        used: SandboxInUse,
        request: CommandRequest,
        reservation: BodyReservation,
    ) -> Result<Self, Error> {
        let reservation = reservation.into_request()?;
        let (engine, policy) = (Arc::clone(&state.engine), caller.policy.clone());
        let check = state.check_workers.run_check(&caller.tenant, move || {
            let command = engine.admit_command(&used.admitted, request, policy.as_deref())?;
            Ok::<_, Error>((used, command))
        });
        let (used, command) = check.await??;
        check_quota(state, caller).await?;
        Self::start_admitted(&state.live_executions, used, command, reservation).await
    }

    /// Starts a command, in a separate task, so that a command whose client disconnects meanwhile is still
    /// killed.
    async fn start_admitted(
        live_executions: &Arc<LiveExecutions>,
        used: SandboxInUse,
        command: AdmittedCommand,
        reservation: RequestReservation,
    ) -> Result<Self, Error> {
        if live_executions.is_closed() {
            return Err(Error::ShuttingDown);
        }
        let awaited = AwaitedCommand::new(live_executions);
        let (sender, receiver) = oneshot::channel();
        tokio::spawn(async move { sender.send(Self::attach(used, command, reservation, awaited).await) });
        receiver.await.map_err(|_| Error::Internal)?
    }

    async fn attach(
        used: SandboxInUse,
        command: AdmittedCommand,
        reservation: RequestReservation,
        awaited: AwaitedCommand,
    ) -> Result<Self, Error> {
        let since = Instant::now();
        let AdmittedCommand { start, stdin, close_stdin, background, findings, .. } = command;
        // A background command has no reader, so its output must not block on one.
        let attach = AttachOptions { from: 0, hold: !background };
        let (id, output) = used.living.commands().start_attached(start, attach).await.map_err(start_error)?;
        let kill_on_drop = KillOnDrop { open: Arc::clone(used.sandbox()), id, armed: true };
        let feed = stdin.map(|bytes| StdinFeed::new(used.sandbox(), id, bytes, close_stdin, reservation));
        let info = command_info(&used, &id.0.to_string()).await?;
        Ok(Self {
            background,
            reader: CommandReader::new(used, info, output),
            kill_on_drop,
            feed,
            findings,
            since,
            _awaited: awaited,
        })
    }

    /// Detaches the command, so that it runs in the background. The sandbox is in use until it ends.
    pub(crate) fn detach(mut self) -> CommandReport {
        self.kill_on_drop.armed = false;
        tokio::spawn(hold_until_end(
            SandboxInUse::new(Arc::clone(self.reader.sandbox())),
            self.kill_on_drop.id,
        ));
        if let Some(feed) = &mut self.feed {
            feed.abort_on_drop = false;
        }
        self.report()
    }

    pub(crate) fn report(&self) -> CommandReport {
        let report = self.reader.report();
        CommandReport { findings: [self.findings.clone(), report.findings].concat(), ..report }
    }

    /// Returns the next event of its output. Once the command has ended, there is nothing left to kill.
    pub(crate) async fn next(&mut self) -> Result<Option<OutputEvent>, Error> {
        let event = self.reader.next().await?;
        if let Some(OutputEvent::Ended { .. }) | None = event {
            self.kill_on_drop.armed = false;
        }
        Ok(event)
    }

    /// Waits for the end. Keeps up to `bound` bytes of each stream.
    pub(crate) async fn wait(mut self, bound: u64) -> Result<CommandReport, Error> {
        let mut written = OutputCapture::new(bound);
        while let Some(event) = self.next().await? {
            match event {
                OutputEvent::Bytes { stream, bytes, .. } => written.push(stream, &bytes),
                // Output is held back until it is read, so none is lost.
                OutputEvent::Lost { .. } => {}
                OutputEvent::Ended { .. } => break,
            }
        }
        Ok(with_output(self.report(), written.report(), self.since.elapsed()))
    }
}

/// Maps an error of starting a command. A missing program or directory is an invalid request, not a 404.
fn start_error(error: SandboxError) -> Error {
    match error {
        SandboxError::Failed(failure)
            if !matches!(failure.kind, FailureKind::Busy | FailureKind::NoSpace) =>
        {
            Error::Invalid { field: "command", message: failure.to_string() }
        }
        other => other.into(),
    }
}

/// Holds the sandbox in use until a command has ended, or is gone with its sandbox.
async fn hold_until_end(used: SandboxInUse, id: ProcessId) {
    let _ended = used.retry_while_paused(|| used.living.commands().wait_for_end(id)).await;
}

/// Kills a command when dropped, which happens when its client disconnects.
#[derive(Debug)]
struct KillOnDrop {
    open: Arc<LiveSandbox>,
    id: ProcessId,
    armed: bool,
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let (true, Ok(runtime)) = (self.armed, Handle::try_current()) {
            let (open, id) = (Arc::clone(&self.open), self.id);
            // A failure means that the command has already ended.
            runtime.spawn(async move {
                let _killed = open.retry_while_paused(|| open.living.commands().signal(id, SIGKILL)).await;
            });
        }
    }
}

/// Writes standard input while the output is being read.
#[derive(Debug)]
struct StdinFeed {
    task: JoinHandle<()>,
    abort_on_drop: bool,
}

impl StdinFeed {
    fn new(
        open: &Arc<LiveSandbox>,
        id: ProcessId,
        bytes: Vec<u8>,
        close: bool,
        reservation: RequestReservation,
    ) -> Self {
        let open = Arc::clone(open);
        let task = tokio::spawn(async move {
            // Fails if the program has ended or closed its input, which is fine.
            let _fed = open.retry_while_paused(|| open.living.commands().write_stdin(id, &bytes)).await;
            if close {
                let _closed = open.retry_while_paused(|| open.living.commands().close_stdin(id)).await;
            }
            drop(reservation);
        });
        Self { task, abort_on_drop: true }
    }
}

impl Drop for StdinFeed {
    fn drop(&mut self) {
        if self.abort_on_drop {
            self.task.abort();
        }
    }
}
