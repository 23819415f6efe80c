//! `belljar.toml`: profiles, the ceiling of all limits, warm pools, and which packages may be installed.
//!
//! One trusted file is read: `--config FILE`, else `BELLJAR_CONFIG`, else the user's own
//! (`$XDG_CONFIG_HOME/belljar/belljar.toml`), else the machine's (`/etc/belljar/belljar.toml`).
//!
//! A `belljar.toml` in the current folder is not trusted. It may have come with the very code that is to run,
//! and its owner proves nothing: a clone belongs to the user who cloned it. So, unless `--config` or
//! `BELLJAR_CONFIG` named a file, it is read on top and may only *add* profiles, which do nothing until a
//! request names them. It cannot replace a profile, mount host folders, choose an image, open the network,
//! change the ceiling, keep anything warm, or decide about packages and policies; trying to is an error.
//! Packages and variables of its profiles count as a request's own, and their preimports are ignored. Naming
//! the file (`--config belljar.toml`) trusts it like any other.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_analysis::imports::ResolverSettings as DependencySettings;
use belljar_analysis::policy::{Policies, PolicyError, PolicySpec};
use belljar_engine::limits::{HostCapacity, Limits, LimitsSpec};
use belljar_engine::network::PrivateRanges;
use belljar_engine::profile::{Profile, Profiles};
use belljar_engine::quantity::show_bytes;
use belljar_engine::warm::{WarmSettings, WarmSpec};
use serde::Deserialize;

use crate::deps::{DependencySpec, LayerSettings};
use crate::env::Environment;
use crate::error::{CliError, quote_path};
use crate::image::{ImageSettings, ImageSpec};
use crate::provider_kinds::{ProviderSpec, is_secret};
use crate::say;
use crate::serve::ServerSpec;

const NAME: &str = "belljar.toml";
const MACHINE: &str = "/etc/belljar/belljar.toml";
const MAX_BYTES: u64 = 1 << 20;

/// The configuration that results from defaults and files.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) profiles: Profiles,
    pub(crate) ceiling: Limits,
    /// The machine's resources, which no ceiling may exceed.
    pub(crate) machine: HostCapacity,
    /// Memory limit of all sandboxes together, if lower than what the machine has for them.
    pub(crate) sandbox_memory: Option<u64>,
    pub(crate) warm: WarmSettings,
    pub(crate) server: ServerSpec,
    pub(crate) dependencies: DependencySettings,
    pub(crate) policies: Policies,
    pub(crate) layers: LayerSettings,
    pub(crate) providers: ProviderSpec,
    pub(crate) images: ImageSettings,
    pub(crate) private_ranges: PrivateRanges,
    /// Every value set by a file, in order of precedence, lowest first.
    pub(crate) file_settings: Vec<FileSetting>,
}

/// A value and the file that set it.
#[derive(Debug)]
pub(crate) struct FileSetting {
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) file: PathBuf,
}

/// The file format.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ConfigFile {
    profiles: BTreeMap<String, Profile>,
    ceiling: LimitsSpec,
    warm: WarmSpec,
    server: ServerSpec,
    policies: BTreeMap<String, PolicySpec>,
    dependencies: DependencySpec,
    providers: ProviderSpec,
    images: ImageSpec,
    network: NetworkSection,
}

/// `[network]`: settings of every sandbox whose network mode lists hosts.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct NetworkSection {
    /// Addresses and ranges that no allowed host name may resolve to, in addition to the built-in ones.
    not_public: Vec<String>,
}

/// Finds and reads the configuration.
pub(crate) fn load(flag: Option<&Path>, environment: &Environment) -> Result<Config, CliError> {
    let named = flag.or(environment.config.as_deref());
    let config = Config::without_files();
    if let Some(path) = named {
        let text = read(path).map_err(|error| unreadable(path, &error))?;
        return config.with_trusted_file(path, &text);
    }
    let person = environment.config_home.as_ref().map(|folder| folder.join("belljar").join(NAME));
    let config = match first_existing([person, Some(PathBuf::from(MACHINE))])? {
        Some((path, text)) => config.with_trusted_file(&path, &text)?,
        None => config,
    };
    match first_existing([Some(PathBuf::from(NAME)), None])? {
        Some((path, text)) => config.with_untrusted_file(&path, &text),
        None => Ok(config),
    }
}

