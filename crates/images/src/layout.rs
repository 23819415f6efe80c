//! Images on this machine: the output of `docker save` or an OCI layout, as a folder or an archive.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use belljar_beneath::folder::OPEN_FOLDER_FLAGS;
use belljar_beneath::{ContentDigest, Hasher, blocking};
use belljar_engine::images::ImageVariables;
use belljar_engine::packages::Progress;
use rustix::fs::{CWD, Mode, OFlags};
use serde::Deserialize;
use tar::{Archive, EntryType};

use crate::documents::{
    BlobRef, ImageConfig, MAX_DOCUMENT_BYTES, ManifestDocument, config_and_layers, parse_config,
    select_platform, verify_digest,
};
use crate::error::ImageError;
use crate::layer::check_headers;
use crate::name::ImageName;
use crate::store::{ImageRecord, ImageStore, PackedLayer};

/// Maximum number of files in an archive.
const MAX_FILES: u64 = 10_000;
/// Maximum number of tags of one image.
const MAX_TAGS: usize = 100;
/// Maximum nesting depth of indexes.
const MAX_INDEXES: usize = 4;

impl ImageStore {
    /// Returns whether a path is an image that can be imported, rather than an unpacked root.
    pub fn is_packed(path: &Path) -> bool {
        path.is_file() || path.join("oci-layout").is_file()
    }

    /// Imports an image from this machine, under the name of its path. Its tags are ignored: an archive that code
    /// runs in once must not replace a stored image.
    pub async fn import(&self, path: &Path, progress: &mut dyn Progress) -> Result<ImageRecord, ImageError> {
        let name = ImageName::from_path(path)?;
        let (layout, image) = open_image(path, &name).await?;
        if let Some(held) = self.find(&name)?.filter(|held| held.record.digest == Some(image.digest)) {
            return Ok(held.record.clone());
        }
        let turn = self.lock().await?;
        self.unpack_layers(&layout, &image, progress).await?;
        self.record_image(turn, &name, image.digest, image.settings).await
    }

    /// Imports an image from this machine under its tags, as `docker load` does. An image without tags is named
    /// after its path.
    pub async fn load(
        &self,
        path: &Path,
        progress: &mut dyn Progress,
    ) -> Result<Vec<ImageRecord>, ImageError> {
        let name = ImageName::from_path(path)?;
        let (layout, image) = open_image(path, &name).await?;
        let names = if image.tags.is_empty() { vec![name] } else { image.tags.clone() };
        let turn = self.lock().await?;
        self.unpack_layers(&layout, &image, progress).await?;
        self.record_names(turn, names, image.digest, image.settings).await
    }

    async fn unpack_layers(
        &self,
        layout: &ImageLayout,
        image: &LayoutImage,
        progress: &mut dyn Progress,
    ) -> Result<(), ImageError> {
        for index in self.unpacked_layers(&image.settings)?..image.layers.len() {
            progress.report(&format!("unpacking layer {} of {}", index + 1, image.layers.len()));
            self.add_layer(&image.settings, index, layout.file(&image.layers[index])?).await?;
        }
        Ok(())
    }
}

/// Opens a layout and parses its image.
async fn open_image(path: &Path, name: &ImageName) -> Result<(ImageLayout, LayoutImage), ImageError> {
    let (place, shown) = (path.to_owned(), name.to_string());
    blocking(move || {
        let layout = ImageLayout::open(&place)?;
        let image = layout.image(&shown)?;
        Ok((layout, image))
    })
    .await
}

impl ImageStore {
    /// Imports a root file system from one archive, as an image with one layer and no settings.
    pub async fn import_root(
        &self,
        mut archive: File,
        name: &ImageName,
        progress: &mut dyn Progress,
    ) -> Result<ImageRecord, ImageError> {
        progress.report("unpacking the image");
        let hashed = blocking(move || {
            let unreadable = |error: io::Error| ImageError::refused(format!("its archive: {error}"));
            archive.rewind().map_err(unreadable)?;
            let mut hasher = Hasher::raw();
            let size = io::copy(&mut archive, &mut hasher).map_err(unreadable)?;
            archive.rewind().map_err(unreadable)?;
            Ok::<_, ImageError>((archive, hasher.finish(), size))
        });
        let (archive, digest, size) = hashed.await?;
        let settings = ImageConfig { layers: vec![digest], variables: ImageVariables::default() };
        let turn = self.lock().await?;
        if self.unpacked_layers(&settings)? == 0 {
            self.add_layer(&settings, 0, PackedLayer { from: Box::new(archive), size }).await?;
        }
        self.record_image(turn, name, digest, settings).await
    }
}

/// The image in a layout.
struct LayoutImage {
    /// Tags in the output of `docker save`.
    tags: Vec<ImageName>,
    digest: ContentDigest,
    settings: ImageConfig,
    /// Layer files, lowest layer first.
    layers: Vec<String>,
}

/// The files of a layout.
enum ImageLayout {
    Folder(PathBuf),
    Archive { file: Arc<File>, places: BTreeMap<String, (u64, u64)> },
}

/// An entry of the `manifest.json` that `docker save` writes.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerSaveEntry {
    config: String,
    layers: Vec<String>,
    /// Absent or null for an image without tags.
    repo_tags: Option<Vec<String>>,
}

