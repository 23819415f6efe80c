//! The package registries that this machine's own tools are configured for. Read once, and only passed to
//! downloads.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use belljar_engine::network::{HostRules, UpstreamProxy};
use belljar_engine::packages::PackagesError;
use belljar_engine::plan::Mount;

use crate::explain::without_secrets;
use crate::tools::TOOLS_DIR;

const PYPI: &str = "https://pypi.org/simple";
const NPM: &str = "https://registry.npmjs.org";

/// Variables that only say where and how to download.
const PASSED_ON: &[&str] = &[
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_TRUSTED_HOST",
    "PIP_NO_INDEX",
    "PIP_DEFAULT_TIMEOUT",
    "PIP_RETRIES",
    "UV_DEFAULT_INDEX",
    "UV_INDEX_URL",
    "UV_INDEX",
    "UV_EXTRA_INDEX_URL",
    "UV_NO_INDEX",
    "UV_INDEX_STRATEGY",
    "UV_HTTP_TIMEOUT",
    "UV_HTTP_RETRIES",
    "UV_INSECURE_HOST",
    "NPM_CONFIG_REGISTRY",
    "npm_config_registry",
];
/// Variables that name a proxy, most specific first. Downloads do not see them: the egress gate of their
/// sandbox uses the proxy.
const PROXIES: &[&str] =
    &["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy"];
/// Files that may contain credentials: their name in the sandbox, and the variable that points to them.
const WITH_CREDENTIALS: [(&str, &str); 2] =
    [("uv.toml", "UV_CONFIG_FILE"), (".npmrc", "NPM_CONFIG_USERCONFIG")];
/// Variables that name a certificate file.
const CERTIFICATES: &[&str] = &[
    "SSL_CERT_FILE",
    "UV_CERT",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "NPM_CONFIG_CAFILE",
];

/// The registry configuration for downloads.
#[derive(Debug, Clone, Default)]
pub struct PackageRegistries {
    /// Environment variables; may contain credentials.
    pub(crate) env: BTreeMap<String, String>,
    /// Files and folders that the variables refer to.
    pub(crate) mounts: Vec<Mount>,
    python: String,
    npm: String,
    hosts: Vec<String>,
    /// The proxy configured on this machine, or why it cannot be used.
    proxy: Option<Result<UpstreamProxy, String>>,
}

impl PackageRegistries {
    /// Reads variables through `get`, and the configuration files of the tools.
    pub fn read(get: impl Fn(&str) -> Option<String>, home: Option<&Path>) -> Self {
        let given = |name: &str| get(name).filter(|value| !value.is_empty());
        let mut this = Self::default();
        for (name, value) in pip_settings(&given, home) {
            this.env.insert(name, value);
        }
        this.env.extend(PASSED_ON.iter().filter_map(|name| Some(((*name).to_owned(), given(name)?))));
        let no_proxy = given("NO_PROXY").or_else(|| given("no_proxy")).unwrap_or_default();
        let proxy = PROXIES.iter().find_map(|name| Some((name, given(name)?)));
        this.proxy = proxy
            .map(|(name, url)| UpstreamProxy::parse(&url, &no_proxy).map_err(|why| format!("{name}: {why}")));
        this.apply_pip_settings_to_uv();
        let certificates = CERTIFICATES.iter().find_map(|name| given(name)).or(this.env.remove("PIP_CERT"));
        if let Some(inside) = certificates.and_then(|path| this.mount(Path::new(&path), "certificates.pem")) {
            for name in ["SSL_CERT_FILE", "PIP_CERT", "NODE_EXTRA_CA_CERTS", "NPM_CONFIG_CAFILE"] {
                this.env.insert(name.to_owned(), inside.clone());
            }
        }
        this.add_find_links(&given);
        this.add_files(&given, home);
        this.collect_hosts();
        this
    }

    /// Returns the URL of Python's registry, without credentials.
    pub fn python(&self) -> &str {
        &self.python
    }

    /// Returns the URL of JavaScript's registry, without credentials.
    pub fn npm(&self) -> &str {
        &self.npm
    }

    /// Returns the hosts that downloads may reach, for example `pypi.org:443`, directly or through the
    /// configured proxy.
    pub(crate) fn reachable_hosts(&self) -> Result<HostRules, PackagesError> {
        let wrong = |why| PackagesError::Host(format!("a registry configured on this machine: {why}"));
        let hosts = HostRules::parse(&self.hosts).map_err(wrong)?;
        match &self.proxy {
            None => Ok(hosts.allowing_private_addresses()),
            Some(Ok(proxy)) => Ok(hosts.via_proxy(proxy.clone())),
            Some(Err(why)) => Err(PackagesError::Host(why.clone())),
        }
    }

