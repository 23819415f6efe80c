//! Reading archives. Entries come from `tar` and `zip`; what becomes of them is the ground's business.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::rc::Rc;

use rustix::fs::{CWD, Mode, OFlags};
use tar::EntryType;
use zip::ZipArchive;
use zip::read::ZipReadOptions;

use super::Refusal;
use super::ground::{About, Ground};
use super::path::{InnerPath, shown};
use crate::line::CHUNK;
use crate::protocol::{ArchiveFormat, ArchiveLimits, Unpacked};

/// The longest target that a link can have.
const LONGEST_TARGET: u64 = 4096;

/// A reader that counts.
struct Counted<R> {
    inner: R,
    read: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
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
) -> Result<Unpacked, Refusal> {
    let mut ground = Ground::open(path, limits)?;
    let read = Rc::new(Cell::new(0));
    let source = Counted { inner: BufReader::with_capacity(CHUNK, source), read: Rc::clone(&read) };
    match format {
        ArchiveFormat::Tar => unpack_tar(&mut ground, source, &read)?,
        ArchiveFormat::TarGz => unpack_tar(&mut ground, flate2::read::MultiGzDecoder::new(source), &read)?,
        ArchiveFormat::Zip => unpack_zip(&mut ground, spool(path, limits, source)?, &read)?,
    }
    Ok(ground.made())
}

fn unpack_tar(ground: &mut Ground, mut source: impl Read, read: &Cell<u64>) -> Result<(), Refusal> {
    let mut archive = tar::Archive::new(&mut source);
    for entry in archive.entries().map_err(Refusal::Archive)? {
        let mut entry = entry.map_err(Refusal::Archive)?;
        ground.count()?;
        let name = entry.path_bytes().into_owned();
        let Some(path) = InnerPath::parse(&name)? else { continue };
        let header = entry.header();
        let about = About {
            mode: header.mode().ok(),
            modified: header.mtime().ok().and_then(|time| i64::try_from(time).ok()),
        };
        let bad = |why| Refusal::Bad { entry: path.shown(), why };
        let target = || entry.link_name_bytes().ok_or_else(|| bad("a link to nothing"));
        match header.entry_type() {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                ground.file(&path, about, &mut entry, &|| read.get())?;
            }
            EntryType::Directory => ground.folder(&path, about)?,
            EntryType::Symlink => ground.link(&path, &target()?)?,
            EntryType::Link => {
                let target = target()?;
                let target = InnerPath::parse(&target)?.ok_or_else(|| bad("a link to nothing"))?;
                ground.hard_link(&path, &target)?;
            }
            EntryType::XGlobalHeader => {}
            _ => return Err(bad("only files, folders and links are unpacked")),
        }
    }
    // What follows the end is read nevertheless: whoever sends it should not find the pipe closed.
    drain(source)
}

fn drain(mut source: impl Read) -> Result<(), Refusal> {
    io::copy(&mut source, &mut io::sink()).map(drop).map_err(Refusal::Archive)
}

/// A zip is read from its end, so all of it has to be there first: in a file without a name, on the same disk.
fn spool(path: &Path, limits: ArchiveLimits, source: impl Read) -> Result<File, Refusal> {
    let failed = |error| Refusal::Io { entry: "the archive".to_owned(), error };
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, path, flags, Mode::from_raw_mode(0o600));
    let mut file = file.map(File::from).map_err(|errno| failed(errno.into()))?;
    let copied = io::copy(&mut source.take(limits.bytes.saturating_add(1)), &mut file).map_err(failed)?;
    if copied > limits.bytes {
        return Err(Refusal::TooLarge("the archive is longer than what it may unpack to"));
    }
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    Ok(file)
}

/// What the two places in which a zip names its entries do not agree on is refused. The list at its end is in memory as
/// a whole, within what this process may have.
fn unpack_zip(ground: &mut Ground, file: File, read: &Cell<u64>) -> Result<(), Refusal> {
    let reader = BufReader::with_capacity(CHUNK, file);
    let mut archive = ZipArchive::new(reader).map_err(|error| Refusal::Archive(error.into()))?;
    for index in 0..archive.len() {
        let options = ZipReadOptions::new().enforce_header_consistency(true);
        let mut entry =
            archive.by_index_with_options(index, options).map_err(|error| Refusal::Archive(error.into()))?;
        ground.count()?;
        let name = entry.name_raw().to_vec();
        let Some(path) = InnerPath::parse(&name)? else { continue };
        let mode = entry.unix_mode();
        let about = About { mode, modified: None };
        if entry.is_symlink() {
            let mut target = Vec::new();
            entry.take(LONGEST_TARGET).read_to_end(&mut target).map_err(Refusal::Archive)?;
            ground.link(&path, &target)?;
        } else if entry.is_dir() {
            ground.folder(&path, about)?;
        } else if is_plain(mode) {
            ground.file(&path, about, &mut entry, &|| read.get())?;
        } else {
            let why = "only files, folders and links are unpacked";
            return Err(Refusal::Bad { entry: shown(&name), why });
        }
    }
    Ok(())
}

/// A regular file, or one without a kind, as systems without these bits write it.
fn is_plain(mode: Option<u32>) -> bool {
    matches!(mode.unwrap_or(0) & 0o170_000, 0 | 0o100_000)
}
