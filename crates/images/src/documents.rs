//! Manifests and configurations: the parts of an image, its platform, and its variables.

use belljar_beneath::ContentDigest;
use belljar_engine::images::{ImageVariables, MAX_VARIABLES_BYTES};
use oci_spec::image::{Arch, Descriptor, ImageConfiguration, ImageIndex, ImageManifest, Os};
use serde::de::DeserializeOwned;

use crate::error::ImageError;

/// Maximum size of a manifest or a configuration, in bytes.
pub(crate) const MAX_DOCUMENT_BYTES: u64 = 4 << 20;
const MAX_LAYERS: usize = 128;

/// A manifest or an index.
pub(crate) enum ManifestDocument {
    Image(Box<ImageManifest>),
    Index(Box<ImageIndex>),
}

/// Identifies an object by digest and size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BlobRef {
    pub(crate) digest: ContentDigest,
    pub(crate) size: u64,
}

/// The relevant part of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageConfig {
    /// Digests of the uncompressed layers, lowest first.
    pub(crate) layers: Vec<ContentDigest>,
    pub(crate) variables: ImageVariables,
}

/// Parses `sha256:…`; other algorithms are refused.
pub(crate) fn parse_digest(text: &str) -> Result<ContentDigest, ImageError> {
    let hex = text.strip_prefix("sha256:");
    hex.and_then(|hex| hex.parse().ok()).ok_or_else(|| {
        ImageError::refused(format!(
            "'{}' is not a SHA-256 digest",
            text.chars().take(100).collect::<String>().escape_debug()
        ))
    })
}

/// Checks bytes against their digest.
pub(crate) fn verify_digest(
    what: &str,
    bytes: Vec<u8>,
    digest: &ContentDigest,
) -> Result<Vec<u8>, ImageError> {
    match ContentDigest::from_bytes(&bytes) == *digest {
        true => Ok(bytes),
        false => Err(ImageError::Tampered { what: what.to_owned() }),
    }
}

impl ManifestDocument {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, ImageError> {
        #[derive(serde::Deserialize)]
        struct ManifestProbe {
            manifests: Option<serde::de::IgnoredAny>,
        }
        match json::<ManifestProbe>("its manifest", bytes)?.manifests {
            Some(_) => json("its index", bytes).map(Box::new).map(Self::Index),
            None => json("its manifest", bytes).map(Box::new).map(Self::Image),
        }
    }
}

fn json<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T, ImageError> {
    serde_json::from_slice(bytes)
        .map_err(|error| ImageError::refused(format!("cannot parse {what} ({error})")))
}

/// Selects the manifest for this machine.
pub(crate) fn select_platform(name: &str, index: &ImageIndex) -> Result<BlobRef, ImageError> {
    let (os, arch) = (Os::Linux, Arch::default());
    let fits = |entry: &&Descriptor| {
        entry
            .platform()
            .as_ref()
            .is_none_or(|platform| *platform.os() == os && *platform.architecture() == arch)
    };
    if let Some(entry) = index.manifests().iter().find(fits) {
        return blob_of(entry);
    }
    let offered = index.manifests().iter().filter_map(|entry| entry.platform().as_ref());
    let offered: Vec<_> =
        offered.map(|platform| format!("{}/{}", platform.os(), platform.architecture())).collect();
    Err(wrong_platform(name, offered.join(", ")))
}

fn wrong_platform(name: &str, offered: String) -> ImageError {
    let wanted = format!("linux/{}", Arch::default());
    ImageError::Platform { name: name.to_owned(), wanted, offered: offered.escape_debug().to_string() }
}

/// Returns the configuration and the layers of a manifest, lowest layer first.
pub(crate) fn config_and_layers(manifest: &ImageManifest) -> Result<(BlobRef, Vec<BlobRef>), ImageError> {
    let layers = manifest.layers().iter().map(blob_of).collect::<Result<Vec<_>, _>>()?;
    Ok((blob_of(manifest.config())?, layers))
}

