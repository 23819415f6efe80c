//! Images on this machine: the output of `docker save` or an OCI layout, as a folder or an archive.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use belljar_engine::images::Variables;
use belljar_engine::packages::Progress;
use belljar_layers::shelf::{Digest, OPEN_FOLDER};
use rustix::fs::{CWD, Mode, OFlags};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tar::{Archive, EntryType};

use crate::documents::{
    Blob, Document, MAX_DOCUMENT, Settings, digest_of, finished, fitting, parts, settings, verified,
};
use crate::error::ImageError;
use crate::layer::look_over;
use crate::name::Name;
use crate::store::{Packed, Record, Store, blocking};

/// Maximum number of files in an archive.
const MAX_FILES: u64 = 10_000;
/// Maximum nesting depth of indexes.
const MAX_INDEXES: usize = 4;

impl Store {
    /// Returns whether a path is an image that can be imported, rather than an unpacked root.
    pub fn is_packed(path: &Path) -> bool {
        path.is_file() || path.join("oci-layout").is_file()
    }

    /// Imports an image from this machine.
    pub async fn import(&self, path: &Path, progress: &mut dyn Progress) -> Result<Record, ImageError> {
        let name = Name::of_path(path)?;
        let (place, shown) = (path.to_owned(), name.to_string());
        let told = blocking(move || {
            let layout = Layout::open(&place)?;
            let told = layout.told(&shown)?;
            Ok((layout, told))
        });
        let (layout, told) = told.await?;
        if let Some(held) = self.find(&name)?.filter(|held| held.record.digest == Some(told.digest)) {
            return Ok(held.record.clone());
        }
        let turn = self.turn().await?;
        for index in self.known(&told.settings)?..told.layers.len() {
            progress.at(&format!("unpacking layer {} of {}", index + 1, told.layers.len()));
            self.lay(&told.settings, index, layout.file(&told.layers[index])?).await?;
        }
        self.name(turn, &name, told.digest, told.settings).await
    }
}

impl Store {
    /// Imports a root file system from one archive, as an image with one layer and no settings.
    pub async fn import_root(
        &self,
        mut archive: File,
        name: &Name,
        progress: &mut dyn Progress,
    ) -> Result<Record, ImageError> {
        progress.at("unpacking the image");
        let hashed = blocking(move || {
            let unreadable = |error: io::Error| ImageError::refused(format!("its archive: {error}"));
            archive.rewind().map_err(unreadable)?;
            let mut hasher = Sha256::new();
            let size = io::copy(&mut archive, &mut hasher).map_err(unreadable)?;
            archive.rewind().map_err(unreadable)?;
            Ok((archive, finished(hasher), size))
        });
        let (archive, digest, size) = hashed.await?;
        let settings = Settings { layers: vec![digest], variables: Variables::default() };
        let turn = self.turn().await?;
        if self.known(&settings)? == 0 {
            self.lay(&settings, 0, Packed { from: Box::new(archive), size }).await?;
        }
        self.name(turn, name, digest, settings).await
    }
}

/// The image in a layout.
struct Told {
    digest: Digest,
    settings: Settings,
    /// Layer files, lowest layer first.
    layers: Vec<String>,
}

/// The files of a layout.
enum Layout {
    Folder(PathBuf),
    Archive { file: Arc<File>, places: BTreeMap<String, (u64, u64)> },
}

/// An entry of the `manifest.json` that `docker save` writes.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    layers: Vec<String>,
}