    /// Returns the configuration for an image that the operator does not control: without credentials in URLs
    /// or files.
    pub(crate) fn without_credentials(&self) -> (BTreeMap<String, String>, Vec<Mount>) {
        let is_file = |mount: &Mount| {
            WITH_CREDENTIALS.iter().any(|(file, _)| mount.destination == format!("{TOOLS_DIR}/{file}"))
        };
        let mounts = self.mounts.iter().filter(|mount| !is_file(mount)).cloned().collect();
        let told = |name: &str| WITH_CREDENTIALS.iter().all(|(_, variable)| *variable != name);
        let env = self.env.iter().filter(|(name, _)| told(name));
        let mut env: BTreeMap<_, _> =
            env.map(|(name, value)| (name.clone(), without_secrets(value))).collect();
        // The file that set the registry is not mounted.
        env.insert("NPM_CONFIG_REGISTRY".to_owned(), self.npm.clone());
        (env, mounts)
    }

    /// Applies pip's configuration to uv: it is meant for all Python packages.
    fn apply_pip_settings_to_uv(&mut self) {
        for (pip, uv, others) in [
            ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", &["UV_INDEX_URL"][..]),
            ("PIP_EXTRA_INDEX_URL", "UV_INDEX", &["UV_EXTRA_INDEX_URL"][..]),
            ("PIP_NO_INDEX", "UV_NO_INDEX", &[][..]),
        ] {
            let said = std::iter::once(&uv).chain(others).any(|name| self.env.contains_key(*name));
            if let Some(value) = self.env.get(pip).filter(|_| !said).cloned() {
                self.env.insert(uv.to_owned(), value);
            }
        }
    }

    /// Mounts a file or folder, and returns its path in the sandbox.
    fn mount(&mut self, path: &Path, name: &str) -> Option<String> {
        let source = std::fs::canonicalize(path).ok()?;
        let destination = format!("{TOOLS_DIR}/{name}");
        self.mounts.push(Mount { source, destination: destination.clone(), writable: false });
        Some(destination)
    }

    fn add_find_links(&mut self, given: &impl Fn(&str) -> Option<String>) {
        let pip = given("PIP_FIND_LINKS").or_else(|| self.env.remove("PIP_FIND_LINKS")).unwrap_or_default();
        let uv = given("UV_FIND_LINKS").unwrap_or_default();
        let places: Vec<String> = pip.split_whitespace().chain(uv.split(',')).map(str::to_owned).collect();
        let mut links = Vec::new();
        for (number, place) in places.iter().filter(|place| !place.is_empty()).enumerate() {
            let local = place.strip_prefix("file://").unwrap_or(place);
            if local.contains("://") {
                links.push(place.clone());
            } else if Path::new(local).is_dir() {
                links.extend(self.mount(Path::new(local), &format!("links-{number}")));
            }
        }
        if !links.is_empty() {
            self.env.insert("PIP_FIND_LINKS".to_owned(), links.join(" "));
            self.env.insert("UV_FIND_LINKS".to_owned(), links.join(","));
        }
    }

    fn add_files(&mut self, given: &impl Fn(&str) -> Option<String>, home: Option<&Path>) {
        let below = |file: &str| home.map(|home| home.join(file));
        let uv = [
            given("UV_CONFIG_FILE").map(PathBuf::from),
            below(".config/uv/uv.toml"),
            Some("/etc/uv/uv.toml".into()),
        ];
        let npm =
            [given("NPM_CONFIG_USERCONFIG").map(PathBuf::from), below(".npmrc"), Some("/etc/npmrc".into())];
        // A variable tells npm where its file is; bun looks in its home folder.
        for (files, name, variable) in
            [(uv, "uv.toml", "UV_CONFIG_FILE"), (npm, ".npmrc", "NPM_CONFIG_USERCONFIG")]
        {
            let file = files.into_iter().flatten().find(|path| path.is_file());
            if let Some(inside) = file.and_then(|path| self.mount(&path, name)) {
                self.env.insert(variable.to_owned(), inside);
            }
        }
    }

