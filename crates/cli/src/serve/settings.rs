//! Settings of the server: `[server]` in `belljar.toml`.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use belljar_engine::network::NetworkCeiling;
use belljar_engine::sandbox::{SandboxRules, is_volume_name};
use belljar_server::Settings as ServiceSettings;
use belljar_store::Durability;
use serde::{Deserialize, Serialize};

use crate::error::CliError;

const PORT: u16 = 7117;

/// The `[server]` table.
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
    /// Whether requests may ask for a writable root.
    pub(crate) writable_root: Option<bool>,
    /// What long-lived sandboxes may have beyond a run.
    pub(crate) sandboxes: SandboxRules,
    pub(crate) service: ServiceSettings,
    /// The first invalid setting. Only `belljar serve` and `belljar config show` fail because of it.
    pub(crate) invalid: Option<CliError>,
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
            writable_root: None,
            sandboxes: SandboxRules::default(),
            service: ServiceSettings::default(),
            invalid: None,
        }
    }
}

/// Checks that origins are as browsers send them: lowercase, with nothing after host and port.
pub(crate) fn check_origins(server: &ServerSettings) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-:[]".contains(&byte);
    let is_origin = |text: &String| {
        let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        host.is_some_and(|host| !host.is_empty() && host.bytes().all(is_plain))
    };
    match server.service.origins.iter().find(|text| !is_origin(text)) {
        Some(text) => Err(format!("'{}' is not an origin such as https://app.example", text.escape_debug())),
        None => Ok(()),
    }
}

/// Checks the names of host folders.
pub(crate) fn check_host_folders(server: &ServerSettings) -> Result<(), String> {
    match server.host_folders.keys().find(|name| !is_volume_name(name)) {
        Some(name) => {
            Err(format!("'{}': names may contain only a-z, 0-9, '-', '_' and '.'", name.escape_debug()))
        }
        None => Ok(()),
    }
}
