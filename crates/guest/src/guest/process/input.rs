//! Writes to the stdin of a process. Several writers alternate, one chunk each.

use std::rc::Rc;

use super::GuestProcess;
use crate::guest::GuestContext;
use crate::guest::channel::ChannelReceiver;
use crate::guest::descriptor::Descriptor;
use crate::protocol::{Failure, FailureKind, GuestReply, ProcessId};

/// The end-of-file character of a terminal (Ctrl-D).
const END_OF_FILE: &[u8] = &[4];

/// Our end of a process's stdin.
#[derive(Debug)]
pub(super) enum Input {
    Pipe(Descriptor),
    Terminal(Rc<Descriptor>),
}

impl Input {
    async fn write_all(&self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Self::Pipe(end) => end.write_all(bytes).await,
            Self::Terminal(end) => end.write_all(bytes).await,
        }
    }
}

/// Writes the received bytes, and closes the stdin afterwards if `close` is set.
pub(in crate::guest) async fn write(
    world: &GuestContext,
    process: ProcessId,
    close: bool,
    receiver: &mut ChannelReceiver,
) -> Result<GuestReply, Failure> {
    let process = world.processes.get(process)?;
    if process.input.lock().await.is_none() {
        return Err(closed(&process));
    }
    while let Some(bytes) = receiver.next().await {
        let input = process.input.lock().await;
        let input = input.as_ref().ok_or_else(|| closed(&process))?;
        // Bytes that a program did not read before its end are dropped silently; later writes fail.
        input.write_all(&bytes).await.map_err(|_| closed(&process))?;
    }
    if close {
        let mut input = process.input.lock().await;
        match &*input {
            Some(terminal @ Input::Terminal(_)) => {
                terminal.write_all(END_OF_FILE).await.map_err(|_| closed(&process))?;
            }
            _ => *input = None,
        }
    }
    Ok(GuestReply::Ok)
}

fn closed(process: &GuestProcess) -> Failure {
    process.failure(FailureKind::Ended, "its stdin is closed")
}
