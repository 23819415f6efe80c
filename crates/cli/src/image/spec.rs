//! `[images]` in `belljar.toml`: where images are kept, where they come from, and which of them requests may name.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use belljar_images::{Name, Registries};
use serde::Deserialize;

use crate::env::Environment;
use crate::failure::Failure;

/// As it is written; what is absent is as usual.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ImageSpec {
    /// Where images are kept.
    folder: Option<PathBuf>,
    /// What requests of a server may name, of the images that are there.
    allow: Vec<String>,
    /// Where to ask first, by registry.
    mirrors: BTreeMap<String, Vec<String>>,
    /// Registries on this machine that speak no TLS.
    plain_http: Vec<String>,
}

/// How images are kept and brought.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ImageSettings {
    folder: Option<PathBuf>,
    pub(super) allow: BTreeSet<Name>,
    pub(super) registries: Registries,
}

impl ImageSpec {
    /// Checks what was given.
    pub(crate) fn settings(&self) -> Result<ImageSettings, String> {
        if self.folder.as_deref().is_some_and(Path::is_relative) {
            return Err("images.folder: write an absolute path".to_owned());
        }
        let allow = self.allow.iter().map(|name| Name::parse(name)).collect::<Result<_, _>>();
        let allow = allow.map_err(|error| format!("images.allow: {error}"))?;
        if let Some(far) = self.plain_http.iter().find(|registry| !is_here(registry)) {
            let far = far.escape_debug();
            return Err(format!(
                "images.plain_http: '{far}' is not on this machine, and is spoken to over TLS only"
            ));
        }
        let (mirrors, plain_http) = (self.mirrors.clone(), self.plain_http.clone());
        let registries = Registries { mirrors, plain_http, authorities: None };
        Ok(ImageSettings { folder: self.folder.clone(), allow, registries })
    }
}

/// Whether `HOST[:PORT]` is a loopback address.
fn is_here(registry: &str) -> bool {
    let host = match registry.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => registry,
    };
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

impl ImageSettings {
    /// Where images are kept: the flag, the file, the person's own cache.
    pub(crate) fn folder(&self, flag: Option<&Path>, environment: &Environment) -> Result<PathBuf, Failure> {
        let usual = || environment.cache_home.as_ref().map(|cache| cache.join("belljar").join("images"));
        flag.map(Path::to_owned).or_else(|| self.folder.clone()).or_else(usual).ok_or_else(|| {
            Failure::invalid("no place for images: set HOME, or images.folder in belljar.toml")
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
    fn what_is_said_about_images_is_checked() {
        assert_eq!(settings("").unwrap(), ImageSettings::default());
        let set =
            settings("allow = [\"python\"]\nplain_http = [\"127.0.0.1:5000\", \"localhost\", \"[::1]:1\"]\n");
        assert!(set.unwrap().allow.contains(&Name::parse("docker.io/library/python:latest").unwrap()));
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