impl Config {
    /// Returns the configuration that applies without any file.
    pub(crate) fn without_files() -> Self {
        Self::for_machine(crate::os::machine_resources())
    }

    /// Returns the configuration that applies on the given machine without any file.
    fn for_machine(machine: HostCapacity) -> Self {
        Self {
            profiles: Profiles::built_in(),
            ceiling: Limits::ceiling_for(&machine),
            machine,
            sandbox_memory: None,
            warm: WarmSettings::default(),
            server: ServerSpec::default(),
            dependencies: DependencySettings::default(),
            policies: Policies::default(),
            layers: LayerSettings::default(),
            providers: ProviderSpec::default(),
            images: ImageSettings::default(),
            private_ranges: PrivateRanges::default(),
            file_settings: Vec::new(),
        }
    }

    /// Records which file set each value.
    fn record_settings(&mut self, path: &Path, text: &str) {
        if let Ok(table) = text.parse::<toml::Table>() {
            record_table(&mut self.file_settings, path, "", &table);
        }
    }

    fn with_trusted_file(mut self, path: &Path, text: &str) -> Result<Self, CliError> {
        let file = parse(path, text)?;
        self.record_settings(path, text);
        for (name, profile) in file.profiles {
            self.profiles.insert(name, profile);
        }
        let wrong =
            |failure: CliError| CliError::invalid(format!("{}: {}", quote_path(path), failure.message));
        self.sandbox_memory = file.server.sandbox_memory(self.machine.memory_bytes).map_err(wrong)?;
        if self.sandbox_memory.is_some() {
            // The ceiling of one sandbox follows from the memory limit of all of them together.
            self.machine.memory_bytes = self.sandbox_memory;
            self.ceiling = Limits::ceiling_for(&self.machine);
        }
        self.ceiling = apply_ceiling(self.ceiling, &file.ceiling)
            .and_then(|ceiling| check_ceiling(ceiling, &self.machine))
            .map_err(|why| CliError::invalid(format!("{}: [ceiling] {why}", quote_path(path))))?;
        self.warm =
            file.warm.admit().map_err(|why| CliError::invalid(format!("{}: {why}", quote_path(path))))?;
        self.server = file.server;
        let wrong = |error: PolicyError| CliError::invalid(format!("{}: {error}", quote_path(path)));
        self.policies = Policies::with(file.policies).map_err(wrong)?;
        self.layers = file
            .dependencies
            .layers()
            .map_err(|why| CliError::invalid(format!("{}: {why}", quote_path(path))))?;
        self.dependencies = file.dependencies.settings();
        self.providers = file.providers;
        self.private_ranges = PrivateRanges::parse(&file.network.not_public)
            .map_err(|why| CliError::invalid(format!("{}: [network] not_public: {why}", quote_path(path))))?;
        self.images = file
            .images
            .settings()
            .map_err(|why| CliError::invalid(format!("{}: {why}", quote_path(path))))?;
        Ok(self)
    }

    fn with_untrusted_file(mut self, path: &Path, text: &str) -> Result<Self, CliError> {
        let file = parse(path, text)?;
        let refuse = |what: String| {
            Err(CliError::invalid(format!(
                "{} in the current folder {what}, which an untrusted file may not; if you trust it, run \
                 with --config {NAME}",
                quote_path(path)
            )))
        };
        if file.ceiling != LimitsSpec::default() {
            return refuse("sets [ceiling]".to_owned());
        }
        if file.warm != WarmSpec::default() {
            return refuse("sets [warm]".to_owned());
        }
        if file.server != ServerSpec::default() {
            return refuse("sets [server]".to_owned());
        }
        if file.dependencies != DependencySpec::default() {
            return refuse("sets [dependencies]".to_owned());
        }
        if file.providers != ProviderSpec::default() {
            return refuse("sets [providers]".to_owned());
        }
        if file.images != ImageSpec::default() {
            return refuse("sets [images]".to_owned());
        }
        if file.network != NetworkSection::default() {
            return refuse("sets [network]".to_owned());
        }
        if !file.policies.is_empty() {
            return refuse("sets [policies]".to_owned());
        }
        for (name, profile) in file.profiles {
            if self.profiles.get(&name).is_ok() {
                return refuse(format!("replaces profile '{}'", name.escape_debug()));
            }
            let Profile { mounts, image, network, policy, build_packages, .. } = &profile;
            let opens = !mounts.is_empty() || image.is_some() || network.is_some() || policy.is_some();
            if opens || *build_packages {
                return refuse(format!(
                    "sets mounts, image, network, policy or build_packages in profile '{}'",
                    name.escape_debug()
                ));
            }
            if !profile.preimports.is_empty() {
                say::warning(&format!(
                    "preimports of profile '{}' are ignored, because {} in the current folder may have come \
                     with the code; move them to your own configuration, or run with --config {NAME} if you \
                     trust the file",
                    name.escape_debug(),
                    quote_path(path)
                ));
            }
            self.profiles.insert(name, Profile { came_with_code: true, ..profile });
        }
        self.record_settings(path, text);
        Ok(self)
    }
}

