//! Commands, executed by the guest. Each start records whether anything else was running.

use belljar_engine::finding::Finding;
use belljar_engine::living::{
    Asked, Attach, Commands, Output, ProcessId, ProcessInfo, StartCommand, TerminalSize,
};

use super::NativeLiving;

impl Commands for NativeLiving {
    fn start(&self, command: StartCommand) -> Asked<'_, ProcessId> {
        Box::pin(async move {
            self.inside.able()?;
            let (start, before) = (self.starts.begin(), self.before().await?);
            let process = self.inside.start(command).await?;
            start.done(process, before);
            Ok(process)
        })
    }

    fn start_attached(
        &self,
        command: StartCommand,
        attach: Attach,
    ) -> Asked<'_, (ProcessId, Box<dyn Output>)> {
        Box::pin(async move {
            self.inside.able()?;
            let (start, before) = (self.starts.begin(), self.before().await?);
            let (process, output) = self.inside.start_attached(command, attach).await?;
            start.done(process, before);
            Ok((process, output))
        })
    }

    fn attach(&self, process: ProcessId, attach: Attach) -> Asked<'_, Box<dyn Output>> {
        self.inside.attach(process, attach)
    }

    fn write_stdin<'a>(&'a self, process: ProcessId, bytes: &'a [u8]) -> Asked<'a, ()> {
        self.inside.write_stdin(process, bytes)
    }

    fn close_stdin(&self, process: ProcessId) -> Asked<'_, ()> {
        self.inside.close_stdin(process)
    }

    fn signal(&self, process: ProcessId, signal: i32) -> Asked<'_, ()> {
        self.inside.signal(process, signal)
    }

    fn resize(&self, process: ProcessId, size: TerminalSize) -> Asked<'_, ()> {
        self.inside.resize(process, size)
    }

    fn list(&self) -> Asked<'_, Vec<ProcessInfo>> {
        Commands::list(&self.inside)
    }

    fn kept_from<'a>(&'a self, command: &'a ProcessInfo) -> Asked<'a, Vec<Finding>> {
        Box::pin(self.kept_from_command(command))
    }
}
