//! The table of all settings. A new setting is a row here, and its use.

use std::sync::LazyLock;
use std::time::Duration;

use belljar_engine::artifact::ArtifactLimits;
use belljar_engine::limits::Limits;
use belljar_engine::network::NetworkCeiling;
use belljar_engine::outcome::MAX_RESULT_BYTES;
use belljar_engine::plan::DiskStorage;
use belljar_engine::sandbox::MIN_DISK_FILE_BYTES;
use belljar_engine::warm::WarmPoolMode;
use belljar_images::ImageName;
use belljar_store::Durability;

use super::kind::{
    absolute_path, address, bytes, choice, cores, count, cpu_millis, level, list, maybe, millis,
    millis_number, path, ranges, secret, size, size_up_to, switch, table, text, time, time_within, url,
};
use super::setting::LocalFile::{Allowed, Ignored};
use super::setting::Setting;
use crate::image::settings::check_plain_http;
use crate::provider_kinds::KINDS;
use crate::serve::settings::{check_host_folders, check_origins};

/// Minimum memory of all sandboxes; with less, not even warm interpreters fit.
const MIN_SANDBOX_MEMORY_BYTES: u64 = 64 << 20;
/// Maximum size of artifacts in a result, which in base64 is below the limit of a stored result.
const MAX_INLINE_ARTIFACT_BYTES: u64 = 32 << 20;
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3_600);
const ANY: u64 = u64::MAX;
const MOST: u64 = 100_000;

const WARM_MODES: &[(&str, WarmPoolMode)] =
    &[("pool", WarmPoolMode::Pool), ("fork", WarmPoolMode::Fork), ("off", WarmPoolMode::Off)];
const DURABILITIES: &[(&str, Durability)] = &[("process", Durability::Process), ("power", Durability::Power)];
const GATES: &[(&str, bool)] = &[("auto", false), ("proxy", true)];
const DISK_STORAGES: &[(&str, DiskStorage)] = &[("memory", DiskStorage::Memory), ("file", DiskStorage::File)];
const NETWORK_CEILINGS: &[(&str, NetworkCeiling)] = &[
    ("none", NetworkCeiling::None),
    ("names", NetworkCeiling::Names),
    ("hosts", NetworkCeiling::Hosts),
    ("internet", NetworkCeiling::Internet),
    ("full", NetworkCeiling::Full),
];

/// Settings that belong together.
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "title and text are for docs/settings.md, which a test writes")
)]
pub(super) struct Group {
    pub(super) title: &'static str,
    pub(super) about: &'static str,
    pub(super) rows: Vec<Setting>,
}

/// All settings. They are read in this order: the defaults of `ceiling` follow from `server.sandbox_memory`.
#[rustfmt::skip]
pub(super) static GROUPS: LazyLock<Vec<Group>> = LazyLock::new(|| {
    let group = |title, about, rows| Group { title, about, rows };
    vec![
        group("Commands", "Set by a variable or a flag, not in a file.", commands()),
        group("Limits of a run", "For `belljar run` and `belljar mcp`. Set by a variable or a flag, not in a file; they override the limits of the profile.", limits()),
        group("Profiles", "`NAME` is the profile's name. `default`, `terminal` and `data` are built in; a file can replace them.", profiles()),
        group("Policies", "`NAME` is the policy's name. See [policies](policy.md).", policies()),
        group("Providers", "A server stores these settings at its first start; after that, `belljar provider set` changes them. See [providers](providers.md).", providers()),
        group("Results", "See [results](results.md).", results()),
        group("Artifacts", "See [artifacts](artifacts.md).", artifacts()),
        group("Packages", "See [packages](packages.md).", dependencies()),
        group("Build cache", "See [build cache](build-cache.md).", build_cache()),
        group("Images", "See [images](images.md).", images()),
        group("Network", "See [network](network.md).", network()),
        group("Warm interpreters", "", warm()),
        group("Server", "See [operators](operators.md).", server()),
        group("Limits of a server", "", server_limits()),
        group("Ceiling", "The most that any request may ask for. A ceiling above what the machine has is refused.", ceiling()),
    ]
});

