//! Settings of the layer store: `[dependencies]` in `belljar.toml`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_layers::store::{CacheAddress, LayerBounds, SharedCache};

use crate::error::CliError;

/// Settings of the layer store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LayerSettings {
    pub(crate) folder: Option<PathBuf>,
    pub(crate) bounds: LayerBounds,
    pub(crate) cache_bytes: u64,
    pub(crate) ttl: Duration,
    pub(crate) shared: bool,
    /// Cache shared between machines.
    pub(crate) cache_address: Option<CacheAddress>,
    pub(crate) cache_read_only: bool,
    /// Time limit of one transfer to or from the shared cache.
    pub(crate) cache_wait: Duration,
}

impl Default for LayerSettings {
    fn default() -> Self {
        Self {
            folder: None,
            bounds: LayerBounds::default(),
            ttl: Duration::from_secs(24 * 3_600),
            cache_bytes: 10 << 30,
            shared: false,
            cache_address: None,
            cache_read_only: false,
            cache_wait: Duration::from_secs(60),
        }
    }
}

impl LayerSettings {
    /// Returns the folder of the layer store: from the flag, else from the settings.
    pub(crate) fn folder(&self, flag: Option<&Path>) -> Result<PathBuf, CliError> {
        flag.map(Path::to_owned).or_else(|| self.folder.clone()).ok_or_else(|| {
            CliError::invalid("no folder for layers: set HOME, or dependencies.folder in belljar.toml")
        })
    }

    /// Returns the settings of the shared cache, if there is one.
    pub(crate) fn shared_cache(&self) -> Option<SharedCache> {
        let address = self.cache_address.clone()?;
        Some(SharedCache { address, read_only: self.cache_read_only, timeout: self.cache_wait })
    }
}
