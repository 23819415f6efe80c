//! Reads archives. `tar` and `zip` provide the entries; `EntryWriter` creates the files.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use tar::EntryType;
use zip::ZipArchive;
use zip::read::ZipReadOptions;

use super::entry_writer::{EntryAttributes, EntryWriter};
use super::{ArchiveError, parse_name, to_text};
use crate::flow_control::CHUNK_BYTES;
use crate::protocol::{ArchiveFormat, ArchiveLimits, UnpackSummary};

/// Maximum length of a link's target.
const MAX_TARGET_BYTES: u64 = 4096;

/// A reader that counts bytes.
struct CountingReader<R> {
    inner: R,
    read: Rc<Cell<u64>>,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.inner.read(buffer)?;
        self.read.set(self.read.get() + len as u64);
        Ok(len)
    }
}

pub(super) fn unpack(
    path: &Path,
    format: ArchiveFormat,
    limits: ArchiveLimits,
    source: impl Read,
) -> Result<UnpackSummary, ArchiveError> {
    let mut writer = EntryWriter::open(path, limits)?;
    let read = Rc::new(Cell::new(0));
    let source =
        CountingReader { inner: BufReader::with_capacity(CHUNK_BYTES, source), read: Rc::clone(&read) };
    match format {
        ArchiveFormat::Tar => unpack_tar(&mut writer, source, &read)?,
        ArchiveFormat::TarGz => unpack_tar(&mut writer, flate2::read::MultiGzDecoder::new(source), &read)?,
        ArchiveFormat::Zip => unpack_zip(&mut writer, spool(path, limits, source)?, &read)?,
    }
    Ok(writer.unpacked())
}

fn unpack_tar(writer: &mut EntryWriter, mut source: impl Read, read: &Cell<u64>) -> Result<(), ArchiveError> {
    let mut archive = tar::Archive::new(&mut source);
    for entry in archive.entries().map_err(ArchiveError::Archive)? {
        let mut entry = entry.map_err(ArchiveError::Archive)?;
        writer.count_entry()?;
        let name = entry.path_bytes().into_owned();
        let Some(path) = parse_name(&name)? else { continue };
        let header = entry.header();
        let about = EntryAttributes {
            mode: header.mode().ok(),
            modified: header.mtime().ok().and_then(|time| i64::try_from(time).ok()),
        };
        let bad = |why| ArchiveError::Hostile { entry: path.display(), why };
        let target = || entry.link_name_bytes().ok_or_else(|| bad("a link without a target"));
        match header.entry_type() {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                writer.file(&path, about, &mut entry, &|| read.get())?;
            }
            EntryType::Directory => writer.folder(&path, about)?,
            EntryType::Symlink => writer.link(&path, &target()?)?,
            EntryType::Link => {
                let target = target()?;
                let target = parse_name(&target)?.ok_or_else(|| bad("a link without a target"))?;
                writer.hard_link(&path, &target)?;
            }
            EntryType::XGlobalHeader => {}
            _ => return Err(bad("only files, folders and links are unpacked")),
        }
    }
    // Reads the rest of the input, so that the sender does not get a broken pipe.
    drain(source)
}

fn drain(mut source: impl Read) -> Result<(), ArchiveError> {
    io::copy(&mut source, &mut io::sink()).map(drop).map_err(ArchiveError::Archive)
}

/// Copies a zip archive to an unnamed file on the same disk: its directory is at the end, so it must be
/// complete.
fn spool(path: &Path, limits: ArchiveLimits, source: impl Read) -> Result<File, ArchiveError> {
    let failed = |error| ArchiveError::Io { entry: "the archive".to_owned(), error };
    let mut file = unnamed_file(path).map(File::from).map_err(|errno| failed(errno.into()))?;
    let copied = io::copy(&mut source.take(limits.bytes.saturating_add(1)), &mut file).map_err(failed)?;
    if copied > limits.bytes {
        return Err(ArchiveError::TooLarge("the archive is larger than the limit for its content"));
    }
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    Ok(file)
}

