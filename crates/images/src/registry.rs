//! Pulls images from registries. Everything that a registry sends is checked against digests and sizes.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_beneath::{ContentDigest, Hasher};
use belljar_engine::packages::Progress;
use belljar_engine::quantity::show_bytes;
use futures_util::StreamExt;
use oci_client::client::{BlobResponse, Certificate, CertificateEncoding, ClientConfig, ClientProtocol};
use oci_client::errors::{DigestError, OciDistributionError};
use oci_client::manifest::{
    IMAGE_MANIFEST_LIST_MEDIA_TYPE, IMAGE_MANIFEST_MEDIA_TYPE, OCI_IMAGE_INDEX_MEDIA_TYPE,
    OCI_IMAGE_MEDIA_TYPE,
};
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference};
use tokio::time::timeout;

use crate::credentials::RegistryCredentials;
use crate::documents::{
    BlobRef, MAX_DOCUMENT_BYTES, ManifestDocument, config_and_layers, parse_config, select_platform,
    verify_digest,
};
use crate::error::ImageError;
use crate::name::ImageName;
use crate::store::{ImageRecord, ImageStore, PackedLayer};

const MANIFEST_MEDIA_TYPES: &[&str] = &[
    OCI_IMAGE_INDEX_MEDIA_TYPE,
    OCI_IMAGE_MEDIA_TYPE,
    IMAGE_MANIFEST_LIST_MEDIA_TYPE,
    IMAGE_MANIFEST_MEDIA_TYPE,
];
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Number of attempts to resume an interrupted download of a layer.
const MAX_ATTEMPTS: usize = 5;

/// How registries are reached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegistrySettings {
    /// Mirrors to try first, by registry.
    pub mirrors: BTreeMap<String, Vec<String>>,
    /// Registries without TLS; only on this machine.
    pub plain_http: Vec<String>,
    /// Additional trusted certificates, as PEM.
    pub authorities: Option<Vec<u8>>,
}

/// Pulls an image.
pub async fn pull(
    store: &ImageStore,
    name: &ImageName,
    registries: &RegistrySettings,
    credentials: &RegistryCredentials,
    progress: &mut dyn Progress,
) -> Result<ImageRecord, ImageError> {
    let reference = name.reference()?;
    let client = client(registries)?;
    let (source, bytes) = fetch_manifest(&client, &reference, registries, credentials, progress).await?;
    let turn = store.lock().await?;
    let (digest, manifest) = match ManifestDocument::parse(&bytes)? {
        ManifestDocument::Image(manifest) => (ContentDigest::from_bytes(&bytes), manifest),
        ManifestDocument::Index(index) => {
            let chosen = select_platform(&name.to_string(), &index)?;
            let exact = source.reference.clone_with_digest(format!("sha256:{}", chosen.digest));
            let bytes = source.manifest(&client, &exact).await?;
            match ManifestDocument::parse(&verify_digest("its manifest", bytes, &chosen.digest)?)? {
                ManifestDocument::Image(manifest) => (chosen.digest, manifest),
                ManifestDocument::Index(_) => return Err(ImageError::refused("its index contains an index")),
            }
        }
    };
    let (config, layers) = config_and_layers(&manifest)?;
    let fetched = layers.iter().try_fold(config.size, |sum, layer| sum.checked_add(layer.size));
    if fetched.is_none_or(|bytes| bytes > store.bounds().download_bytes) {
        return Err(ImageError::TooLarge { limit: store.bounds().download_bytes, what: "bytes to fetch" });
    }
    let config = source.document(&client, &config).await?;
    let settings = parse_config(&name.to_string(), &config, layers.len())?;
    for index in store.unpacked_layers(&settings)?..layers.len() {
        let layer = &layers[index];
        let step = format!("layer {} of {} of {name}", index + 1, layers.len());
        let path = source.fetch(&client, store.blobs(), layer, &step, progress).await?;
        progress.report(&format!("unpacking {step}"));
        let file = File::open(&path).map_err(|error| ImageError::io("read", &path, error))?;
        store.add_layer(&settings, index, PackedLayer { from: Box::new(file), size: layer.size }).await?;
        // The layer is unpacked. If this fails, the file is removed later.
        let _ = std::fs::remove_file(&path);
    }
    store.record_image(turn, name, digest, settings).await
}