fn blob_of(entry: &Descriptor) -> Result<BlobRef, ImageError> {
    Ok(BlobRef { digest: parse_digest(entry.digest().as_ref())?, size: entry.size() })
}

/// Parses a configuration, and checks the number of layers.
pub(crate) fn parse_config(name: &str, bytes: &[u8], layers: usize) -> Result<ImageConfig, ImageError> {
    let config: ImageConfiguration = json("its configuration", bytes)?;
    if *config.os() != Os::Linux || *config.architecture() != Arch::default() {
        return Err(wrong_platform(name, format!("{}/{}", config.os(), config.architecture())));
    }
    let ids = config.rootfs().diff_ids().iter().map(|id| parse_digest(id)).collect::<Result<Vec<_>, _>>()?;
    if ids.len() > MAX_LAYERS {
        return Err(ImageError::TooLarge { limit: MAX_LAYERS as u64, what: "layers" });
    }
    if ids.is_empty() || ids.len() != layers {
        return Err(ImageError::refused("its manifest and configuration list different layers"));
    }
    let given = config.config().as_ref().and_then(|config| config.env().as_deref()).unwrap_or_default();
    let too_large = ImageError::TooLarge { limit: MAX_VARIABLES_BYTES as u64, what: "bytes of environment" };
    Ok(ImageConfig { layers: ids, variables: ImageVariables::parse(given).ok_or(too_large)? })
}

/// Returns the chain ID of each number of lowest layers.
pub(crate) fn chain_ids(layers: &[ContentDigest]) -> Vec<ContentDigest> {
    let mut chain: Vec<ContentDigest> = Vec::new();
    for layer in layers {
        let next = match chain.last() {
            None => *layer,
            Some(below) => ContentDigest::from_bytes(format!("sha256:{below} sha256:{layer}").as_bytes()),
        };
        chain.push(next);
    }
    chain
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn config(env: &str, os: &str) -> Vec<u8> {
        let (arch, id) = (Arch::default(), "a".repeat(64));
        format!(
            r#"{{"architecture":"{arch}","os":"{os}","config":{{"Env":[{env}],"User":"root","WorkingDir":"/x"}},
               "rootfs":{{"type":"layers","diff_ids":["sha256:{id}"]}}}}"#
        )
        .into_bytes()
    }

    #[test]
    fn image_variables_and_path_are_read_but_reserved_ones_ignored() {
        let bytes = config(r#""A=1=2","PATH=/x/bin:/bin","HOME=/root","BROKEN","=x""#, "linux");
        let set = parse_config("x", &bytes, 1).unwrap().variables;
        assert_eq!(set.env, BTreeMap::from([("A".to_owned(), "1=2".to_owned())]));
        assert_eq!(set.path.as_deref(), Some("/x/bin:/bin"));
    }

    #[test]
    fn unsupported_configurations_are_refused() {
        assert!(matches!(parse_config("x", &config("", "windows"), 1), Err(ImageError::Platform { .. })));
        assert!(matches!(parse_config("x", &config("", "linux"), 2), Err(ImageError::Refused(_))));
        let long = format!("\"A={}\"", "x".repeat(MAX_VARIABLES_BYTES));
        assert!(matches!(parse_config("x", &config(&long, "linux"), 1), Err(ImageError::TooLarge { .. })));
        assert!(
            parse_digest("sha512:00").is_err()
                && parse_digest(&format!("sha256:{}", "A".repeat(64))).is_err()
        );
        assert!(matches!(
            verify_digest("x", b"a".to_vec(), &ContentDigest::from_bytes(b"b")),
            Err(ImageError::Tampered { .. })
        ));
    }

    #[test]
    fn chain_ids_follow_the_specification() {
        let (one, two) = (ContentDigest::from_bytes(b"1"), ContentDigest::from_bytes(b"2"));
        let both = ContentDigest::from_bytes(format!("sha256:{one} sha256:{two}").as_bytes());
        assert_eq!(chain_ids(&[one, two]), [one, both]);
    }
}