impl Layout {
    fn open(path: &Path) -> Result<Self, ImageError> {
        if path.is_dir() {
            return Ok(Self::Folder(path.to_owned()));
        }
        let unreadable = |error: io::Error| {
            ImageError::refused(format!("'{}' is not an image archive ({error})", path.display()))
        };
        let mut file = File::open(path).map_err(|error| ImageError::io("read", path, error))?;
        look_over(&mut file, MAX_FILES)?;
        let mut places = BTreeMap::new();
        for entry in Archive::new(&mut file).entries_with_seek().map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            if entry.header().entry_type() != EntryType::Regular {
                continue;
            }
            let name = String::from_utf8_lossy(&entry.path_bytes()).trim_start_matches("./").to_owned();
            places.insert(name, (entry.raw_file_position(), entry.size()));
        }
        Ok(Self::Archive { file: Arc::new(file), places })
    }

    /// Returns a file of the layout.
    fn file(&self, name: &str) -> Result<Packed, ImageError> {
        let missing = || ImageError::refused(format!("file '{}' is missing", name.escape_debug()));
        match self {
            Self::Archive { file, places } => {
                let (at, size) = *places.get(name).ok_or_else(missing)?;
                Ok(Packed { from: Box::new(Window { file: Arc::clone(file), at, left: size }), size })
            }
            Self::Folder(folder) => {
                let file = open_below(folder, name).map_err(|_| missing())?;
                let metadata = file.metadata().map_err(|_| missing())?;
                if !metadata.is_file() {
                    return Err(missing());
                }
                Ok(Packed { from: Box::new(file), size: metadata.len() })
            }
        }
    }

    fn document(&self, name: &str) -> Result<Vec<u8>, ImageError> {
        let Packed { from, size } = self.file(name)?;
        if size > MAX_DOCUMENT {
            return Err(ImageError::TooLarge { limit: MAX_DOCUMENT, what: "bytes in a manifest" });
        }
        let mut bytes = Vec::new();
        let read = from.take(size).read_to_end(&mut bytes);
        read.map_err(|error| ImageError::refused(format!("'{}': {error}", name.escape_debug())))?;
        Ok(bytes)
    }

    fn blob(&self, what: &str, blob: &Blob) -> Result<Vec<u8>, ImageError> {
        verified(what, self.document(&place_of(blob))?, &blob.digest)
    }

    fn told(&self, name: &str) -> Result<Told, ImageError> {
        match self.file("manifest.json") {
            Ok(_) => self.saved(name),
            Err(_) => self.laid_out(name),
        }
    }

    fn saved(&self, name: &str) -> Result<Told, ImageError> {
        let bad = |why: &str| ImageError::refused(why.to_owned());
        let images: Vec<Saved> = serde_json::from_slice(&self.document("manifest.json")?)
            .map_err(|error| bad(&format!("cannot parse its manifest.json ({error})")))?;
        let [Saved { config, layers }] = images.as_slice() else {
            return Err(bad("it contains several images; save only one"));
        };
        let bytes = self.document(config)?;
        // The file is named after its digest, in either layout.
        let called = config.rsplit('/').next().unwrap_or_default().trim_end_matches(".json");
        let digest = digest_of(&bytes);
        if called != digest.to_string() {
            return Err(ImageError::Tampered { what: "its configuration".to_owned() });
        }
        let settings = settings(name, &bytes, layers.len())?;
        Ok(Told { digest, settings, layers: layers.clone() })
    }

    fn laid_out(&self, name: &str) -> Result<Told, ImageError> {
        let mut bytes = self.document("index.json")?;
        let mut digest = digest_of(&bytes);
        for _ in 0..MAX_INDEXES {
            match Document::parse(&bytes)? {
                Document::Index(index) => {
                    let chosen = fitting(name, &index)?;
                    (bytes, digest) = (self.blob("its manifest", &chosen)?, chosen.digest);
                }
                Document::Image(manifest) => {
                    let (config, layers) = parts(&manifest)?;
                    let settings = settings(name, &self.blob("its configuration", &config)?, layers.len())?;
                    return Ok(Told { digest, settings, layers: layers.iter().map(place_of).collect() });
                }
            }
        }
        Err(ImageError::refused("indexes are nested too deeply"))
    }
}

fn place_of(blob: &Blob) -> String {
    format!("blobs/sha256/{}", blob.digest)
}

/// Opens a file below a folder without following links.
fn open_below(folder: &Path, name: &str) -> io::Result<File> {
    let mut here = rustix::fs::openat(CWD, folder, OPEN_FOLDER.difference(OFlags::NOFOLLOW), Mode::empty())?;
    let mut parts = name.split('/').peekable();
    while let Some(part) = parts.next() {
        if matches!(part, "" | "." | "..") {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if parts.peek().is_some() {
            here = rustix::fs::openat(&here, part, OPEN_FOLDER, Mode::empty())?;
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        return Ok(File::from(rustix::fs::openat(&here, part, flags, Mode::empty())?));
    }
    Err(io::ErrorKind::NotFound.into())
}

/// A section of a file.
struct Window {
    file: Arc<File>,
    at: u64,
    left: u64,
}

impl Read for Window {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}