/// Returns all settings.
pub(super) fn rows() -> impl Iterator<Item = &'static Setting> {
    GROUPS.iter().flat_map(|group| &group.rows)
}

/// Returns the variables of all settings.
pub(super) fn variables() -> impl Iterator<Item = &'static str> {
    rows()
        .flat_map(|row| row.variable.as_deref().into_iter().chain(row.aliases.iter().map(|(name, _)| *name)))
}

/// A setting that is a field.
macro_rules! row {
    ($name:literal, $kind:expr, $($path:ident).+, $about:literal) => {
        Setting::field($name, $kind, |settings| &mut settings.$($path).+, |settings| &settings.$($path).+, $about)
    };
}

#[rustfmt::skip]
fn commands() -> Vec<Setting> {
    let rows = vec![
        row!("config", maybe(path()), environment.config, "Configuration file to read instead of the default ones.")
            .flag("--config").documented("`~/.config/belljar/belljar.toml`, else `/etc/belljar/belljar.toml`"),
        row!("profile", maybe(text()), environment.profile, "Profile of a run.").flag("--profile").default("default"),
        row!("server", maybe(text()), environment.server, "Server that client commands call.").flag("--server").default("http://127.0.0.1:7117"),
        row!("api_key", maybe(secret()), environment.api_key, "API key that client commands send to a server.").secret(),
        row!("ca_cert", maybe(path()), environment.ca_cert, "PEM file of certificate authorities that client commands trust in addition to the system's."),
        row!("registry_user", maybe(text()), environment.registry_user, "User name for an image registry.").flag("--username"),
        row!("registry_password", maybe(secret()), environment.registry_password, "Password for an image registry.").flag("--password-stdin").secret(),
        row!("log", maybe(level()), environment.log, "Log level of a server.").default("info").server_only(),
        row!("admin_key", maybe(secret()), environment.admin_key, "Key of a server with all scopes in tenant `default`, for automation; at least 32 bytes.").secret(),
        row!("secrets_key", maybe(secret()), environment.secrets_key,
            "Key that encrypts providers' secrets in a server's database, 64 hexadecimal digits; used instead of the file `server.secrets_key`.").secret(),
    ];
    rows.into_iter().map(Setting::not_in_file).collect()
}

#[rustfmt::skip]
fn limits() -> Vec<Setting> {
    let usual = Limits::DEFAULT;
    let rows = vec![
        row!("limits.timeout_ms", maybe(millis_number()), environment.limits.timeout_ms, "Wall-clock time.")
            .flag("--timeout").aliases(&[("CODE_EXECUTION_TIMEOUT", "s")]).default(millis().show(&usual.timeout)),
        row!("limits.memory_bytes", maybe(bytes()), environment.limits.memory_bytes, "Memory of the whole sandbox.")
            .flag("--memory").aliases(&[("CODE_EXECUTION_MEMORY_MB", "M")]).default(usual.memory_bytes.to_string()),
        row!("limits.cpus", maybe(cores()), environment.limits.cpus, "CPU share; 1.0 is one core.")
            .flag("--cpus").aliases(&[("CODE_EXECUTION_CPU_CORES", "")]).default(cpu_millis().show(&usual.cpu_millis)),
        row!("limits.disk_bytes", maybe(bytes()), environment.limits.disk_bytes, "Data that the program writes to disk.")
            .flag("--disk").default(usual.disk_bytes.to_string()),
        row!("limits.processes", maybe(count(ANY)), environment.limits.processes, "Processes and threads at one time.")
            .flag("--processes").default(usual.processes.to_string()),
        row!("limits.output_bytes", maybe(bytes()), environment.limits.output_bytes, "How much of each output stream is kept.")
            .flag("--output").default(usual.output_bytes.to_string()),
    ];
    rows.into_iter().map(|row| row.unit_in_name().not_in_file()).collect()
}

