//! Commands, executed by the guest. Each start records whether anything else was running.

use belljar_engine::finding::Finding;
use belljar_engine::sandbox_handle::{
    AttachOptions, CommandViewer, Commands, OutputEvent, ProcessId, ProcessInfo, SandboxError, SandboxFuture,
    StartCommand, TerminalSize,
};
use belljar_guest::host;

use super::GuestSandbox;
use crate::egress::extend_environment;

/// Output of a command in the guest.
#[derive(Debug)]
pub(super) struct GuestOutput(pub(super) host::ProcessOutput);

impl CommandViewer for GuestOutput {
    fn next(&mut self) -> SandboxFuture<'_, Option<OutputEvent>> {
        Box::pin(async { Ok(self.0.next().await?) })
    }

    fn offset(&self) -> u64 {
        self.0.offset()
    }
}

impl GuestSandbox {
    /// Returns the command with the sandbox's environment added.
    fn with_sandbox_environment(&self, mut command: StartCommand) -> StartCommand {
        let mut env = self.environment();
        extend_environment(&mut env, command.env);
        command.env = env.into_iter().collect();
        command
    }

    /// Starts a command without recording the start: a task records its own.
    pub(super) async fn start_attached_unrecorded(
        &self,
        command: StartCommand,
        attach: AttachOptions,
    ) -> Result<(ProcessId, Box<dyn CommandViewer>), SandboxError> {
        let command = self.with_sandbox_environment(command);
        let started = self.writable_guest()?.start_attached(command, attach).await;
        let (process, output) = self.convert_result(started).await?;
        Ok((process, Box::new(GuestOutput(output)) as Box<dyn CommandViewer>))
    }
}

impl Commands for GuestSandbox {
    fn start(&self, command: StartCommand) -> SandboxFuture<'_, ProcessId> {
        Box::pin(async move {
            let (start, before) = self.begin_command().await?;
            let command = self.with_sandbox_environment(command);
            let process = self.convert_result(self.writable_guest()?.start(command).await).await?;
            start.finish(process, before);
            Ok(process)
        })
    }

    fn start_attached(
        &self,
        command: StartCommand,
        attach: AttachOptions,
    ) -> SandboxFuture<'_, (ProcessId, Box<dyn CommandViewer>)> {
        Box::pin(async move {
            let (start, before) = self.begin_command().await?;
            let (process, output) = self.start_attached_unrecorded(command, attach).await?;
            start.finish(process, before);
            Ok((process, output))
        })
    }

    fn attach(&self, process: ProcessId, attach: AttachOptions) -> SandboxFuture<'_, Box<dyn CommandViewer>> {
        Box::pin(async move {
            let output = self.convert_result(self.running_guest()?.attach(process, attach).await).await?;
            Ok(Box::new(GuestOutput(output)) as Box<dyn CommandViewer>)
        })
    }

    fn write_stdin<'a>(&'a self, process: ProcessId, bytes: &'a [u8]) -> SandboxFuture<'a, ()> {
        Box::pin(
            async move { self.convert_result(self.running_guest()?.write_stdin(process, bytes).await).await },
        )
    }

    fn close_stdin(&self, process: ProcessId) -> SandboxFuture<'_, ()> {
        Box::pin(async move { self.convert_result(self.running_guest()?.close_stdin(process).await).await })
    }

    fn signal(&self, process: ProcessId, signal: i32) -> SandboxFuture<'_, ()> {
        Box::pin(
            async move { self.convert_result(self.running_guest()?.signal(process, signal).await).await },
        )
    }

    fn wait_for_end(&self, process: ProcessId) -> SandboxFuture<'_, ()> {
        Box::pin(async move { self.convert_result(self.running_guest()?.wait_for_end(process).await).await })
    }

    fn resize(&self, process: ProcessId, size: TerminalSize) -> SandboxFuture<'_, ()> {
        Box::pin(async move { self.convert_result(self.running_guest()?.resize(process, size).await).await })
    }

    fn list(&self) -> SandboxFuture<'_, Vec<ProcessInfo>> {
        Box::pin(async move { self.convert_result(self.running_guest()?.processes().await).await })
    }

    fn denial_findings<'a>(&'a self, command: &'a ProcessInfo) -> SandboxFuture<'a, Vec<Finding>> {
        Box::pin(self.command_denials(command))
    }
}
