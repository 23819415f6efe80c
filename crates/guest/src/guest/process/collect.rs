//! Reads the output of processes.

use std::rc::Rc;

use rustix::io::Errno;

use super::Process;
use super::ring::PIECE;
use crate::guest::descriptor::Descriptor;
use crate::protocol::Stream;

/// Maximum number of bytes that a pipe can contain at the end of a process. Bounds the reading, because a
/// background process may write forever.
const LEFT_BEHIND: usize = 1 << 20;

/// Reads one stream until all writers have closed it.
pub(super) async fn collect(process: Rc<Process>, source: Rc<Descriptor>, stream: Stream) {
    let mut after_end = Some(0);
    loop {
        process.room().await;
        let mut buffer = [0; PIECE];
        let ended = process.ending.get().is_some();
        let read = match after_end {
            // All bytes in the pipe at the end were written before it.
            Some(_) if ended => source.read_now(&mut buffer),
            _ => match wait(&process, &source, &mut buffer, ended).await {
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
            Err(Errno::AGAIN) => after_end = settle(&process, after_end),
            // A terminal returns an error when its last user has closed it.
            Err(_) => break,
        }
        if after_end.is_some_and(|bytes| bytes > LEFT_BEHIND) {
            after_end = settle(&process, after_end);
        }
        tokio::task::yield_now().await;
    }
    settle(&process, after_end);
}

/// Marks the stream, once, as read up to the end of the process.
fn settle(process: &Process, after_end: Option<usize>) -> Option<usize> {
    if after_end.is_some() {
        process.stream_read();
    }
    None
}

/// Reads when bytes are available; returns `None` if there are none, or if the process has ended meanwhile.
async fn wait(
    process: &Process,
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
        () = process.ended(), if !ended => None,
    }
}
