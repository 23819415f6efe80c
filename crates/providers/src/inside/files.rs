//! Files, through the guest: paths are never resolved on the host.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use belljar_engine::living::{
    ArchiveFormat, ArchiveLimits, Asked, ByteSource, Change, Changes, Files, Metadata, Page, Unpacked,
    WriteOptions,
};
use belljar_guest::GuestError;
use belljar_guest::host::{ByteReader, Watch};
use tokio::io::{AsyncRead, ReadBuf};

use super::Inside;
use super::errors::plain;

/// A byte stream from the guest, with converted errors.
#[derive(Debug)]
struct Bytes(ByteReader);

impl AsyncRead for Bytes {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = ready!(Pin::new(&mut self.0).poll_read(context, buffer));
        Poll::Ready(read.map_err(|error| match GuestError::of_io(&error) {
            Some(guest) => plain(guest.clone()).into(),
            None => error,
        }))
    }
}

/// File changes reported by the guest.
#[derive(Debug)]
struct Watched(Watch);

impl Changes for Watched {
    fn next(&mut self) -> Asked<'_, Option<Change>> {
        Box::pin(async { self.0.next().await.map_err(plain) })
    }
}

impl Files for Inside {
    fn stat<'a>(&'a self, path: &'a str, follow: bool) -> Asked<'a, Metadata> {
        Box::pin(async move { self.told(self.awake()?.stat(path, follow).await).await })
    }

    fn read<'a>(
        &'a self,
        path: &'a str,
        offset: u64,
        len: Option<u64>,
    ) -> Asked<'a, (Metadata, ByteSource<'static>)> {
        Box::pin(async move {
            let (metadata, reader) = self.told(self.awake()?.read_file(path, offset, len).await).await?;
            Ok((metadata, Box::pin(Bytes(reader)) as ByteSource<'static>))
        })
    }

    fn write<'a>(&'a self, path: &'a str, options: WriteOptions, source: ByteSource<'a>) -> Asked<'a, u64> {
        let work = async move { self.told_io(self.awake()?.write_file(path, options, source).await).await };
        Box::pin(self.unless_halted(work))
    }

    fn list<'a>(&'a self, path: &'a str, after: Option<Vec<u8>>, limit: u32) -> Asked<'a, Page> {
        Box::pin(async move { self.told(self.awake()?.list(path, after, limit).await).await })
    }

    fn make_folder<'a>(&'a self, path: &'a str, parents: bool, permissions: Option<u32>) -> Asked<'a, ()> {
        Box::pin(async move { self.told(self.able()?.make_folder(path, parents, permissions).await).await })
    }

    fn rename<'a>(&'a self, from: &'a str, to: &'a str, replace: bool) -> Asked<'a, ()> {
        Box::pin(async move { self.told(self.awake()?.rename(from, to, replace).await).await })
    }

    fn remove<'a>(&'a self, path: &'a str, recursive: bool) -> Asked<'a, ()> {
        Box::pin(async move { self.told(self.awake()?.remove(path, recursive).await).await })
    }

    fn set_mode<'a>(&'a self, path: &'a str, mode: u32) -> Asked<'a, ()> {
        Box::pin(async move { self.told(self.awake()?.set_mode(path, mode).await).await })
    }

    fn upload_archive<'a>(
        &'a self,
        path: &'a str,
        format: ArchiveFormat,
        limits: ArchiveLimits,
        source: ByteSource<'a>,
    ) -> Asked<'a, Unpacked> {
        let work = async move {
            self.told_io(self.awake()?.upload_archive(path, format, limits, source).await).await
        };
        Box::pin(self.unless_halted(work))
    }

    fn download_archive<'a>(
        &'a self,
        path: &'a str,
        format: ArchiveFormat,
    ) -> Asked<'a, ByteSource<'static>> {
        Box::pin(async move {
            let reader = self.told(self.awake()?.download_archive(path, format).await).await?;
            Ok(Box::pin(Bytes(reader)) as ByteSource<'static>)
        })
    }

    fn snapshot(&self) -> Asked<'_, ByteSource<'static>> {
        Box::pin(async move {
            let reader = self.told(self.awake()?.snapshot().await).await?;
            Ok(Box::pin(Bytes(reader)) as ByteSource<'static>)
        })
    }

    fn watch<'a>(&'a self, path: &'a str, recursive: bool) -> Asked<'a, Box<dyn Changes>> {
        Box::pin(async move {
            let watch = self.told(self.awake()?.watch(path, recursive).await).await?;
            Ok(Box::new(Watched(watch)) as Box<dyn Changes>)
        })
    }
}
