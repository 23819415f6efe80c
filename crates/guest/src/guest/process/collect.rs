//! Reads the output of processes.

use std::rc::Rc;

use rustix::io::Errno;

use super::GuestProcess;
use super::ring::OUTPUT_CHUNK_BYTES;
use crate::guest::descriptor::Descriptor;
use crate::protocol::Stream;

/// Maximum number of bytes that a pipe can contain at the end of a process. Bounds the reading, because a
/// background process may write forever.
const MAX_PIPE_BYTES: usize = 1 << 20;

/// Reads one stream until all writers have closed it.
pub(super) async fn read_output(process: Rc<GuestProcess>, source: Rc<Descriptor>, stream: Stream) {
    let mut after_end = Some(0);
    loop {
        process.wait_for_room().await;
        let mut buffer = [0; OUTPUT_CHUNK_BYTES];
        let ended = process.ending.get().is_some();
        let read = match after_end {
            // All bytes in the pipe at the end were written before it.
            Some(_) if ended => source.read_now(&mut buffer),
            _ => match read_when_ready(&process, &source, &mut buffer, ended).await {
                Some(read) => read,
                None => continue,
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

/// Reads when bytes are available; returns `None` if there are none, or if the process has ended meanwhile.
async fn read_when_ready(
    process: &GuestProcess,
    source: &Descriptor,
    buffer: &mut [u8],
    ended: bool,
) -> Option<Result<usize, Errno>> {
    tokio::select! {
        ready = source.readable() => {
            let Ok(mut ready) = ready else { return Some(Err(Errno::IO)) };
            match source.read_now(buffer) {
                Err(Errno::AGAIN) => {
                    ready.clear_ready();
                    None
                }
                read => Some(read),
            }
        }
        () = process.wait_for_end(), if !ended => None,
    }
}
