//! Files, through the guest: paths are never resolved on the host.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use belljar_engine::sandbox_handle::{
    ArchiveFormat, ArchiveLimits, ByteSource, ChangeStream, DirectoryPage, FileChange, FileMetadata, Files,
    SandboxError, SandboxFuture, UnpackSummary, WriteOptions,
};
use belljar_guest::GuestError;
use belljar_guest::host::{ByteReader, FileWatch};
use tokio::io::{AsyncRead, ReadBuf};

use super::GuestSandbox;

/// A byte stream from the guest, with converted errors.
#[derive(Debug)]
struct GuestBytes(ByteReader);

impl AsyncRead for GuestBytes {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = ready!(Pin::new(&mut self.0).poll_read(context, buffer));
        Poll::Ready(read.map_err(|error| match GuestError::from_io(&error) {
            Some(guest) => SandboxError::from(guest.clone()).into(),
            None => error,
        }))
    }
}

/// File changes reported by the guest.
#[derive(Debug)]
struct GuestChanges(FileWatch);

impl ChangeStream for GuestChanges {
    fn next(&mut self) -> SandboxFuture<'_, Option<FileChange>> {
        Box::pin(async { Ok(self.0.next().await?) })
    }
}

impl Files for GuestSandbox {
    fn stat<'a>(&'a self, path: &'a str, follow: bool) -> SandboxFuture<'a, FileMetadata> {
        Box::pin(async move { self.convert_result(self.running_guest()?.stat(path, follow).await).await })
    }

    fn read<'a>(
        &'a self,
        path: &'a str,
        offset: u64,
        len: Option<u64>,
    ) -> SandboxFuture<'a, (FileMetadata, ByteSource<'static>)> {
        Box::pin(async move {
            let (metadata, reader) =
                self.convert_result(self.running_guest()?.read_file(path, offset, len).await).await?;
            Ok((metadata, Box::pin(GuestBytes(reader)) as ByteSource<'static>))
        })
    }

    fn write<'a>(
        &'a self,
        path: &'a str,
        options: WriteOptions,
        source: ByteSource<'a>,
    ) -> SandboxFuture<'a, u64> {
        let work = async move {
            self.convert_io_result(self.running_guest()?.write_file(path, options, source).await).await
        };
        Box::pin(self.run_unless_halted(work))
    }

    fn list<'a>(
        &'a self,
        path: &'a str,
        after: Option<Vec<u8>>,
        limit: u32,
    ) -> SandboxFuture<'a, DirectoryPage> {
        Box::pin(
            async move { self.convert_result(self.running_guest()?.list(path, after, limit).await).await },
        )
    }

    fn make_folder<'a>(
        &'a self,
        path: &'a str,
        parents: bool,
        permissions: Option<u32>,
    ) -> SandboxFuture<'a, ()> {
        Box::pin(async move {
            self.convert_result(self.writable_guest()?.make_folder(path, parents, permissions).await).await
        })
    }

    fn rename<'a>(&'a self, from: &'a str, to: &'a str, replace: bool) -> SandboxFuture<'a, ()> {
        Box::pin(
            async move { self.convert_result(self.running_guest()?.rename(from, to, replace).await).await },
        )
    }

    fn remove<'a>(&'a self, path: &'a str, recursive: bool) -> SandboxFuture<'a, ()> {
        Box::pin(
            async move { self.convert_result(self.running_guest()?.remove(path, recursive).await).await },
        )
    }

    fn set_mode<'a>(&'a self, path: &'a str, mode: u32) -> SandboxFuture<'a, ()> {
        Box::pin(async move { self.convert_result(self.running_guest()?.set_mode(path, mode).await).await })
    }

    fn upload_archive<'a>(
        &'a self,
        path: &'a str,
        format: ArchiveFormat,
        limits: ArchiveLimits,
        source: ByteSource<'a>,
    ) -> SandboxFuture<'a, UnpackSummary> {
        let work = async move {
            self.convert_io_result(self.running_guest()?.upload_archive(path, format, limits, source).await)
                .await
        };
        Box::pin(self.run_unless_halted(work))
    }

    fn download_archive<'a>(
        &'a self,
        path: &'a str,
        format: ArchiveFormat,
    ) -> SandboxFuture<'a, ByteSource<'static>> {
        Box::pin(async move {
            let reader =
                self.convert_result(self.running_guest()?.download_archive(path, format).await).await?;
            Ok(Box::pin(GuestBytes(reader)) as ByteSource<'static>)
        })
    }

    fn snapshot(&self) -> SandboxFuture<'_, ByteSource<'static>> {
        Box::pin(async move {
            let reader = self.convert_result(self.running_guest()?.snapshot().await).await?;
            Ok(Box::pin(GuestBytes(reader)) as ByteSource<'static>)
        })
    }

    fn watch<'a>(&'a self, path: &'a str, recursive: bool) -> SandboxFuture<'a, Box<dyn ChangeStream>> {
        Box::pin(async move {
            let watch = self.convert_result(self.running_guest()?.watch(path, recursive).await).await?;
            Ok(Box::new(GuestChanges(watch)) as Box<dyn ChangeStream>)
        })
    }
}
