//! `[images]` in `belljar.toml`: where images are stored and pulled from, and which of them requests may
//! name.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use belljar_images::{ImageName, RegistrySettings};
use serde::Deserialize;

use crate::env::Environment;
use crate::error::CliError;

/// `[images]` as written in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ImageSpec {
    /// Folder of the image store.
    folder: Option<PathBuf>,
    /// Stored images that requests to a server may name.
    allow: Vec<String>,
    /// Mirrors to ask first, by registry.
    mirrors: BTreeMap<String, Vec<String>>,
    /// Registries on this machine that are reached without TLS.
    plain_http: Vec<String>,
}

/// Settings of the image store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ImageSettings {
    folder: Option<PathBuf>,
    pub(super) allow: BTreeSet<ImageName>,
    pub(super) registries: RegistrySettings,
}

impl ImageSpec {
    /// Validates the settings.
    pub(crate) fn settings(&self) -> Result<ImageSettings, String> {
        if self.folder.as_deref().is_some_and(Path::is_relative) {
            return Err("images.folder: must be an absolute path".to_owned());
        }
        let allow = self.allow.iter().map(|name| ImageName::parse(name)).collect::<Result<_, _>>();
        let allow = allow.map_err(|error| format!("images.allow: {error}"))?;
        if let Some(far) = self.plain_http.iter().find(|registry| !is_loopback(registry)) {
            let far = far.escape_debug();
            return Err(format!(
                "images.plain_http: '{far}' is not on this machine; only loopback registries may do without \
                 TLS"
            ));
        }
        let (mirrors, plain_http) = (self.mirrors.clone(), self.plain_http.clone());
        let registries = RegistrySettings { mirrors, plain_http, authorities: None };
        Ok(ImageSettings { folder: self.folder.clone(), allow, registries })
    }
}

/// Returns whether `HOST[:PORT]` is a loopback address.
fn is_loopback(registry: &str) -> bool {
    let host = match registry.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => registry,
    };
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

impl ImageSettings {
    /// Returns the folder of the image store: from the flag, the file, or the user's cache folder.
    pub(crate) fn folder(&self, flag: Option<&Path>, environment: &Environment) -> Result<PathBuf, CliError> {
        let usual = || environment.cache_home.as_ref().map(|cache| cache.join("belljar").join("images"));
        flag.map(Path::to_owned).or_else(|| self.folder.clone()).or_else(usual).ok_or_else(|| {
            CliError::invalid("no folder for images: set HOME, or images.folder in belljar.toml")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Result<ImageSettings, String> {
        toml::from_str::<ImageSpec>(text).unwrap().settings()
    }

    #[test]
    fn image_settings_are_validated() {
        assert_eq!(settings("").unwrap(), ImageSettings::default());
        let set =
            settings("allow = [\"python\"]\nplain_http = [\"127.0.0.1:5000\", \"localhost\", \"[::1]:1\"]\n");
        assert!(set.unwrap().allow.contains(&ImageName::parse("docker.io/library/python:latest").unwrap()));
        for (text, why) in [
            ("folder = \"here\"", "images.folder"),
            ("allow = [\"A B\"]", "images.allow"),
            ("plain_http = [\"registry.example:80\"]", "images.plain_http"),
            ("plain_http = [\"127.evil.example\"]", "images.plain_http"),
        ] {
            assert!(settings(text).unwrap_err().starts_with(why), "{text}");
        }
    }
}