fn record_table(written: &mut Vec<FileSetting>, path: &Path, above: &str, table: &toml::Table) {
    for (key, value) in table {
        let name = format!("{above}{key}");
        match value {
            toml::Value::Table(table) => record_table(written, path, &format!("{name}."), table),
            // Environment variables of a profile may be secrets.
            _ if name.contains(".env.") || is_secret(&name) => {
                written.push(FileSetting { name, value: "(set)".to_owned(), file: path.to_owned() });
            }
            toml::Value::String(text) => {
                written.push(FileSetting { name, value: text.clone(), file: path.to_owned() });
            }
            other => written.push(FileSetting { name, value: other.to_string(), file: path.to_owned() }),
        }
    }
}

fn parse(path: &Path, text: &str) -> Result<ConfigFile, CliError> {
    toml::from_str(text).map_err(|error| {
        // The parser's own display quotes several lines of the file; one line with a line number is enough.
        let line =
            error.span().map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count());
        CliError::invalid(format!("{}, line {line}: {}", quote_path(path), error.message().escape_debug()))
    })
}

/// Returns the first of these files that exists, with its text.
fn first_existing(paths: [Option<PathBuf>; 2]) -> Result<Option<(PathBuf, String)>, CliError> {
    for path in paths.into_iter().flatten() {
        // These paths are defaults, so anything but a regular file is ignored; a pipe would block.
        if !path.is_file() {
            continue;
        }
        let text = read(&path).map_err(|error| unreadable(&path, &error))?;
        return Ok(Some((path, text)));
    }
    Ok(None)
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(io::Error::other("larger than 1 MB"));
    }
    Ok(text)
}

fn unreadable(path: &Path, error: &io::Error) -> CliError {
    CliError::invalid(format!("cannot read the configuration file {}: {error}", quote_path(path)))
}

/// Applies the file's ceiling to the default one.
fn apply_ceiling(ceiling: Limits, spec: &LimitsSpec) -> Result<Limits, String> {
    let bytes = |name, given, base| positive(name, given).map(|value| value.unwrap_or(base));
    let count = |name, given: Option<i64>, base| match positive(name, given)? {
        None => Ok(base),
        Some(value) => u32::try_from(value).map_err(|_| format!("{name}: {value} is too large")),
    };
    let cpu_millis = spec.cpus.map(|cpus| (cpus * 1_000.0).round() as i64);
    Ok(Limits {
        timeout: positive("timeout_ms", spec.timeout_ms)?.map_or(ceiling.timeout, Duration::from_millis),
        memory_bytes: bytes("memory_bytes", spec.memory_bytes, ceiling.memory_bytes)?,
        cpu_millis: count("cpus", cpu_millis, ceiling.cpu_millis)?,
        disk_bytes: bytes("disk_bytes", spec.disk_bytes, ceiling.disk_bytes)?,
        processes: count("processes", spec.processes, ceiling.processes)?,
        output_bytes: bytes("output_bytes", spec.output_bytes, ceiling.output_bytes)?,
    })
}