fn client(registries: &RegistrySettings) -> Result<Client, ImageError> {
    // An error means that the provider is already installed.
    let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
    let authorities = registries.authorities.iter();
    let config = ClientConfig {
        protocol: ClientProtocol::HttpsExcept(registries.plain_http.clone()),
        extra_root_certificates: authorities
            .map(|data| Certificate { encoding: CertificateEncoding::Pem, data: data.clone() })
            .collect(),
        connect_timeout: Some(CONNECT_TIMEOUT),
        read_timeout: Some(READ_TIMEOUT),
        user_agent: concat!("belljar/", env!("CARGO_PKG_VERSION")),
        ..ClientConfig::default()
    };
    Client::try_from(config)
        .map_err(|error| ImageError::Registry { registry: "TLS".to_owned(), why: error_chain(&error) })
}

/// Fetches the manifest from a mirror or else from the registry.
async fn fetch_manifest(
    client: &Client,
    reference: &Reference,
    registries: &RegistrySettings,
    credentials: &RegistryCredentials,
    progress: &mut dyn Progress,
) -> Result<(PullSource, Vec<u8>), ImageError> {
    let mirrors = registries.mirrors.get(reference.registry()).into_iter().flatten();
    for mirror in mirrors {
        let mut mirrored = reference.clone();
        mirrored.set_mirror_registry(mirror.clone());
        let source = PullSource::new(mirrored, credentials);
        progress.report(&format!("asking {mirror}"));
        // A mirror that fails or lacks the image is skipped.
        if let Ok(bytes) = source.manifest(client, &source.reference).await {
            return Ok((source, bytes));
        }
    }
    let source = PullSource::new(reference.clone(), credentials);
    progress.report(&format!("asking {}", reference.registry()));
    let bytes = source.manifest(client, &source.reference).await?;
    Ok((source, bytes))
}

/// The source of an image, with the login for it.
struct PullSource {
    reference: Reference,
    auth: RegistryAuth,
}

impl PullSource {
    /// Creates a source. A mirror never receives the registry's credentials.
    fn new(reference: Reference, credentials: &RegistryCredentials) -> Self {
        let auth = credentials.auth_for(reference.resolve_registry());
        Self { reference, auth }
    }

    async fn manifest(&self, client: &Client, reference: &Reference) -> Result<Vec<u8>, ImageError> {
        let asked =
            timeout(READ_TIMEOUT, client.pull_manifest_raw(reference, &self.auth, MANIFEST_MEDIA_TYPES))
                .await;
        let asked = asked.map_err(|_| self.refused("no answer"))?;
        let (bytes, _) = asked.map_err(|error| self.failed(&error))?;
        if bytes.len() as u64 > MAX_DOCUMENT_BYTES {
            return Err(ImageError::TooLarge { limit: MAX_DOCUMENT_BYTES, what: "bytes in a manifest" });
        }
        match reference.digest() {
            Some(digest) => {
                verify_digest("its manifest", bytes.to_vec(), &crate::documents::parse_digest(digest)?)
            }
            None => Ok(bytes.to_vec()),
        }
    }

    async fn document(&self, client: &Client, blob: &BlobRef) -> Result<Vec<u8>, ImageError> {
        if blob.size > MAX_DOCUMENT_BYTES {
            return Err(ImageError::TooLarge { limit: MAX_DOCUMENT_BYTES, what: "bytes in a configuration" });
        }
        let digest = format!("sha256:{}", blob.digest);
        let stream = client.pull_blob_stream(&self.reference, digest.as_str()).await;
        let mut stream = stream.map_err(|error| self.failed(&error))?.stream;
        let mut bytes = Vec::new();
        while let Some(chunk) = stream.next().await {
            bytes.extend_from_slice(&chunk.map_err(|error| self.interrupted("its configuration", &error))?);
            if bytes.len() as u64 > blob.size {
                return Err(ImageError::Tampered { what: "its configuration".to_owned() });
            }
        }
        verify_digest("its configuration", bytes, &blob.digest)
    }

    /// Downloads a layer to a folder, resuming an earlier attempt.
    async fn fetch(
        &self,
        client: &Client,
        folder: &Path,
        blob: &BlobRef,
        step: &str,
        progress: &mut dyn Progress,
    ) -> Result<PathBuf, ImageError> {
        let path = folder.join(blob.digest.to_string());
        let mut partial = PartialDownload::open(&path, blob)?;
        let mut attempts = MAX_ATTEMPTS;
        while partial.bytes < blob.size {
            let before = partial.bytes;
            match self.resume_download(client, blob, &mut partial, step, progress).await {
                Ok(()) => {}
                Err(error @ ImageError::Registry { .. }) if attempts == 0 => return Err(error),
                // The download was interrupted; the received part is kept.
                Err(ImageError::Registry { .. }) => {}
                Err(error) => return Err(error),
            }
            attempts = if partial.bytes > before { MAX_ATTEMPTS } else { attempts.saturating_sub(1) };
            if partial.bytes < blob.size && attempts == 0 {
                return Err(self.refused("the download of a layer keeps failing; try again later"));
            }
        }
        if partial.hasher.finish() != blob.digest {
            let _ = std::fs::remove_file(&path);
            return Err(ImageError::Tampered { what: format!("layer sha256:{}", blob.digest) });
        }
        Ok(path)
    }

