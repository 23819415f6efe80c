//! All environment variables that Belljar reads, read once at start.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use belljar_engine::catalog::ProviderSettings;
use belljar_engine::limits::LimitsSpec;
use belljar_engine::quantity::show_duration;

use crate::error::CliError;
use crate::provider_kinds::{KINDS, ProviderKind};

/// Path of the configuration file, like `--config`.
const CONFIG: &str = "BELLJAR_CONFIG";
/// Name of the profile, if `--profile` is absent.
const PROFILE: &str = "BELLJAR_PROFILE";
/// Time limit in seconds; overrides the profile, overridden by `--timeout`.
const TIMEOUT: &str = "CODE_EXECUTION_TIMEOUT";
/// Memory limit in mebibytes; overrides the profile, overridden by `--memory`.
const MEMORY_MB: &str = "CODE_EXECUTION_MEMORY_MB";
/// CPU limit in cores; overrides the profile, overridden by `--cpus`.
const CPU_CORES: &str = "CODE_EXECUTION_CPU_CORES";
/// Data folder of a server, like `--data-dir`.
const DATA_DIR: &str = "BELLJAR_DATA_DIR";
/// TLS certificate of a server, like `--tls-cert`.
const TLS_CERT: &str = "BELLJAR_TLS_CERT";
/// TLS private key of a server, like `--tls-key`.
const TLS_KEY: &str = "BELLJAR_TLS_KEY";
/// OpenTelemetry collector that a server sends traces to.
const OTLP_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// PEM file of certificate authorities that client commands trust in addition to the system's.
const CA_CERT: &str = "BELLJAR_CA_CERT";
/// Key with all scopes in tenant `default`, for automation; at least 32 bytes.
const ADMIN_KEY: &str = "BELLJAR_ADMIN_KEY";
/// Key that encrypts providers' secrets in a server's database, 64 hexadecimal digits; overrides
/// `server.secrets_key`.
const SECRETS_KEY: &str = "BELLJAR_SECRETS_KEY";
/// API key that client commands send to a server.
const API_KEY: &str = "BELLJAR_API_KEY";
/// Server that client commands call, like `--server`.
const SERVER: &str = "BELLJAR_SERVER";
/// Log level of a server: off, error, warn, info, debug.
const LOG: &str = "BELLJAR_LOG";
/// Folder of the layer store; overrides `dependencies.folder`.
const CACHE_DIR: &str = "DEPENDENCY_CACHE_DIR";
/// Hours that a package resolution stays valid; overrides `dependencies.ttl`.
const CACHE_TTL_HOURS: &str = "DEPENDENCY_CACHE_TTL_HOURS";
/// Folder with Docker's configuration, where `docker login` stores credentials.
const DOCKER_CONFIG: &str = "DOCKER_CONFIG";
/// User name for an image registry, like `--username`.
const REGISTRY_USER: &str = "BELLJAR_REGISTRY_USER";
/// Password for an image registry, like `--password-stdin`.
const REGISTRY_PASSWORD: &str = "BELLJAR_REGISTRY_PASSWORD";
/// Variables of provider E2B and their settings; overridden by `providers.e2b`.
pub(crate) const E2B_VARIABLES: &[(&str, &str)] = &[("E2B_API_KEY", "api_key")];
/// Variables of provider Aliyun AgentRun and their settings; overridden by `providers.agentrun`.
pub(crate) const AGENTRUN_VARIABLES: &[(&str, &str)] = &[
    ("AGENTRUN_ACCESS_KEY_ID", "access_key_id"),
    ("AGENTRUN_ACCESS_KEY_SECRET", "access_key_secret"),
    ("AGENTRUN_SECURITY_TOKEN", "security_token"),
    ("AGENTRUN_ACCOUNT_ID", "account_id"),
    ("AGENTRUN_REGION", "region"),
    ("AGENTRUN_TEMPLATE", "template"),
    ("AGENTRUN_DATA_ENDPOINT", "data_url"),
];
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
    pub(crate) layers_folder: Option<PathBuf>,
    pub(crate) resolution_ttl: Option<Duration>,
    pub(crate) docker_config: Option<PathBuf>,
    pub(crate) registry_user: Option<String>,
    pub(crate) registry_password: Option<SecretValue>,
    pub(crate) data_dir: Option<PathBuf>,
    pub(crate) tls_cert: Option<PathBuf>,
    pub(crate) tls_key: Option<PathBuf>,
    pub(crate) otlp_endpoint: Option<String>,
    pub(crate) ca_cert: Option<PathBuf>,
    pub(crate) admin_key: Option<SecretValue>,
    pub(crate) secrets_key: Option<SecretValue>,
    /// Values of the providers' variables, by variable name.
    pub(crate) providers: BTreeMap<&'static str, SecretValue>,
    pub(crate) api_key: Option<SecretValue>,
    pub(crate) server: Option<String>,
    pub(crate) log: Option<String>,
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

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden(…)")
    }
}

