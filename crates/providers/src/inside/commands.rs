//! Commands, executed by the guest.

use belljar_engine::finding::Finding;
use belljar_engine::living::{
    Asked, Attach, Commands, Output, OutputEvent, ProcessId, ProcessInfo, StartCommand, TerminalSize,
};
use belljar_guest::host;

use super::Inside;
use super::errors::plain;

/// Output of a command in the guest.
#[derive(Debug)]
pub(super) struct Viewer(pub(super) host::Output);

impl Output for Viewer {
    fn next(&mut self) -> Asked<'_, Option<OutputEvent>> {
        Box::pin(async { self.0.next().await.map_err(plain) })
    }

    fn offset(&self) -> u64 {
        self.0.offset()
    }
}

impl Inside {
    /// Returns the command with the sandbox's environment added.
    fn at_home(&self, mut command: StartCommand) -> StartCommand {
        let mut env = self.env.clone();
        env.extend(command.env);
        command.env = env.into_iter().collect();
        command
    }
}

impl Commands for Inside {
    fn start(&self, command: StartCommand) -> Asked<'_, ProcessId> {
        Box::pin(async move { self.told(self.able()?.start(self.at_home(command)).await).await })
    }

    fn start_attached(
        &self,
        command: StartCommand,
        attach: Attach,
    ) -> Asked<'_, (ProcessId, Box<dyn Output>)> {
        Box::pin(async move {
            let started = self.able()?.start_attached(self.at_home(command), attach).await;
            let (process, output) = self.told(started).await?;
            Ok((process, Box::new(Viewer(output)) as Box<dyn Output>))
        })
    }

    fn attach(&self, process: ProcessId, attach: Attach) -> Asked<'_, Box<dyn Output>> {
        Box::pin(async move {
            let output = self.told(self.awake()?.attach(process, attach).await).await?;
            Ok(Box::new(Viewer(output)) as Box<dyn Output>)
        })
    }

    fn write_stdin<'a>(&'a self, process: ProcessId, bytes: &'a [u8]) -> Asked<'a, ()> {
        Box::pin(async move { self.told(self.awake()?.write_stdin(process, bytes).await).await })
    }

    fn close_stdin(&self, process: ProcessId) -> Asked<'_, ()> {
        Box::pin(async move { self.told(self.awake()?.close_stdin(process).await).await })
    }

    fn signal(&self, process: ProcessId, signal: i32) -> Asked<'_, ()> {
        Box::pin(async move { self.told(self.awake()?.signal(process, signal).await).await })
    }

    fn resize(&self, process: ProcessId, size: TerminalSize) -> Asked<'_, ()> {
        Box::pin(async move { self.told(self.awake()?.resize(process, size).await).await })
    }

    fn list(&self) -> Asked<'_, Vec<ProcessInfo>> {
        Box::pin(async move { self.told(self.awake()?.processes().await).await })
    }

    /// Denied system calls are not monitored here, and the counters cover the whole sandbox.
    fn kept_from<'a>(&'a self, _command: &'a ProcessInfo) -> Asked<'a, Vec<Finding>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}
