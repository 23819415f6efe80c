//! Layers as tar archives, for machines without a network. An imported archive is staged and published like
//! any other layer, so the same checks apply. Its files must match its manifest exactly.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path};

use belljar_beneath::folder::OPEN_FOLDER_FLAGS;
use rustix::fs::{Mode, Timespec, Timestamps, UTIME_OMIT};
use tar::{Archive, Builder, EntryType, Header};

use super::disk::{DiskStore, LayerLease, open_files};
use super::error::LayerStoreError;
use super::folder::NEW_FILE_FLAGS;
use super::manifest::{LayerKey, Manifest};
use super::staging::{FILES, StagedLayer};
use super::tree::{
    LayerEntry, LayerNode, MAX_DEPTH, MAX_ENTRIES, MAX_PATH_BYTES, ModePolicy, TreeSummary, escape_path, walk,
};

const MANIFEST: &str = "manifest.json";
const MAX_ARCHIVED_MANIFEST_BYTES: u64 = 16 << 20;
/// Maximum size of a GNU long name or long link entry, in bytes.
const MAX_EXTENSION_BYTES: u64 = 2 * MAX_PATH_BYTES as u64;

impl DiskStore {
    /// Writes a layer as a tar archive. The caller has just verified it.
    pub(super) fn export(&self, held: &LayerLease, to: impl Write) -> Result<(), LayerStoreError> {
        let failed = |error: io::Error| LayerStoreError::from_io("write", "the archive", &error);
        let mut archive = Builder::new(to);
        let text = serde_json::to_vec(held.manifest())
            .map_err(|error| LayerStoreError::System(error.to_string()))?;
        let mut header = header(EntryType::Regular, 0o444, text.len() as u64, 0);
        archive.append_data(&mut header, MANIFEST, &*text).map_err(failed)?;
        let files = open_files(&self.layers.open(&held.key().to_string())?)?;
        walk(files, ModePolicy::Check, u64::MAX, &mut |entry| append(&mut archive, entry).map_err(failed))?;
        archive.into_inner().and_then(|mut to| to.flush()).map_err(failed)
    }

    /// Imports an exported layer. If `wanted` is set, refuses any other layer.
    pub(super) fn import(
        &self,
        mut from: impl Read + Seek,
        wanted: Option<&LayerKey>,
    ) -> Result<LayerLease, LayerStoreError> {
        from.seek(SeekFrom::Start(0)).map_err(unreadable)?;
        check_headers(&mut from)?;
        from.seek(SeekFrom::Start(0)).map_err(unreadable)?;
        let mut archive = Archive::new(from);
        let mut entries = archive.entries().map_err(unreadable)?;
        let first = entries.next().ok_or_else(|| refused("it is empty"))?.map_err(unreadable)?;
        let manifest = manifest(first)?;
        if !manifest.key_matches_recipe() || wanted.is_some_and(|wanted| *wanted != manifest.key) {
            return Err(refused("its manifest belongs to another layer"));
        }
        if let Some(held) = self.find(&manifest.key)? {
            return Ok(held);
        }
        let stage = StagedLayer::new(&self.staging)?;
        let top = open_files(stage.layer())?;
        let mut left = self.bounds.layer_bytes;
        for entry in entries {
            unpack(&top, entry.map_err(unreadable)?, &mut left)?;
        }
        let Manifest { recipe, tree, bytes, entries, .. } = manifest;
        self.publish(&stage, recipe, Some(&TreeSummary { tree, bytes, entries }))
    }
}

fn refused(why: impl Into<String>) -> LayerStoreError {
    LayerStoreError::Archive(why.into())
}

fn unreadable(error: io::Error) -> LayerStoreError {
    refused(format!("it cannot be read ({error})"))
}

fn header(kind: EntryType, mode: u32, size: u64, modified: i64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    // Python uses this time to validate compiled files.
    header.set_mtime(u64::try_from(modified).unwrap_or(0));
    header
}

fn append(archive: &mut Builder<impl Write>, entry: &LayerEntry<'_>) -> io::Result<()> {
    let path = Path::new(FILES).join(OsStr::from_bytes(entry.path));
    match &entry.node {
        LayerNode::Folder => {
            archive.append_data(&mut header(EntryType::Directory, 0o555, 0, 0), path, io::empty())
        }
        LayerNode::Link { target } => {
            let mut header = header(EntryType::Symlink, 0o777, 0, 0);
            archive.append_link(&mut header, path, OsStr::from_bytes(target))
        }
        LayerNode::File { file, executable, size, modified } => {
            let mode = if *executable { 0o555 } else { 0o444 };
            let mut header = header(EntryType::Regular, mode, *size, *modified);
            // A growing file must not shift the entries that follow.
            archive.append_data(&mut header, path, file.take(*size))
        }
    }
}

