//! Folders as one file.

use std::io;

use tokio::io::AsyncRead;

use super::Guest;
use super::bytes::ByteReader;
use super::channel::Came;
use super::error::GuestError;
use super::files::copy;
use crate::protocol::{ArchiveFormat, ArchiveLimits, Reply, Request, Unpacked};

impl Guest {
    /// Unpacks an archive into a folder, which is made where it is missing. What was unpacked before a refusal stays.
    ///
    /// # Errors
    /// As the guest tells; `BadArchive` for a malformed or hostile one, `TooLarge` beyond the limits; the error of the
    /// source, as an [`io::Error`].
    pub async fn upload_archive<R: AsyncRead + Unpin>(
        &self,
        path: &str,
        format: ArchiveFormat,
        limits: ArchiveLimits,
        source: R,
    ) -> io::Result<Unpacked> {
        let request = Request::Unpack { path: path.to_owned(), format, limits };
        let mut channel = self.open(&request).await?;
        copy(&mut channel, source).await?;
        channel.end();
        match channel.next().await? {
            Came::Done(Reply::Unpacked(unpacked)) => Ok(unpacked),
            _ => Err(channel.wrong().into()),
        }
    }

    /// Packs a folder: links as links, devices, pipes and sockets left out.
    ///
    /// # Errors
    /// As the guest tells.
    pub async fn download_archive(
        &self,
        path: &str,
        format: ArchiveFormat,
    ) -> Result<ByteReader, GuestError> {
        self.receive(Request::Pack { path: path.to_owned(), format }).await
    }

    /// The tar of the work folder, without what is mounted in it. Every process stands still until all is read, or
    /// the reader is dropped.
    ///
    /// # Errors
    /// As the guest tells; `Invalid` where it is not the first process of a sandbox.
    pub async fn snapshot(&self) -> Result<ByteReader, GuestError> {
        self.receive(Request::Snapshot).await
    }

    async fn receive(&self, request: Request) -> Result<ByteReader, GuestError> {
        let mut channel = self.open(&request).await?;
        match channel.answer().await? {
            Reply::Ok => Ok(ByteReader::new(channel)),
            _ => Err(channel.wrong()),
        }
    }
}
