//! `[dependencies]` in `belljar.toml`: which packages may be installed, and how layers are stored.

use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_analysis::imports::{EcosystemRules, ResolverSettings};
use belljar_engine::quantity::{parse_bytes, parse_millis};
use belljar_layers::store::{LayerBounds, SharedCache};
use serde::Deserialize;

use crate::env::Environment;
use crate::error::CliError;

/// Default time limit of one transfer to or from a shared cache.
pub(crate) const SHARED_CACHE_WAIT: Duration = Duration::from_secs(60);

/// `[dependencies]` as written in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DependencySpec {
    python: EcosystemRules,
    npm: EcosystemRules,
    direct: bool,
    /// Folder of the layer store.
    folder: Option<PathBuf>,
    /// Maximum total size of layers, such as `10G`.
    max_bytes: Option<String>,
    /// Maximum number of layers.
    max_layers: Option<u64>,
    /// Maximum size of the installers' own caches, such as `10G`.
    max_cache_bytes: Option<String>,
    /// How long a resolution of requirements to exact packages stays valid, such as `24h`.
    ttl: Option<String>,
    /// Whether tenants share layers.
    shared: bool,
    /// Cache shared between machines: `file:///FOLDER` or `s3://BUCKET/FOLDER`.
    shared_cache: Option<String>,
    /// Whether the shared cache is only read.
    shared_cache_read_only: bool,
    /// Time limit of one transfer to or from the shared cache, such as `60s`.
    shared_cache_wait: Option<String>,
}

/// Settings of the layer store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LayerSettings {
    folder: Option<PathBuf>,
    pub(crate) bounds: LayerBounds,
    pub(crate) cache_bytes: u64,
    pub(crate) ttl: Duration,
    pub(crate) shared: bool,
    pub(crate) shared_cache: Option<SharedCache>,
}

impl Default for LayerSettings {
    fn default() -> Self {
        Self {
            folder: None,
            bounds: LayerBounds::default(),
            ttl: Duration::from_secs(24 * 3_600),
            cache_bytes: 10 << 30,
            shared: false,
            shared_cache: None,
        }
    }
}

impl DependencySpec {
    /// Returns the settings of import analysis.
    pub(crate) fn settings(&self) -> ResolverSettings {
        ResolverSettings { python: self.python.clone(), npm: self.npm.clone(), direct: self.direct }
    }

    /// Validates and returns the settings of the layer store.
    pub(crate) fn layers(&self) -> Result<LayerSettings, String> {
        let mut layers =
            LayerSettings { folder: self.folder.clone(), shared: self.shared, ..LayerSettings::default() };
        if let Some(bytes) = positive("max_bytes", self.max_bytes.as_deref().map(parse_bytes))? {
            layers.bounds.bytes = bytes;
            layers.bounds.layer_bytes = layers.bounds.layer_bytes.min(bytes);
        }
        if let Some(bytes) = positive("max_cache_bytes", self.max_cache_bytes.as_deref().map(parse_bytes))? {
            layers.cache_bytes = bytes;
        }
        if let Some(count) = self.max_layers {
            layers.bounds.layers = count;
        }
        if layers.bounds.layers == 0 {
            return Err("dependencies.max_layers: must be above zero".to_owned());
        }
        if let Some(millis) = positive("ttl", self.ttl.as_deref().map(parse_millis))? {
            layers.ttl = Duration::from_millis(millis);
        }
        if self.folder.as_deref().is_some_and(Path::is_relative) {
            return Err("dependencies.folder: must be an absolute path".to_owned());
        }
        layers.shared_cache = self.shared_cache()?;
        Ok(layers)
    }

    fn shared_cache(&self) -> Result<Option<SharedCache>, String> {
        let millis = positive("shared_cache_wait", self.shared_cache_wait.as_deref().map(parse_millis))?;
        let wait = millis.map_or(SHARED_CACHE_WAIT, Duration::from_millis);
        let Some(address) = &self.shared_cache else {
            return match self.shared_cache_read_only || millis.is_some() {
                true => {
                    Err("dependencies.shared_cache: missing, although a setting of it is present".to_owned())
                }
                false => Ok(None),
            };
        };
        let address = address.parse().map_err(|how| format!("dependencies.shared_cache: {how}"))?;
        Ok(Some(SharedCache { address, read_only: self.shared_cache_read_only, timeout: wait }))
    }
}

