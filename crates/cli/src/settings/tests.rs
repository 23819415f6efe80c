use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use belljar_engine::limits::{HostCapacity, Limits};
use belljar_engine::warm::{WarmPoolMode, WarmSettings};
use belljar_images::ImageName;
use belljar_layers::store::{CacheAddress, SharedCache};
use clap::CommandFactory;

use super::{Files, Given, Settings, table};
use crate::args::Cli;
use crate::config::Config;
use crate::deps::settings::LayerSettings;
use crate::env::Environment;
use crate::error::CliError;
use crate::provider_kinds;

const NAME: &str = "belljar.toml";

/// Reads a file as the trusted one of a machine, with these variables.
fn read(machine: HostCapacity, text: &str, variables: &[(&'static str, &str)]) -> Result<Settings, CliError> {
    let get = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
    let mut settings =
        Settings::new(Environment::read(get, provider_kinds::variables()), Config::for_machine(machine));
    let mut given: BTreeMap<&'static str, Given> = super::given_in_environment(get)?;
    settings.read_trusted(Path::new("t.toml"), text, &mut given)?;
    settings.apply_all(given)
}

/// Reads a file as a server does, which also needs its own settings.
fn serving(text: &str) -> Result<Settings, CliError> {
    let mut settings = trusting(text)?;
    settings.config.server.invalid.take().map_or(Ok(settings), Err)
}

fn trusting(text: &str) -> Result<Settings, CliError> {
    read(HostCapacity::default(), text, &[])
}

fn wrong(text: &str) -> String {
    serving(text).unwrap_err().message
}

fn with(variables: &[(&'static str, &str)]) -> Result<Settings, CliError> {
    read(HostCapacity::default(), "", variables)
}

fn adding(text: &str) -> Result<Settings, CliError> {
    let mut settings = Settings::new(Environment::default(), Config::for_machine(HostCapacity::default()));
    settings.read_untrusted(Path::new(NAME), text)?;
    Ok(settings)
}

#[test]
fn a_ceiling_above_the_machine_is_refused() {
    let machine = HostCapacity { memory_bytes: Some(4 << 30), cpu_millis: Some(2_000), processes: Some(500) };
    let set = |text: &str| read(machine, text, &[]);
    let wrong = |text| set(text).unwrap_err().message;
    assert_eq!(
        wrong("[ceiling]\nmemory_bytes = 68719476736\n"),
        "'t.toml': ceiling.memory_bytes: 64 GB is more than the 4 GB that this machine has for sandboxes; write \
         for example 512M"
    );
    assert!(wrong("[ceiling]\ndisk_bytes = 68719476736\n").contains("disk_bytes: 64 GB"));
    assert!(wrong("[ceiling]\ncpus = 3.0\n").contains("cpus: 3 is more than the 2"));
    assert!(wrong("[ceiling]\nprocesses = 501\n").contains("processes: 501 is more than the 500"));
    let set = set("[ceiling]\nmemory_bytes = 1073741824\n").unwrap();
    assert_eq!(set.config.ceiling.memory_bytes, 1 << 30);
}

#[test]
fn sandbox_memory_lowers_the_ceiling() {
    let machine = HostCapacity { memory_bytes: Some(4 << 30), ..HostCapacity::default() };
    let set = |text: &str| read(machine, text, &[]);
    let config = set("[server]\nsandbox_memory = \"1G\"\n").unwrap().config;
    assert_eq!((config.sandbox_memory, config.ceiling.memory_bytes), (Some(1 << 30), 1 << 30));
    assert_eq!(config.ceiling.disk_bytes, 1 << 30);
    // The order in the file does not matter.
    let both = "[ceiling]\nmemory_bytes = 2147483648\n[server]\nsandbox_memory = \"1G\"\n";
    assert!(set(both).unwrap_err().message.contains("2 GB is more than the 1 GB"));
    for (wrong, why) in [
        ("\"0\"", "must be above zero"),
        ("\"1M\"", "1 MB is too little; the minimum is 64 MB"),
        ("\"5G\"", "5 GB is more than the 4 GB that this machine has for sandboxes"),
    ] {
        let refused = set(&format!("[server]\nsandbox_memory = {wrong}\n")).unwrap_err().message;
        assert!(refused.starts_with(&format!("'t.toml': server.sandbox_memory: {why}")), "{refused}");
    }
}

#[test]
fn a_trusted_file_replaces_profiles_and_moves_the_ceiling() {
    let text =
        "[profiles.default]\nmounts = [\"/srv:/srv\"]\n[ceiling]\nmemory_bytes = 1048576\ncpus = 2.5\n";
    let config = trusting(text).unwrap().config;
    assert_eq!(config.profiles.get("default").unwrap().mounts, ["/srv:/srv"]);
    assert_eq!(config.ceiling.memory_bytes, 1 << 20);
    assert_eq!(config.ceiling.cpu_millis, 2_500);
    assert_eq!(config.ceiling.processes, Limits::CEILING.processes);
}

#[test]
fn unknown_names_are_refused_with_their_line_and_the_closest_known_name() {
    for (text, message) in [
        ("\n[profile.x]\n", "'t.toml', line 2: unknown setting 'profile'; did you mean 'profiles'?"),
        (
            "[server]\n\ntenant_disks = \"1G\"\n",
            "'t.toml', line 3: unknown setting 'server.tenant_disks'; did you mean 'tenant_disk'?",
        ),
        (
            "[profiles.x.limits]\ntimeout = 1\n",
            "'t.toml', line 2: unknown setting 'profiles.x.limits.timeout'; did you mean 'timeout_ms'?",
        ),
        ("drain = \"5s\"\n", "'t.toml', line 1: unknown setting 'drain'; did you mean 'server.drain'?"),
        (
            "[warm]\nport = 1\n",
            "'t.toml', line 2: unknown setting 'warm.port'; known here: idle, memory, mode",
        ),
        (
            "[providers.dokcer]\npool = 1\n",
            "'t.toml', line 1: unknown setting 'providers.dokcer'; did you mean 'docker'?",
        ),
        ("server = 5\n", "'t.toml', line 1: 'server' must be a table"),
        (
            "admin_key = \"hush\"\n",
            "'t.toml', line 1: 'admin_key' is not read from a file; set BELLJAR_ADMIN_KEY",
        ),
        (
            "[limits]\ncpus = 1\n",
            "'t.toml', line 1: 'limits' is not read from a file; set BELLJAR_LIMITS_TIMEOUT",
        ),
    ] {
        assert_eq!(wrong(text), message);
    }
    assert!(wrong("[server]\nport = 1\n").contains("'server.port'; known here: body_timeout, concurrency"));
    assert!(wrong("x = \n").starts_with("'t.toml', line 1: "));
}

#[test]
fn errors_name_the_setting_its_origin_and_a_valid_value() {
    for (text, message) in [
        (
            "[ceiling]\nprocesses = 0\n",
            "'t.toml': ceiling.processes: must be above zero; write for example 16",
        ),
        ("[ceiling]\ncpus = -1.0\n", "'t.toml': ceiling.cpus: must be above zero; write for example 1.5"),
        (
            "[ceiling]\nprocesses = 99999999999\n",
            "'t.toml': ceiling.processes: 99999999999 is too large; write for example 16",
        ),
        (
            "[network]\nnot_public = [\"10.1.0.0/16\", \"db.corp\"]\n",
            "'t.toml': network.not_public: 'db.corp' is not an address range such as 10.1.0.0/16",
        ),
        ("[providers.docker]\npool = 1_000\n", "'t.toml': providers.docker.pool: must be at most 128"),
        (
            "[server]\ndrain = \"soon\"\n",
            "'t.toml': server.drain: 'soon' is not a time; write for example 30s",
        ),
        (
            "[server]\nshared = true\n",
            "'t.toml', line 2: unknown setting 'server.shared'; did you mean 'dependencies.shared'?",
        ),
        (
            "[server]\nnetwork = \"all\"\n",
            "'t.toml': server.network: 'all' is not one of none, names, hosts, internet, full; write for example none",
        ),
    ] {
        assert_eq!(wrong(text), message);
    }
    assert!(wrong("[network]\nnot_public = [\"203.0.113.9/24\"]\n").contains("beyond its prefix"));
    let variable = |name, value| with(&[(name, value)]).unwrap_err().message;
    assert_eq!(
        variable("BELLJAR_LIMITS_MEMORY", "lots"),
        "BELLJAR_LIMITS_MEMORY: limits.memory_bytes: 'lots' is not a size; write for example 512M"
    );
    assert_eq!(
        variable("BELLJAR_PROVIDERS_E2B_SANDBOXES", "hush"),
        "BELLJAR_PROVIDERS_E2B_SANDBOXES: providers.e2b.sandboxes: must be integer"
    );
    let cache = variable("BELLJAR_DEPENDENCIES_SHARED_CACHE", "s3://user:hush@layers");
    assert!(
        cache.starts_with("BELLJAR_DEPENDENCIES_SHARED_CACHE: dependencies.shared_cache: write file:///")
    );
    assert!(!cache.contains("hush"), "a URL might have a password");
    // Another program's variable fails a server, but no other command.
    assert!(with(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector")]).is_ok());
}

#[test]
fn settings_of_the_server_are_validated() {
    let set =
        trusting("[server]\nconcurrency = 3\nmax_body = \"1M\"\ndrain = \"5s\"\nkeep = \"1h\"\n").unwrap();
    let service = set.config.server.service;
    assert_eq!((service.concurrency, service.max_body, service.drain.as_secs()), (3, 1 << 20, 5));
    for text in [
        "origins = [\"https://a.test/\"]",
        "origins = [\"*\"]",
        "origins = [\"https://\"]",
        "concurrency = 0",
        "queue = 0",
        "queue = 100001",
        "max_body = \"x\"",
        "drain = \"-1s\"",
        "keep_bytes = \"0\"",
    ] {
        assert!(wrong(&format!("[server]\n{text}\n")).starts_with("'t.toml': server."), "{text}");
    }
    let folders = |text: &str| serving(&format!("[server.host_folders]\n{text}\n"));
    let sets = folders("sets = { path = \"/srv/sets\" }").unwrap().config.server.host_folders;
    assert!(!sets["sets"].writable);
    assert!(folders("\"/etc\" = { path = \"/etc\" }").unwrap_err().message.contains("'/etc'"));
    assert!(folders("x = { path = \"/x\", rw = true }").unwrap_err().message.contains("unknown field `rw`"));
}

#[test]
fn an_invalid_setting_of_the_server_fails_only_the_server() {
    let file = "[server]\nqueue = 0\ndrain = \"soon\"\n[warm]\nmode = \"off\"\n";
    let settings = trusting(file).unwrap();
    assert_eq!(settings.config.warm.mode, WarmPoolMode::Off);
    // The first in the order of the table.
    let wanted = "'t.toml': server.drain: 'soon' is not a time; write for example 30s";
    assert!(settings.show().is_err_and(|error| error.message == wanted));
    assert_eq!(wrong(file), wanted);
    assert!(trusting("[server]\nsandbox_memory = \"0\"\n").is_err(), "it lowers every ceiling");
}

#[test]
fn misspelled_variables_are_named_with_the_closest_known_one() {
    for (name, meant) in [
        ("BELLJAR_SEVRER", "BELLJAR_SERVER"),
        ("BELLJAR_API_KEYS", "BELLJAR_API_KEY"),
        ("BELLJAR_TIMEOUT", "BELLJAR_LIMITS_TIMEOUT"),
        ("BELLJAR_SERVER_DRIAN", "BELLJAR_SERVER_DRAIN"),
    ] {
        let wanted = format!("unknown variable {name}; did you mean {meant}?");
        assert_eq!(super::misspelled_variable(name), Some(wanted));
    }
    for name in [
        "BELLJAR_SERVER",
        "BELLJAR_DATA_DIR",
        "BELLJAR_BIN",
        "BELLJAR_FAULT",
        "BELLJAR_MCP_URL",
        "BELLJAR_WRITE_DOCS",
        "BELLJAR_TEST_ALL",
        "BELLJAR_TEST_SIZE",
        "BELLJAR_TEST_PACKAGES",
        "BELLJAR_STORE_TEST_FOLDER",
        "BELLJAR_SERVICE_HOST",
        "BELLJAR_SERVICE_PORT",
        "BELLJAR_PORT",
        "BELLJAR_PORT_7117_TCP",
        "BELLJAR_PORT_7117_TCP_ADDR",
        "HOME",
        "BELLJAR_",
    ] {
        assert_eq!(super::misspelled_variable(name), None, "{name}");
    }
}

#[test]
fn warm_settings_are_refused_and_not_clamped() {
    let warm = trusting("[warm]\nmemory = \"64M\"\nidle = \"2m\"\n").unwrap().config.warm;
    assert_eq!((warm.memory_bytes, warm.idle.as_secs(), warm.mode), (64 << 20, 120, WarmPoolMode::Pool));
    assert_eq!(trusting("").unwrap().config.warm, WarmSettings::default());
    assert_eq!(trusting("[warm]\nmemory = \"0\"\n").unwrap().config.warm.memory_bytes, 0);
    for (text, name) in [
        ("memory = \"-1\"", "warm.memory"),
        ("memory = \"much\"", "warm.memory"),
        ("idle = \"0s\"", "warm.idle"),
        ("idle = \"500ms\"", "warm.idle"),
        ("idle = \"25h\"", "warm.idle"),
    ] {
        assert!(wrong(&format!("[warm]\n{text}\n")).contains(name), "{text}");
    }
}

#[test]
fn invalid_layer_settings_are_refused() {
    let layers = |text: &str| trusting(&format!("[dependencies]\n{text}\n")).map(|set| set.config.layers);
    assert_eq!(layers("").unwrap(), LayerSettings::default());
    let set = layers("max_bytes = \"1G\"\nmax_layers = 5\nttl = \"2h\"\nshared = true\n").unwrap();
    assert_eq!((set.bounds.bytes, set.bounds.layers, set.bounds.layer_bytes), (1 << 30, 5, 1 << 30));
    assert_eq!((set.ttl.as_secs(), set.shared), (7_200, true));
    let cached = layers("shared_cache = \"file:///srv/layers\"\nshared_cache_read_only = true\n").unwrap();
    let wanted = SharedCache {
        address: CacheAddress::Folder("/srv/layers".into()),
        read_only: true,
        timeout: Duration::from_secs(60),
    };
    assert_eq!(cached.shared_cache(), Some(wanted));
    for (text, why) in [
        ("max_bytes = \"0\"", "dependencies.max_bytes"),
        ("max_bytes = \"much\"", "dependencies.max_bytes"),
        ("max_cache_bytes = \"-1\"", "dependencies.max_cache_bytes"),
        ("max_layers = 0", "dependencies.max_layers"),
        ("ttl = \"-1h\"", "dependencies.ttl"),
        ("folder = \"here\"", "dependencies.folder"),
        ("shared_cache = \"/srv/layers\"", "dependencies.shared_cache: write file:///"),
        (
            "shared_cache_read_only = true",
            "dependencies.shared_cache_read_only: needs dependencies.shared_cache",
        ),
        ("shared_cache = \"s3://layers\"\nshared_cache_wait = \"0\"", "dependencies.shared_cache_wait"),
    ] {
        let message = layers(text).unwrap_err().message;
        assert!(message.starts_with(&format!("'t.toml': {why}")), "{text}: {message}");
    }
}

#[test]
fn image_settings_are_validated() {
    let images = |text: &str| trusting(&format!("[images]\n{text}\n")).map(|set| set.config.images);
    let set = images("allow = [\"python\"]\nplain_http = [\"127.0.0.1:5000\", \"localhost\", \"[::1]:1\"]\n");
    assert!(set.unwrap().allow.contains(&ImageName::parse("docker.io/library/python:latest").unwrap()));
    for (text, why) in [
        ("folder = \"here\"", "images.folder"),
        ("allow = [\"A B\"]", "images.allow"),
        ("plain_http = [\"registry.example:80\"]", "images.plain_http"),
        ("plain_http = [\"127.evil.example\"]", "images.plain_http"),
    ] {
        let message = images(text).unwrap_err().message;
        assert!(message.starts_with(&format!("'t.toml': {why}")), "{text}: {message}");
    }
}

#[test]
fn a_file_that_came_with_the_code_only_adds_profiles() {
    let config = adding("[profiles.slow.limits]\ntimeout_ms = 60000\n").unwrap().config;
    assert_eq!(config.profiles.get("slow").unwrap().limits.timeout_ms, Some(60_000));
    assert!(config.profiles.get("slow").unwrap().came_with_code);
    let trusted = trusting("[profiles.slow]\n").unwrap().config;
    assert!(!trusted.profiles.get("slow").unwrap().came_with_code);
    for (text, why) in [
        ("[ceiling]\nprocesses = 9\n", "sets ceiling,"),
        ("[warm]\nmode = \"off\"\n", "sets warm,"),
        ("[server]\nqueue = 1\n", "sets server,"),
        ("[dependencies]\ndirect = true\n", "sets dependencies,"),
        ("[policies.balanced]\n", "sets policies,"),
        ("[providers.docker]\nimage = \"x\"\n", "sets providers,"),
        ("[images]\nallow = [\"sealed\"]\n", "sets images,"),
        ("[network]\nnot_public = [\"203.0.113.0/24\"]\n", "sets network,"),
        ("[dependencies]\nfolder = \"/tmp\"\n", "sets dependencies,"),
        ("[profiles.default]\n", "replaces profile 'default'"),
        ("[profiles.x]\nmounts = [\"/:/host\"]\n", "sets profiles.x.mounts,"),
        ("[profiles.x]\nimage = \"/\"\n", "sets profiles.x.image,"),
        ("[profiles.x]\npolicy = \"off\"\n", "sets profiles.x.policy,"),
        ("[profiles.x]\nbuild_packages = true\n", "sets profiles.x.build_packages,"),
        ("[profiles.x.network]\nmode = \"full\"\n", "sets profiles.x.network,"),
        ("[profiles.x]\nnetwork = \"internet\"\n", "sets profiles.x.network,"),
        // Profiles in any other notation.
        ("profiles = { x = { mounts = [\"/:/host\"] } }\n", "sets profiles.x.mounts,"),
        ("profiles.x.image = \"/\"\n", "sets profiles.x.image,"),
    ] {
        let message = adding(text).unwrap_err().message;
        assert!(message.contains(why) && message.contains("--config belljar.toml"), "{message}");
    }
}

/// What a local file may set is listed here as well, so that a change of the table is noticed.
#[test]
fn a_local_file_may_set_nothing_else() {
    let allowed: Vec<_> = table::rows()
        .filter(|row| row.local == super::setting::LocalFile::Allowed)
        .map(|row| row.name.as_ref())
        .collect();
    let limits = ["timeout_ms", "memory_bytes", "cpus", "disk_bytes", "processes", "output_bytes"]
        .map(|name| format!("limits.{name}"));
    let others = ["env", "packages", "output_overflow", "provider"].map(str::to_owned);
    let wanted: Vec<_> = limits.into_iter().chain(others).map(|name| format!("profiles.*.{name}")).collect();
    assert_eq!(allowed, wanted);
}

#[test]
fn policy_errors_are_reported() {
    let text = "[policies.house]\nextends = \"strict\"\nallow_modules = [\"socket\"]\n\
                [policies.house.rules]\nPY-EVAL = \"warn\"\n[policies.team]\nextends = \"house\"\n";
    let config = trusting(text).unwrap().config;
    let team = config.policies.get("team").unwrap();
    assert_eq!((team.name.as_str(), team.allow_modules.as_slice()), ("team", &["socket".to_owned()][..]));
    assert!(wrong("[policies.x.rules]\nPY-NOPE = \"warn\"\n").contains("unknown rule 'PY-NOPE'"));
    assert!(wrong("[policies.x]\nextends = \"y\"\n").contains("cannot extend 'y'"));
    let round = "[policies.x]\nextends = \"y\"\n[policies.y]\nextends = \"x\"\n";
    assert!(wrong(round).contains("or it extends this policy"));
    assert!(wrong("[policies.x]\ndefault = \"ask\"\n").contains("unknown variant `ask`"));
}

#[test]
fn a_named_file_must_exist() {
    let load = |files| Settings::load(Some(Path::new("/nonexistent/x.toml")), files, |_| None);
    let error = load(Files::Required).unwrap_err();
    assert!(error.message.contains("cannot read the configuration file '/nonexistent/x.toml'"));
    assert!(load(Files::Optional).is_ok());
}

#[test]
fn aliases_become_limits() {
    let set = with(&[
        ("CODE_EXECUTION_TIMEOUT", "2.5"),
        ("CODE_EXECUTION_MEMORY_MB", "256"),
        ("CODE_EXECUTION_CPU_CORES", "0.5"),
        ("BELLJAR_PROFILE", "data"),
    ]);
    let environment = set.unwrap().environment;
    assert_eq!(environment.limits.timeout_ms, Some(2_500));
    assert_eq!(environment.limits.memory_bytes, Some(256 << 20));
    assert_eq!(environment.limits.cpus, Some(0.5));
    assert_eq!(environment.profile.as_deref(), Some("data"));
    let both = with(&[("CODE_EXECUTION_TIMEOUT", "2.5"), ("BELLJAR_LIMITS_TIMEOUT", "30s")]).unwrap();
    assert_eq!(both.environment.limits.timeout_ms, Some(30_000), "the setting's own variable wins");
}

#[test]
fn an_empty_variable_counts_as_absent() {
    let get = |name: &str| (name == "BELLJAR_CONFIG").then(Default::default);
    assert_eq!(Settings::load(None, Files::Ignored, get).unwrap().environment.config, None);
}

#[test]
fn aliases_set_the_layer_folder_and_ttl() {
    let set = with(&[("DEPENDENCY_CACHE_DIR", "/x"), ("DEPENDENCY_CACHE_TTL_HOURS", "1.5"), ("HOME", "/h")])
        .unwrap();
    assert_eq!(set.config.layers.folder, Some("/x".into()));
    assert_eq!(set.config.layers.ttl, Duration::from_secs(5_400));
    assert_eq!(set.environment.cache_home, Some("/h/.cache".into()));
    let long = with(&[("DEPENDENCY_CACHE_TTL_HOURS", "1e300")]).unwrap_err().message;
    assert!(long.starts_with("DEPENDENCY_CACHE_TTL_HOURS"));
}

#[test]
fn the_folder_follows_flag_environment_and_file() {
    let file = "[dependencies]\nfolder = \"/file\"\n";
    let folder = |text, variables: &[(&'static str, &str)], flag: Option<&str>| {
        read(HostCapacity::default(), text, variables)
            .unwrap()
            .config
            .layers
            .folder(flag.map(Path::new))
            .unwrap()
    };
    let home = ("XDG_CACHE_HOME", "/c");
    assert_eq!(folder("", &[home], None), Path::new("/c/belljar/layers"));
    assert_eq!(folder(file, &[home], None), Path::new("/file"));
    let set = [home, ("DEPENDENCY_CACHE_DIR", "/env")];
    assert_eq!(folder(file, &set, None), Path::new("/env"));
    assert_eq!(folder(file, &set, Some("/flag")), Path::new("/flag"));
    assert_eq!(folder(file, &[("DEPENDENCY_CACHE_DIR", "here")], None), Path::new("here"));
}

#[test]
fn invalid_numbers_are_refused_by_name() {
    for bad in ["0", "-1", "soon", "inf", "NaN"] {
        for name in ["CODE_EXECUTION_TIMEOUT", "CODE_EXECUTION_CPU_CORES", "BELLJAR_LIMITS_MEMORY"] {
            assert!(with(&[(name, bad)]).unwrap_err().message.starts_with(name), "{bad}");
        }
    }
}

#[test]
fn every_setting_has_a_variable_of_its_own() {
    let variables: Vec<_> = table::variables().collect();
    assert_eq!(variables.iter().collect::<BTreeSet<_>>().len(), variables.len());
    assert!(table::rows().all(|row| row.is_section() || row.variable.is_some()));
    for name in ["BELLJAR_SERVER_TENANT_DISK", "BELLJAR_CEILING_MEMORY", "BELLJAR_PROVIDERS_DOCKER_IMAGE"] {
        assert!(variables.contains(&name), "{name}");
    }
    let names: BTreeSet<_> = table::rows().map(|row| (!row.variable_only, &row.name)).collect();
    assert_eq!(names.len(), table::rows().count());
}

#[test]
fn every_flag_exists() {
    fn flags(command: &clap::Command, found: &mut BTreeSet<String>) {
        found.extend(
            command.get_arguments().filter_map(|argument| Some(format!("--{}", argument.get_long()?))),
        );
        command.get_subcommands().for_each(|below| flags(below, found));
    }
    let mut known = BTreeSet::new();
    flags(&Cli::command(), &mut known);
    for row in table::rows() {
        assert!(row.flag.is_none_or(|flag| known.contains(flag)), "{}", row.name);
    }
}

/// The fields of profiles and policies are declared elsewhere.
#[test]
fn sections_have_a_row_for_every_field() {
    for (section, type_error) in [
        ("profiles.*", toml::from_str::<belljar_engine::profile::Profile>("x = 1").unwrap_err()),
        ("policies.*", toml::from_str::<belljar_analysis::policy::PolicySpec>("x = 1").unwrap_err()),
        ("profiles.*.limits", toml::from_str::<belljar_engine::limits::LimitsSpec>("x = 1").unwrap_err()),
    ] {
        let message = type_error.message();
        let fields: BTreeSet<_> = message.split('`').skip(3).step_by(2).collect();
        let above: Vec<_> = section.split('.').collect();
        let rows = table::rows().filter(|row| row.is_below(&above));
        let rows: BTreeSet<_> = rows.filter_map(|row| row.name.split('.').nth(above.len())).collect();
        assert_eq!(rows, fields, "{section}");
    }
}

#[test]
fn values_are_shown_with_their_origin_and_secrets_are_not() {
    let file = "[server]\nqueue = 7\nhost_folders.sets = { path = \"/srv/sets\" }\n[profiles.x.env]\nTOKEN = \"hush\"\n\
                [providers.e2b]\napi_key = \"hush\"\n[providers.agentrun]\nregion = \"near\"\n[warm]\nmode = \"off\"\n";
    let set = read(
        HostCapacity::default(),
        file,
        &[
            ("BELLJAR_ADMIN_KEY", "hush"),
            ("BELLJAR_SERVER_DRAIN", "1m"),
            ("BELLJAR_WARM_MODE", "fork"),
            ("CODE_EXECUTION_TIMEOUT", "2"),
            ("AGENTRUN_REGION", "far"),
            ("AGENTRUN_TEMPLATE", "small"),
            ("AGENTRUN_ACCESS_KEY_SECRET", "hush"),
            ("BELLJAR_PROVIDERS_DOCKER_POOL", "3"),
        ],
    )
    .unwrap();
    let shown = set.show().unwrap();
    let of = |name: &str| {
        let found = shown.iter().find(|setting| setting.name == name).unwrap_or_else(|| panic!("{name}"));
        (found.value.as_str(), found.origin.as_str())
    };
    for (name, value, origin) in [
        ("server.queue", "7", "t.toml:server.queue"),
        ("server.drain", "1m", "BELLJAR_SERVER_DRAIN"),
        ("server.tenant_disk", "10 GB", "default"),
        ("server.network", "names", "default"),
        ("warm.mode", "fork", "BELLJAR_WARM_MODE"),
        ("limits.timeout_ms", "2000", "CODE_EXECUTION_TIMEOUT"),
        ("limits.processes", "64", "default"),
        ("admin_key", "(set)", "BELLJAR_ADMIN_KEY"),
        ("profiles.x.env.TOKEN", "(set)", "t.toml:profiles.x.env.TOKEN"),
        ("providers.e2b.api_key", "(set)", "t.toml:providers.e2b.api_key"),
        ("providers.agentrun.region", "near", "t.toml:providers.agentrun.region"),
        ("providers.agentrun.template", "small", "AGENTRUN_TEMPLATE"),
        ("providers.agentrun.access_key_secret", "(set)", "AGENTRUN_ACCESS_KEY_SECRET"),
        ("providers.docker.pool", "3", "BELLJAR_PROVIDERS_DOCKER_POOL"),
    ] {
        assert_eq!(of(name), (value, origin), "{name}");
    }
    assert!(of("server.host_folders").0.contains("/srv/sets"));
    assert!(!format!("{shown:?}").contains("hush"), "secrets are never printed");
}
