//! Requests about files.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

use super::Guest;
use super::bytes::ByteReader;
use super::channel::{ChannelEvent, HostChannel};
use super::error::{GuestError, Violation};
use crate::flow_control::CHUNK_BYTES;
use crate::protocol::{
    DirectoryEntry, DirectoryPage, DiskSpace, FileMetadata, GuestReply, GuestRequest, WriteOptions,
};

impl Guest {
    /// Returns the metadata of a path; `follow` resolves a symlink.
    ///
    /// # Errors
    /// An error of the guest; `NotFound` if the path does not exist.
    pub async fn stat(&self, path: &str, follow: bool) -> Result<FileMetadata, GuestError> {
        let mut channel = self.open(&GuestRequest::Stat { path: path.to_owned(), follow }).await?;
        match channel.next().await? {
            ChannelEvent::Done(GuestReply::Metadata(metadata)) => Ok(metadata),
            _ => Err(channel.wrong_answer()),
        }
    }

    /// Returns the usage of the file system that contains a path, as the guest reports it. The host does not
    /// verify it.
    ///
    /// # Errors
    /// An error of the guest; `NotFound` if the path does not exist.
    pub async fn space(&self, path: &str) -> Result<DiskSpace, GuestError> {
        let mut channel = self.open(&GuestRequest::Space { path: path.to_owned() }).await?;
        match channel.next().await? {
            ChannelEvent::Done(GuestReply::Space(space)) => Ok(space),
            _ => Err(channel.wrong_answer()),
        }
    }

    /// Reads a regular file or a part of it. Without a length, it is read to its end, even if it grows
    /// meanwhile, or has no known size as in `/proc`.
    ///
    /// # Errors
    /// An error of the guest; `NotAFile` for devices and pipes, `IsADirectory` for folders.
    pub async fn read_file(
        &self,
        path: &str,
        offset: u64,
        len: Option<u64>,
    ) -> Result<(FileMetadata, ByteReader), GuestError> {
        let mut channel = self.open(&GuestRequest::Read { path: path.to_owned(), offset, len }).await?;
        match channel.answer().await? {
            GuestReply::Metadata(metadata) => Ok((metadata, ByteReader::new(channel))),
            _ => Err(channel.wrong_answer()),
        }
    }

    /// Starts writing a file.
    ///
    /// # Errors
    /// An error of the guest.
    pub async fn create_file(&self, path: &str, options: WriteOptions) -> Result<FileWriter, GuestError> {
        let mut channel = self.open(&GuestRequest::Write { path: path.to_owned(), options }).await?;
        match channel.answer().await? {
            GuestReply::Ok => Ok(FileWriter { channel }),
            _ => Err(channel.wrong_answer()),
        }
    }

    /// Writes everything from a source to a file, and returns the number of bytes.
    ///
    /// # Errors
    /// An error of the guest; an error of the source, as an [`io::Error`].
    pub async fn write_file<R: AsyncRead + Unpin>(
        &self,
        path: &str,
        options: WriteOptions,
        source: R,
    ) -> io::Result<u64> {
        let mut writer = self.create_file(path, options).await?;
        send_all(&mut writer.channel, source).await?;
        Ok(writer.finish().await?)
    }

    /// Returns a page of a folder, sorted by name: at most 256 entries, fewer if names are long.
    ///
    /// # Errors
    /// An error of the guest.
    pub async fn list(
        &self,
        path: &str,
        after: Option<Vec<u8>>,
        limit: u32,
    ) -> Result<DirectoryPage, GuestError> {
        let mut channel = self.open(&GuestRequest::List { path: path.to_owned(), after, limit }).await?;
        match channel.next().await? {
            ChannelEvent::Done(GuestReply::Page(page)) if page.entries.len() <= limit as usize => {
                if !page.entries.iter().all(has_plain_name) {
                    return Err(self.0.disconnect(Violation::WrongAnswer));
                }
                Ok(page)
            }
            _ => Err(channel.wrong_answer()),
        }
    }

    /// Creates a folder. With `parents`, missing parents are created, and the folder may exist.
    ///
    /// # Errors
    /// An error of the guest.
    pub async fn make_folder(
        &self,
        path: &str,
        parents: bool,
        permissions: Option<u32>,
    ) -> Result<(), GuestError> {
        self.send_request(GuestRequest::MakeFolder { path: path.to_owned(), parents, permissions }).await
    }

    /// Renames a file or folder.
    ///
    /// # Errors
    /// An error of the guest; `Exists` if the target exists and `replace` is false.
    pub async fn rename(&self, from: &str, to: &str, replace: bool) -> Result<(), GuestError> {
        self.send_request(GuestRequest::Move { from: from.to_owned(), to: to.to_owned(), replace }).await
    }

    /// Removes a file, a symlink or a folder. A folder that is not empty needs `recursive`. Follows no
    /// symlink. Dropping the future stops the removal halfway.
    ///
    /// # Errors
    /// An error of the guest.
    pub async fn remove(&self, path: &str, recursive: bool) -> Result<(), GuestError> {
        self.send_request(GuestRequest::Remove { path: path.to_owned(), recursive }).await
    }

    /// Sets permission bits.
    ///
    /// # Errors
    /// An error of the guest; `Invalid` for set-id bits.
    pub async fn set_mode(&self, path: &str, mode: u32) -> Result<(), GuestError> {
        self.send_request(GuestRequest::SetMode { path: path.to_owned(), mode }).await
    }

    /// Sends a request without a result.
    pub(super) async fn send_request(&self, request: GuestRequest) -> Result<(), GuestError> {
        self.open(&request).await?.done_ok().await
    }
}

/// Checks the name of an entry. Only a compromised guest sends another one.
fn has_plain_name(entry: &DirectoryEntry) -> bool {
    let name = entry.name.as_str();
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0'])
}

/// Sends everything from a source, until the guest ends the request; its final reply has the reason.
pub(super) async fn send_all<R: AsyncRead + Unpin>(
    channel: &mut HostChannel,
    mut source: R,
) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let read = source.read(&mut buffer).await?;
        if read == 0 || !channel.send(&buffer[..read]).await {
            return Ok(());
        }
    }
}

/// A file that is being written. Dropping it keeps what was written so far, or nothing if the write is
/// atomic.
#[derive(Debug)]
pub struct FileWriter {
    channel: HostChannel,
}

impl FileWriter {
    /// Writes bytes; waits while the guest is behind.
    ///
    /// # Errors
    /// An error of the guest; `NoSpace` if the disk is full.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), GuestError> {
        self.channel.write(bytes).await
    }

    /// Finishes the file, and returns the number of bytes written. Before that, no write is guaranteed.
    ///
    /// # Errors
    /// An error of the guest.
    pub async fn finish(mut self) -> Result<u64, GuestError> {
        self.channel.end();
        match self.channel.next().await? {
            ChannelEvent::Done(GuestReply::Written(bytes)) => Ok(bytes),
            _ => Err(self.channel.wrong_answer()),
        }
    }
}

impl AsyncWrite for FileWriter {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Some(sent) = ready!(self.channel.poll_send(context, bytes)) {
            return Poll::Ready(Ok(sent));
        }
        let error = match ready!(self.channel.poll_next(context)) {
            Err(error) => error,
            Ok(_) => self.channel.wrong_answer(),
        };
        Poll::Ready(Err(error.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.channel.end();
        Poll::Ready(Ok(()))
    }
}
