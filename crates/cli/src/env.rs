//! Every environment variable that Belljar reads, read once.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use belljar_engine::catalog::Settings;
use belljar_engine::limits::LimitsSpec;
use belljar_engine::quantity::show_duration;

use crate::failure::Failure;
use crate::fleet::{KINDS, Kind};

/// Path of the configuration, as `--config`.
const CONFIG: &str = "BELLJAR_CONFIG";
/// Name of the profile where `--profile` is absent.
const PROFILE: &str = "BELLJAR_PROFILE";
/// Seconds; below `--timeout`, above the profile.
const TIMEOUT: &str = "CODE_EXECUTION_TIMEOUT";
/// Mebibytes; below `--memory`, above the profile.
const MEMORY_MB: &str = "CODE_EXECUTION_MEMORY_MB";
/// Cores; below `--cpus`, above the profile.
const CPU_CORES: &str = "CODE_EXECUTION_CPU_CORES";
/// Where a server keeps its state, as `--data-dir`.
const DATA_DIR: &str = "BELLJAR_DATA_DIR";
/// Certificate of a server, as `--tls-cert`.
const TLS_CERT: &str = "BELLJAR_TLS_CERT";
/// Its key, as `--tls-key`.
const TLS_KEY: &str = "BELLJAR_TLS_KEY";
/// The OpenTelemetry collector to which a server sends traces.
const OTLP_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// Certificates of authorities that commands trust beside the system's when they call a server, a PEM file.
const CA_CERT: &str = "BELLJAR_CA_CERT";
/// A key with all scopes in tenant `default`, for automation; 32 bytes or more.
const ADMIN_KEY: &str = "BELLJAR_ADMIN_KEY";
/// The key that seals secrets of providers in a server's database, 64 hexadecimal digits; above `server.secrets_key`.
const SECRETS_KEY: &str = "BELLJAR_SECRETS_KEY";
/// The key with which commands call a server.
const API_KEY: &str = "BELLJAR_API_KEY";
/// The server that commands call, as `--server`.
const SERVER: &str = "BELLJAR_SERVER";
/// What a server logs: off, error, warn, info, debug.
const LOG: &str = "BELLJAR_LOG";
/// Where layers of packages are kept, above `dependencies.folder`.
const CACHE_DIR: &str = "DEPENDENCY_CACHE_DIR";
/// Hours for which it holds which exact packages a requirement comes to, above `dependencies.ttl`.
const CACHE_TTL_HOURS: &str = "DEPENDENCY_CACHE_TTL_HOURS";
/// Where Docker keeps what `docker login` was told.
const DOCKER_CONFIG: &str = "DOCKER_CONFIG";
/// Name to log in with at an image's registry, as `--username`.
const REGISTRY_USER: &str = "BELLJAR_REGISTRY_USER";
/// Its password, as `--password-stdin`.
const REGISTRY_PASSWORD: &str = "BELLJAR_REGISTRY_PASSWORD";
/// What says something about E2B, below `providers.e2b`.
pub(crate) const E2B: &[(&str, &str)] = &[("E2B_API_KEY", "api_key")];
/// Who we are at Aliyun AgentRun, and where: below `providers.agentrun`.
pub(crate) const AGENTRUN: &[(&str, &str)] = &[
    ("AGENTRUN_ACCESS_KEY_ID", "access_key_id"),
    ("AGENTRUN_ACCESS_KEY_SECRET", "access_key_secret"),
    ("AGENTRUN_SECURITY_TOKEN", "security_token"),
    ("AGENTRUN_ACCOUNT_ID", "account_id"),
    ("AGENTRUN_REGION", "region"),
    ("AGENTRUN_TEMPLATE", "template"),
    ("AGENTRUN_DATA_ENDPOINT", "data_url"),
];
/// Where a person's cache folders are.
const XDG_CACHE_HOME: &str = "XDG_CACHE_HOME";
/// Where a person's state folders are.
const XDG_STATE_HOME: &str = "XDG_STATE_HOME";
/// Where a person's configuration folders are.
const XDG_CONFIG_HOME: &str = "XDG_CONFIG_HOME";
/// Where `.cache`, `.config` and `.local/state` are when the ones above are absent.
const HOME: &str = "HOME";
/// Set by some container runtimes; `doctor` reads it.
pub(crate) const CONTAINER: &str = "container";
/// What kind of terminal somebody has; programs in a sandbox's terminal are told.
pub(crate) const TERM: &str = "TERM";
/// Where programs are; `bench` looks for other tools there.
pub(crate) const PATH: &str = "PATH";