#[rustfmt::skip]
fn profiles() -> Vec<Setting> {
    let limits = limits().into_iter().map(|row| {
        let unit = if row.type_name.starts_with("number") { "" } else { "number of " };
        Setting::section(format!("profiles.*.{}", row.name), format!("{unit}{}", row.type_name), row.about).local(Allowed)
    });
    let others = [
        Setting::section("profiles.*.env", "table", "Environment variables of every run.").local(Allowed).secret(),
        Setting::section("profiles.*.packages", "list", "Packages of every run; JavaScript packages start with `npm:`.").local(Allowed),
        Setting::section("profiles.*.output_overflow", "one of truncate, kill", "What happens when output exceeds the limit.").local(Allowed).default("truncate"),
        Setting::section("profiles.*.provider", "text", "Provider of runs that name none, or `auto`.").local(Allowed),
        Setting::section("profiles.*.preimports", "list", "Modules that a warm interpreter imports ahead of requests.").local(Ignored),
        Setting::section("profiles.*.network", "text or table",
            "Network access: `\"none\"`, `\"internet\"`, `\"full\"`, or `{ mode = \"hosts\", hosts = [\"pypi.org\"] }`."),
        Setting::section("profiles.*.image", "text", "`host`, the name of an image, or the folder of an unpacked root."),
        Setting::section("profiles.*.mounts", "list", "Host folders, `SOURCE:DESTINATION[:ro|rw]`."),
        Setting::section("profiles.*.build_packages", "true or false",
            "Whether packages may be built from source and run install scripts, in a sandbox without network.").default("false"),
        Setting::section("profiles.*.policy", "text", "Default policy; it also applies in addition to the request's choice."),
    ];
    limits.chain(others).collect()
}

#[rustfmt::skip]
fn policies() -> Vec<Setting> {
    vec![
        Setting::section("policies.*.extends", "text", "Policy to extend.").default("off"),
        Setting::section("policies.*.default", "action", "Action where nothing more specific applies."),
        Setting::section("policies.*.categories", "table", "Actions by category."),
        Setting::section("policies.*.rules", "table", "Actions by rule."),
        Setting::section("policies.*.allow_modules", "list", "Modules that are always allowed."),
        Setting::section("policies.*.listed_modules", "list", "Additional modules that the rules `*-LISTED-MODULE` match."),
        Setting::section("policies.*.listed_calls", "list", "Additional names that the rules `*-LISTED-CALL` match."),
        Setting::section("policies.*.unread", "action", "Action for code that cannot be analyzed."),
        Setting::section("policies.*.comments", "true or false", "Whether `# belljar: allow RULE reason` suppresses findings."),
    ]
}

#[rustfmt::skip]
fn providers() -> Vec<Setting> {
    let usual = row!("providers.usual", maybe(text()), config.providers.default_provider, "Provider of requests that name none.")
        .flag("--provider").default("native");
    let kinds = KINDS.iter().flat_map(|kind| Setting::of_provider(kind.name, &kind.schema(), kind.environment));
    [usual].into_iter().chain(kinds).collect()
}

#[rustfmt::skip]
fn results() -> Vec<Setting> {
    vec![
        row!("results.max_bytes", size_up_to(MAX_RESULT_BYTES), config.result_bytes, "Maximum size of what `main` returns, as JSON; a run with a larger result has failed."),
    ]
}

#[rustfmt::skip]
fn artifacts() -> Vec<Setting> {
    let most = ArtifactLimits::CEILING;
    vec![
        row!("artifacts.max_files", count(most.files.into()), config.artifacts.files, "Maximum number of artifacts of an execution."),
        row!("artifacts.max_file_bytes", size_up_to(most.file_bytes), config.artifacts.file_bytes, "Maximum size of an artifact."),
        row!("artifacts.max_bytes", size_up_to(most.total_bytes), config.artifacts.total_bytes, "Maximum size of all artifacts of an execution together."),
        row!("artifacts.inline_bytes", size_up_to(MAX_INLINE_ARTIFACT_BYTES), config.server.service.inline_artifact_bytes,
            "Maximum size of the artifacts in a server's result together; larger ones have a URL instead of content.").server_only(),
    ]
}

