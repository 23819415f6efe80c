//! Writing to a process. Several writers take turns, a piece each.

use std::rc::Rc;

use super::Process;
use crate::guest::World;
use crate::guest::channel::Receiver;
use crate::guest::descriptor::Descriptor;
use crate::protocol::{Failure, FailureKind, ProcessId, Reply};

/// What a terminal takes for the end of input.
const END_OF_FILE: &[u8] = &[4];

/// Our end of what a process reads.
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

/// Writes what comes, and closes the input at the end where that is wanted.
pub(in crate::guest) async fn write(
    world: &World,
    process: ProcessId,
    close: bool,
    receiver: &mut Receiver,
) -> Result<Reply, Failure> {
    let process = world.processes.get(process)?;
    if process.input.lock().await.is_none() {
        return Err(closed(&process));
    }
    while let Some(bytes) = receiver.next().await {
        let input = process.input.lock().await;
        let input = input.as_ref().ok_or_else(|| closed(&process))?;
        // What a program has not read at its end is nobody's loss to hear of, but what comes later is.
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
    Ok(Reply::Ok)
}

fn closed(process: &Process) -> Failure {
    process.failure(FailureKind::Ended, "its input is closed")
}
