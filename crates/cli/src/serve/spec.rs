//! `[server]` in `belljar.toml`, as written in the file.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use belljar_engine::network::NetworkCeiling;
use belljar_engine::quantity::{parse_bytes, parse_millis, show_bytes};
use belljar_engine::sandbox::is_volume_name;
use belljar_server::Settings;
use belljar_store::Durability;
use serde::Deserialize;

use crate::error::CliError;

/// Minimum memory of all sandboxes; with less, not even warm interpreters fit.
const MIN_SANDBOX_MEMORY_BYTES: u64 = 64 << 20;

/// The `[server]` table. Absent settings have defaults.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ServerSpec {
    pub(super) listen: Option<SocketAddr>,
    pub(super) data_dir: Option<PathBuf>,
    /// Address for metrics and health only, without a key.
    pub(super) metrics_listen: Option<SocketAddr>,
    /// OpenTelemetry collector, such as `http://127.0.0.1:4318`.
    pub(super) otlp_endpoint: Option<String>,
    /// TLS certificate, a PEM file; `tls_key` is its private key.
    pub(super) tls_cert: Option<PathBuf>,
    pub(super) tls_key: Option<PathBuf>,
    /// File with the key that encrypts providers' secrets; `secrets.key` in the data folder if absent.
    pub(super) secrets_key: Option<PathBuf>,
    /// Maximum number of concurrent executions.
    concurrency: Option<usize>,
    /// Maximum number of queued executions per tenant.
    queue: Option<usize>,
    /// Maximum number of sandboxes.
    sandboxes: Option<usize>,
    /// How long a sandbox may be idle, such as `1h`.
    sandbox_idle: Option<String>,
    /// Interval of the check for expired sandboxes.
    sandbox_sweep: Option<String>,
    /// Maximum lifetime of a sandbox.
    sandbox_life: Option<String>,
    /// Memory limit of all sandboxes together, such as `8G`; nine tenths of the machine's memory if absent.
    sandbox_memory: Option<String>,
    /// How long a terminal's client may be silent, not even answering pings.
    terminal_silence: Option<String>,
    /// Maximum size of a request body, such as `32M`.
    max_body: Option<String>,
    /// Maximum number of connections.
    connections: Option<usize>,
    /// Maximum number of event streams, WebSockets and batches at one time.
    streams: Option<usize>,
    /// Maximum number of event streams, WebSockets and batches of one tenant.
    tenant_streams: Option<usize>,
    /// How long a client may stall while sending or receiving a body, such as `30s`.
    body_timeout: Option<String>,
    /// How long running work may continue after the request to stop, such as `30s`.
    drain: Option<String>,
    /// How long results are kept, such as `168h`.
    keep: Option<String>,
    /// Maximum size of kept results, such as `1G`.
    keep_bytes: Option<String>,
    /// Maximum size of the volumes and snapshots of a tenant without a quota, such as `10G`.
    tenant_disk: Option<String>,
    /// Origins of web pages that may call the server, such as `https://app.example`.
    origins: Vec<String>,
    /// Folders of this machine that sandboxes may mount, by the name used in requests.
    pub(super) host_folders: BTreeMap<String, HostFolderEntry>,
    /// Widest network access that requests may ask for: `none`, `names`, `hosts` or `full`.
    pub(super) network: Option<NetworkCeiling>,
    /// Failure that a committed result survives: a crash of the `process`, or also a loss of `power`.
    durability: Option<DurabilitySpec>,
}

/// A folder of this machine that sandboxes may mount.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum DurabilitySpec {
    Process,
    Power,
}

impl ServerSpec {
    /// Validates the settings and fills in defaults.
    pub(super) fn settings(&self) -> Result<Settings, CliError> {
        let mut settings = Settings::default();
        set(&mut settings.concurrency, count("concurrency", self.concurrency)?);
        set(&mut settings.queue, count("queue", self.queue)?);
        set(&mut settings.sandboxes, count("sandboxes", self.sandboxes)?);
        set(&mut settings.sandbox_idle, time("sandbox_idle", self.sandbox_idle.as_deref())?);
        set(&mut settings.sandbox_sweep, time("sandbox_sweep", self.sandbox_sweep.as_deref())?);
        set(&mut settings.sandbox_life, time("sandbox_life", self.sandbox_life.as_deref())?);
        set(&mut settings.terminal_silence, time("terminal_silence", self.terminal_silence.as_deref())?);
        set(&mut settings.tenant_disk, bytes("tenant_disk", self.tenant_disk.as_deref())?);
        set(&mut settings.max_body, bytes("max_body", self.max_body.as_deref())?.map(|bytes| bytes as usize));
        set(&mut settings.connections, count("connections", self.connections)?);
        set(&mut settings.streams, count("streams", self.streams)?);
        set(&mut settings.tenant_streams, count("tenant_streams", self.tenant_streams)?);
        set(&mut settings.body_timeout, time("body_timeout", self.body_timeout.as_deref())?);
        set(&mut settings.drain, time("drain", self.drain.as_deref())?);
        settings.origins = self.origins.iter().map(|given| origin(given)).collect::<Result<_, _>>()?;
        settings.bodies_total = settings.bodies_total.max(2 * settings.max_body);
        if let Some(age) = time("keep", self.keep.as_deref())? {
            settings.retention.max_age = Some(age);
        }
        if let Some(bytes) = bytes("keep_bytes", self.keep_bytes.as_deref())? {
            settings.retention.max_bytes = Some(bytes);
        }
        Ok(settings)
    }