/// Creates a file without a name in a folder.
fn unnamed_file(path: &Path) -> Result<OwnedFd, Errno> {
    let (flags, mode) = (OFlags::RDWR | OFlags::CLOEXEC, Mode::from_raw_mode(0o600));
    match rustix::fs::openat(CWD, path, flags | OFlags::TMPFILE, mode) {
        // If O_TMPFILE is not supported, creates a file and unlinks it at once.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
            let name = path.join(format!(".belljar-{}.zip", std::process::id()));
            let new = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
            let file = rustix::fs::openat(CWD, &name, new, mode)?;
            rustix::fs::unlinkat(CWD, &name, AtFlags::empty())?;
            Ok(file)
        }
        file => file,
    }
}

/// Unpacks a zip archive. Refuses entries whose local header differs from the central directory. The central
/// directory is read into memory; the worker's memory limit bounds it.
fn unpack_zip(writer: &mut EntryWriter, file: File, read: &Cell<u64>) -> Result<(), ArchiveError> {
    let reader = BufReader::with_capacity(CHUNK_BYTES, file);
    let mut archive = ZipArchive::new(reader).map_err(|error| ArchiveError::Archive(error.into()))?;
    for index in 0..archive.len() {
        let options = ZipReadOptions::new().enforce_header_consistency(true);
        let mut entry = archive
            .by_index_with_options(index, options)
            .map_err(|error| ArchiveError::Archive(error.into()))?;
        writer.count_entry()?;
        let name = entry.name_raw().to_vec();
        let Some(path) = parse_name(&name)? else { continue };
        let mode = entry.unix_mode();
        let about = EntryAttributes { mode, modified: None };
        if entry.is_symlink() {
            let mut target = Vec::new();
            entry.take(MAX_TARGET_BYTES).read_to_end(&mut target).map_err(ArchiveError::Archive)?;
            writer.link(&path, &target)?;
        } else if entry.is_dir() {
            writer.folder(&path, about)?;
        } else if is_regular(mode) {
            writer.file(&path, about, &mut entry, &|| read.get())?;
        } else {
            let why = "only files, folders and links are unpacked";
            return Err(ArchiveError::Hostile { entry: to_text(&name), why });
        }
    }
    Ok(())
}

/// Returns whether the mode is that of a regular file, or has no file type, as on systems without these bits.
fn is_regular(mode: Option<u32>) -> bool {
    matches!(mode.unwrap_or(0) & 0o170_000, 0 | 0o100_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::PackScope;
    use crate::archive::pack::pack;
    use proptest::prelude::{ProptestConfig, any};

    const FORMATS: [ArchiveFormat; 3] = [ArchiveFormat::Tar, ArchiveFormat::TarGz, ArchiveFormat::Zip];

    /// Packs a folder with every kind of entry.
    fn packed(format: ArchiveFormat) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("d")).unwrap();
        std::fs::write(folder.path().join("d/f"), "hello".repeat(100)).unwrap();
        std::fs::write(folder.path().join("n".repeat(150)), "").unwrap();
        std::os::unix::fs::symlink("d/f", folder.path().join("l")).unwrap();
        let mut archive = Vec::new();
        pack(folder.path(), format, PackScope::All, &mut archive).unwrap();
        archive
    }

    proptest::proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn no_archive_causes_a_panic_or_escapes_the_folder(
            format in 0..3_usize,
            changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..12),
            cut in any::<u16>(),
        ) {
            let format = FORMATS[format];
            let mut archive = packed(format);
            let len = archive.len();
            for (at, byte) in changes {
                archive[usize::from(at) % len] = byte;
            }
            if cut % 4 == 0 {
                archive.truncate(usize::from(cut) % len);
            }
            let around = tempfile::tempdir().unwrap();
            let inner = around.path().join("inner");
            std::fs::create_dir(&inner).unwrap();
            let _either = unpack(&inner, format, ArchiveLimits::default(), archive.as_slice());
            assert_eq!(std::fs::read_dir(around.path()).unwrap().count(), 1);
        }
    }
}
