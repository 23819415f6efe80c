//! Commands, executed by the guest. Each start records whether anything else was running.

use belljar_engine::finding::Finding;
use belljar_engine::sandbox_handle::{
    AttachOptions, CommandViewer, Commands, ProcessId, ProcessInfo, SandboxFuture, StartCommand, TerminalSize,
};

use super::NativeLiving;

impl Commands for NativeLiving {
    fn start(&self, command: StartCommand) -> SandboxFuture<'_, ProcessId> {
        Box::pin(async move {
            self.guest_client.writable_guest()?;
            let (start, before) = (self.starts.begin(), self.baseline().await?);
            let process = self.guest_client.start(command).await?;
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
            self.guest_client.writable_guest()?;
            let (start, before) = (self.starts.begin(), self.baseline().await?);
            let (process, output) = self.guest_client.start_attached(command, attach).await?;
            start.finish(process, before);
            Ok((process, output))
        })
    }

    fn attach(&self, process: ProcessId, attach: AttachOptions) -> SandboxFuture<'_, Box<dyn CommandViewer>> {
        self.guest_client.attach(process, attach)
    }

    fn write_stdin<'a>(&'a self, process: ProcessId, bytes: &'a [u8]) -> SandboxFuture<'a, ()> {
        self.guest_client.write_stdin(process, bytes)
    }

    fn close_stdin(&self, process: ProcessId) -> SandboxFuture<'_, ()> {
        self.guest_client.close_stdin(process)
    }

    fn signal(&self, process: ProcessId, signal: i32) -> SandboxFuture<'_, ()> {
        self.guest_client.signal(process, signal)
    }

    fn resize(&self, process: ProcessId, size: TerminalSize) -> SandboxFuture<'_, ()> {
        self.guest_client.resize(process, size)
    }

    fn list(&self) -> SandboxFuture<'_, Vec<ProcessInfo>> {
        Commands::list(&self.guest_client)
    }

    fn denial_findings<'a>(&'a self, command: &'a ProcessInfo) -> SandboxFuture<'a, Vec<Finding>> {
        Box::pin(self.command_denials(command))
    }
}
