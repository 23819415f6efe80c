//! A descriptor that never blocks this thread: pipes, terminals, the kernel's news of files.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

/// An own descriptor, known to the event loop.
#[derive(Debug)]
pub(super) struct Descriptor(AsyncFd<OwnedFd>);

impl Descriptor {
    /// A pipe's two ends are set apart from each other: the program's still blocks.
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        #[expect(
            deprecated,
            reason = "the replacement is unsafe because of types that may close themselves; an OwnedFd does not"
        )]
        AsyncFd::new(fd).map(Self)
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        self.0.get_ref()
    }

    /// Reads what is there, without waiting.
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

    /// Waits until there is something to read.
    pub(super) async fn readable(&self) -> io::Result<AsyncFdReadyGuard<'_, OwnedFd>> {
        self.0.readable().await
    }
}
