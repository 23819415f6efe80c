//! Packs a local folder as a tar archive.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use tar::{Builder, EntryType, Header};

use crate::error::{CliError, quote_path};
use crate::{os, say};

/// Packs everything below a folder. Symbolic links stay links; special files are skipped with a warning.
pub(super) fn pack(folder: &Path, sink: &mut dyn Write) -> Result<(), CliError> {
    let mut archive = Builder::new(sink);
    let mut left = list_folder(folder, Path::new(""))?;
    while let Some(name) = left.pop() {
        let path = folder.join(&name);
        let failed = |error: io::Error| unreadable(&path, &error);
        let metadata = fs::symlink_metadata(&path).map_err(failed)?;
        let mut header = header(&metadata);
        if metadata.is_dir() {
            header.set_entry_type(EntryType::Directory);
            archive.append_data(&mut header, &name, io::empty()).map_err(failed)?;
            left.extend(list_folder(folder, &name)?);
        } else if metadata.is_symlink() {
            header.set_entry_type(EntryType::Symlink);
            let target = fs::read_link(&path).map_err(failed)?;
            archive.append_link(&mut header, &name, target).map_err(failed)?;
        } else if metadata.is_file() {
            header.set_size(metadata.len());
            let content =
                FixedLengthReader { file: File::open(&path).map_err(failed)?, left: metadata.len() };
            archive.append_data(&mut header, &name, content).map_err(failed)?;
        } else {
            say::warning(&format!("cp: skipping {}: neither a file nor a folder", quote_path(&path)));
        }
    }
    archive.finish().map_err(|error| unreadable(folder, &error))
}

fn header(metadata: &Metadata) -> Header {
    let mut header = Header::new_gnu();
    header.set_mode(os::permissions(metadata));
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    header.set_mtime(modified.unwrap_or_default().as_secs());
    header.set_size(0);
    header
}

/// Lists a folder's entries in reverse order.
fn list_folder(root: &Path, name: &Path) -> Result<Vec<PathBuf>, CliError> {
    let folder = root.join(name);
    let entries = fs::read_dir(&folder).map_err(|error| unreadable(&folder, &error))?;
    let names: io::Result<Vec<_>> = entries.map(|entry| Ok(name.join(entry?.file_name()))).collect();
    let mut names = names.map_err(|error| unreadable(&folder, &error))?;
    names.sort_by(|one, other| other.cmp(one));
    Ok(names)
}

fn unreadable(path: &Path, error: &io::Error) -> CliError {
    CliError::invalid(format!("cp: cannot read {}: {error}", quote_path(path)))
}

/// Reads exactly the number of bytes that the archive's header promised.
struct FixedLengthReader {
    file: File,
    left: u64,
}

impl Read for FixedLengthReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let len = self.file.read(&mut buffer[..wanted])?;
        if len == 0 && wanted > 0 {
            return Err(io::Error::other("the file became shorter while it was read"));
        }
        self.left -= len as u64;
        Ok(len)
    }
}
