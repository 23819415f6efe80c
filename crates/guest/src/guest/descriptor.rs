//! A nonblocking file descriptor for pipes, terminals and inotify.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

/// A descriptor owned by this process and registered with the event loop.
#[derive(Debug)]
pub(super) struct Descriptor(AsyncFd<OwnedFd>);

impl Descriptor {
    /// Sets the descriptor to nonblocking. The two ends of a pipe are independent: the program's end still
    /// blocks.
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        #[expect(
            deprecated,
            reason = "the replacement is unsafe for types that may close themselves; an OwnedFd does not"
        )]
        AsyncFd::new(fd).map(Self)
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        self.0.get_ref()
    }

    /// Reads available bytes without waiting.
    pub(super) fn read_now(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::read(self.fd(), buffer)
    }

    pub(super) async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.async_io(Interest::READABLE, |fd| Ok(rustix::io::read(fd, &mut *buffer)?)).await
    }

    pub(super) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let write = |fd: &OwnedFd| Ok(rustix::io::write(fd, bytes)?);
            let written = self.0.async_io(Interest::WRITABLE, write).await?;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    /// Waits until the descriptor is readable.
    pub(super) async fn readable(&self) -> io::Result<AsyncFdReadyGuard<'_, OwnedFd>> {
        self.0.readable().await
    }
}