impl Environment {
    /// Reads the variables through `get`; an empty variable counts as absent.
    pub(crate) fn read(get: impl Fn(&str) -> Option<OsString>) -> Result<Self, CliError> {
        let given = |name: &str| get(name).filter(|value| !value.is_empty());
        let text = |name: &str| given(name).map(|value| value.to_string_lossy().into_owned());
        let number = |name: &str, factor: f64| match given(name) {
            None => Ok(None),
            Some(text) => positive(name, &text).map(|value| Some(value * factor)),
        };
        // The XDG specification says to ignore relative paths; a relative home is ignored as well.
        let absolute = |name: &str| given(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let limits = LimitsSpec {
            timeout_ms: number(TIMEOUT, 1_000.0)?.map(|ms| ms.round() as i64),
            memory_bytes: number(MEMORY_MB, f64::from(1 << 20))?.map(|bytes| bytes.round() as i64),
            cpus: number(CPU_CORES, 1.0)?,
            ..LimitsSpec::default()
        };
        Ok(Self {
            config: given(CONFIG).map(PathBuf::from),
            config_home: absolute(XDG_CONFIG_HOME)
                .or_else(|| absolute(HOME).map(|home| home.join(".config"))),
            home: absolute(HOME),
            state_home: absolute(XDG_STATE_HOME)
                .or_else(|| absolute(HOME).map(|home| home.join(".local").join("state"))),
            cache_home: absolute(XDG_CACHE_HOME).or_else(|| absolute(HOME).map(|home| home.join(".cache"))),
            layers_folder: given(CACHE_DIR).map(PathBuf::from),
            resolution_ttl: number(CACHE_TTL_HOURS, 3_600.0)?.map(duration).transpose()?,
            docker_config: given(DOCKER_CONFIG)
                .map(PathBuf::from)
                .or_else(|| absolute(HOME).map(|home| home.join(".docker"))),
            registry_user: text(REGISTRY_USER),
            registry_password: text(REGISTRY_PASSWORD).map(SecretValue),
            data_dir: given(DATA_DIR).map(PathBuf::from),
            tls_cert: given(TLS_CERT).map(PathBuf::from),
            tls_key: given(TLS_KEY).map(PathBuf::from),
            otlp_endpoint: text(OTLP_ENDPOINT),
            ca_cert: given(CA_CERT).map(PathBuf::from),
            admin_key: text(ADMIN_KEY).map(SecretValue),
            secrets_key: text(SECRETS_KEY).map(SecretValue),
            providers: provider_variables()
                .filter_map(|name| Some((name, SecretValue(text(name)?))))
                .collect(),
            api_key: text(API_KEY).map(SecretValue),
            server: text(SERVER),
            log: text(LOG),
            profile: text(PROFILE),
            limits,
        })
    }

    /// Returns the settings that the environment has for a provider.
    pub(crate) fn provider_settings(&self, kind: &ProviderKind) -> ProviderSettings {
        let said = kind.environment.iter().filter_map(|(variable, setting)| {
            Some(((*setting).to_owned(), self.providers.get(variable)?.reveal().into()))
        });
        said.collect()
    }

    /// Returns what is set, as setting, variable and value; secrets are shown as `(set)`.
    pub(crate) fn set_variables(&self) -> Vec<(String, &'static str, String)> {
        let hidden = |secret: &Option<SecretValue>| secret.as_ref().map(|_| "(set)".to_owned());
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let all = [
            ("config", CONFIG, path(&self.config)),
            ("profile", PROFILE, self.profile.clone()),
            ("limits.timeout_ms", TIMEOUT, self.limits.timeout_ms.map(|value| value.to_string())),
            ("limits.memory_bytes", MEMORY_MB, self.limits.memory_bytes.map(|value| value.to_string())),
            ("limits.cpus", CPU_CORES, self.limits.cpus.map(|value| value.to_string())),
            ("dependencies.folder", CACHE_DIR, path(&self.layers_folder)),
            ("dependencies.ttl", CACHE_TTL_HOURS, self.resolution_ttl.map(show_duration)),
            ("registry_user", REGISTRY_USER, self.registry_user.clone()),
            ("registry_password", REGISTRY_PASSWORD, hidden(&self.registry_password)),
            ("server.data_dir", DATA_DIR, path(&self.data_dir)),
            ("server.tls_cert", TLS_CERT, path(&self.tls_cert)),
            ("server.tls_key", TLS_KEY, path(&self.tls_key)),
            ("server.otlp_endpoint", OTLP_ENDPOINT, self.otlp_endpoint.clone()),
            ("ca_cert", CA_CERT, path(&self.ca_cert)),
            ("admin_key", ADMIN_KEY, hidden(&self.admin_key)),
            ("secrets_key", SECRETS_KEY, hidden(&self.secrets_key)),
            ("api_key", API_KEY, hidden(&self.api_key)),
            ("server", SERVER, self.server.clone()),
            ("log", LOG, self.log.clone()),
        ];
        let all =
            all.into_iter().filter_map(|(name, variable, value)| Some((name.to_owned(), variable, value?)));
        let providers = KINDS.iter().flat_map(|kind| {
            let variables =
                kind.environment.iter().filter(|(variable, _)| self.providers.contains_key(variable));
            variables.map(|(variable, setting)| {
                (format!("providers.{}.{setting}", kind.name), *variable, "(set)".to_owned())
            })
        });
        all.chain(providers).collect()
    }
}

/// Returns the variables of all providers, as listed in `KINDS`.
fn provider_variables() -> impl Iterator<Item = &'static str> {
    KINDS.iter().flat_map(|kind| kind.environment).map(|(variable, _)| *variable)
}