#[rustfmt::skip]
fn dependencies() -> Vec<Setting> {
    vec![
        row!("dependencies.direct", switch(), config.dependencies.direct, "Whether URLs, paths and repositories are accepted in place of registry packages."),
        row!("dependencies.python.imports", table(), config.dependencies.python.imports, "Python modules, each with the requirement that provides it."),
        row!("dependencies.python.allow", list::<String, _>(), config.dependencies.python.allow, "If set, the only Python packages that may be installed."),
        row!("dependencies.python.deny", list::<String, _>(), config.dependencies.python.deny, "Python packages that are never installed."),
        row!("dependencies.python.pins", table(), config.dependencies.python.pins, "The only version of a Python package that may be installed, such as `==1.26.4`."),
        row!("dependencies.npm.imports", table(), config.dependencies.npm.imports, "JavaScript modules, each with the requirement that provides it."),
        row!("dependencies.npm.allow", list::<String, _>(), config.dependencies.npm.allow, "If set, the only JavaScript packages that may be installed."),
        row!("dependencies.npm.deny", list::<String, _>(), config.dependencies.npm.deny, "JavaScript packages that are never installed."),
        row!("dependencies.npm.pins", table(), config.dependencies.npm.pins, "The only version of a JavaScript package that may be installed."),
        row!("dependencies.folder", maybe(absolute_path()), config.layers.folder, "Folder of the layer store. A server has its own in the data folder.")
            .flag("--folder").aliases(&[("DEPENDENCY_CACHE_DIR", "")]).documented("`belljar/layers` in the user's cache folder"),
        row!("dependencies.max_bytes", size(1), config.layers.bounds.bytes, "Maximum total size of layers."),
        row!("dependencies.max_layers", count(ANY), config.layers.bounds.layers, "Maximum number of layers."),
        row!("dependencies.max_cache_bytes", size(1), config.layers.cache_bytes, "Maximum size of the installers' own caches."),
        row!("dependencies.ttl", time(), config.layers.ttl, "How long a resolution of requirements to exact packages stays valid.")
            .aliases(&[("DEPENDENCY_CACHE_TTL_HOURS", "h")]),
        row!("dependencies.shared", switch(), config.layers.shared, "Whether tenants share layers."),
        row!("dependencies.shared_cache", maybe(url()), config.layers.cache_address, "Cache shared between machines: `file:///FOLDER` or `s3://BUCKET/FOLDER`."),
        row!("dependencies.shared_cache_read_only", switch(), config.layers.cache_read_only, "Whether the shared cache is only read."),
        row!("dependencies.shared_cache_wait", time(), config.layers.cache_wait,
            "Time limit of one transfer to or from the shared cache; after it, packages are installed locally."),
    ]
}

#[rustfmt::skip]
fn build_cache() -> Vec<Setting> {
    vec![
        row!("build_cache.folder", maybe(absolute_path()), config.builds.folder, "Folder of the cache of built programs. A server has its own in the data folder.")
            .documented("`belljar/builds` in the user's cache folder"),
        row!("build_cache.max_bytes", size(0), config.builds.max_bytes, "Maximum size of the cache; with 0, code is built for each run."),
    ]
}

#[rustfmt::skip]
fn images() -> Vec<Setting> {
    vec![
        row!("images.folder", maybe(absolute_path()), config.images.folder, "Folder of the image store. A server has its own in the data folder.")
            .flag("--folder").documented("`belljar/images` in the user's cache folder"),
        row!("images.allow", list::<ImageName, _>(), config.images.allow, "Stored images that requests to a server may name."),
        row!("images.mirrors", table(), config.images.registries.mirrors,
            "Mirrors to ask first, by registry: `{ \"docker.io\" = [\"mirror.example\"] }`."),
        row!("images.plain_http", list::<String, _>(), config.images.registries.plain_http, "Registries on this machine that are reached without TLS.")
            .check(|settings| check_plain_http(&settings.config.images)),
    ]
}