    async fn resume_download(
        &self,
        client: &Client,
        blob: &BlobRef,
        partial: &mut PartialDownload,
        step: &str,
        progress: &mut dyn Progress,
    ) -> Result<(), ImageError> {
        let digest = format!("sha256:{}", blob.digest);
        let asked =
            client.pull_blob_stream_partial(&self.reference, digest.as_str(), partial.bytes, None).await;
        let mut stream = match asked.map_err(|error| self.failed(&error))? {
            BlobResponse::Partial(stream) => stream.stream,
            BlobResponse::Full(stream) => {
                partial.restart()?;
                stream.stream
            }
        };
        while let Some(chunk) = stream.next().await {
            let chunk = chunk.map_err(|error| self.interrupted("a layer", &error))?;
            if partial.bytes + chunk.len() as u64 > blob.size {
                return Err(ImageError::Tampered { what: format!("layer sha256:{}", blob.digest) });
            }
            partial.add(&chunk)?;
            progress.report(&format!("{step}: {} of {}", show_bytes(partial.bytes), show_bytes(blob.size)));
        }
        Ok(())
    }

    fn refused(&self, why: &str) -> ImageError {
        ImageError::Registry { registry: self.reference.resolve_registry().to_owned(), why: why.to_owned() }
    }

    fn interrupted(&self, what: &str, error: &std::io::Error) -> ImageError {
        // The client itself checks digests of complete responses.
        if error.get_ref().is_some_and(|inner| inner.is::<DigestError>()) {
            return ImageError::Tampered { what: what.to_owned() };
        }
        self.refused(&format!("the download of {what} was interrupted ({})", error_chain(error)))
    }

    fn failed(&self, error: &OciDistributionError) -> ImageError {
        let login = "log in with --username, or 'docker login'";
        let name = self.reference.repository();
        match error {
            OciDistributionError::DigestError(_) => ImageError::Tampered { what: "its manifest".to_owned() },
            OciDistributionError::UnauthorizedError { .. }
            | OciDistributionError::AuthenticationFailure(_) => {
                self.refused(&format!("access to '{name}' is denied, or it does not exist; {login}"))
            }
            OciDistributionError::ImageManifestNotFoundError(_)
            | OciDistributionError::RegistryError { .. }
            | OciDistributionError::ServerError { code: 404, .. } => {
                self.refused(&format!("image not found ({})", error_chain(error)))
            }
            OciDistributionError::RequestError(error) if error.is_connect() || error.is_timeout() => {
                let instead =
                    "name a mirror in 'images.mirrors' of belljar.toml, or give a 'docker save' archive";
                self.refused(&format!("cannot be reached ({}); {instead}", error_chain(error)))
            }
            error => self.refused(&error_chain(error)),
        }
    }
}

/// A layer being downloaded.
struct PartialDownload {
    file: File,
    path: PathBuf,
    hasher: Hasher,
    bytes: u64,
}

impl PartialDownload {
    fn open(path: &Path, blob: &BlobRef) -> Result<Self, ImageError> {
        let failed = |error| ImageError::io("write", path, error);
        let file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(failed)?;
        let mut partial = Self { file, path: path.to_owned(), hasher: Hasher::raw(), bytes: 0 };
        let mut chunk = vec![0; 256 << 10];
        loop {
            match partial.file.read(&mut chunk).map_err(failed)? {
                0 => break,
                read => {
                    partial.hasher.bytes(&chunk[..read]);
                    partial.bytes += read as u64;
                }
            }
        }
        if partial.bytes > blob.size {
            partial.restart()?;
        }
        Ok(partial)
    }

    fn restart(&mut self) -> Result<(), ImageError> {
        self.file.set_len(0).map_err(|error| ImageError::io("write", &self.path, error))?;
        (self.hasher, self.bytes) = (Hasher::raw(), 0);
        Ok(())
    }

    fn add(&mut self, chunk: &[u8]) -> Result<(), ImageError> {
        self.file.write_all(chunk).map_err(|error| ImageError::io("write", &self.path, error))?;
        self.hasher.bytes(chunk);
        self.bytes += chunk.len() as u64;
        Ok(())
    }
}

/// Formats an error and its sources on one line.
fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text = format!("{text}: {error}");
        next = error.source();
    }
    let plain: String = text.chars().filter(|c| !c.is_control()).take(400).collect();
    plain
}