/// Refuses a ceiling above the machine's resources, because a promised limit must be available.
fn check_ceiling(ceiling: Limits, machine: &HostCapacity) -> Result<Limits, String> {
    let memory = machine.memory_bytes.unwrap_or(u64::MAX);
    for (name, value) in [("memory_bytes", ceiling.memory_bytes), ("disk_bytes", ceiling.disk_bytes)] {
        if value > memory {
            let (value, memory) = (show_bytes(value), show_bytes(memory));
            return Err(format!(
                "{name}: {value} is more than the {memory} that this machine has for sandboxes; lower it"
            ));
        }
    }
    let counts = [
        ("cpus", ceiling.cpu_millis / 1_000, machine.cpu_millis.map(|millis| millis / 1_000)),
        ("processes", ceiling.processes, machine.processes),
    ];
    for (name, value, most) in counts {
        if let Some(most) = most.filter(|most| value > *most) {
            return Err(format!("{name}: {value} is more than the {most} that this machine has; lower it"));
        }
    }
    Ok(ceiling)
}

fn positive(name: &str, given: Option<i64>) -> Result<Option<u64>, String> {
    match given.map(u64::try_from) {
        None => Ok(None),
        Some(Ok(value)) if value > 0 => Ok(Some(value)),
        Some(_) => Err(format!("{name}: must be above zero")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shipped() -> Config {
        Config::for_machine(HostCapacity::default())
    }

    #[test]
    fn a_ceiling_above_the_machine_is_refused() {
        let machine =
            HostCapacity { memory_bytes: Some(4 << 30), cpu_millis: Some(2_000), processes: Some(500) };
        let set = |text: &str| Config::for_machine(machine).with_trusted_file(Path::new("t.toml"), text);
        let wrong = |text| set(text).unwrap_err().message;
        assert_eq!(
            wrong("[ceiling]\nmemory_bytes = 68719476736\n"),
            "'t.toml': [ceiling] memory_bytes: 64 GB is more than the 4 GB that this machine has for \
             sandboxes; lower it"
        );
        assert!(wrong("[ceiling]\ndisk_bytes = 68719476736\n").contains("disk_bytes: 64 GB"));
        assert!(wrong("[ceiling]\ncpus = 3.0\n").contains("cpus: 3 is more than the 2"));
        assert!(wrong("[ceiling]\nprocesses = 501\n").contains("processes: 501 is more than the 500"));
        assert_eq!(set("[ceiling]\nmemory_bytes = 1073741824\n").unwrap().ceiling.memory_bytes, 1 << 30);
    }

    #[test]
    fn sandbox_memory_lowers_the_ceiling() {
        let machine = HostCapacity { memory_bytes: Some(4 << 30), ..HostCapacity::default() };
        let set = |text: &str| Config::for_machine(machine).with_trusted_file(Path::new("t.toml"), text);
        let config = set("[server]\nsandbox_memory = \"1G\"\n").unwrap();
        assert_eq!((config.sandbox_memory, config.ceiling.memory_bytes), (Some(1 << 30), 1 << 30));
        assert_eq!(config.ceiling.disk_bytes, 1 << 30);
        let both = "[server]\nsandbox_memory = \"1G\"\n[ceiling]\nmemory_bytes = 2147483648\n";
        assert!(set(both).unwrap_err().message.contains("2 GB is more than the 1 GB"));
        assert!(
            set("[server]\nsandbox_memory = \"8G\"\n").unwrap_err().message.starts_with("'t.toml': [server]")
        );
    }

    fn trusting(text: &str) -> Result<Config, CliError> {
        shipped().with_trusted_file(Path::new("t.toml"), text)
    }

    fn adding(text: &str) -> Result<Config, CliError> {
        shipped().with_untrusted_file(Path::new(NAME), text)
    }

    #[test]
    fn a_trusted_file_replaces_profiles_and_moves_the_ceiling() {
        let text =
            "[profiles.default]\nmounts = [\"/srv:/srv\"]\n[ceiling]\nmemory_bytes = 1048576\ncpus = 2.5\n";
        let config = trusting(text).unwrap();
        assert_eq!(config.profiles.get("default").unwrap().mounts, ["/srv:/srv"]);
        assert_eq!(config.ceiling.memory_bytes, 1 << 20);
        assert_eq!(config.ceiling.cpu_millis, 2_500);
        assert_eq!(config.ceiling.processes, Limits::CEILING.processes);
    }

    #[test]
    fn errors_name_the_line() {
        let wrong = |text| trusting(text).unwrap_err().message;
        assert!(wrong("\n[profile.x]\n").starts_with("'t.toml', line 2: unknown field `profile`"));
        assert!(wrong("[profiles.x.limits]\ntimeout = 1\n").contains("unknown field `timeout`"));
        assert_eq!(wrong("[ceiling]\nprocesses = 0\n"), "'t.toml': [ceiling] processes: must be above zero");
        assert!(wrong("[ceiling]\ncpus = -1.0\n").contains("cpus: must be above zero"));
        assert!(wrong("[ceiling]\nprocesses = 99999999999\n").contains("is too large"));
        assert_eq!(
            wrong("[network]\nnot_public = [\"10.1.0.0/16\", \"db.corp\"]\n"),
            "'t.toml': [network] not_public: 'db.corp' is not an address range such as 10.1.0.0/16"
        );
        assert!(wrong("[network]\nnot_public = [\"203.0.113.9/24\"]\n").contains("beyond its prefix"));
    }

    #[test]
    fn a_file_that_came_with_the_code_only_adds_profiles() {
        let config = adding("[profiles.slow.limits]\ntimeout_ms = 60000\n").unwrap();
        assert_eq!(config.profiles.get("slow").unwrap().limits.timeout_ms, Some(60_000));
        assert!(config.profiles.get("slow").unwrap().came_with_code);
        assert!(!trusting("[profiles.slow]\n").unwrap().profiles.get("slow").unwrap().came_with_code);
        for (text, why) in [
            ("[ceiling]\nprocesses = 9\n", "sets [ceiling]"),
            ("[warm]\nmode = \"off\"\n", "sets [warm]"),
            ("[server]\nqueue = 1\n", "sets [server]"),
            ("[dependencies]\ndirect = true\n", "sets [dependencies]"),
            ("[policies.balanced]\n", "sets [policies]"),
            ("[providers.docker]\nimage = \"x\"\n", "sets [providers]"),
            ("[images]\nallow = [\"sealed\"]\n", "sets [images]"),
            ("[network]\nnot_public = [\"203.0.113.0/24\"]\n", "sets [network]"),
            ("[dependencies]\nfolder = \"/tmp\"\n", "sets [dependencies]"),
            ("[profiles.default]\n", "replaces profile 'default'"),
            (
                "[profiles.x]\nmounts = [\"/:/host\"]\n",
                "sets mounts, image, network, policy or build_packages",
            ),
            ("[profiles.x]\nimage = \"/\"\n", "sets mounts, image, network, policy or build_packages"),
            ("[profiles.x]\npolicy = \"off\"\n", "sets mounts, image, network, policy or build_packages"),
            (
                "[profiles.x]\nbuild_packages = true\n",
                "sets mounts, image, network, policy or build_packages",
            ),
            (
                "[profiles.x.network]\nmode = \"full\"\n",
                "sets mounts, image, network, policy or build_packages",
            ),
        ] {
            let message = adding(text).unwrap_err().message;
            assert!(message.contains(why) && message.contains("--config belljar.toml"), "{message}");
        }
    }

    #[test]
    fn policy_errors_are_reported() {
        let text = "[policies.house]\nextends = \"strict\"\nallow_modules = [\"socket\"]\n\
                    [policies.house.rules]\nPY-EVAL = \"warn\"\n[policies.team]\nextends = \"house\"\n";
        let config = trusting(text).unwrap();
        let team = config.policies.get("team").unwrap();
        assert_eq!((team.name.as_str(), team.allow_modules.as_slice()), ("team", &["socket".to_owned()][..]));
        let wrong = |text| trusting(text).unwrap_err().message;
        assert!(wrong("[policies.x.rules]\nPY-NOPE = \"warn\"\n").contains("unknown rule 'PY-NOPE'"));
        assert!(wrong("[policies.x]\nextends = \"y\"\n").contains("cannot extend 'y'"));
        let round = "[policies.x]\nextends = \"y\"\n[policies.y]\nextends = \"x\"\n";
        assert!(wrong(round).contains("or it extends this policy"));
        assert!(wrong("[policies.x]\ndefault = \"ask\"\n").contains("unknown variant `ask`"));
    }

    #[test]
    fn a_named_file_must_exist() {
        let error = load(Some(Path::new("/nonexistent/x.toml")), &Environment::default()).unwrap_err();
        assert!(error.message.contains("cannot read the configuration file '/nonexistent/x.toml'"));
    }
}
