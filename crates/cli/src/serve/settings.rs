//! Settings of the server, and the flags of `belljar serve` that override them.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use belljar_engine::network::NetworkCeiling;
use belljar_engine::sandbox::is_volume_name;
use belljar_server::{AdminKey, Settings as ServiceSettings};
use belljar_store::Durability;
use serde::{Deserialize, Serialize};
use tracing::level_filters::LevelFilter;

use super::{ServeArgs, TlsFiles};
use crate::env::Environment;
use crate::error::CliError;
use crate::settings::Settings;

const PORT: u16 = 7117;

/// `[server]` in `belljar.toml`.
#[derive(Debug, Clone)]
pub(crate) struct ServerSettings {
    pub(crate) listen: SocketAddr,
    pub(crate) metrics_listen: Option<SocketAddr>,
    pub(crate) data_dir: Option<PathBuf>,
    /// OpenTelemetry collector.
    pub(crate) otlp_endpoint: Option<String>,
    pub(crate) tls_cert: Option<PathBuf>,
    pub(crate) tls_key: Option<PathBuf>,
    /// File with the secrets key, if it is not the default one.
    pub(crate) secrets_key: Option<PathBuf>,
    pub(crate) host_folders: BTreeMap<String, HostFolderEntry>,
    pub(crate) durability: Durability,
    /// The widest network access that requests may ask for.
    pub(crate) network: Option<NetworkCeiling>,
    pub(crate) service: ServiceSettings,
}

/// A folder of this machine that sandboxes may mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HostFolderEntry {
    pub(crate) path: PathBuf,
    /// Whether sandboxes may write to it.
    #[serde(default)]
    pub(crate) writable: bool,
    /// Tenants that may mount it; all if empty.
    #[serde(default)]
    pub(crate) tenants: Vec<String>,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, PORT).into(),
            metrics_listen: None,
            data_dir: None,
            otlp_endpoint: None,
            tls_cert: None,
            tls_key: None,
            secrets_key: None,
            host_folders: BTreeMap::new(),
            durability: Durability::default(),
            network: None,
            service: ServiceSettings::default(),
        }
    }
}

/// Checks that origins are as browsers send them: lowercase, with nothing after host and port.
pub(crate) fn check_origins(settings: &Settings) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-:[]".contains(&byte);
    let is_origin = |text: &String| {
        let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        host.is_some_and(|host| !host.is_empty() && host.bytes().all(is_plain))
    };
    match settings.config.server.service.origins.iter().find(|text| !is_origin(text)) {
        Some(text) => Err(format!("'{}' is not an origin such as https://app.example", text.escape_debug())),
        None => Ok(()),
    }
}

/// Checks the names of host folders.
pub(crate) fn check_host_folders(settings: &Settings) -> Result<(), String> {
    match settings.config.server.host_folders.keys().find(|name| !is_volume_name(name)) {
        Some(name) => {
            Err(format!("'{}': names may contain only a-z, 0-9, '-', '_' and '.'", name.escape_debug()))
        }
        None => Ok(()),
    }
}

/// All settings of `belljar serve`.
#[derive(Debug)]
pub(crate) struct ServeSettings {
    pub(crate) server: ServerSettings,
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) data_dir: PathBuf,
    pub(crate) admin_key: Option<AdminKey>,
    /// The widest network access that requests may ask for.
    pub(crate) reach: NetworkCeiling,
    pub(crate) allow_degraded: bool,
    /// Whether the server stops when standard input closes.
    pub(crate) temporary: bool,
    pub(crate) level: LevelFilter,
}

