//! Settings: one table of rows drives reading, `belljar config show`, the check of a local `belljar.toml`, and
//! `docs/settings.md`.
//!
//! A flag overrides an environment variable, which overrides the file, which overrides the default. Flags are
//! merged where they are used; everything else is merged here.

mod file;
mod kind;
#[cfg(test)]
mod page;
mod setting;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use belljar_engine::catalog::closest_name;
use belljar_server::InitialProviderConfig;
use serde::Serialize;

use crate::config::Config;
use crate::env::Environment;
use crate::error::{CliError, quote_path};
use crate::provider_kinds;
use kind::Raw;
use setting::Setting;

/// Start of the names of all settings' own variables.
const PREFIX: &str = "BELLJAR_";
/// Shown instead of a secret.
const HIDDEN: &str = "(set)";

/// All settings, with where each one comes from.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) environment: Environment,
    pub(crate) config: Config,
    /// Origins of the settings that are not at their default, by name.
    origins: BTreeMap<&'static str, Origin>,
    /// Entries of profiles and policies, as written in files.
    entries: Vec<ShownSetting>,
}

/// Where a value comes from.
#[derive(Debug, Clone)]
enum Origin {
    Flag(&'static str),
    Variable(&'static str),
    File(PathBuf),
}

/// A value and its origin.
struct Given {
    raw: Raw,
    origin: Origin,
}

/// A setting with its value and origin, as `belljar config show` prints it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ShownSetting {
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) origin: String,
}

/// Which configuration files are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Files {
    /// A file that is named must exist.
    Required,
    /// A file that is named may be missing; it is about to be written.
    Optional,
    /// None, so that an invalid file cannot fail the start-up of a shell.
    Ignored,
}

impl Origin {
    /// Shows it as the start of an error message.
    fn quoted(&self) -> String {
        match self {
            Self::Flag(name) | Self::Variable(name) => (*name).to_owned(),
            Self::File(path) => quote_path(path),
        }
    }

    /// Shows it for a setting.
    fn shown(&self, name: &str) -> String {
        match self {
            Self::Flag(name) | Self::Variable(name) => (*name).to_owned(),
            Self::File(path) => format!("{}:{name}", path.display()),
        }
    }
}

