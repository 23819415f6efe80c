//! Settings of the image store: `[images]` in `belljar.toml`.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use belljar_images::{ImageName, RegistrySettings};

use crate::error::CliError;

/// Settings of the image store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ImageSettings {
    pub(crate) folder: Option<PathBuf>,
    /// Stored images that requests to a server may name.
    pub(crate) allow: BTreeSet<ImageName>,
    pub(crate) registries: RegistrySettings,
}

/// Checks that registries without TLS are on this machine.
pub(crate) fn check_plain_http(images: &ImageSettings) -> Result<(), String> {
    match images.registries.plain_http.iter().find(|registry| !is_loopback(registry)) {
        Some(far) => Err(format!(
            "'{}' is not on this machine; only loopback registries, such as localhost:5000, may do without TLS",
            far.escape_debug()
        )),
        None => Ok(()),
    }
}

/// Returns whether `HOST[:PORT]` is a loopback address.
fn is_loopback(registry: &str) -> bool {
    let host = match registry.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => registry,
    };
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

impl ImageSettings {
    /// Returns the folder of the image store: from the flag, else from the settings.
    pub(crate) fn folder(&self, flag: Option<&Path>) -> Result<PathBuf, CliError> {
        flag.map(Path::to_owned).or_else(|| self.folder.clone()).ok_or_else(|| {
            CliError::invalid("no folder for images: set HOME, or images.folder in belljar.toml")
        })
    }
}