fn duration(seconds: f64) -> Result<Duration, CliError> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| CliError::invalid(format!("{CACHE_TTL_HOURS}: too long; correct or unset it")))
}

fn positive(name: &str, text: &OsString) -> Result<f64, CliError> {
    let value = text.to_str().and_then(|text| text.trim().parse::<f64>().ok());
    value.filter(|value| value.is_finite() && *value > 0.0).ok_or_else(|| {
        let text = text.to_string_lossy();
        CliError::invalid(format!(
            "{name}: '{}' is not a number above zero; correct or unset it",
            text.escape_debug()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Environment, CliError> {
        Environment::read(|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
        })
    }

    #[test]
    fn aliases_become_limits() {
        let variables =
            [(TIMEOUT, "2.5"), (MEMORY_MB, "256"), (CPU_CORES, "0.5"), (PROFILE, "data"), (CONFIG, "")];
        let environment = read(&variables).unwrap();
        assert_eq!(environment.limits.timeout_ms, Some(2_500));
        assert_eq!(environment.limits.memory_bytes, Some(256 << 20));
        assert_eq!(environment.limits.cpus, Some(0.5));
        assert_eq!(environment.profile.as_deref(), Some("data"));
        assert_eq!(environment.config, None);
    }

    #[test]
    fn aliases_set_the_layer_folder_and_ttl() {
        let environment = read(&[(CACHE_DIR, "/x"), (CACHE_TTL_HOURS, "1.5"), (HOME, "/h")]).unwrap();
        assert_eq!(environment.layers_folder, Some("/x".into()));
        assert_eq!(environment.resolution_ttl, Some(Duration::from_secs(5_400)));
        assert_eq!(environment.cache_home, Some("/h/.cache".into()));
        assert!(read(&[(CACHE_TTL_HOURS, "1e300")]).unwrap_err().message.starts_with(CACHE_TTL_HOURS));
    }

    #[test]
    fn invalid_numbers_are_refused_by_name() {
        for bad in ["0", "-1", "soon", "inf", "NaN"] {
            assert!(read(&[(TIMEOUT, bad)]).unwrap_err().message.starts_with(TIMEOUT), "{bad}");
        }
    }

    #[test]
    fn the_config_folder_follows_xdg() {
        let at = |variables: &[(&str, &str)]| read(variables).unwrap().config_home;
        assert_eq!(at(&[(XDG_CONFIG_HOME, "/x"), (HOME, "/h")]), Some("/x".into()));
        assert_eq!(at(&[(XDG_CONFIG_HOME, "x"), (HOME, "/h")]), Some("/h/.config".into()));
        assert_eq!(at(&[]), None);
    }
}
