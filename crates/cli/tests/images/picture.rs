//! Creates small images from busybox: layers, configurations and manifests, in every storage format.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

/// An image: its uncompressed layers, lowest first.
pub(crate) struct Picture {
    pub(crate) layers: Vec<Vec<u8>>,
    /// The layers as registries serve them.
    pub(crate) packed: Vec<Vec<u8>>,
    pub(crate) config: Vec<u8>,
}

pub(crate) fn sum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn busybox() -> Option<PathBuf> {
    ["/bin/busybox", "/usr/bin/busybox"].iter().map(PathBuf::from).find(|path| path.exists())
}

/// Creates a base layer with programs.
pub(crate) fn base() -> Vec<u8> {
    let mut layer = Layer::default();
    layer.file("bin/busybox", &fs::read(busybox().unwrap()).unwrap(), 0o4755);
    for name in ["sh", "cat", "cut", "grep", "ls", "touch"] {
        layer.link(&format!("bin/{name}"), "busybox");
    }
    layer.file("etc/version", b"1\n", 0o600);
    layer.file("etc/gone", b"x", 0o644);
    layer.file("old/one", b"x", 0o644);
    layer.file("usr/share/note", b"note\n", 0o644);
    layer.end()
}

/// Creates a layer that changes the one below it.
pub(crate) fn upper() -> Vec<u8> {
    let mut layer = Layer::default();
    layer.file("etc/version", b"2\n", 0o644);
    layer.file("etc/.wh.gone", b"", 0o644);
    layer.file("old/.wh..wh..opq", b"", 0o644);
    layer.file("old/new", b"new\n", 0o644);
    layer.file("opt/tool/bin/tool", b"#!/bin/sh\necho the tool\n", 0o755);
    layer.end()
}

pub(crate) struct Layer(Builder<Vec<u8>>);

impl Default for Layer {
    fn default() -> Self {
        Self(Builder::new(Vec::new()))
    }
}

impl Layer {
    pub(crate) fn file(&mut self, path: &str, content: &[u8], mode: u32) {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(mode);
        self.0.append_data(&mut header, path, content).unwrap();
    }

    pub(crate) fn link(&mut self, path: &str, target: &str) {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Symlink);
        header.set_size(0);
        self.0.append_link(&mut header, path, target).unwrap();
    }

    pub(crate) fn end(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

pub(crate) fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

impl Picture {
    pub(crate) fn new(layers: Vec<Vec<u8>>) -> Self {
        let ids: Vec<_> = layers.iter().map(|layer| format!("sha256:{}", sum(layer))).collect();
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "config": {
                "Env": ["GREETING=hello", "PATH=/opt/tool/bin:/bin", "HOME=/root"],
                "User": "nobody", "WorkingDir": "/usr", "Entrypoint": ["/bin/false"],
            },
            "rootfs": {"type": "layers", "diff_ids": ids},
        });
        let packed = layers.iter().map(|layer| gzip(layer)).collect();
        Self { layers, packed, config: config.to_string().into_bytes() }
    }

    pub(crate) fn usual() -> Self {
        Self::new(vec![base(), upper()])
    }

    /// Creates the image that an index has for other architectures.
    pub(crate) fn other() -> Self {
        Self::new(vec![upper()])
    }

    pub(crate) fn manifest(&self) -> Vec<u8> {
        let descriptor = |kind: &str, bytes: &[u8]| json!({"mediaType": kind, "digest": format!("sha256:{}", sum(bytes)), "size": bytes.len()});
        let layers = &self.packed;
        let layers =
            layers.iter().map(|layer| descriptor("application/vnd.oci.image.layer.v1.tar+gzip", layer));
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor("application/vnd.oci.image.config.v1+json", &self.config),
            "layers": layers.collect::<Vec<_>>(),
        });
        manifest.to_string().into_bytes()
    }

    /// Creates an index with this image for this machine, and another one for other architectures.
    pub(crate) fn index(&self, architecture: &str) -> Value {
        let (manifest, other) = (self.manifest(), Self::other().manifest());
        json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [
            {"mediaType": MANIFEST, "digest": format!("sha256:{}", sum(&other)), "size": other.len(),
             "platform": {"os": "linux", "architecture": "s390x"}},
            {"mediaType": MANIFEST, "digest": format!("sha256:{}", sum(&manifest)), "size": manifest.len(),
             "platform": {"os": "linux", "architecture": architecture}},
        ]})
    }

    /// Writes the image as an OCI layout.
    pub(crate) fn layout(&self, folder: &Path) {
        let blobs = folder.join("blobs/sha256");
        fs::create_dir_all(&blobs).unwrap();
        fs::write(folder.join("oci-layout"), r#"{"imageLayoutVersion": "1.0.0"}"#).unwrap();
        fs::write(folder.join("index.json"), self.index(architecture()).to_string()).unwrap();
        for blob in self.packed.iter().cloned().chain([self.config.clone(), self.manifest()]) {
            fs::write(blobs.join(sum(&blob)), blob).unwrap();
        }
    }

    /// Writes the image in the format of `docker save`, without tags.
    pub(crate) fn save(&self, file: &Path) {
        self.save_as(file, Value::Null);
    }

    /// Writes the image in the format of `docker save`, with these tags.
    pub(crate) fn save_as(&self, file: &Path, tags: Value) {
        let mut archive = Layer::default();
        let mut names = Vec::new();
        for layer in &self.layers {
            names.push(format!("{}/layer.tar", sum(layer)));
            archive.file(names.last().unwrap(), layer, 0o644);
        }
        let config = format!("{}.json", sum(&self.config));
        archive.file(&config, &self.config, 0o644);
        let manifest = json!([{"Config": config, "RepoTags": tags, "Layers": names}]);
        archive.file("manifest.json", manifest.to_string().as_bytes(), 0o644);
        fs::write(file, archive.end()).unwrap();
    }
}

pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
