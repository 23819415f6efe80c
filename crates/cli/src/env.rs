//! The environment: folders of the user, and settings that only variables set. The variables of all settings
//! are in the [table](crate::settings); the others that Belljar reads are named here.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use belljar_engine::limits::LimitsSpec;
use tracing::level_filters::LevelFilter;

/// Folder with Docker's configuration, where `docker login` stores credentials.
const DOCKER_CONFIG: &str = "DOCKER_CONFIG";
/// Base folder of the user's caches.
const XDG_CACHE_HOME: &str = "XDG_CACHE_HOME";
/// Base folder of the user's state.
const XDG_STATE_HOME: &str = "XDG_STATE_HOME";
/// Base folder of the user's configuration.
const XDG_CONFIG_HOME: &str = "XDG_CONFIG_HOME";
/// Folder of `.cache`, `.config` and `.local/state`, used when the variables above are absent.
const HOME: &str = "HOME";
/// Set by some container runtimes; `doctor` reads it.
pub(crate) const CONTAINER: &str = "container";
/// Type of the user's terminal, passed on to programs in a sandbox's terminal.
pub(crate) const TERM: &str = "TERM";
/// Search path of programs, where package installers are found.
pub(crate) const PATH: &str = "PATH";

/// The values of the environment variables.
#[derive(Debug, Default)]
pub(crate) struct Environment {
    pub(crate) config: Option<PathBuf>,
    /// The user's configuration folder.
    pub(crate) config_home: Option<PathBuf>,
    /// The user's home folder.
    pub(crate) home: Option<PathBuf>,
    /// The user's state folder.
    pub(crate) state_home: Option<PathBuf>,
    /// The user's cache folder.
    pub(crate) cache_home: Option<PathBuf>,
    pub(crate) docker_config: Option<PathBuf>,
    pub(crate) registry_user: Option<String>,
    pub(crate) registry_password: Option<SecretValue>,
    pub(crate) ca_cert: Option<PathBuf>,
    pub(crate) admin_key: Option<SecretValue>,
    pub(crate) secrets_key: Option<SecretValue>,
    /// Values of the providers' own variables, by variable name.
    pub(crate) providers: BTreeMap<&'static str, SecretValue>,
    pub(crate) api_key: Option<SecretValue>,
    pub(crate) server: Option<String>,
    pub(crate) log: Option<LevelFilter>,
    pub(crate) profile: Option<String>,
    pub(crate) limits: LimitsSpec,
}

/// A secret that cannot be printed by accident.
#[derive(Clone, Default)]
pub(crate) struct SecretValue(String);

impl SecretValue {
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for SecretValue {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden(…)")
    }
}

impl Environment {
    /// Reads the variables that are not settings through `get`, which returns none that is empty.
    pub(crate) fn read(
        get: impl Fn(&str) -> Option<OsString>,
        provider_variables: impl Iterator<Item = &'static str>,
    ) -> Self {
        // The XDG specification says to ignore relative paths; a relative home is ignored as well.
        let absolute = |name: &str| get(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = absolute(HOME);
        let below_home = |name: &str| home.as_ref().map(|home| home.join(name));
        let text = |name: &str| get(name).map(|value| SecretValue(value.to_string_lossy().into_owned()));
        Self {
            config_home: absolute(XDG_CONFIG_HOME).or_else(|| below_home(".config")),
            state_home: absolute(XDG_STATE_HOME).or_else(|| below_home(".local/state")),
            cache_home: absolute(XDG_CACHE_HOME).or_else(|| below_home(".cache")),
            docker_config: get(DOCKER_CONFIG).map(PathBuf::from).or_else(|| below_home(".docker")),
            home,
            providers: provider_variables.filter_map(|name| Some((name, text(name)?))).collect(),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_config_folder_follows_xdg() {
        let at = |variables: &[(&str, &str)]| {
            let get =
                |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
            Environment::read(get, std::iter::empty()).config_home
        };
        assert_eq!(at(&[(XDG_CONFIG_HOME, "/x"), (HOME, "/h")]), Some("/x".into()));
        assert_eq!(at(&[(XDG_CONFIG_HOME, "x"), (HOME, "/h")]), Some("/h/.config".into()));
        assert_eq!(at(&[]), None);
    }
}
