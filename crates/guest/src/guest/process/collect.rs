//! Reads the output of processes.

use std::rc::Rc;

use rustix::io::Errno;

use super::GuestProcess;
use super::ring::OUTPUT_CHUNK_BYTES;
use crate::guest::descriptor::Descriptor;
use crate::output_pipe::OutputPipe;
use crate::protocol::Stream;

/// Maximum number of bytes that a pipe can contain at the end of a process. Bounds the reading, because a
/// background process may write forever.
const MAX_PIPE_BYTES: usize = 1 << 20;

/// Our end of one or both output streams of a process.
#[derive(Debug)]
pub(super) enum OutputSource {
    Pipe(OutputPipe),
    /// Not delayed, because people see what they type here. Also used for input.
    Terminal(Rc<Descriptor>),
}

impl OutputSource {
    /// Waits for output and reads it. Dropping the future loses nothing.
    async fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::Pipe(pipe) => loop {
                pipe.readable().await.map_err(|_| Errno::IO)?;
                match pipe.read_now(buffer) {
                    Err(Errno::AGAIN) => {}
                    read => return read,
                }
            },
            Self::Terminal(terminal) => {
                let read = terminal.read(buffer).await;
                read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
            }
        }
    }

    /// Reads what is there without waiting.
    fn read_now(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::Pipe(pipe) => pipe.read_now(buffer),
            Self::Terminal(terminal) => terminal.read_now(buffer),
        }
    }
}

/// Reads one stream until all writers have closed it.
pub(super) async fn read_output(process: Rc<GuestProcess>, mut source: OutputSource, stream: Stream) {
    let mut after_end = Some(0);
    loop {
        process.wait_for_room(after_end.is_some()).await;
        let mut buffer = [0; OUTPUT_CHUNK_BYTES];
        let ended = process.ending.get().is_some();
        let read = match after_end {
            // All bytes in the pipe at the end were written before it.
            Some(_) if ended => source.read_now(&mut buffer),
            _ => tokio::select! {
                read = source.read(&mut buffer) => read,
                () = process.wait_until(|| process.ending.get().is_some()), if !ended => continue,
            },
        };
        match read {
            Ok(0) => break,
            Ok(len) => {
                process.ring.borrow_mut().push(stream, &buffer[..len]);
                process.changed.notify_waiters();
                if ended {
                    after_end = after_end.map(|bytes| bytes + len);
                }
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => after_end = mark_read(&process, after_end),
            // A terminal returns an error when its last user has closed it.
            Err(_) => break,
        }
        if after_end.is_some_and(|bytes| bytes > MAX_PIPE_BYTES) {
            after_end = mark_read(&process, after_end);
        }
        tokio::task::yield_now().await;
    }
    mark_read(&process, after_end);
}

/// Marks the stream, once, as read up to the end of the process.
fn mark_read(process: &GuestProcess, after_end: Option<usize>) -> Option<usize> {
    if after_end.is_some() {
        process.mark_stream_read();
    }
    None
}
