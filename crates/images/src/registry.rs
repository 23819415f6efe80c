//! Pulls images from registries. Everything that a registry sends is checked against digests and sizes.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

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
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use crate::credentials::Credentials;
use crate::documents::{
    Blob, Document, MAX_DOCUMENT, digest_of, finished, fitting, parts, settings, verified,
};
use crate::error::ImageError;
use crate::name::Name;
use crate::store::{Packed, Record, Store};

const MANIFESTS: &[&str] = &[
    OCI_IMAGE_INDEX_MEDIA_TYPE,
    OCI_IMAGE_MEDIA_TYPE,
    IMAGE_MANIFEST_LIST_MEDIA_TYPE,
    IMAGE_MANIFEST_MEDIA_TYPE,
];
const CONNECT: Duration = Duration::from_secs(15);
const SILENCE: Duration = Duration::from_secs(60);
/// Number of attempts to resume an interrupted download of a layer.
const ATTEMPTS: usize = 5;

/// How registries are reached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registries {
    /// Mirrors to try first, by registry.
    pub mirrors: BTreeMap<String, Vec<String>>,
    /// Registries without TLS; only on this machine.
    pub plain_http: Vec<String>,
    /// Additional trusted certificates, as PEM.
    pub authorities: Option<Vec<u8>>,
}

/// Pulls an image.
pub async fn pull(
    store: &Store,
    name: &Name,
    registries: &Registries,
    credentials: &Credentials,
    progress: &mut dyn Progress,
) -> Result<Record, ImageError> {
    let reference = name.reference()?;
    let client = client(registries)?;
    let (source, bytes) = manifest_of(&client, &reference, registries, credentials, progress).await?;
    let turn = store.turn().await?;
    let (digest, manifest) = match Document::parse(&bytes)? {
        Document::Image(manifest) => (digest_of(&bytes), manifest),
        Document::Index(index) => {
            let chosen = fitting(&name.to_string(), &index)?;
            let exact = source.reference.clone_with_digest(format!("sha256:{}", chosen.digest));
            let bytes = source.manifest(&client, &exact).await?;
            match Document::parse(&verified("its manifest", bytes, &chosen.digest)?)? {
                Document::Image(manifest) => (chosen.digest, manifest),
                Document::Index(_) => return Err(ImageError::refused("its index contains an index")),
            }
        }
    };
    let (config, layers) = parts(&manifest)?;
    let fetched = layers.iter().try_fold(config.size, |sum, layer| sum.checked_add(layer.size));
    if fetched.is_none_or(|bytes| bytes > store.bounds().fetched) {
        return Err(ImageError::TooLarge { limit: store.bounds().fetched, what: "bytes to fetch" });
    }
    let config = source.document(&client, &config).await?;
    let settings = settings(&name.to_string(), &config, layers.len())?;
    for index in store.known(&settings)?..layers.len() {
        let layer = &layers[index];
        let step = format!("layer {} of {} of {name}", index + 1, layers.len());
        let path = source.fetch(&client, store.blobs(), layer, &step, progress).await?;
        progress.at(&format!("unpacking {step}"));
        let file = File::open(&path).map_err(|error| ImageError::io("read", &path, error))?;
        store.lay(&settings, index, Packed { from: Box::new(file), size: layer.size }).await?;
        // The layer is unpacked. If this fails, the file is removed later.
        let _ = std::fs::remove_file(&path);
    }
    store.name(turn, name, digest, settings).await
}

fn client(registries: &Registries) -> Result<Client, ImageError> {
    // An error means that the provider is already installed.
    let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
    let authorities = registries.authorities.iter();
    let config = ClientConfig {
        protocol: ClientProtocol::HttpsExcept(registries.plain_http.clone()),
        extra_root_certificates: authorities
            .map(|data| Certificate { encoding: CertificateEncoding::Pem, data: data.clone() })
            .collect(),
        connect_timeout: Some(CONNECT),
        read_timeout: Some(SILENCE),
        user_agent: concat!("belljar/", env!("CARGO_PKG_VERSION")),
        ..ClientConfig::default()
    };
    Client::try_from(config)
        .map_err(|error| ImageError::Registry { registry: "TLS".to_owned(), why: chain(&error) })
}

/// Fetches the manifest from a mirror or else from the registry.
async fn manifest_of(
    client: &Client,
    reference: &Reference,
    registries: &Registries,
    credentials: &Credentials,
    progress: &mut dyn Progress,
) -> Result<(Source, Vec<u8>), ImageError> {
    let mirrors = registries.mirrors.get(reference.registry()).into_iter().flatten();
    for mirror in mirrors {
        let mut there = reference.clone();
        there.set_mirror_registry(mirror.clone());
        let source = Source::of(there, credentials);
        progress.at(&format!("asking {mirror}"));
        // A mirror that fails or lacks the image is skipped.
        if let Ok(bytes) = source.manifest(client, &source.reference).await {
            return Ok((source, bytes));
        }
    }
    let source = Source::of(reference.clone(), credentials);
    progress.at(&format!("asking {}", reference.registry()));
    let bytes = source.manifest(client, &source.reference).await?;
    Ok((source, bytes))
}

/// The source of an image, with the login for it.
struct Source {
    reference: Reference,
    auth: RegistryAuth,
}

impl Source {
    /// Creates a source. A mirror never receives the registry's credentials.
    fn of(reference: Reference, credentials: &Credentials) -> Self {
        let auth = credentials.of(reference.resolve_registry());
        Self { reference, auth }
    }

