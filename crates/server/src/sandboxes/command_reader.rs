//! Reading a command's output from an offset, until the command or its sandbox ends.

use std::sync::Arc;

use belljar_engine::finding::Finding;
use belljar_engine::provider::Stream;
use belljar_engine::report::{CommandReport, command_report};
use belljar_engine::sandbox_handle::{AttachOptions, CommandViewer, OutputEvent, ProcessId, ProcessInfo};
use belljar_engine::{Capture, explain};

use super::live_sandbox::{LiveSandbox, SandboxInUse};
use crate::error::Error;

/// How much of standard error is kept to explain why a command failed.
const STDERR_TAIL_BYTES: u64 = 16 << 10;

/// A reader of a command's output. It keeps the sandbox in use.
#[derive(Debug)]
pub(crate) struct CommandReader {
    used: SandboxInUse,
    /// The state of the command, updated at its end.
    info: ProcessInfo,
    output: Box<dyn CommandViewer>,
    /// End of standard error, to explain a failure.
    stderr: Capture,
    /// The end event and the denials, once the command has ended.
    end: Option<OutputEvent>,
    findings: Vec<Finding>,
}

impl CommandReader {
    pub(crate) fn new(used: SandboxInUse, info: ProcessInfo, output: Box<dyn CommandViewer>) -> Self {
        Self { used, info, output, stderr: Capture::new(STDERR_TAIL_BYTES), end: None, findings: Vec::new() }
    }

    /// Reads from an existing command. A reader that falls behind gets an event about lost output and blocks
    /// nothing.
    pub(crate) async fn attach(used: SandboxInUse, number: &str, from: u64) -> Result<Self, Error> {
        let info = command_info(&used, number).await?;
        let output = used.living.commands().attach(info.id, AttachOptions { from, hold: false }).await?;
        Ok(Self::new(used, info, output))
    }

    pub(crate) fn sandbox(&self) -> &Arc<LiveSandbox> {
        self.used.sandbox()
    }

    pub(crate) fn info(&self) -> &ProcessInfo {
        &self.info
    }

    pub(crate) fn report(&self) -> CommandReport {
        CommandReport { findings: self.findings.clone(), ..command_report(self.info.clone()) }
    }

    /// Returns the offset of the next byte.
    pub(crate) fn offset(&self) -> u64 {
        self.output.offset()
    }

    /// Returns the next event, or `None` after the end. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<OutputEvent>, Error> {
        if self.end.is_none() {
            let event = tokio::select! {
                biased;
                event = self.output.next() => event?,
                () = self.used.wait_for_end() => return Err(self.used.ended_error()),
            };
            if let Some(OutputEvent::Bytes { stream: Stream::Stderr, bytes, .. }) = &event {
                self.stderr.push(bytes);
            }
            let Some(OutputEvent::Ended { ending, output_bytes }) = event else { return Ok(event) };
            (self.info.ending, self.info.output_bytes) = (Some(ending), output_bytes);
            self.end = event;
        }
        self.explain().await;
        Ok(self.end.take())
    }

    /// Collects the denials. If the sandbox is already gone, there are none.
    async fn explain(&mut self) {
        let living = &self.used.living;
        let mut findings = living.commands().denial_findings(&self.info).await.unwrap_or_default();
        let isolation = living.receipt().await.map(|receipt| receipt.isolation).unwrap_or_default();
        let held = (&self.used.admitted.plan, isolation.as_slice());
        explain::explain_command(&mut findings, self.info.ending, held, &self.stderr);
        self.findings = findings;
    }
}

/// Returns the state of a command. A malformed number is reported as an unknown command.
pub(crate) async fn command_info(used: &SandboxInUse, number: &str) -> Result<ProcessInfo, Error> {
    let missing = || Error::NotFound("command");
    let id = number.parse().map(ProcessId).map_err(|_| missing())?;
    let all = used.living.commands().list().await?;
    all.into_iter().find(|info| info.id == id).ok_or_else(missing)
}