impl ImageLayout {
    fn open(path: &Path) -> Result<Self, ImageError> {
        if path.is_dir() {
            return Ok(Self::Folder(path.to_owned()));
        }
        let unreadable = |error: io::Error| {
            ImageError::refused(format!("'{}' is not an image archive ({error})", path.display()))
        };
        let mut file = File::open(path).map_err(|error| ImageError::io("read", path, error))?;
        check_headers(&mut file, MAX_FILES)?;
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
    fn file(&self, name: &str) -> Result<PackedLayer, ImageError> {
        let missing = || ImageError::refused(format!("file '{}' is missing", name.escape_debug()));
        match self {
            Self::Archive { file, places } => {
                let (at, size) = *places.get(name).ok_or_else(missing)?;
                Ok(PackedLayer {
                    from: Box::new(FileSection { file: Arc::clone(file), at, left: size }),
                    size,
                })
            }
            Self::Folder(folder) => {
                let file = open_below(folder, name).map_err(|_| missing())?;
                let metadata = file.metadata().map_err(|_| missing())?;
                if !metadata.is_file() {
                    return Err(missing());
                }
                Ok(PackedLayer { from: Box::new(file), size: metadata.len() })
            }
        }
    }

    fn document(&self, name: &str) -> Result<Vec<u8>, ImageError> {
        let PackedLayer { from, size } = self.file(name)?;
        if size > MAX_DOCUMENT_BYTES {
            return Err(ImageError::TooLarge { limit: MAX_DOCUMENT_BYTES, what: "bytes in a manifest" });
        }
        let mut bytes = Vec::new();
        let read = from.take(size).read_to_end(&mut bytes);
        read.map_err(|error| ImageError::refused(format!("'{}': {error}", name.escape_debug())))?;
        Ok(bytes)
    }

    fn blob(&self, what: &str, blob: &BlobRef) -> Result<Vec<u8>, ImageError> {
        verify_digest(what, self.document(&blob_path(blob))?, &blob.digest)
    }

    fn image(&self, name: &str) -> Result<LayoutImage, ImageError> {
        match self.file("manifest.json") {
            Ok(_) => self.docker_save_image(name),
            Err(_) => self.oci_image(name),
        }
    }

    fn docker_save_image(&self, name: &str) -> Result<LayoutImage, ImageError> {
        let bad = |why: &str| ImageError::refused(why.to_owned());
        let images: Vec<DockerSaveEntry> = serde_json::from_slice(&self.document("manifest.json")?)
            .map_err(|error| bad(&format!("cannot parse its manifest.json ({error})")))?;
        let [DockerSaveEntry { config, layers, repo_tags }] = images.as_slice() else {
            return Err(bad("it contains several images; save only one"));
        };
        let bytes = self.document(config)?;
        // The file is named after its digest, in either layout.
        let called = config.rsplit('/').next().unwrap_or_default().trim_end_matches(".json");
        let digest = ContentDigest::from_bytes(&bytes);
        if called != digest.to_string() {
            return Err(ImageError::Tampered { what: "its configuration".to_owned() });
        }
        let settings = parse_config(name, &bytes, layers.len())?;
        let tags = parse_tags(repo_tags.as_deref().unwrap_or_default())?;
        Ok(LayoutImage { tags, digest, settings, layers: layers.clone() })
    }

    fn oci_image(&self, name: &str) -> Result<LayoutImage, ImageError> {
        let mut bytes = self.document("index.json")?;
        let mut digest = ContentDigest::from_bytes(&bytes);
        for _ in 0..MAX_INDEXES {
            match ManifestDocument::parse(&bytes)? {
                ManifestDocument::Index(index) => {
                    let chosen = select_platform(name, &index)?;
                    (bytes, digest) = (self.blob("its manifest", &chosen)?, chosen.digest);
                }
                ManifestDocument::Image(manifest) => {
                    let (config, layers) = config_and_layers(&manifest)?;
                    let settings =
                        parse_config(name, &self.blob("its configuration", &config)?, layers.len())?;
                    return Ok(LayoutImage {
                        tags: Vec::new(),
                        digest,
                        settings,
                        layers: layers.iter().map(blob_path).collect(),
                    });
                }
            }
        }
        Err(ImageError::refused("indexes are nested too deeply"))
    }
}

/// Parses the tags of an image. Paths, digests and the name of the sealed image are not tags.
fn parse_tags(tags: &[String]) -> Result<Vec<ImageName>, ImageError> {
    if tags.len() > MAX_TAGS {
        return Err(ImageError::TooLarge { limit: MAX_TAGS as u64, what: "tags" });
    }
    let parse = |tag: &String| match tag.starts_with('/') || tag.contains('@') || tag == ImageName::SEALED {
        true => Err(ImageError::refused(format!("'{}' is not a tag", tag.escape_debug()))),
        false => ImageName::parse(tag),
    };
    tags.iter().map(parse).collect()
}

fn blob_path(blob: &BlobRef) -> String {
    format!("blobs/sha256/{}", blob.digest)
}

/// Opens a file below a folder without following links.
fn open_below(folder: &Path, name: &str) -> io::Result<File> {
    let mut parent =
        rustix::fs::openat(CWD, folder, OPEN_FOLDER_FLAGS.difference(OFlags::NOFOLLOW), Mode::empty())?;
    let mut parts = name.split('/').peekable();
    while let Some(part) = parts.next() {
        if matches!(part, "" | "." | "..") {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if parts.peek().is_some() {
            parent = rustix::fs::openat(&parent, part, OPEN_FOLDER_FLAGS, Mode::empty())?;
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        return Ok(File::from(rustix::fs::openat(&parent, part, flags, Mode::empty())?));
    }
    Err(io::ErrorKind::NotFound.into())
}

/// A section of a file.
struct FileSection {
    file: Arc<File>,
    at: u64,
    left: u64,
}

impl Read for FileSection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}
