//! Merges flags, environment and configuration file, in this order of precedence, into the settings of the
//! server.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use belljar_engine::network::NetworkCeiling;
use belljar_server::{AdminKey, Settings};
use belljar_store::Durability;
use tracing::level_filters::LevelFilter;

use super::{HostFolderEntry, ServeArgs, ServerSpec, TlsFiles};
use crate::env::Environment;
use crate::error::CliError;

const PORT: u16 = 7117;

/// All settings of `belljar serve`.
#[derive(Debug)]
pub(crate) struct ServeSettings {
    pub(crate) listen: SocketAddr,
    pub(crate) metrics_listen: Option<SocketAddr>,
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) data_dir: PathBuf,
    /// File with the secrets key, if it is not the default one.
    pub(crate) secrets_key: Option<PathBuf>,
    pub(crate) host_folders: BTreeMap<String, HostFolderEntry>,
    pub(crate) durability: Durability,
    pub(crate) settings: Settings,
    pub(crate) admin_key: Option<AdminKey>,
    /// The widest network access that requests may ask for.
    pub(crate) reach: NetworkCeiling,
    pub(crate) allow_degraded: bool,
    /// Whether the server stops when standard input closes.
    pub(crate) temporary: bool,
    pub(crate) level: LevelFilter,
}

impl ServeSettings {
    pub(crate) fn merge(
        args: ServeArgs,
        environment: &Environment,
        spec: &ServerSpec,
    ) -> Result<Self, CliError> {
        let listen = args.listen.or(spec.listen).unwrap_or((Ipv4Addr::LOCALHOST, PORT).into());
        if args.without_keys && !listen.ip().is_loopback() {
            return Err(CliError::invalid(format!(
                "--without-keys: {listen} is reachable from other machines; listen on 127.0.0.1, or omit \
                 --without-keys"
            )));
        }
        let nearest = |flag: Option<PathBuf>, set: &Option<PathBuf>, written: &Option<PathBuf>| {
            flag.or_else(|| set.clone()).or_else(|| written.clone())
        };
        let tls = TlsFiles::from_paths(
            nearest(args.tls_cert, &environment.tls_cert, &spec.tls_cert),
            nearest(args.tls_key, &environment.tls_key, &spec.tls_key),
        )?;
        let failed = |error: belljar_server::Error| CliError::invalid(error.to_string());
        let endpoint = environment.otlp_endpoint.as_deref().or(spec.otlp_endpoint.as_deref());
        let collector = endpoint.map(str::parse).transpose().map_err(|error: belljar_server::Error| {
            CliError::invalid(format!("OTEL_EXPORTER_OTLP_ENDPOINT or [server] {error}"))
        })?;
        let settings = Settings { without_keys: args.without_keys, collector, ..spec.settings()? };
        let key = environment.admin_key.as_ref().map(|key| key.reveal().parse());
        Ok(Self {
            listen,
            metrics_listen: args.metrics_listen.or(spec.metrics_listen),
            tls,
            data_dir: data_dir(args.data_dir, environment, spec)?,
            secrets_key: spec.secrets_key.clone(),
            host_folders: spec.host_folders()?,
            durability: spec.durability(),
            settings,
            admin_key: key.transpose().map_err(failed)?,
            // A temporary server belongs to one user, who may reach the network anyway; others' code must not
            // reach what is near.
            reach: spec.network.unwrap_or(if args.temporary {
                NetworkCeiling::Full
            } else {
                NetworkCeiling::Names
            }),
            allow_degraded: args.allow_degraded,
            temporary: args.temporary,
            level: level(environment.log.as_deref())?,
        })
    }
}

fn data_dir(
    flag: Option<PathBuf>,
    environment: &Environment,
    spec: &ServerSpec,
) -> Result<PathBuf, CliError> {
    let usual = || environment.state_home.as_ref().map(|state| state.join("belljar"));
    flag.or_else(|| environment.data_dir.clone())
        .or_else(|| spec.data_dir.clone())
        .or_else(usual)
        .ok_or_else(|| CliError::invalid("no home folder for data; set --data-dir DIR"))
}

fn level(text: Option<&str>) -> Result<LevelFilter, CliError> {
    let Some(text) = text else { return Ok(LevelFilter::INFO) };
    text.parse().map_err(|_| {
        let shown = text.escape_debug();
        CliError::invalid(format!(
            "BELLJAR_LOG: '{shown}' is not one of off, error, warn, info, debug, trace"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        Environment::read(find).unwrap()
    }

    fn service(args: ServeArgs, variables: &[(&str, &str)]) -> Result<ServeSettings, CliError> {
        ServeSettings::merge(args, &environment(variables), &ServerSpec::default())
    }

    #[test]
    fn flags_override_environment_and_file() {
        let home = [("HOME", "/h")];
        let usual = service(ServeArgs::default(), &home).unwrap();
        assert_eq!(usual.listen.to_string(), "127.0.0.1:7117");
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
        assert!(endpoint("http://127.0.0.1:4318").unwrap().settings.collector.is_some());
        assert!(endpoint("https://x").unwrap_err().message.starts_with("OTEL_EXPORTER_OTLP_ENDPOINT"));
    }
}