/// What the environment says.
#[derive(Debug, Default)]
pub(crate) struct Environment {
    pub(crate) config: Option<PathBuf>,
    /// The person's own configuration folder.
    pub(crate) config_home: Option<PathBuf>,
    /// The person's own folder.
    pub(crate) home: Option<PathBuf>,
    /// The person's own state folder.
    pub(crate) state_home: Option<PathBuf>,
    /// The person's own cache folder.
    pub(crate) cache_home: Option<PathBuf>,
    pub(crate) layers_folder: Option<PathBuf>,
    pub(crate) resolution_ttl: Option<Duration>,
    pub(crate) docker_config: Option<PathBuf>,
    pub(crate) registry_user: Option<String>,
    pub(crate) registry_password: Option<Hidden>,
    pub(crate) data_dir: Option<PathBuf>,
    pub(crate) tls_cert: Option<PathBuf>,
    pub(crate) tls_key: Option<PathBuf>,
    pub(crate) otlp_endpoint: Option<String>,
    pub(crate) ca_cert: Option<PathBuf>,
    pub(crate) admin_key: Option<Hidden>,
    pub(crate) secrets_key: Option<Hidden>,
    /// What variables say about providers, by their names.
    pub(crate) providers: BTreeMap<&'static str, Hidden>,
    pub(crate) api_key: Option<Hidden>,
    pub(crate) server: Option<String>,
    pub(crate) log: Option<String>,
    pub(crate) profile: Option<String>,
    pub(crate) limits: LimitsSpec,
}

/// A secret that cannot be printed by accident.
#[derive(Clone, Default)]
pub(crate) struct Hidden(String);

impl Hidden {
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden(…)")
    }
}

impl Environment {
    /// Reads the variables through `get`; an empty one counts as absent.
    pub(crate) fn read(get: impl Fn(&str) -> Option<OsString>) -> Result<Self, Failure> {
        let given = |name: &str| get(name).filter(|value| !value.is_empty());
        let text = |name: &str| given(name).map(|value| value.to_string_lossy().into_owned());
        let number = |name: &str, factor: f64| match given(name) {
            None => Ok(None),
            Some(text) => positive(name, &text).map(|value| Some(value * factor)),
        };
        // Relative XDG paths are to be ignored, says their specification; so is a relative home.
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
            registry_password: text(REGISTRY_PASSWORD).map(Hidden),
            data_dir: given(DATA_DIR).map(PathBuf::from),
            tls_cert: given(TLS_CERT).map(PathBuf::from),
            tls_key: given(TLS_KEY).map(PathBuf::from),
            otlp_endpoint: text(OTLP_ENDPOINT),
            ca_cert: given(CA_CERT).map(PathBuf::from),
            admin_key: text(ADMIN_KEY).map(Hidden),
            secrets_key: text(SECRETS_KEY).map(Hidden),
            providers: about_providers().filter_map(|name| Some((name, Hidden(text(name)?)))).collect(),
            api_key: text(API_KEY).map(Hidden),
            server: text(SERVER),
            log: text(LOG),
            profile: text(PROFILE),
            limits,
        })
    }

    /// What it says about a provider.
    pub(crate) fn about(&self, kind: &Kind) -> Settings {
        let said = kind.environment.iter().filter_map(|(variable, setting)| {
            Some(((*setting).to_owned(), self.providers.get(variable)?.reveal().into()))
        });
        said.collect()
    }

    /// What it sets, as the setting, the variable and the value; of a secret only that it is set.
    pub(crate) fn set(&self) -> Vec<(String, &'static str, String)> {
        let hidden = |secret: &Option<Hidden>| secret.as_ref().map(|_| "(set)".to_owned());
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

/// Variables that say something about providers; the table of those lists them.
fn about_providers() -> impl Iterator<Item = &'static str> {
    KINDS.iter().flat_map(|kind| kind.environment).map(|(variable, _)| *variable)
}

fn duration(seconds: f64) -> Result<Duration, Failure> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| Failure::invalid(format!("{CACHE_TTL_HOURS}: is too long; correct or unset it")))
}

fn positive(name: &str, text: &OsString) -> Result<f64, Failure> {
    let value = text.to_str().and_then(|text| text.trim().parse::<f64>().ok());
    value.filter(|value| value.is_finite() && *value > 0.0).ok_or_else(|| {
        let text = text.to_string_lossy();
        Failure::invalid(format!(
            "{name}: '{}' is not a number above zero; correct or unset it",
            text.escape_debug()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Environment, Failure> {
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
    fn aliases_say_where_layers_are_and_how_long_answers_hold() {
        let environment = read(&[(CACHE_DIR, "/x"), (CACHE_TTL_HOURS, "1.5"), (HOME, "/h")]).unwrap();
        assert_eq!(environment.layers_folder, Some("/x".into()));
        assert_eq!(environment.resolution_ttl, Some(Duration::from_secs(5_400)));
        assert_eq!(environment.cache_home, Some("/h/.cache".into()));
        assert!(read(&[(CACHE_TTL_HOURS, "1e300")]).unwrap_err().message.starts_with(CACHE_TTL_HOURS));
    }

    #[test]
    fn nonsense_is_refused_by_name() {
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