    fn collect_hosts(&mut self) {
        let npmrc = self.mounts.iter().find(|mount| mount.destination.ends_with("/.npmrc"));
        let npmrc = npmrc.and_then(|mount| std::fs::read_to_string(&mount.source).ok()).unwrap_or_default();
        let pairs = npmrc.lines().filter_map(|line| line.split_once('='));
        let pairs = pairs.map(|(key, value)| (key.trim(), value.trim().trim_matches(['"', '\''])));
        let written = pairs.clone().rfind(|(key, _)| *key == "registry");
        // Packages of some scopes come from another registry.
        let scoped = pairs.filter(|(key, _)| key.starts_with('@') && key.ends_with(":registry"));
        let said = |names: &[&str]| names.iter().find_map(|name| self.env.get(*name).cloned());
        let python =
            said(&["UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"]).unwrap_or_else(|| PYPI.to_owned());
        let npm = said(&["NPM_CONFIG_REGISTRY", "npm_config_registry"])
            .or_else(|| written.map(|(_, url)| url.to_owned()))
            .unwrap_or_else(|| NPM.to_owned());
        let mut urls = vec![python.clone(), npm.clone()];
        urls.extend(scoped.map(|(_, url)| url.to_owned()));
        for name in ["UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_FIND_LINKS"] {
            let value = self.env.get(name).cloned().unwrap_or_default();
            urls.extend(value.split([' ', ',']).filter(|url| url.contains("://")).map(str::to_owned));
        }
        if python.starts_with(PYPI) {
            urls.push("https://files.pythonhosted.org".to_owned());
        }
        self.hosts = urls.iter().filter_map(|url| host_of(url)).collect();
        self.hosts.sort();
        self.hosts.dedup();
        (self.python, self.npm) = (without_secrets(&python), without_secrets(&npm));
    }
}

/// Converts `https://u:p@pypi.org/simple` to `pypi.org:443`.
fn host_of(url: &str) -> Option<String> {
    // uv allows named indexes: `name=https://…`.
    let (scheme, rest) = url.split_once("://")?;
    let port = if scheme.ends_with("https") { 443 } else { 80 };
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit('@').next().filter(|host| !host.is_empty())?;
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    Some(if has_port { host.to_owned() } else { format!("{host}:{port}") })
}

/// Returns the settings of `pip.conf` as the variables that pip reads. The user's file overrides the
/// machine's.
fn pip_settings(given: &impl Fn(&str) -> Option<String>, home: Option<&Path>) -> BTreeMap<String, String> {
    let below = |file: &str| home.map(|home| home.join(file));
    let files = [
        Some(PathBuf::from("/etc/pip.conf")),
        below(".pip/pip.conf"),
        below(".config/pip/pip.conf"),
        given("PIP_CONFIG_FILE").map(PathBuf::from),
    ];
    let texts = files.into_iter().flatten().filter_map(|path| std::fs::read_to_string(path).ok());
    texts.flat_map(|text| settings_of(&text)).collect()
}

