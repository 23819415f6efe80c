//! Registry logins: from `docker login`, or given explicitly.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oci_client::secrets::RegistryAuth;
use serde::Deserialize;

/// A user name and a password, which is not printed by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The user name.
    pub user: String,
    /// The password or token.
    pub password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({}, …)", self.user)
    }
}

/// Logins by registry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegistryCredentials(BTreeMap<String, Login>);

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, DockerAuth>,
}

#[derive(Deserialize)]
struct DockerAuth {
    #[serde(default)]
    auth: String,
}

impl RegistryCredentials {
    /// Reads Docker's `config.json`. Logins in credential helpers are ignored: no program is run for an
    /// image.
    pub fn from_docker_config(text: &str) -> Self {
        let Ok(config) = serde_json::from_str::<DockerConfig>(text) else { return Self::default() };
        let logins = config.auths.into_iter().filter_map(|(place, auth)| {
            let pair = String::from_utf8(STANDARD.decode(auth.auth.trim()).ok()?).ok()?;
            let (user, password) = pair.split_once(':')?;
            let login = Login { user: user.to_owned(), password: password.trim_end_matches('\0').to_owned() };
            Some((host_of(&place), login))
        });
        Self(logins.collect())
    }

    /// Adds a login for one registry.
    #[must_use]
    pub fn with(mut self, registry: &str, login: Login) -> Self {
        self.0.insert(host_of(registry), login);
        self
    }

    pub(crate) fn auth_for(&self, registry: &str) -> RegistryAuth {
        match self.0.get(&host_of(registry)) {
            Some(Login { user, password }) => RegistryAuth::Basic(user.clone(), password.clone()),
            None => RegistryAuth::Anonymous,
        }
    }
}

/// Returns the host of a registry. Docker's keys can be URLs of the old v1 API, and Docker Hub has several
/// names.
fn host_of(place: &str) -> String {
    let host = place.split_once("://").map_or(place, |(_, rest)| rest);
    match host.split('/').next().unwrap_or_default() {
        "docker.io" | "registry-1.docker.io" => "index.docker.io".to_owned(),
        host => host.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docker_logins_are_parsed() {
        let text = r#"{"auths": {"https://index.docker.io/v1/": {"auth": "bWU6c2VjOnJldA=="},
            "127.0.0.1:5000": {"auth": "YTpi"}, "helper.example": {}}, "credsStore": "x"}"#;
        let found = RegistryCredentials::from_docker_config(text);
        let basic = |user: &str, password: &str| RegistryAuth::Basic(user.to_owned(), password.to_owned());
        assert_eq!(found.auth_for("docker.io"), basic("me", "sec:ret"));
        assert_eq!(found.auth_for("127.0.0.1:5000"), basic("a", "b"));
        assert_eq!(found.auth_for("127.0.0.1:5001"), RegistryAuth::Anonymous);
        assert_eq!(found.auth_for("helper.example"), RegistryAuth::Anonymous);
        assert_eq!(RegistryCredentials::from_docker_config("no json"), RegistryCredentials::default());
        assert!(!format!("{found:?}").contains("sec:ret"));
    }
}