    /// Validates the memory limit of all sandboxes; `most` is what the machine has for them.
    pub(crate) fn sandbox_memory(&self, most: Option<u64>) -> Result<Option<u64>, CliError> {
        let given = bytes("sandbox_memory", self.sandbox_memory.as_deref())?;
        let wrong = |why: String| Err(refused("sandbox_memory", &why));
        match (given, most) {
            (Some(bytes), _) if bytes < MIN_SANDBOX_MEMORY_BYTES => wrong(format!(
                "{} is too little; the minimum is {}",
                show_bytes(bytes),
                show_bytes(MIN_SANDBOX_MEMORY_BYTES)
            )),
            (Some(bytes), Some(most)) if bytes > most => wrong(format!(
                "{} is more than the {} that this machine has for sandboxes",
                show_bytes(bytes),
                show_bytes(most)
            )),
            (given, _) => Ok(given),
        }
    }

    /// Validates the names of host folders.
    pub(super) fn host_folders(&self) -> Result<BTreeMap<String, HostFolderEntry>, CliError> {
        match self.host_folders.keys().find(|name| !is_volume_name(name)) {
            Some(name) => {
                let shown = name.escape_debug();
                Err(refused(
                    "host_folders",
                    &format!("'{shown}': names may contain only a-z, 0-9, '-', '_' and '.'"),
                ))
            }
            None => Ok(self.host_folders.clone()),
        }
    }

    pub(super) fn durability(&self) -> Durability {
        match self.durability {
            Some(DurabilitySpec::Power) => Durability::Power,
            Some(DurabilitySpec::Process) | None => Durability::Process,
        }
    }
}

fn set<T>(value: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *value = given;
    }
}

fn refused(name: &str, why: &str) -> CliError {
    CliError::invalid(format!("[server] {name}: {why}"))
}

fn count(name: &str, given: Option<usize>) -> Result<Option<usize>, CliError> {
    match given {
        Some(0) => Err(refused(name, "must be above zero")),
        Some(many) if many > 100_000 => Err(refused(name, "too large")),
        given => Ok(given),
    }
}

/// Validates an origin as browsers send it: lowercase, with nothing after host and port.
fn origin(given: &str) -> Result<String, CliError> {
    let place = given.strip_prefix("https://").or_else(|| given.strip_prefix("http://")).unwrap_or_default();
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-:[]".contains(&byte);
    if place.is_empty() || !place.bytes().all(is_plain) {
        let shown = given.escape_debug();
        return Err(refused("origins", &format!("'{shown}' is not an origin such as https://app.example")));
    }
    Ok(given.to_owned())
}

fn bytes(name: &str, given: Option<&str>) -> Result<Option<u64>, CliError> {
    let parse =
        |text| parse_bytes(text).map_err(|why| refused(name, &why)).and_then(|size| above_zero(name, size));
    given.map(parse).transpose()
}

fn time(name: &str, given: Option<&str>) -> Result<Option<Duration>, CliError> {
    let parse =
        |text| parse_millis(text).map_err(|why| refused(name, &why)).and_then(|ms| above_zero(name, ms));
    Ok(given.map(parse).transpose()?.map(Duration::from_millis))
}

fn above_zero(name: &str, value: i64) -> Result<u64, CliError> {
    u64::try_from(value).ok().filter(|value| *value > 0).ok_or_else(|| refused(name, "must be above zero"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Result<Settings, CliError> {
        toml::from_str::<ServerSpec>(text).unwrap().settings()
    }

    #[test]
    fn server_settings_are_validated() {
        let set = settings("concurrency = 3\nmax_body = \"1M\"\ndrain = \"5s\"\nkeep = \"1h\"").unwrap();
        assert_eq!((set.concurrency, set.max_body, set.drain.as_secs()), (3, 1 << 20, 5));
        for wrong in [
            "origins = [\"https://a.test/\"]",
            "origins = [\"*\"]",
            "origins = [\"https://\"]",
            "concurrency = 0",
            "queue = 0",
            "max_body = \"x\"",
            "drain = \"-1s\"",
            "keep_bytes = \"0\"",
        ] {
            assert!(settings(wrong).unwrap_err().message.starts_with("[server] "), "{wrong}");
        }
        assert!(toml::from_str::<ServerSpec>("port = 1").is_err());
        let memory = |text: &str| toml::from_str::<ServerSpec>(text).unwrap().sandbox_memory(Some(4 << 30));
        assert_eq!(memory("").unwrap(), None);
        assert_eq!(memory("sandbox_memory = \"1G\"").unwrap(), Some(1 << 30));
        for (wrong, why) in [
            ("\"0\"", "must be above zero"),
            ("\"1M\"", "1 MB is too little; the minimum is 64 MB"),
            ("\"5G\"", "5 GB is more than the 4 GB that this machine has for sandboxes"),
        ] {
            let refused = memory(&format!("sandbox_memory = {wrong}")).unwrap_err().message;
            assert_eq!(refused, format!("[server] sandbox_memory: {why}"));
        }
        let folders = |text| toml::from_str::<ServerSpec>(text).unwrap().host_folders();
        assert!(!folders("host_folders.sets = { path = \"/srv/sets\" }").unwrap()["sets"].writable);
        assert!(
            folders("host_folders.\"/etc\" = { path = \"/etc\" }").unwrap_err().message.contains("'/etc'")
        );
    }
}