fn settings_of(text: &str) -> Vec<(String, String)> {
    let wanted = [
        "index-url",
        "extra-index-url",
        "trusted-host",
        "no-index",
        "find-links",
        "cert",
        "timeout",
        "retries",
    ];
    let mut settings: Vec<(String, String)> = Vec::new();
    let (mut counts, mut open) = (false, false);
    for line in text.lines() {
        let plain = line.trim();
        if plain.starts_with(['#', ';']) || plain.is_empty() {
            continue;
        }
        if let Some(section) = plain.strip_prefix('[') {
            (counts, open) =
                (matches!(section.trim_end_matches(']'), "global" | "install" | "download"), false);
        } else if line.starts_with([' ', '\t']) && open {
            // A continuation line.
            if let Some((_, value)) = settings.last_mut() {
                *value = format!("{value} {plain}").trim().to_owned();
            }
        } else if let Some((key, value)) = plain.split_once('=') {
            let key = key.trim().replace('_', "-");
            open = counts && wanted.contains(&key.as_str());
            if open {
                let name = if key == "timeout" {
                    "DEFAULT_TIMEOUT".to_owned()
                } else {
                    key.to_uppercase().replace('-', "_")
                };
                settings.push((format!("PIP_{name}"), value.trim().to_owned()));
            }
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pip_settings_apply_to_uv() {
        let vars = [("PIP_INDEX_URL", "https://ann:pw@pypi.example:8443/simple"), ("PIP_NO_INDEX", "")];
        let get =
            |name: &str| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let registries = PackageRegistries::read(get, None);
        assert_eq!(registries.env["UV_DEFAULT_INDEX"], "https://ann:pw@pypi.example:8443/simple");
        assert_eq!(registries.python(), "https://pypi.example:8443/simple");
        let hosts = registries.reachable_hosts().unwrap().hosts();
        assert_eq!(hosts, ["pypi.example:8443", "registry.npmjs.org:443"]);
    }

    #[test]
    fn foreign_images_get_no_credentials() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(
            home.path().join(".npmrc"),
            "//npm.example/:_authToken=secret\nregistry=https://npm.example/\n",
        )
        .unwrap();
        let get = |name: &str| match name {
            "PIP_INDEX_URL" => Some("https://ann:secret@pypi.example/simple".to_owned()),
            "PIP_EXTRA_INDEX_URL" => {
                Some("https://a:secret@b.example/ https://c:secret@d.example/".to_owned())
            }
            "HTTPS_PROXY" => Some("http://ann:secret@proxy.example:1".to_owned()),
            _ => None,
        };
        let registries = PackageRegistries::read(get, Some(home.path()));
        assert!(registries.env.values().any(|value| value.contains("secret")));
        assert!(
            !registries.env.keys().any(|name| name.to_uppercase().ends_with("_PROXY")),
            "only the egress gate may see the proxy"
        );
        let (env, mounts) = registries.without_credentials();
        assert!(!format!("{env:?}").contains("secret"), "{env:?}");
        assert!(!mounts.iter().any(|mount| mount.destination.ends_with(".npmrc")), "{mounts:?}");
        assert_eq!(env["UV_DEFAULT_INDEX"], "https://pypi.example/simple");
        assert_eq!(env["NPM_CONFIG_REGISTRY"], "https://npm.example/");
    }

    #[test]
    fn a_proxy_that_cannot_be_used_is_refused() {
        let get =
            |name: &str| (name == "HTTPS_PROXY").then(|| "socks5://ann:secret@proxy.example".to_owned());
        let why = PackageRegistries::read(get, None).reachable_hosts().unwrap_err().to_string();
        assert!(
            why.contains("HTTPS_PROXY: proxy scheme 'socks5' is not supported") && !why.contains("secret"),
            "{why}"
        );
    }

    #[test]
    fn scoped_registries_are_reachable() {
        let home = tempfile::tempdir().unwrap();
        let text = "; ours\n@team:registry = https://npm.team.example/\n@b:registry=\"http://127.0.0.1:4873\"\n\
                    //npm.team.example/:_authToken=secret\nregistry=https://all.example/\n";
        std::fs::write(home.path().join(".npmrc"), text).unwrap();
        let registries = PackageRegistries::read(|_| None, Some(home.path()));
        assert_eq!(registries.npm(), "https://all.example/");
        let hosts = registries.reachable_hosts().unwrap().hosts();
        for host in ["npm.team.example:443", "127.0.0.1:4873", "all.example:443"] {
            assert!(hosts.iter().any(|known| known == host), "{host} {hosts:?}");
        }
        assert_eq!(hosts.len(), 5, "{hosts:?}");
    }

    #[test]
    fn files_are_read_as_pip_reads_them() {
        let text = "[global]\nindex-url = https://a.example/simple\nextra_index_url =\n  https://b.example\n  https://c.example\n[list]\nindex-url = no\n";
        let settings = settings_of(text);
        assert_eq!(settings[0], ("PIP_INDEX_URL".to_owned(), "https://a.example/simple".to_owned()));
        assert_eq!(settings[1].1, "https://b.example https://c.example");
        assert_eq!(settings.len(), 2);
    }

    #[test]
    fn only_link_folders_and_certificates_are_mounted() {
        let folder = tempfile::tempdir().unwrap();
        let (links, pem) = (folder.path().join("links"), folder.path().join("ca.pem"));
        std::fs::create_dir(&links).unwrap();
        std::fs::write(&pem, "x").unwrap();
        let get = |name: &str| match name {
            "PIP_FIND_LINKS" => Some(format!("{} /nowhere https://wheels.example/", links.display())),
            "PIP_CERT" => Some(pem.display().to_string()),
            _ => None,
        };
        let registries = PackageRegistries::read(get, None);
        assert_eq!(registries.env["UV_FIND_LINKS"], format!("{TOOLS_DIR}/links-0,https://wheels.example/"));
        assert_eq!(registries.env["SSL_CERT_FILE"], format!("{TOOLS_DIR}/certificates.pem"));
        let shown: Vec<_> =
            registries.mounts.iter().map(|mount| (&*mount.destination, mount.writable)).collect();
        assert!(
            shown.starts_with(&[
                ("/opt/belljar/tools/certificates.pem", false),
                ("/opt/belljar/tools/links-0", false)
            ]),
            "{shown:?}"
        );
    }
}
