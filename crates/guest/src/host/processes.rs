//! Processes of the sandbox.

use belljar_engine::living::OutputEvent;

use super::Guest;
use super::channel::{Came, Channel};
use super::error::GuestError;
use crate::protocol::{Attach, Event, ProcessId, ProcessInfo, Reply, Request, StartCommand, TerminalSize};

impl Guest {
    /// Starts a process that goes on by itself; look at it with [`Guest::attach`].
    ///
    /// # Errors
    /// As the guest tells; `NotFound` where there is no such program, `Busy` at the bound.
    pub async fn start(&self, command: StartCommand) -> Result<ProcessId, GuestError> {
        let mut channel = self.open(&Request::Start { command, attach: None }).await?;
        match channel.next().await? {
            Came::Done(Reply::Started(process)) => Ok(process),
            _ => Err(channel.wrong()),
        }
    }

    /// Starts a process and looks at it from its first byte on, in one round trip. It goes on when nobody looks any
    /// longer.
    ///
    /// # Errors
    /// As [`Guest::start`].
    pub async fn start_attached(
        &self,
        command: StartCommand,
        attach: Attach,
    ) -> Result<(ProcessId, Output), GuestError> {
        let mut channel = self.open(&Request::Start { command, attach: Some(attach) }).await?;
        match channel.answer().await? {
            Reply::Started(process) => Ok((process, Output::new(channel, attach.from))),
            _ => Err(channel.wrong()),
        }
    }

    /// Looks at the output of a process, as often as one likes, also when it has ended.
    ///
    /// # Errors
    /// As the guest tells; `NotFound` where the process is forgotten.
    pub async fn attach(&self, process: ProcessId, attach: Attach) -> Result<Output, GuestError> {
        let mut channel = self.open(&Request::Attach { process, attach }).await?;
        match channel.answer().await? {
            Reply::Ok => Ok(Output::new(channel, attach.from)),
            _ => Err(channel.wrong()),
        }
    }

    /// A way to write to a process for as long as one likes. Several writers take turns.
    ///
    /// # Errors
    /// As the guest tells; `Ended` where its input is closed.
    pub async fn stdin(&self, process: ProcessId) -> Result<StdinWriter, GuestError> {
        let channel = self.open(&Request::Stdin { process, close: false }).await?;
        Ok(StdinWriter { channel })
    }

    /// Writes to a process, and waits until it is in its pipe.
    ///
    /// # Errors
    /// As [`Guest::stdin`].
    pub async fn write_stdin(&self, process: ProcessId, bytes: &[u8]) -> Result<(), GuestError> {
        let mut writer = self.stdin(process).await?;
        writer.write(bytes).await?;
        writer.finish().await
    }

    /// Closes what a process reads. On a terminal this is the end-of-file character.
    ///
    /// # Errors
    /// As [`Guest::stdin`].
    pub async fn close_stdin(&self, process: ProcessId) -> Result<(), GuestError> {
        let mut channel = self.open(&Request::Stdin { process, close: true }).await?;
        channel.end();
        channel.done_ok().await
    }

    /// Sends a signal to the process group.
    ///
    /// # Errors
    /// As the guest tells; `Ended` where the process has.
    pub async fn signal(&self, process: ProcessId, signal: i32) -> Result<(), GuestError> {
        self.ask(Request::Signal { process, signal }).await
    }

    /// Sets the size of a process's terminal.
    ///
    /// # Errors
    /// As the guest tells; `Invalid` where it has none.
    pub async fn resize(&self, process: ProcessId, size: TerminalSize) -> Result<(), GuestError> {
        self.ask(Request::Resize { process, size }).await
    }

    /// Kills every process of the sandbox, whoever started it; the guest stays.
    ///
    /// # Errors
    /// As the guest tells; `Invalid` where it is not the first process of a sandbox.
    pub async fn end_all(&self) -> Result<(), GuestError> {
        self.ask(Request::EndAll).await
    }

    /// All processes that run or are remembered, oldest first.
    ///
    /// # Errors
    /// As the guest tells.
    pub async fn processes(&self) -> Result<Vec<ProcessInfo>, GuestError> {
        let mut channel = self.open(&Request::Processes).await?;
        match channel.next().await? {
            Came::Done(Reply::Processes(processes)) => Ok(processes),
            _ => Err(channel.wrong()),
        }
    }
}

/// A viewer of a process. Dropping it leaves the process alone.
#[derive(Debug)]
pub struct Output {
    channel: Channel,
    next: u64,
    over: bool,
}

impl Output {
    fn new(channel: Channel, next: u64) -> Self {
        Self { channel, next, over: false }
    }

    /// The byte with which one could go on later.
    pub fn offset(&self) -> u64 {
        self.next
    }

    /// The next event; `None` after the end of the process.
    ///
    /// # Errors
    /// Why no more come.
    pub async fn next(&mut self) -> Result<Option<OutputEvent>, GuestError> {
        if self.over {
            return Ok(None);
        }
        let came = self.channel.next().await?;
        let (event, next) = match came {
            Came::Event(Event::Output { stream, offset }, bytes) if offset == self.next => {
                let next = offset.checked_add(bytes.len() as u64);
                (OutputEvent::Bytes { stream, offset, bytes }, next)
            }
            Came::Event(Event::Lost { offset, bytes }, rest) if offset == self.next && rest.is_empty() => {
                (OutputEvent::Lost { offset, bytes }, offset.checked_add(bytes))
            }
            Came::Done(Reply::Ended { ending, output_bytes }) => {
                self.over = true;
                (OutputEvent::Ended { ending, output_bytes }, Some(self.next))
            }
            _ => return Err(self.channel.wrong()),
        };
        self.next = next.ok_or_else(|| self.channel.wrong())?;
        Ok(Some(event))
    }
}

/// Writes to a process. Dropping it leaves the process's input open.
#[derive(Debug)]
pub struct StdinWriter {
    channel: Channel,
}

impl StdinWriter {
    /// Takes bytes; waits while the process does not read.
    ///
    /// # Errors
    /// As the guest tells; `Ended` where nobody will read them.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), GuestError> {
        self.channel.write(bytes).await
    }

    /// Waits until everything is written.
    ///
    /// # Errors
    /// As the guest tells.
    pub async fn finish(mut self) -> Result<(), GuestError> {
        self.channel.end();
        self.channel.done_ok().await
    }
}