fn positive(name: &str, given: Option<Result<i64, String>>) -> Result<Option<u64>, String> {
    match given.transpose().map_err(|why| format!("dependencies.{name}: {why}"))?.map(u64::try_from) {
        None => Ok(None),
        Some(Ok(value)) if value > 0 => Ok(Some(value)),
        Some(_) => Err(format!("dependencies.{name}: must be above zero")),
    }
}

impl LayerSettings {
    /// Returns the folder of the layer store: from the flag, the environment, the file, or the user's cache
    /// folder.
    pub(crate) fn folder(&self, flag: Option<&Path>, environment: &Environment) -> Result<PathBuf, CliError> {
        let usual = || environment.cache_home.as_ref().map(|cache| cache.join("belljar").join("layers"));
        flag.map(Path::to_owned)
            .or_else(|| environment.layers_folder.clone())
            .or_else(|| self.folder.clone())
            .or_else(usual)
            .ok_or_else(|| {
                CliError::invalid("no folder for layers: set HOME, or dependencies.folder in belljar.toml")
            })
    }
}

#[cfg(test)]
mod tests {
    use belljar_layers::store::CacheAddress;

    use super::*;

    fn layers(text: &str) -> Result<LayerSettings, String> {
        toml::from_str::<DependencySpec>(text).unwrap().layers()
    }

    #[test]
    fn invalid_layer_settings_are_refused() {
        assert_eq!(layers("").unwrap(), LayerSettings::default());
        let set = layers("max_bytes = \"1G\"\nmax_layers = 5\nttl = \"2h\"\nshared = true\n").unwrap();
        assert_eq!((set.bounds.bytes, set.bounds.layers, set.bounds.layer_bytes), (1 << 30, 5, 1 << 30));
        assert_eq!((set.ttl.as_secs(), set.shared), (7_200, true));
        let cached =
            layers("shared_cache = \"file:///srv/layers\"\nshared_cache_read_only = true\n").unwrap();
        let wanted = SharedCache {
            address: CacheAddress::Folder("/srv/layers".into()),
            read_only: true,
            timeout: SHARED_CACHE_WAIT,
        };
        assert_eq!(cached.shared_cache, Some(wanted));
        for (text, why) in [
            ("max_bytes = \"0\"", "dependencies.max_bytes"),
            ("max_bytes = \"much\"", "dependencies.max_bytes"),
            ("max_cache_bytes = \"-1\"", "dependencies.max_cache_bytes"),
            ("max_layers = 0", "dependencies.max_layers"),
            ("ttl = \"-1h\"", "dependencies.ttl"),
            ("folder = \"here\"", "dependencies.folder"),
            ("shared_cache = \"/srv/layers\"", "dependencies.shared_cache: write file:///"),
            ("shared_cache_read_only = true", "dependencies.shared_cache: missing"),
            ("shared_cache = \"s3://layers\"\nshared_cache_wait = \"0\"", "dependencies.shared_cache_wait"),
        ] {
            assert!(layers(text).unwrap_err().starts_with(why), "{text}");
        }
    }

    #[test]
    fn the_folder_follows_flag_environment_and_file() {
        let set = layers("folder = \"/file\"").unwrap();
        let mut environment = Environment { cache_home: Some("/c".into()), ..Environment::default() };
        assert_eq!(set.folder(None, &environment).unwrap(), Path::new("/file"));
        let usual = LayerSettings::default().folder(None, &environment).unwrap();
        assert_eq!(usual, Path::new("/c/belljar/layers"));
        environment.layers_folder = Some("/env".into());
        assert_eq!(set.folder(None, &environment).unwrap(), Path::new("/env"));
        assert_eq!(set.folder(Some(Path::new("/flag")), &environment).unwrap(), Path::new("/flag"));
    }
}
