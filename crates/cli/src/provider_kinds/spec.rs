//! `[providers]` in `belljar.toml`. A server stores these settings at its first start.
//!
//! ```toml
//! [providers]
//! usual = "docker"
//! [providers.docker]
//! image = "python:3.12-slim"
//! instead = ["native"]
//! ```

use std::collections::BTreeMap;

use belljar_engine::catalog;
use belljar_providers::settings::DockerSettings;
use belljar_server::InitialProviderConfig;

use super::{BuildResult, DOCKER, KINDS, ProviderKind, read};
use crate::env::Environment;

/// The `[providers]` table.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ProviderSpec {
    /// Provider of requests that name none; this machine's own if absent.
    pub(crate) default_provider: Option<String>,
    pub(crate) configs: BTreeMap<String, InitialProviderConfig>,
}

impl ProviderSpec {
    /// Adds the environment's settings, and the named provider with default settings if it is not configured.
    pub(crate) fn with_named(mut self, named: Option<&str>, environment: &Environment) -> Self {
        if let Some(kind) = KINDS.iter().find(|kind| Some(kind.name) == named && !kind.built_in) {
            self.configs.entry(kind.name.to_owned()).or_default();
        }
        self.with_environment(environment)
    }

    /// Adds the settings that the environment has and the file does not. A provider missing from the file is
    /// added if the environment has its secret and all other required settings.
    pub(crate) fn with_environment(mut self, environment: &Environment) -> Self {
        for kind in KINDS {
            let set = kind.settings_in(environment);
            let schema = kind.schema();
            let secret = catalog::secret_names(&schema).iter().any(|secret| set.contains_key(*secret));
            let enough = secret && kind.build(&set, None).is_ok();
            if !enough && !self.configs.contains_key(kind.name) {
                continue;
            }
            let config = self.configs.entry(kind.name.to_owned()).or_default();
            for (setting, value) in set {
                config.settings.entry(setting).or_insert(value);
            }
        }
        self
    }

    /// Builds the configured remote services; each may have failed because of its settings.
    pub(crate) fn services(&self) -> Vec<(&'static str, BuildResult)> {
        let services = KINDS.iter().filter(|kind| !kind.built_in && kind.name != DOCKER);
        let built =
            |kind: &ProviderKind| Some((kind.name, kind.build(&self.configs.get(kind.name)?.settings, None)));
        services.filter_map(built).collect()
    }

    /// Returns Docker's settings, if it is configured.
    pub(crate) fn docker(&self) -> Option<DockerSettings> {
        self.configs.get(DOCKER).and_then(|config| read(&config.settings).ok())
    }
}