impl Settings {
    /// Reads the settings from the flag `--config`, the environment and the files.
    pub(crate) fn load(
        config: Option<&Path>,
        files: Files,
        get: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, CliError> {
        // An empty variable counts as absent.
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let mut settings =
            Self::new(Environment::read(get, provider_kinds::variables()), Config::without_files());
        let mut given = given_in_environment(get)?;
        if let Some(path) = config {
            given.insert("config", Given { raw: Raw::Text(path.into()), origin: Origin::Flag("--config") });
        }
        if let Some(config) = given.remove("config") {
            settings.apply("config", config)?;
        }
        settings.read_files(files, &mut given)?;
        settings.apply_all(given)
    }

    /// Returns the defaults. Folders are below the user's own.
    fn new(environment: Environment, mut config: Config) -> Self {
        let below = |folder: &Option<PathBuf>, name: &str| folder.as_ref().map(|folder| folder.join(name));
        config.layers.folder = below(&environment.cache_home, "belljar/layers");
        config.images.folder = below(&environment.cache_home, "belljar/images");
        config.builds.folder = below(&environment.cache_home, "belljar/builds");
        config.server.data_dir = below(&environment.state_home, "belljar");
        Self { environment, config, origins: BTreeMap::new(), entries: Vec::new() }
    }

    /// Applies the values in the order of the table.
    fn apply_all(mut self, mut given: BTreeMap<&'static str, Given>) -> Result<Self, CliError> {
        for row in table::rows() {
            if let Some(given) = given.remove(&*row.name) {
                self.apply(&row.name, given)?;
            }
        }
        self.finish()
    }

    fn apply(&mut self, name: &str, given: Given) -> Result<(), CliError> {
        let Some(row) = table::rows().find(|row| row.name == name) else { return Ok(()) };
        if let Err(why) = row.read(self, &given.raw) {
            let refused = row.refused(&given.origin, &why);
            if !row.server_only {
                return Err(refused);
            }
            self.config.server.invalid.get_or_insert(refused);
        }
        self.origins.insert(&row.name, given.origin);
        Ok(())
    }

    /// Derives what depends on several settings, and checks what only fits together.
    fn finish(mut self) -> Result<Self, CliError> {
        let service = &mut self.config.server.service;
        service.bodies_total = service.bodies_total.max(2 * service.max_body);
        let bounds = &mut self.config.layers.bounds;
        bounds.layer_bytes = bounds.layer_bytes.min(bounds.bytes);
        for part in ["dependencies.shared_cache_read_only", "dependencies.shared_cache_wait"] {
            if let Some(origin) =
                self.origins.get(part).filter(|_| self.config.layers.cache_address.is_none())
            {
                let origin = origin.quoted();
                return Err(CliError::invalid(format!(
                    "{origin}: {part}: needs dependencies.shared_cache, for example file:///srv/layers"
                )));
            }
        }
        Ok(self)
    }

    fn provider(&mut self, name: &str) -> &mut InitialProviderConfig {
        self.config.providers.configs.entry(name.to_owned()).or_default()
    }

    /// Returns every setting with its value and origin.
    ///
    /// # Errors
    /// Returns the error of an invalid setting of the server.
    pub(crate) fn show(&self) -> Result<Vec<ShownSetting>, CliError> {
        if let Some(invalid) = &self.config.server.invalid {
            return Err(invalid.clone());
        }
        let rows = table::rows().filter(|row| !row.is_section()).map(|row| {
            let name = row.name.to_string();
            if let Some(origin) = self.origins.get(&*name) {
                return ShownSetting { value: row.show(self), origin: origin.shown(&name), name };
            }
            match row
                .fallback
                .and_then(|variable| Some((variable, self.environment.providers.get(variable)?)))
            {
                Some((variable, value)) => {
                    let value = if row.secret { HIDDEN } else { value.reveal() };
                    ShownSetting { value: value.to_owned(), origin: variable.to_owned(), name }
                }
                None => ShownSetting { value: row.show(self), origin: "default".to_owned(), name },
            }
        });
        Ok(rows.chain(self.entries.iter().cloned()).collect())
    }
}

impl Setting {
    /// Returns the error for a value that is refused.
    fn refused(&self, origin: &Origin, why: &str) -> CliError {
        CliError::invalid(format!("{}: {}: {why}", origin.quoted(), self.name))
    }
}

/// Describes a misspelled variable: an unknown `BELLJAR_*` that is close to a setting's, or lacks the setting's
/// section. Others may be meant for another program, such as `BELLJAR_SERVICE_HOST` from Kubernetes.
pub(crate) fn misspelled_variable(name: &str) -> Option<String> {
    let short = name.strip_prefix(PREFIX)?;
    let known: Vec<_> = table::variables().filter_map(|name| name.strip_prefix(PREFIX)).collect();
    if known.contains(&short) {
        return None;
    }
    let ending = format!("_{short}");
    let in_section = || known.iter().copied().find(|known| known.ends_with(&ending));
    let meant = closest_name(short, &known).or_else(in_section)?;
    Some(format!("unknown variable {name}; did you mean {PREFIX}{meant}?"))
}

/// Returns the settings that variables set.
fn given_in_environment(
    get: impl Fn(&str) -> Option<OsString> + Copy,
) -> Result<BTreeMap<&'static str, Given>, CliError> {
    let mut given = BTreeMap::new();
    for row in table::rows() {
        if let Some((variable, raw)) = row.variable_in(get) {
            let origin = Origin::Variable(variable);
            let raw = raw.map_err(|why| row.refused(&origin, &why))?;
            given.insert(&*row.name, Given { raw, origin });
        }
    }
    Ok(given)
}