#[rustfmt::skip]
fn network() -> Vec<Setting> {
    vec![
        row!("network.not_public", ranges(), config.private_ranges,
            "Addresses and ranges that no allowed host name may resolve to, in addition to the built-in ones."),
        row!("network.gate", choice(GATES), config.always_proxy,
            "`auto`: programs connect to hosts by themselves where this machine has `/dev/net/tun`, else they use a proxy. `proxy`: always a proxy. Provider `docker` always uses one."),
    ]
}

#[rustfmt::skip]
fn warm() -> Vec<Setting> {
    vec![
        row!("warm.mode", choice(WARM_MODES), config.warm.mode,
            "`pool`: children are forked ahead of requests. `fork`: a child is forked for each request. `off`: each run starts an interpreter."),
        row!("warm.memory", size(0), config.warm.memory_bytes, "Maximum memory of all waiting children together."),
        row!("warm.idle", time_within(SECOND..=DAY), config.warm.idle, "Time without requests after which a pool is emptied."),
    ]
}

#[rustfmt::skip]
fn server() -> Vec<Setting> {
    let rows = vec![
        row!("server.listen", address(), config.server.listen, "Address and port to listen on.").flag("--listen"),
        row!("server.data_dir", maybe(path()), config.server.data_dir, "Folder for all persistent data.")
            .flag("--data-dir").aliases(&[("BELLJAR_DATA_DIR", "")]).documented("`belljar` in the user's state folder"),
        row!("server.metrics_listen", maybe(address()), config.server.metrics_listen, "Address and port for metrics and health only, without a key.").flag("--metrics-listen"),
        row!("server.otlp_endpoint", maybe(text()), config.server.otlp_endpoint, "OpenTelemetry collector that traces are sent to, such as `http://127.0.0.1:4318`.")
            .aliases(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]),
        row!("server.tls_cert", maybe(path()), config.server.tls_cert, "TLS certificate, a PEM file; reloaded on SIGHUP.")
            .flag("--tls-cert").aliases(&[("BELLJAR_TLS_CERT", "")]),
        row!("server.tls_key", maybe(path()), config.server.tls_key, "Private key of the TLS certificate, a PEM file.")
            .flag("--tls-key").aliases(&[("BELLJAR_TLS_KEY", "")]),
        row!("server.secrets_key", maybe(path()), config.server.secrets_key, "File with the key that encrypts providers' secrets.").documented("`secrets.key` in the data folder"),
        row!("server.durability", choice(DURABILITIES), config.server.durability, "Failure that a committed result survives: a crash of the `process`, or also a loss of `power`."),
        row!("server.drain", time(), config.server.service.drain, "How long running work may continue after the request to stop."),
        row!("server.keep", maybe(time()), config.server.service.retention.max_age, "How long results are kept."),
        row!("server.keep_bytes", maybe(size(1)), config.server.service.retention.max_bytes, "Maximum size of kept results."),
        row!("server.origins", list::<String, _>(), config.server.service.origins, "Origins of web pages that may call the server, such as `https://app.example`.")
            .check(|settings| check_origins(&settings.config.server)),
        row!("server.host_folders", table(), config.server.host_folders,
            "Folders of this machine that sandboxes may mount, by the name used in requests: `{ sets = { path = \"/srv/sets\", writable = false, tenants = [] } }`.")
            .check(|settings| check_host_folders(&settings.config.server)),
        row!("server.disk_storage", choice(DISK_STORAGES), config.server.sandboxes.disk_storage,
            "Where the disk of a sandbox is whose request does not say. Where a disk in a `file` is impossible, it is in `memory`."),
        row!("server.writable_root", maybe(switch()), config.server.writable_root,
            "Whether requests may ask for a writable root (`root`), whose programs run as its root user.")
            .documented("`false`; `true` with `--temporary`").default("false"),
        row!("server.network", maybe(choice(NETWORK_CEILINGS)), config.server.network, "Widest network access that requests may ask for.")
            .documented("`names`; `full` with `--temporary`").default("names"),
    ];
    rows.into_iter().map(Setting::server_only).collect()
}

