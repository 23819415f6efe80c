//! An interpreter that was started before there was a program for it. It has the very command, variables and folder that
//! the program would have had it started with, and waits before it reads any of it; for anything else it is of no use.

use std::time::Duration;

use belljar_engine::living::{
    Attach, Commands, Output, OutputEvent, ProcessId, StartCommand, Stdin, WriteOptions,
};
use belljar_guest::{Guest, host};
use futures_util::FutureExt;

use super::commands::Viewer;

/// How long it may take until it waits, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long it is waited for when it is no longer wanted.
const FAREWELL: Duration = Duration::from_secs(2);

/// What to start ahead of time.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    pub(super) language: &'static str,
    /// What a program would be started with.
    pub(super) usual: StartCommand,
    /// The same with what has it wait.
    pub(super) waiting: StartCommand,
    /// Where that is, and its text.
    pub(super) script: String,
    pub(super) text: &'static str,
}

/// One that waits.
#[derive(Debug)]
pub(crate) struct Ahead {
    /// Of which language's programs it would run one.
    pub(crate) language: &'static str,
    usual: StartCommand,
    process: ProcessId,
    output: host::Output,
}

impl Ahead {
    /// Starts one and sees it wait. Where it does not there is none, and programs are started when they come.
    pub(crate) async fn start(guest: &Guest, order: Order) -> Option<Self> {
        let Order { language, usual, mut waiting, script, text } = order;
        guest.write_file(&script, WriteOptions::default(), text.as_bytes()).await.ok()?;
        waiting.stdin = Stdin::Open;
        let (process, output) = guest.start_attached(waiting, Attach { from: 0, hold: true }).await.ok()?;
        let mut ahead = Self { language, usual, process, output };
        let said = tokio::time::timeout(PATIENCE, ahead.output.next()).await;
        match said {
            Ok(Ok(Some(OutputEvent::Bytes { bytes, .. }))) if bytes == b"+" => Some(ahead),
            _ => {
                ahead.end(guest).await;
                None
            }
        }
    }

    /// Whether it was started for a program like this.
    pub(crate) fn is_for(&self, order: Option<&Order>) -> bool {
        order.is_some_and(|order| order.usual == self.usual)
    }

    /// Ends it, so that nothing of it is left when somebody else comes.
    pub(crate) async fn end(mut self, guest: &Guest) {
        // One that has ended by itself needs no killing.
        let _killed = guest.signal(self.process, 9).await;
        let gone = async { while let Ok(Some(_)) = self.output.next().await {} };
        let _gone = tokio::time::timeout(FAREWELL, gone).await;
    }

    /// Has it read its program, which is there now. `None` where it no longer waits: then it is of no use.
    pub(super) async fn go_on(mut self, commands: &dyn Commands) -> Option<(ProcessId, Box<dyn Output>)> {
        let waits = self.output.next().now_or_never().is_none();
        if waits && commands.write_stdin(self.process, b"+").await.is_ok() {
            return Some((self.process, Box::new(Viewer(self.output))));
        }
        // Most likely it has ended already.
        let _killed = commands.signal(self.process, 9).await;
        None
    }
}
