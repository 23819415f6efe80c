//! Requests about processes.

use belljar_engine::sandbox_handle::OutputEvent;

use super::Guest;
use super::channel::{ChannelEvent, HostChannel};
use super::error::GuestError;
use crate::protocol::{
    AttachOptions, GuestEvent, GuestReply, GuestRequest, ProcessId, ProcessInfo, StartCommand, TerminalSize,
};

impl Guest {
    /// Starts a process in the background; see [`Guest::attach`] for its output.
    ///
    /// # Errors
    /// An error of the guest; `NotFound` if the program does not exist, `Busy` if there are too many
    /// processes.
    pub async fn start(&self, command: StartCommand) -> Result<ProcessId, GuestError> {
        let mut channel = self.open(&GuestRequest::Start { command, attach: None }).await?;
        match channel.next().await? {
            ChannelEvent::Done(GuestReply::Started(process)) => Ok(process),
            _ => Err(channel.wrong_answer()),
        }
    }

    /// Starts a process and attaches to its output from the first byte, in one round trip. Dropping the
    /// output leaves the process running.
    ///
    /// # Errors
    /// See [`Guest::start`].
    pub async fn start_attached(
        &self,
        command: StartCommand,
        attach: AttachOptions,
    ) -> Result<(ProcessId, ProcessOutput), GuestError> {
        let mut channel = self.open(&GuestRequest::Start { command, attach: Some(attach) }).await?;
        match channel.answer().await? {
            GuestReply::Started(process) => Ok((process, ProcessOutput::new(channel, attach.from))),
            _ => Err(channel.wrong_answer()),
        }
    }

    /// Attaches to the output of a process, any number of times, even after its end.
    ///
    /// # Errors
    /// An error of the guest; `NotFound` if the process is forgotten.
    pub async fn attach(
        &self,
        process: ProcessId,
        attach: AttachOptions,
    ) -> Result<ProcessOutput, GuestError> {
        let mut channel = self.open(&GuestRequest::Attach { process, attach }).await?;
        match channel.answer().await? {
            GuestReply::Ok => Ok(ProcessOutput::new(channel, attach.from)),
            _ => Err(channel.wrong_answer()),
        }
    }

    /// Opens the stdin of a process for writing. Several writers alternate.
    ///
    /// # Errors
    /// An error of the guest; `Ended` if its stdin is closed.
    pub async fn stdin(&self, process: ProcessId) -> Result<StdinWriter, GuestError> {
        let channel = self.open(&GuestRequest::Stdin { process, close: false }).await?;
        Ok(StdinWriter { channel })
    }

    /// Writes to the stdin of a process, and waits until the bytes are in its pipe.
    ///
    /// # Errors
    /// See [`Guest::stdin`].
    pub async fn write_stdin(&self, process: ProcessId, bytes: &[u8]) -> Result<(), GuestError> {
        let mut writer = self.stdin(process).await?;
        writer.write(bytes).await?;
        writer.finish().await
    }

    /// Closes the stdin of a process. On a terminal this sends the end-of-file character.
    ///
    /// # Errors
    /// See [`Guest::stdin`].
    pub async fn close_stdin(&self, process: ProcessId) -> Result<(), GuestError> {
        let mut channel = self.open(&GuestRequest::Stdin { process, close: true }).await?;
        channel.end();
        channel.done_ok().await
    }

    /// Sends a signal to the process group.
    ///
    /// # Errors
    /// An error of the guest; `Ended` if the process has ended.
    pub async fn signal(&self, process: ProcessId, signal: i32) -> Result<(), GuestError> {
        self.send_request(GuestRequest::Signal { process, signal }).await
    }

    /// Waits until a process has ended.
    ///
    /// # Errors
    /// An error of the guest; `NotFound` if the process is forgotten.
    pub async fn wait_for_end(&self, process: ProcessId) -> Result<(), GuestError> {
        self.send_request(GuestRequest::WaitForEnd { process }).await
    }

    /// Sets the size of a process's terminal.
    ///
    /// # Errors
    /// An error of the guest; `Invalid` if the process has no terminal.
    pub async fn resize(&self, process: ProcessId, size: TerminalSize) -> Result<(), GuestError> {
        self.send_request(GuestRequest::Resize { process, size }).await
    }

    /// Kills every process of the sandbox except the guest, including daemons.
    ///
    /// # Errors
    /// An error of the guest; `Invalid` if it is not PID 1 of its namespace.
    pub async fn end_all(&self) -> Result<(), GuestError> {
        self.send_request(GuestRequest::EndAll).await
    }

    /// Lists all running and remembered processes, oldest first.
    ///
    /// # Errors
    /// An error of the guest.
    pub async fn processes(&self) -> Result<Vec<ProcessInfo>, GuestError> {
        let mut channel = self.open(&GuestRequest::Processes).await?;
        match channel.next().await? {
            ChannelEvent::Done(GuestReply::Processes(processes)) => Ok(processes),
            _ => Err(channel.wrong_answer()),
        }
    }
}

/// The output of an attached process. Dropping it leaves the process alone.
#[derive(Debug)]
pub struct ProcessOutput {
    channel: HostChannel,
    next: u64,
    has_ended: bool,
}

impl ProcessOutput {
    fn new(channel: HostChannel, next: u64) -> Self {
        Self { channel, next, has_ended: false }
    }

    /// Returns the offset from which a later attach can continue.
    pub fn offset(&self) -> u64 {
        self.next
    }

    /// Returns the next event, or `None` after the end of the process.
    ///
    /// # Errors
    /// The connection or the request has failed.
    pub async fn next(&mut self) -> Result<Option<OutputEvent>, GuestError> {
        if self.has_ended {
            return Ok(None);
        }
        let came = self.channel.next().await?;
        let (event, next) = match came {
            ChannelEvent::Event(GuestEvent::Output { stream, offset }, bytes) if offset == self.next => {
                let next = offset.checked_add(bytes.len() as u64);
                (OutputEvent::Bytes { stream, offset, bytes }, next)
            }
            ChannelEvent::Event(GuestEvent::Lost { offset, bytes }, rest)
                if offset == self.next && rest.is_empty() =>
            {
                (OutputEvent::Lost { offset, bytes }, offset.checked_add(bytes))
            }
            ChannelEvent::Done(GuestReply::Ended { ending, output_bytes }) => {
                self.has_ended = true;
                (OutputEvent::Ended { ending, output_bytes }, Some(self.next))
            }
            _ => return Err(self.channel.wrong_answer()),
        };
        self.next = next.ok_or_else(|| self.channel.wrong_answer())?;
        Ok(Some(event))
    }
}

/// Writes to a process. Dropping it leaves the process's stdin open.
#[derive(Debug)]
pub struct StdinWriter {
    channel: HostChannel,
}

impl StdinWriter {
    /// Writes bytes; waits while the process does not read.
    ///
    /// # Errors
    /// An error of the guest; `Ended` if the stdin is closed.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), GuestError> {
        self.channel.write(bytes).await
    }

    /// Waits until all bytes are written.
    ///
    /// # Errors
    /// An error of the guest.
    pub async fn finish(mut self) -> Result<(), GuestError> {
        self.channel.end();
        self.channel.done_ok().await
    }
}