#[rustfmt::skip]
fn server_limits() -> Vec<Setting> {
    let type_of = ("size".to_owned(), size::<u64>(1).example);
    let sandbox_memory = Setting::new("server.sandbox_memory", "Memory limit of all sandboxes together, at least 64M.", type_of,
        |settings, raw| settings.config.set_sandbox_memory(size(MIN_SANDBOX_MEMORY_BYTES).parse(raw)?),
        |settings| maybe(size(1)).show(&settings.config.machine.memory_bytes),
    );
    let rows = vec![
        row!("server.concurrency", count(MOST), config.server.service.concurrency, "Maximum number of concurrent executions.").documented("4 for each processor, at least 8"),
        row!("server.queue", count(MOST), config.server.service.queue, "Maximum number of queued executions of one tenant."),
        row!("server.sandboxes", count(MOST), config.server.service.sandboxes, "Maximum number of sandboxes."),
        row!("server.sandbox_idle", time(), config.server.service.sandbox_idle, "How long a sandbox may be unused if its request names no `timeout_ms`; calls, open streams and running commands are use."),
        row!("server.sandbox_sweep", time(), config.server.service.sandbox_sweep, "Interval at which the CPU time of open sandboxes is recorded."),
        row!("server.sandbox_life", time(), config.server.service.sandbox_life, "Longest life of a sandbox from its creation, however much it is used; the default of `life_ms`."),
        row!("server.terminal_silence", time(), config.server.service.terminal_silence, "How long a terminal's client may be silent, not even answering pings."),
        row!("server.max_body", size(1), config.server.service.max_body, "Maximum size of a request body, and of a line of a batch."),
        row!("server.max_inputs", count(MOST), config.server.service.max_inputs, "Maximum number of inputs of one request; together they are part of its body."),
        row!("server.connections", count(MOST), config.server.service.connections,
            "Maximum number of connections; never more than half of the open files that the system allows."),
        row!("server.streams", count(MOST), config.server.service.streams, "Maximum number of event streams, WebSockets and batches at one time."),
        row!("server.tenant_streams", count(MOST), config.server.service.tenant_streams, "Maximum number of event streams, WebSockets and batches of one tenant."),
        row!("server.body_timeout", time(), config.server.service.body_timeout, "How long a client may stall while sending or receiving a body."),
        row!("server.tenant_disk", size(1), config.server.service.tenant_disk,
            "Maximum size of the volumes, the snapshots and the disks in files of a tenant without a quota."),
        row!("server.disk_file_bytes", size(MIN_DISK_FILE_BYTES), config.server.sandboxes.disk_file_bytes,
            "Maximum size of the disk of a sandbox in a file; `ceiling.disk_bytes` is for disks in memory."),
    ];
    // Ceilings follow from the memory of all sandboxes, so every command needs it.
    let sandbox_memory = sandbox_memory.documented("nine tenths of the machine's memory");
    rows.into_iter().map(Setting::server_only).chain([sandbox_memory]).collect()
}

#[rustfmt::skip]
fn ceiling() -> Vec<Setting> {
    let rows = vec![
        row!("ceiling.timeout_ms", millis(), config.ceiling.timeout, "Wall-clock time."),
        row!("ceiling.memory_bytes", bytes(), config.ceiling.memory_bytes, "Memory of a sandbox.").documented("64 GB, or what the machine has for sandboxes"),
        row!("ceiling.cpus", cpu_millis(), config.ceiling.cpu_millis, "CPU share; 1.0 is one core.").documented("128, or what the machine has"),
        row!("ceiling.disk_bytes", bytes(), config.ceiling.disk_bytes, "Data that a program writes to disk, which is in memory.")
            .documented("64 GB, or what the machine has for sandboxes"),
        row!("ceiling.processes", count(ANY), config.ceiling.processes, "Processes and threads of a sandbox.").documented("4096, or what the machine has"),
        row!("ceiling.output_bytes", bytes(), config.ceiling.output_bytes, "How much of each output stream is kept."),
    ];
    rows.into_iter().map(|row| row.unit_in_name().check(|settings| settings.config.check_ceiling())).collect()
}
