//! What `belljar serve` does: its settings, with the flags that override them.

use std::path::PathBuf;

use belljar_engine::network::NetworkCeiling;
use belljar_server::AdminKey;
use tracing::level_filters::LevelFilter;

use super::settings::ServerSettings;
use super::{ServeArgs, TlsFiles};
use crate::env::Environment;
use crate::error::CliError;

/// The options of `belljar serve`.
#[derive(Debug)]
pub(crate) struct ServeOptions {
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

impl ServeOptions {
    /// Lets the flags override the settings.
    pub(crate) fn merge(
        args: ServeArgs,
        environment: &Environment,
        mut server: ServerSettings,
    ) -> Result<Self, CliError> {
        if let Some(invalid) = server.invalid {
            return Err(invalid);
        }
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
        server.sandboxes.writable_root = server.writable_root.unwrap_or(args.temporary);
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
    use crate::settings::{Files, Settings};

    fn service(args: ServeArgs, variables: &[(&str, &str)]) -> Result<ServeOptions, CliError> {
        let get = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        let settings = Settings::load(None, Files::Ignored, get)?;
        ServeOptions::merge(args, &settings.environment, settings.config.server)
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