impl ServeSettings {
    /// Lets the flags override the settings.
    pub(crate) fn merge(
        args: ServeArgs,
        environment: &Environment,
        mut server: ServerSettings,
    ) -> Result<Self, CliError> {
        server.listen = args.listen.unwrap_or(server.listen);
        if args.without_keys && !server.listen.ip().is_loopback() {
            return Err(CliError::invalid(format!(
                "--without-keys: {} is reachable from other machines; listen on 127.0.0.1, or omit \
                 --without-keys",
                server.listen
            )));
        }
        server.metrics_listen = args.metrics_listen.or(server.metrics_listen);
        server.service.without_keys = args.without_keys;
        // The variable is other programs' as well, so only a server refuses it.
        let collector = server.otlp_endpoint.as_deref().map(str::parse);
        server.service.collector = collector.transpose().map_err(|error: belljar_server::Error| {
            CliError::invalid(format!("OTEL_EXPORTER_OTLP_ENDPOINT or [server] {error}"))
        })?;
        let tls = TlsFiles::from_paths(
            args.tls_cert.or_else(|| server.tls_cert.clone()),
            args.tls_key.or_else(|| server.tls_key.clone()),
        )?;
        let key = environment.admin_key.as_ref().map(|key| key.reveal().parse());
        let failed = |error: belljar_server::Error| CliError::invalid(error.to_string());
        // A temporary server belongs to one user, who may reach the network anyway; others' code must not reach
        // what is near.
        let usual = if args.temporary { NetworkCeiling::Full } else { NetworkCeiling::Names };
        Ok(Self {
            tls,
            data_dir: args
                .data_dir
                .or_else(|| server.data_dir.clone())
                .ok_or_else(|| CliError::invalid("no home folder for data; set --data-dir DIR"))?,
            admin_key: key.transpose().map_err(failed)?,
            reach: server.network.unwrap_or(usual),
            allow_degraded: args.allow_degraded,
            temporary: args.temporary,
            level: environment.log.unwrap_or(LevelFilter::INFO),
            server,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Files;

    fn service(args: ServeArgs, variables: &[(&str, &str)]) -> Result<ServeSettings, CliError> {
        let get = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        let settings = Settings::load(None, Files::Ignored, get)?;
        ServeSettings::merge(args, &settings.environment, settings.config.server)
    }

    #[test]
    fn flags_override_environment_and_file() {
        let home = [("HOME", "/h")];
        let usual = service(ServeArgs::default(), &home).unwrap();
        assert_eq!(usual.server.listen.to_string(), "127.0.0.1:7117");
        assert_eq!(usual.data_dir, PathBuf::from("/h/.local/state/belljar"));
        let set = [("HOME", "/h"), ("BELLJAR_DATA_DIR", "/d")];
        assert_eq!(service(ServeArgs::default(), &set).unwrap().data_dir, PathBuf::from("/d"));
        let flag = ServeArgs { data_dir: Some("/f".into()), ..ServeArgs::default() };
        assert_eq!(service(flag, &set).unwrap().data_dir, PathBuf::from("/f"));
        assert!(service(ServeArgs::default(), &[]).unwrap_err().message.contains("--data-dir"));
    }

    #[test]
    fn insecure_settings_are_refused() {
        let home = ("HOME", "/h");
        let listen = |text: &str| Some(text.parse().unwrap());
        let open = ServeArgs { listen: listen("0.0.0.0:7117"), without_keys: true, ..ServeArgs::default() };
        assert!(service(open, &[home]).unwrap_err().message.contains("is reachable from other machines"));
        let local = ServeArgs { listen: listen("[::1]:7117"), without_keys: true, ..ServeArgs::default() };
        assert!(service(local, &[home]).is_ok());
        let short = [home, ("BELLJAR_ADMIN_KEY", "too short")];
        assert!(service(ServeArgs::default(), &short).unwrap_err().message.contains("32 bytes or more"));
        assert!(service(ServeArgs::default(), &[home, ("BELLJAR_LOG", "loud")]).is_err());
        let endpoint = |url| service(ServeArgs::default(), &[home, ("OTEL_EXPORTER_OTLP_ENDPOINT", url)]);
        assert!(endpoint("http://127.0.0.1:4318").unwrap().server.service.collector.is_some());
        assert!(endpoint("https://x").unwrap_err().message.starts_with("OTEL_EXPORTER_OTLP_ENDPOINT"));
    }
}