/// Reads only the headers. Limits the number of entries and the size of those that the tar library reads into
/// memory.
fn check_headers(from: &mut (impl Read + Seek)) -> Result<(), LayerStoreError> {
    let mut archive = Archive::new(from);
    let entries = archive.entries_with_seek().map_err(unreadable)?.raw(true);
    let mut left = 3 * MAX_ENTRIES;
    for entry in entries {
        let entry = entry.map_err(unreadable)?;
        left =
            left.checked_sub(1).ok_or(LayerStoreError::TooLarge { what: "entries", limit: MAX_ENTRIES })?;
        let bound = match entry.header().entry_type() {
            EntryType::Regular | EntryType::Directory | EntryType::Symlink => u64::MAX,
            EntryType::GNULongName | EntryType::GNULongLink => MAX_EXTENSION_BYTES,
            _ => return Err(refused("only files, folders and links are allowed")),
        };
        if entry.size() > bound {
            return Err(refused("a name in it is too long"));
        }
    }
    Ok(())
}

fn manifest(entry: tar::Entry<'_, impl Read>) -> Result<Manifest, LayerStoreError> {
    if &*entry.path_bytes() != MANIFEST.as_bytes() || entry.header().entry_type() != EntryType::Regular {
        return Err(refused("it does not start with a manifest"));
    }
    let mut text = Vec::new();
    entry.take(MAX_ARCHIVED_MANIFEST_BYTES).read_to_end(&mut text).map_err(unreadable)?;
    serde_json::from_slice(&text).map_err(|error| refused(format!("its manifest cannot be read ({error})")))
}

/// Creates one entry below a folder, without following any link.
fn unpack(
    top: &OwnedFd,
    mut entry: tar::Entry<'_, impl Read>,
    left: &mut u64,
) -> Result<(), LayerStoreError> {
    let path = OsString::from_vec(entry.path_bytes().into_owned());
    let path = Path::new(&path);
    let bad = |why: &str| refused(format!("'{}': {why}", escape_path(path.as_os_str().as_bytes())));
    let header = entry.header();
    let mode = header.mode().map_err(unreadable)?;
    if mode & 0o7000 != 0 {
        return Err(bad("setuid, setgid and sticky bits are not allowed"));
    }
    let (folder, name) = parent(top, path).map_err(bad)?;
    let failed = |errno: rustix::io::Errno| match errno {
        rustix::io::Errno::EXIST => bad("duplicate entry"),
        errno => LayerStoreError::io("unpack", escape_path(path.as_os_str().as_bytes()), errno),
    };
    match header.entry_type() {
        EntryType::Directory => rustix::fs::mkdirat(&folder, name, Mode::RWXU).map_err(failed),
        EntryType::Symlink => {
            let target = entry.link_name_bytes().ok_or_else(|| bad("a link without a target"))?;
            rustix::fs::symlinkat(&*target, &folder, name).map_err(failed)
        }
        _ => {
            *left = left.checked_sub(entry.size()).ok_or_else(|| bad("the layer is too large"))?;
            let modified = header.mtime().ok().and_then(|time| i64::try_from(time).ok()).unwrap_or(0);
            let mode = if mode & 0o100 == 0 { Mode::RUSR | Mode::WUSR } else { Mode::RWXU };
            let file = rustix::fs::openat(&folder, name, NEW_FILE_FLAGS, mode);
            let mut file = File::from(file.map_err(failed)?);
            io::copy(&mut entry, &mut file)
                .map_err(|error| LayerStoreError::from_io("unpack", path, &error))?;
            set_modified(&file, modified).map_err(failed)
        }
    }
}

/// Returns the parent folder of an entry, and the entry's name. Every parent must have been created by an
/// earlier entry.
fn parent<'a>(top: &OwnedFd, path: &'a Path) -> Result<(OwnedFd, &'a OsStr), &'static str> {
    const OUTSIDE: &str = "its name leads out of the layer";
    let inner = path.strip_prefix(FILES).map_err(|_| OUTSIDE)?;
    let mut names = Vec::new();
    for component in inner.components() {
        let Component::Normal(name) = component else { return Err(OUTSIDE) };
        names.push(name);
    }
    let name = names.pop().ok_or(OUTSIDE)?;
    if names.len() > MAX_DEPTH {
        return Err("folders are nested too deeply");
    }
    let mut folder = top.try_clone().map_err(|_| "too many open files")?;
    for name in names {
        folder = rustix::fs::openat(&folder, name, OPEN_FOLDER_FLAGS, Mode::empty())
            .map_err(|_| "no earlier entry creates its folder")?;
    }
    Ok((folder, name))
}

/// Sets the modification time of a file.
pub fn set_modified(file: &File, modified: i64) -> Result<(), rustix::io::Errno> {
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT as _ },
        last_modification: Timespec { tv_sec: modified, tv_nsec: 0 },
    };
    rustix::fs::futimens(file, &times)
}
