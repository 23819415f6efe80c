//! The read end of a program's output pipe. Output gathers for a moment before it is read.
//!
//! ```text
//! awaited ──readable──▶ gathering ──due: some output──▶ gathering
//!    ▲                     │  └─────due: much output──▶ flooded: read whenever there is output
//!    └──due: nothing───────┘                               └── little output ──▶ gathering
//! ```
//!
//! While output gathers, the pipe is not registered with the event loop. A registered pipe wakes this process for each
//! write, also without a waiting reader, and a program that prints lines makes a write for each. Waking this process
//! takes both of them longer than the line.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

/// How long output gathers. Viewers get output late by this, and more often in whole lines.
const GATHER: Duration = Duration::from_millis(2);

/// A program that writes as much while output gathers has its output read at once from then on: otherwise it would
/// wait for room in the pipe.
const MUCH_BYTES: usize = 16 << 10;
/// With less in one read, output gathers again.
const LITTLE_BYTES: usize = 4 << 10;

/// The read end of an output pipe.
#[derive(Debug)]
pub struct OutputPipe {
    fd: Arc<OwnedFd>,
    /// Present while output is awaited or floods.
    registration: Option<AsyncFd<Arc<OwnedFd>>>,
    /// Until when output gathers, without a registration.
    due: Instant,
    /// Whether output is read at once.
    is_flooded: bool,
}

impl OutputPipe {
    /// Sets the pipe to nonblocking and takes it. The two ends are independent: the program's end still blocks.
    ///
    /// # Errors
    /// The descriptor does not support that.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        // What is there already is read at once.
        Ok(Self { fd: Arc::new(fd), registration: None, due: Instant::now(), is_flooded: false })
    }

    /// Waits until there is output that has gathered, or the end. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The event loop is shutting down.
    pub async fn readable(&mut self) -> io::Result<()> {
        while let Some(registration) = &self.registration {
            drop(registration.readable().await?);
            if self.is_flooded {
                return Ok(());
            }
            self.gather();
        }
        tokio::time::sleep_until(self.due).await;
        Ok(())
    }

    /// Reads what is there without waiting; 0 bytes are the end.
    ///
    /// # Errors
    /// Nothing is there (`EAGAIN`), or the pipe cannot be read.
    pub fn read_now(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let read = rustix::io::read(&self.fd, &mut *buffer);
        match read {
            Err(Errno::AGAIN) => self.register(self.is_flooded),
            Ok(len) if self.is_flooded && len >= LITTLE_BYTES => {}
            Ok(len) if len >= MUCH_BYTES => self.register(true),
            Ok(_) => self.gather(),
            Err(_) => {}
        }
        read
    }

    /// Lets output gather from now on.
    fn gather(&mut self) {
        (self.registration, self.is_flooded) = (None, false);
        self.due = Instant::now() + GATHER;
    }

    /// Registers the pipe with the event loop. A new registration also reports output that is already there. If it
    /// fails, the pipe is read again after a moment.
    fn register(&mut self, is_flooded: bool) {
        self.gather();
        #[expect(
            deprecated,
            reason = "the replacement is unsafe for types that may close themselves; an Arc<OwnedFd> does not"
        )]
        let registration = AsyncFd::try_with_interest(Arc::clone(&self.fd), Interest::READABLE);
        self.registration = registration.ok();
        self.is_flooded = is_flooded && self.registration.is_some();
    }
}

impl AsFd for OutputPipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn pipe() -> (OutputPipe, OwnedFd) {
        let (ours, theirs) = rustix::pipe::pipe().unwrap();
        (OutputPipe::new(ours).unwrap(), theirs)
    }

    /// Waits for output and reads it.
    async fn read(pipe: &mut OutputPipe, buffer: &mut [u8]) -> Result<usize, Errno> {
        pipe.readable().await.unwrap();
        pipe.read_now(buffer)
    }

    #[tokio::test]
    async fn a_pipe_with_output_wakes_nobody_while_more_gathers() {
        let (mut pipe, program) = pipe();
        let mut buffer = [0; 64];
        assert_eq!(read(&mut pipe, &mut buffer).await, Err(Errno::AGAIN));
        assert!(pipe.registration.is_some(), "an idle pipe is awaited");
        for line in [b"one\n", b"two\n"] {
            rustix::io::write(&program, line).unwrap();
            assert_eq!(read(&mut pipe, &mut buffer).await, Ok(4));
            assert!(pipe.registration.is_none() && &buffer[..4] == line);
        }
        assert_eq!(read(&mut pipe, &mut buffer).await, Err(Errno::AGAIN));
        assert!(pipe.registration.is_some());
        drop(program);
        assert_eq!(read(&mut pipe, &mut buffer).await, Ok(0));
    }

    #[tokio::test]
    async fn a_dropped_wait_loses_nothing() {
        let (mut pipe, program) = pipe();
        let mut buffer = [0; 64];
        for wait in 0..4 {
            let polled = pin!(pipe.readable()).poll(&mut Context::from_waker(Waker::noop()));
            assert!(wait == 0 || matches!(polled, Poll::Pending), "{polled:?}");
            if wait == 0 {
                let _nothing_yet = pipe.read_now(&mut buffer);
                rustix::io::write(&program, b"line\n").unwrap();
            }
        }
        assert_eq!(read(&mut pipe, &mut buffer).await, Ok(5));
    }

    #[tokio::test]
    async fn a_flood_is_read_at_once() {
        let (mut pipe, program) = pipe();
        let mut buffer = [0; MUCH_BYTES];
        let few = LITTLE_BYTES / 2;
        rustix::io::write(&program, &[b'x'; MUCH_BYTES + LITTLE_BYTES]).unwrap();
        for length in [MUCH_BYTES, LITTLE_BYTES] {
            assert_eq!(read(&mut pipe, &mut buffer).await, Ok(length));
            assert!(pipe.is_flooded);
        }
        // More is awaited without gathering.
        assert_eq!(read(&mut pipe, &mut buffer).await, Err(Errno::AGAIN));
        assert!(pipe.is_flooded);
        rustix::io::write(&program, &vec![b'x'; few]).unwrap();
        assert_eq!(read(&mut pipe, &mut buffer).await, Ok(few));
        assert!(!pipe.is_flooded && pipe.registration.is_none());
    }
}
