//! Writes archives directly to their reader.

use std::ffi::OsStr;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::pack_walk::{PackEntry, PackNode, walk};
use super::{ArchiveError, PackScope, to_text};
use crate::flow_control::CHUNK_BYTES;
use crate::protocol::ArchiveFormat;

/// From this size on, a zip entry needs the zip64 format.
const ZIP64_BYTES: u64 = u32::MAX as u64;

pub(super) fn pack(
    path: &Path,
    format: ArchiveFormat,
    reach: PackScope,
    sink: impl Write,
) -> Result<(), ArchiveError> {
    let sink = BufWriter::with_capacity(CHUNK_BYTES, sink);
    let finished = match format {
        ArchiveFormat::Tar => tar(path, reach, sink)?.flush(),
        ArchiveFormat::TarGz => {
            let encoder = flate2::write::GzEncoder::new(sink, flate2::Compression::default());
            tar(path, reach, encoder)?.finish().and_then(|mut sink| sink.flush())
        }
        ArchiveFormat::Zip => return zip(path, reach, sink),
    };
    finished.map_err(ArchiveError::Archive)
}

fn tar<W: Write>(path: &Path, reach: PackScope, sink: W) -> Result<W, ArchiveError> {
    let mut archive = tar::Builder::new(sink);
    walk(path, reach, &mut |found| {
        let mut header = tar::Header::new_gnu();
        header.set_mode(found.mode);
        header.set_mtime(found.modified);
        let name = Path::new(OsStr::from_bytes(&found.path));
        match found.node {
            PackNode::Folder => {
                header.set_entry_type(tar::EntryType::Directory);
                header.set_size(0);
                archive.append_data(&mut header, name, io::empty())
            }
            PackNode::Link(target) => {
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_size(0);
                archive.append_link(&mut header, name, Path::new(OsStr::from_bytes(&target)))
            }
            PackNode::File(file, size) => {
                header.set_size(size);
                archive.append_data(&mut header, name, ExactReader { inner: file, left: size })
            }
        }
    })?;
    archive.into_inner().map_err(ArchiveError::Archive)
}

/// A reader of exactly `left` bytes: pads with zeros if the file shrinks, and ignores growth.
struct ExactReader<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for ExactReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let mut len = self.inner.read(&mut buffer[..wanted])?;
        if len == 0 {
            buffer[..wanted].fill(0);
            len = wanted;
        }
        self.left -= len as u64;
        Ok(len)
    }
}

fn zip(path: &Path, reach: PackScope, sink: impl Write) -> Result<(), ArchiveError> {
    let mut archive = ZipWriter::new_stream(sink);
    let mut buffer = vec![0; CHUNK_BYTES];
    walk(path, reach, &mut |found| add_to_zip(&mut archive, found, &mut buffer))?;
    let sink = archive.finish().map_err(|error| ArchiveError::Archive(error.into()))?;
    sink.into_inner().flush().map_err(ArchiveError::Archive)
}

fn add_to_zip<W: Write + io::Seek>(
    archive: &mut ZipWriter<W>,
    found: PackEntry,
    buffer: &mut [u8],
) -> io::Result<()> {
    let name = to_text(&found.path);
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Deflated)
        .unix_permissions(found.mode);
    match found.node {
        PackNode::Folder => archive.add_directory(name, options)?,
        PackNode::Link(target) => archive.add_symlink(name, to_text(&target), options)?,
        PackNode::File(mut file, size) => {
            archive.start_file(name, options.large_file(size >= ZIP64_BYTES))?;
            // A growing file must not exceed the size announced in its header.
            let mut left = size;
            while left > 0 {
                let wanted = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                let len = file.read(&mut buffer[..wanted])?;
                if len == 0 {
                    break;
                }
                archive.write_all(&buffer[..len])?;
                left -= len as u64;
            }
        }
    }
    Ok(())
}