    async fn manifest(&self, client: &Client, reference: &Reference) -> Result<Vec<u8>, ImageError> {
        let asked = timeout(SILENCE, client.pull_manifest_raw(reference, &self.auth, MANIFESTS)).await;
        let asked = asked.map_err(|_| self.refused("no answer"))?;
        let (bytes, _) = asked.map_err(|error| self.failed(&error))?;
        if bytes.len() as u64 > MAX_DOCUMENT {
            return Err(ImageError::TooLarge { limit: MAX_DOCUMENT, what: "bytes in a manifest" });
        }
        match reference.digest() {
            Some(digest) => verified("its manifest", bytes.to_vec(), &crate::documents::digest(digest)?),
            None => Ok(bytes.to_vec()),
        }
    }

    async fn document(&self, client: &Client, blob: &Blob) -> Result<Vec<u8>, ImageError> {
        if blob.size > MAX_DOCUMENT {
            return Err(ImageError::TooLarge { limit: MAX_DOCUMENT, what: "bytes in a configuration" });
        }
        let digest = format!("sha256:{}", blob.digest);
        let stream = client.pull_blob_stream(&self.reference, digest.as_str()).await;
        let mut stream = stream.map_err(|error| self.failed(&error))?.stream;
        let mut bytes = Vec::new();
        while let Some(chunk) = stream.next().await {
            bytes.extend_from_slice(&chunk.map_err(|error| self.broke_off("its configuration", &error))?);
            if bytes.len() as u64 > blob.size {
                return Err(ImageError::Tampered { what: "its configuration".to_owned() });
            }
        }
        verified("its configuration", bytes, &blob.digest)
    }

    /// Downloads a layer to a folder, resuming an earlier attempt.
    async fn fetch(
        &self,
        client: &Client,
        folder: &Path,
        blob: &Blob,
        step: &str,
        progress: &mut dyn Progress,
    ) -> Result<PathBuf, ImageError> {
        let path = folder.join(blob.digest.to_string());
        let mut partial = Partial::open(&path, blob)?;
        let mut attempts = ATTEMPTS;
        while partial.bytes < blob.size {
            let before = partial.bytes;
            match self.go_on(client, blob, &mut partial, step, progress).await {
                Ok(()) => {}
                Err(error @ ImageError::Registry { .. }) if attempts == 0 => return Err(error),
                // The download was interrupted; the received part is kept.
                Err(ImageError::Registry { .. }) => {}
                Err(error) => return Err(error),
            }
            attempts = if partial.bytes > before { ATTEMPTS } else { attempts.saturating_sub(1) };
            if partial.bytes < blob.size && attempts == 0 {
                return Err(self.refused("the download of a layer keeps failing; try again later"));
            }
        }
        if finished(partial.hasher) != blob.digest {
            let _ = std::fs::remove_file(&path);
            return Err(ImageError::Tampered { what: format!("layer sha256:{}", blob.digest) });
        }
        Ok(path)
    }

    async fn go_on(
        &self,
        client: &Client,
        blob: &Blob,
        partial: &mut Partial,
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
            let chunk = chunk.map_err(|error| self.broke_off("a layer", &error))?;
            if partial.bytes + chunk.len() as u64 > blob.size {
                return Err(ImageError::Tampered { what: format!("layer sha256:{}", blob.digest) });
            }
            partial.add(&chunk)?;
            progress.at(&format!("{step}: {} of {}", show_bytes(partial.bytes), show_bytes(blob.size)));
        }
        Ok(())
    }

    fn refused(&self, why: &str) -> ImageError {
        ImageError::Registry { registry: self.reference.resolve_registry().to_owned(), why: why.to_owned() }
    }

    fn broke_off(&self, what: &str, error: &std::io::Error) -> ImageError {
        // The client itself checks digests of complete responses.
        if error.get_ref().is_some_and(|inner| inner.is::<DigestError>()) {
            return ImageError::Tampered { what: what.to_owned() };
        }
        self.refused(&format!("the download of {what} was interrupted ({})", chain(error)))
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
                self.refused(&format!("image not found ({})", chain(error)))
            }
            OciDistributionError::RequestError(error) if error.is_connect() || error.is_timeout() => {
                let instead =
                    "name a mirror in 'images.mirrors' of belljar.toml, or give a 'docker save' archive";
                self.refused(&format!("cannot be reached ({}); {instead}", chain(error)))
            }
            error => self.refused(&chain(error)),
        }
    }
}

/// A layer being downloaded.
struct Partial {
    file: File,
    path: PathBuf,
    hasher: Sha256,
    bytes: u64,
}

impl Partial {
    fn open(path: &Path, blob: &Blob) -> Result<Self, ImageError> {
        let failed = |error| ImageError::io("write", path, error);
        let file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(failed)?;
        let mut partial = Self { file, path: path.to_owned(), hasher: Sha256::new(), bytes: 0 };
        let mut chunk = vec![0; 256 << 10];
        loop {
            match partial.file.read(&mut chunk).map_err(failed)? {
                0 => break,
                read => {
                    partial.hasher.update(&chunk[..read]);
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
        (self.hasher, self.bytes) = (Sha256::new(), 0);
        Ok(())
    }

    fn add(&mut self, chunk: &[u8]) -> Result<(), ImageError> {
        self.file.write_all(chunk).map_err(|error| ImageError::io("write", &self.path, error))?;
        self.hasher.update(chunk);
        self.bytes += chunk.len() as u64;
        Ok(())
    }
}

/// Formats an error and its sources on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text = format!("{text}: {error}");
        next = error.source();
    }
    let plain: String = text.chars().filter(|c| !c.is_control()).take(400).collect();
    plain
}
