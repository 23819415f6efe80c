//! Layers as tar archives, for machines without a network. An imported archive is staged and published like
//! any other layer, so the same checks apply. Its files must match its manifest exactly.

use std::ffi::OsStr;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use belljar_beneath::folder::set_modified;
use belljar_beneath::{
    HeaderError, HeaderLimits, InnerPath, TargetError, UnpackBudget, UnpackMode, UnpackTarget,
    check_tar_headers,
};
use rustix::fs::Mode;
use rustix::io::Errno;
use tar::{Archive, Builder, EntryType, Header};

use super::disk::{DiskStore, LayerLease, open_files};
use super::error::LayerStoreError;
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
        let target = UnpackTarget::new(open_files(stage.layer())?, UnpackMode::Exact);
        let mut budget = UnpackBudget { bytes: self.bounds.layer_bytes, entries: MAX_ENTRIES };
        for entry in entries {
            budget
                .take_entry()
                .map_err(|_| LayerStoreError::TooLarge { what: "entries", limit: MAX_ENTRIES })?;
            unpack(&target, entry.map_err(unreadable)?, &mut budget)?;
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

/// Checks the headers before the tar library reads names into memory.
fn check_headers(from: impl Read + Seek) -> Result<(), LayerStoreError> {
    let limits = HeaderLimits { entries: MAX_ENTRIES, extension_bytes: MAX_EXTENSION_BYTES };
    let accepts = |kind| {
        use EntryType::{Directory, GNULongLink, GNULongName, Regular, Symlink};
        matches!(kind, Regular | Directory | Symlink | GNULongName | GNULongLink)
    };
    check_tar_headers(from, limits, accepts).map_err(|error| match error {
        HeaderError::Unreadable(error) => unreadable(error),
        HeaderError::TooManyEntries => LayerStoreError::TooLarge { what: "entries", limit: MAX_ENTRIES },
        HeaderError::TooLong => refused("a name in it is too long"),
        HeaderError::Kind => refused("only files, folders and links are allowed"),
    })
}

fn manifest(entry: tar::Entry<'_, impl Read>) -> Result<Manifest, LayerStoreError> {
    if &*entry.path_bytes() != MANIFEST.as_bytes() || entry.header().entry_type() != EntryType::Regular {
        return Err(refused("it does not start with a manifest"));
    }
    let mut text = Vec::new();
    entry.take(MAX_ARCHIVED_MANIFEST_BYTES).read_to_end(&mut text).map_err(unreadable)?;
    serde_json::from_slice(&text).map_err(|error| refused(format!("its manifest cannot be read ({error})")))
}

/// Creates one entry below a folder.
fn unpack(
    target: &UnpackTarget,
    mut entry: tar::Entry<'_, impl Read>,
    budget: &mut UnpackBudget,
) -> Result<(), LayerStoreError> {
    const OUTSIDE: &str = "its name leads out of the layer";
    let name = entry.path_bytes().into_owned();
    let bad = |why: &str| refused(format!("'{}': {why}", escape_path(&name)));
    let header = entry.header();
    let mode = header.mode().map_err(unreadable)?;
    if mode & 0o7000 != 0 {
        return Err(bad("setuid, setgid and sticky bits are not allowed"));
    }
    let below = name.strip_prefix(FILES.as_bytes()).and_then(|name| name.strip_prefix(b"/"));
    // The last name may be below the deepest folder.
    let path = InnerPath::parse(below.ok_or_else(|| bad(OUTSIDE))?, MAX_DEPTH + 1).map_err(bad)?;
    let path = path.ok_or_else(|| bad(OUTSIDE))?;
    let failed = |error| match error {
        TargetError::Io(Errno::EXIST) => bad("duplicate entry"),
        TargetError::Io(Errno::NOENT) | TargetError::Blocked(_) => bad("no earlier entry creates its folder"),
        TargetError::Io(errno) => LayerStoreError::io("unpack", escape_path(&name), errno),
    };
    match header.entry_type() {
        EntryType::Directory => target.create_folder(&path).map(drop).map_err(failed),
        EntryType::Symlink => {
            let link = entry.link_name_bytes().ok_or_else(|| bad("a link without a target"))?;
            target.create_link(&path, &link).map_err(failed)
        }
        _ => {
            budget.take_bytes(entry.size()).map_err(|_| bad("the layer is too large"))?;
            let modified = header.mtime().ok().and_then(|time| i64::try_from(time).ok()).unwrap_or(0);
            let mode = if mode & 0o100 == 0 { Mode::RUSR | Mode::WUSR } else { Mode::RWXU };
            let mut file = target.create_file(&path, mode).map_err(failed)?;
            io::copy(&mut entry, &mut file)
                .map_err(|error| LayerStoreError::from_io("unpack", escape_path(&name), &error))?;
            set_modified(&file, modified).map_err(|errno| failed(errno.into()))
        }
    }
}
