//! The address of a shared cache: `file:///FOLDER` or `s3://BUCKET/FOLDER`.

use std::fmt;
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ClientConfigKey, ObjectStore, RetryConfig};

/// Maximum number of retries of a request, within the timeout.
const MAX_RETRIES: usize = 2;

/// Settings of a cache shared between machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedCache {
    /// Its address.
    pub address: CacheAddress,
    /// Whether layers are only fetched, never uploaded.
    pub read_only: bool,
    /// Timeout for the transfer of one layer.
    pub timeout: Duration,
}

/// The address of a shared cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheAddress {
    /// A folder that all machines mount.
    Folder(PathBuf),
    /// A bucket of S3 or of a compatible service.
    Bucket {
        /// The bucket's name.
        bucket: String,
        /// The folder in the bucket.
        folder: String,
    },
}

impl FromStr for CacheAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const HOW: &str = "write file:///FOLDER or s3://BUCKET/FOLDER";
        // Nothing is decoded here, so characters with a special meaning in URLs are refused.
        if text.contains(['%', '?', '#', '@', '\\']) || text.chars().any(char::is_control) {
            return Err(HOW);
        }
        if let Some(folder) = text.strip_prefix("file://") {
            let folder = PathBuf::from(folder);
            let plain = folder.is_absolute() && !folder.components().any(|part| part.as_os_str() == "..");
            return plain.then_some(Self::Folder(folder)).ok_or(HOW);
        }
        let rest = text.strip_prefix("s3://").ok_or(HOW)?;
        let (bucket, folder) = rest.split_once('/').unwrap_or((rest, ""));
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-".contains(c);
        let folder = Path::parse(folder).map_err(|_| HOW)?.to_string();
        let fits = (3..=63).contains(&bucket.len()) && bucket.chars().all(plain);
        fits.then(|| Self::Bucket { bucket: bucket.to_owned(), folder }).ok_or(HOW)
    }
}

impl fmt::Display for CacheAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => write!(f, "file://{}", folder.display()),
            Self::Bucket { bucket, folder } => write!(f, "s3://{bucket}/{folder}"),
        }
    }
}

impl CacheAddress {
    pub(super) fn open(&self, wait: Duration, read_only: bool) -> Result<Arc<dyn ObjectStore>, String> {
        match self {
            Self::Folder(folder) => open_folder(folder, read_only),
            Self::Bucket { bucket, folder } => open_bucket(bucket, folder, wait),
        }
    }
}

/// Opens a shared folder. A world-writable folder cannot be trusted.
fn open_folder(folder: &std::path::Path, read_only: bool) -> Result<Arc<dyn ObjectStore>, String> {
    let failed = |doing: &str, why: &dyn std::fmt::Display| format!("{doing} {}: {why}", folder.display());
    if !read_only {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|error| failed("create the folder", &error))?;
    }
    let mode = folder.metadata().map_err(|error| failed("open the folder", &error))?.permissions().mode();
    if mode & 0o002 != 0 {
        return Err(failed("use the folder", &"it is world-writable; run chmod o-w on it"));
    }
    let store = LocalFileSystem::new_with_prefix(folder);
    Ok(Arc::new(store.map_err(|error| failed("open the folder", &error))?))
}

/// Opens a bucket. Region, endpoint and credentials come from the usual `AWS_*` variables.
fn open_bucket(bucket: &str, folder: &str, wait: Duration) -> Result<Arc<dyn ObjectStore>, String> {
    // All TLS in this program uses one library; a second call has no effect.
    let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
    let retry = RetryConfig { max_retries: MAX_RETRIES, retry_timeout: wait, ..RetryConfig::default() };
    // The caller stops waiting after `wait` and reports that; this limit ends a request that has no caller
    // any more.
    let limit = format!("{}ms", 2 * wait.as_millis());
    let store = AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), limit)
        .with_retry(retry)
        .build()
        .map_err(|error| error.to_string())?;
    Ok(Arc::new(PrefixStore::new(store, folder)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_opened_without_a_request() {
        assert!(open_bucket("my-layers", "a/b", Duration::from_millis(300)).is_ok());
    }

    #[test]
    fn addresses() {
        assert_eq!("file:///srv/layers".parse(), Ok(CacheAddress::Folder("/srv/layers".into())));
        let bucket =
            |folder: &str| CacheAddress::Bucket { bucket: "my-layers".to_owned(), folder: folder.to_owned() };
        assert_eq!("s3://my-layers".parse(), Ok(bucket("")));
        assert_eq!("s3://my-layers/a/b/".parse(), Ok(bucket("a/b")));
        for wrong in [
            "",
            "/srv",
            "file://srv",
            "file:///srv/../x",
            "file:///a%20b",
            "https://example.com/x",
            "s3://",
            "s3://a",
            "s3://key:secret@bucket/x",
            "s3://Bucket",
            "s3://bucket/../x",
            "s3://bucket/x?y",
        ] {
            assert!(wrong.parse::<CacheAddress>().is_err(), "{wrong}");
        }
    }
}
