//! Files of the sandbox.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

use super::Guest;
use super::bytes::ByteReader;
use super::channel::{Came, Channel};
use super::error::{GuestError, Violation};
use crate::line::CHUNK;
use crate::protocol::{Entry, Metadata, Page, Reply, Request, Space, WriteOptions};

impl Guest {
    /// What is at a path; of a link itself, unless it is to be followed.
    ///
    /// # Errors
    /// As the guest tells; `NotFound` where there is nothing.
    pub async fn stat(&self, path: &str, follow: bool) -> Result<Metadata, GuestError> {
        let mut channel = self.open(&Request::Stat { path: path.to_owned(), follow }).await?;
        match channel.next().await? {
            Came::Done(Reply::Metadata(metadata)) => Ok(metadata),
            _ => Err(channel.wrong()),
        }
    }

    /// How full the file system is that something is on. The guest's word: nobody outside looks.
    ///
    /// # Errors
    /// As the guest tells; `NotFound` where there is nothing.
    pub async fn space(&self, path: &str) -> Result<Space, GuestError> {
        let mut channel = self.open(&Request::Space { path: path.to_owned() }).await?;
        match channel.next().await? {
            Came::Done(Reply::Space(space)) => Ok(space),
            _ => Err(channel.wrong()),
        }
    }

    /// Reads a regular file, or a part of it. Without a length it is read to its end, also where it grows meanwhile or,
    /// like those in `/proc`, does not know its size.
    ///
    /// # Errors
    /// As the guest tells; `NotAFile` for devices and pipes, `IsADirectory` for folders.
    pub async fn read_file(
        &self,
        path: &str,
        offset: u64,
        len: Option<u64>,
    ) -> Result<(Metadata, ByteReader), GuestError> {
        let mut channel = self.open(&Request::Read { path: path.to_owned(), offset, len }).await?;
        match channel.answer().await? {
            Reply::Metadata(metadata) => Ok((metadata, ByteReader::new(channel))),
            _ => Err(channel.wrong()),
        }
    }

    /// Begins to write a file.
    ///
    /// # Errors
    /// As the guest tells.
    pub async fn create_file(&self, path: &str, options: WriteOptions) -> Result<FileWriter, GuestError> {
        let mut channel = self.open(&Request::Write { path: path.to_owned(), options }).await?;
        match channel.answer().await? {
            Reply::Ok => Ok(FileWriter { channel }),
            _ => Err(channel.wrong()),
        }
    }

    /// Writes all that a source gives; how many bytes.
    ///
    /// # Errors
    /// As the guest tells; the error of the source, as an [`io::Error`].
    pub async fn write_file<R: AsyncRead + Unpin>(
        &self,
        path: &str,
        options: WriteOptions,
        source: R,
    ) -> io::Result<u64> {
        let mut writer = self.create_file(path, options).await?;
        copy(&mut writer.channel, source).await?;
        Ok(writer.finish().await?)
    }

    /// A page of a folder, sorted by name: up to 256 entries, fewer where their names are long.
    ///
    /// # Errors
    /// As the guest tells.
    pub async fn list(&self, path: &str, after: Option<Vec<u8>>, limit: u32) -> Result<Page, GuestError> {
        let mut channel = self.open(&Request::List { path: path.to_owned(), after, limit }).await?;
        match channel.next().await? {
            Came::Done(Reply::Page(page)) if page.entries.len() <= limit as usize => {
                if !page.entries.iter().all(has_plain_name) {
                    return Err(self.0.violated(Violation::WrongAnswer));
                }
                Ok(page)
            }
            _ => Err(channel.wrong()),
        }
    }

    /// Makes a folder; with its parents, it may exist already.
    ///
    /// # Errors
    /// As the guest tells.
    pub async fn make_folder(
        &self,
        path: &str,
        parents: bool,
        permissions: Option<u32>,
    ) -> Result<(), GuestError> {
        self.ask(Request::MakeFolder { path: path.to_owned(), parents, permissions }).await
    }

    /// Renames a file or folder.
    ///
    /// # Errors
    /// As the guest tells; `Exists` where something is in the way and may not be replaced.
    pub async fn rename(&self, from: &str, to: &str, replace: bool) -> Result<(), GuestError> {
        self.ask(Request::Move { from: from.to_owned(), to: to.to_owned(), replace }).await
    }

    /// Removes a file, a link or a folder; a folder that is not empty only where asked to. No link is followed.
    /// Dropping the future stops it half-way.
    ///
    /// # Errors
    /// As the guest tells.
    pub async fn remove(&self, path: &str, recursive: bool) -> Result<(), GuestError> {
        self.ask(Request::Remove { path: path.to_owned(), recursive }).await
    }

    /// Sets permission bits.
    ///
    /// # Errors
    /// As the guest tells; `Invalid` for set-id bits.
    pub async fn set_mode(&self, path: &str, mode: u32) -> Result<(), GuestError> {
        self.ask(Request::SetMode { path: path.to_owned(), mode }).await
    }

    /// A request to which there is nothing to say but that it is done.
    pub(super) async fn ask(&self, request: Request) -> Result<(), GuestError> {
        self.open(&request).await?.done_ok().await
    }
}

/// A guest that is not the tenant's would never send another.
fn has_plain_name(entry: &Entry) -> bool {
    let name = entry.name.as_str();
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0'])
}

/// Sends all that a source gives, unless the guest has enough of it; its last answer then says why.
pub(super) async fn copy<R: AsyncRead + Unpin>(channel: &mut Channel, mut source: R) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        let read = source.read(&mut buffer).await?;
        if read == 0 || !channel.send(&buffer[..read]).await {
            return Ok(());
        }
    }
}

/// A file that is being written. Dropping it leaves what was written so far, or nothing where it is atomic.
#[derive(Debug)]
pub struct FileWriter {
    channel: Channel,
}

impl FileWriter {
    /// Takes bytes; waits while the guest is behind.
    ///
    /// # Errors
    /// As the guest tells; `NoSpace` where the disk is full.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), GuestError> {
        self.channel.write(bytes).await
    }

    /// Ends the file; how many bytes were written. Until then nothing is promised.
    ///
    /// # Errors
    /// As the guest tells.
    pub async fn finish(mut self) -> Result<u64, GuestError> {
        self.channel.end();
        match self.channel.next().await? {
            Came::Done(Reply::Written(bytes)) => Ok(bytes),
            _ => Err(self.channel.wrong()),
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
            Ok(_) => self.channel.wrong(),
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
