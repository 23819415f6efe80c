//! An interpreter started before its program is known. It was started with exactly the command, environment
//! and folder that the program would get, and waits before reading any of it. It can serve nothing else.

use std::time::Duration;

use belljar_engine::sandbox_handle::{
    AttachOptions, CommandViewer, Commands, OutputEvent, ProcessId, StartCommand, StdinMode, WriteOptions,
};
use belljar_guest::{Guest, host};
use futures_util::FutureExt;

use super::commands::GuestOutput;

/// Time allowed to become ready, on a slow machine.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Time allowed to exit after it is killed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// An interpreter to pre-start.
#[derive(Debug, Clone)]
pub(crate) struct PrestartSpec {
    pub(super) language: &'static str,
    /// The command that a program is started with.
    pub(super) command: StartCommand,
    /// This command with the waiting script added.
    pub(super) waiting_command: StartCommand,
    /// The path of the waiting script, and its text.
    pub(super) script_path: String,
    pub(super) script_text: &'static str,
}

/// A pre-started interpreter that waits for its program.
#[derive(Debug)]
pub(crate) struct PrestartedInterpreter {
    /// The language it runs.
    pub(crate) language: &'static str,
    command: StartCommand,
    process: ProcessId,
    output: host::ProcessOutput,
}

impl PrestartedInterpreter {
    /// Starts an interpreter and waits until it is ready. Returns `None` on failure; programs then start
    /// normally.
    pub(crate) async fn start(guest: &Guest, spec: PrestartSpec) -> Option<Self> {
        let PrestartSpec { language, command, mut waiting_command, script_path, script_text } = spec;
        guest.write_file(&script_path, WriteOptions::default(), script_text.as_bytes()).await.ok()?;
        waiting_command.stdin = StdinMode::Open;
        let (process, output) =
            guest.start_attached(waiting_command, AttachOptions { from: 0, hold: true }).await.ok()?;
        let mut interpreter = Self { language, command, process, output };
        match tokio::time::timeout(START_TIMEOUT, interpreter.output.next()).await {
            Ok(Ok(Some(OutputEvent::Bytes { bytes, .. }))) if bytes == b"+" => Some(interpreter),
            _ => {
                interpreter.kill(guest).await;
                None
            }
        }
    }

    /// Returns whether it was started for a program like this.
    pub(crate) fn matches(&self, spec: Option<&PrestartSpec>) -> bool {
        spec.is_some_and(|spec| spec.command == self.command)
    }

    /// Kills it and waits, so that nothing of it is left for the next user.
    pub(crate) async fn kill(mut self, guest: &Guest) {
        // Fails if it has exited already.
        let _killed = guest.signal(self.process, 9).await;
        let gone = async { while let Ok(Some(_)) = self.output.next().await {} };
        let _gone = tokio::time::timeout(EXIT_TIMEOUT, gone).await;
    }

    /// Lets it read its program, which has been written. Returns `None` if it no longer waits and cannot be
    /// used.
    pub(super) async fn resume(
        mut self,
        commands: &dyn Commands,
    ) -> Option<(ProcessId, Box<dyn CommandViewer>)> {
        let waits = self.output.next().now_or_never().is_none();
        if waits && commands.write_stdin(self.process, b"+").await.is_ok() {
            return Some((self.process, Box::new(GuestOutput(self.output))));
        }
        // Most likely it has exited already.
        let _killed = commands.signal(self.process, 9).await;
        None
    }
}
