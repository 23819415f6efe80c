//! Uploads and downloads of folders as archives.

use std::io;

use tokio::io::AsyncRead;

use super::Guest;
use super::bytes::ByteReader;
use super::channel::ChannelEvent;
use super::error::GuestError;
use super::files::send_all;
use crate::protocol::{ArchiveFormat, ArchiveLimits, GuestReply, GuestRequest, UnpackSummary};

impl Guest {
    /// Unpacks an archive into a folder, creating the folder if it is missing. Entries unpacked before an
    /// error stay.
    ///
    /// # Errors
    /// An error of the guest: `BadArchive` if the archive is malformed or hostile, `TooLarge` if it exceeds
    /// the limits. An error of the source, as an [`io::Error`].
    pub async fn upload_archive<R: AsyncRead + Unpin>(
        &self,
        path: &str,
        format: ArchiveFormat,
        limits: ArchiveLimits,
        source: R,
    ) -> io::Result<UnpackSummary> {
        let request = GuestRequest::Unpack { path: path.to_owned(), format, limits };
        let mut channel = self.open(&request).await?;
        send_all(&mut channel, source).await?;
        channel.end();
        match channel.next().await? {
            ChannelEvent::Done(GuestReply::Unpacked(unpacked)) => Ok(unpacked),
            _ => Err(channel.wrong_answer().into()),
        }
    }

    /// Packs a folder. Symlinks are kept as links; devices, pipes and sockets are left out.
    ///
    /// # Errors
    /// An error of the guest.
    pub async fn download_archive(
        &self,
        path: &str,
        format: ArchiveFormat,
    ) -> Result<ByteReader, GuestError> {
        self.receive(GuestRequest::Pack { path: path.to_owned(), format }).await
    }

    /// Returns a tar archive of the work folder, without mounts in it. All processes are stopped until it is
    /// read or the reader is dropped.
    ///
    /// # Errors
    /// An error of the guest; `Invalid` if it is not PID 1 of its namespace.
    pub async fn snapshot(&self) -> Result<ByteReader, GuestError> {
        self.receive(GuestRequest::Snapshot).await
    }

    async fn receive(&self, request: GuestRequest) -> Result<ByteReader, GuestError> {
        let mut channel = self.open(&request).await?;
        match channel.answer().await? {
            GuestReply::Ok => Ok(ByteReader::new(channel)),
            _ => Err(channel.wrong_answer()),
        }
    }
}
