//! The table of all settings. A new setting is a row here, and its use.

use std::sync::LazyLock;

use belljar_engine::limits::Limits;
use belljar_engine::network::NetworkCeiling;
use belljar_engine::warm::WarmPoolMode;
use belljar_images::ImageName;
use belljar_store::Durability;

use super::kind::{
    Address, Bytes, Choice, Cores, Count, Describe, FilePath, Kind, Level, List, Maybe, Millis, Ranges,
    Secret, Size, Structure, Switch, Text, Time, Url,
};
use super::setting::LocalFile::{Allowed, Ignored};
use super::setting::{Access, Setting};
use crate::provider_kinds::KINDS;
use crate::{image, serve};

/// Minimum memory of all sandboxes; with less, not even warm interpreters fit.
const MIN_SANDBOX_MEMORY_BYTES: u64 = 64 << 20;
const SECOND: u64 = 1_000;
const DAY: u64 = 24 * 3_600 * SECOND;
const ANY: u64 = u64::MAX;

/// Settings that belong together.
pub(super) struct Group {
    #[cfg_attr(not(test), expect(dead_code, reason = "for docs/settings.md, which a test writes"))]
    pub(super) title: &'static str,
    #[cfg_attr(not(test), expect(dead_code, reason = "for docs/settings.md"))]
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
        group("Packages", "See [packages](packages.md).", dependencies()),
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

/// A setting that is a field.
macro_rules! row {
    ($name:literal, $kind:ty, $($path:ident).+, $about:literal) => {
        Setting::new($name, $about, <$kind as Describe>::name(), <$kind as Describe>::EXAMPLE, Access::Field(
            |settings, raw| {
                settings.$($path).+ = <$kind as Kind<_>>::parse(raw)?;
                Ok(())
            },
            |settings| <$kind as Kind<_>>::show(&settings.$($path).+),
        ))
    };
}

/// A setting of each profile or policy.
fn part(name: &'static str, type_name: &str, about: &'static str) -> Setting {
    Setting::new(name, about, type_name.to_owned(), "", Access::Section)
}

#[rustfmt::skip]
fn commands() -> Vec<Setting> {
    let rows = vec![
        row!("config", Maybe<FilePath>, environment.config, "Configuration file to read instead of the default ones.")
            .flag("--config").documented("`~/.config/belljar/belljar.toml`, else `/etc/belljar/belljar.toml`"),
        row!("profile", Maybe<Text>, environment.profile, "Profile of a run.").flag("--profile").default("default"),
        row!("server", Maybe<Text>, environment.server, "Server that client commands call.").flag("--server").default("http://127.0.0.1:7117"),
        row!("api_key", Maybe<Secret>, environment.api_key, "API key that client commands send to a server.").secret(),
        row!("ca_cert", Maybe<FilePath>, environment.ca_cert, "PEM file of certificate authorities that client commands trust in addition to the system's."),
        row!("registry_user", Maybe<Text>, environment.registry_user, "User name for an image registry.").flag("--username"),
        row!("registry_password", Maybe<Secret>, environment.registry_password, "Password for an image registry.").flag("--password-stdin").secret(),
        row!("log", Maybe<Level>, environment.log, "Log level of a server.").default("info"),
        row!("admin_key", Maybe<Secret>, environment.admin_key, "Key of a server with all scopes in tenant `default`, for automation; at least 32 bytes.").secret(),
        row!("secrets_key", Maybe<Secret>, environment.secrets_key,
            "Key that encrypts providers' secrets in a server's database, 64 hexadecimal digits; used instead of the file `server.secrets_key`.").secret(),
    ];
    rows.into_iter().map(Setting::not_in_file).collect()
}

#[rustfmt::skip]
fn limits() -> Vec<Setting> {
    let usual = Limits::DEFAULT;
    let rows = vec![
        row!("limits.timeout_ms", Maybe<Millis>, environment.limits.timeout_ms, "Wall-clock time.")
            .flag("--timeout").aliases(&[("CODE_EXECUTION_TIMEOUT", "s")]).default(Millis::show(&usual.timeout)),
        row!("limits.memory_bytes", Maybe<Bytes>, environment.limits.memory_bytes, "Memory of the whole sandbox.")
            .flag("--memory").aliases(&[("CODE_EXECUTION_MEMORY_MB", "M")]).default(Bytes::show(&usual.memory_bytes)),
        row!("limits.cpus", Maybe<Cores>, environment.limits.cpus, "CPU share; 1.0 is one core.")
            .flag("--cpus").aliases(&[("CODE_EXECUTION_CPU_CORES", "")]).default(Cores::show(&usual.cpu_millis)),
        row!("limits.disk_bytes", Maybe<Bytes>, environment.limits.disk_bytes, "Data that the program writes to disk.")
            .flag("--disk").default(Bytes::show(&usual.disk_bytes)),
        row!("limits.processes", Maybe<Count<ANY>>, environment.limits.processes, "Processes and threads at one time.")
            .flag("--processes").default(usual.processes.to_string()),
        row!("limits.output_bytes", Maybe<Bytes>, environment.limits.output_bytes, "How much of each output stream is kept.")
            .flag("--output").default(Bytes::show(&usual.output_bytes)),
    ];
    rows.into_iter().map(|row| row.unit_in_name().not_in_file()).collect()
}

#[rustfmt::skip]
fn profiles() -> Vec<Setting> {
    vec![
        part("profiles.*.limits.timeout_ms", "number of milliseconds", "Wall-clock time.").local(Allowed),
        part("profiles.*.limits.memory_bytes", "number of bytes", "Memory of the whole sandbox.").local(Allowed),
        part("profiles.*.limits.cpus", "number of cores", "CPU share; 1.0 is one core.").local(Allowed),
        part("profiles.*.limits.disk_bytes", "number of bytes", "Data that the program writes to disk.").local(Allowed),
        part("profiles.*.limits.processes", "number", "Processes and threads at one time.").local(Allowed),
        part("profiles.*.limits.output_bytes", "number of bytes", "How much of each output stream is kept.").local(Allowed),
        part("profiles.*.env", "table", "Environment variables of every run.").local(Allowed).secret(),
        part("profiles.*.packages", "list", "Packages of every run; JavaScript packages start with `npm:`.").local(Allowed),
        part("profiles.*.output_overflow", "one of truncate, kill", "What happens when output exceeds the limit.").local(Allowed).default("truncate"),
        part("profiles.*.provider", "text", "Provider of runs that name none, or `auto`.").local(Allowed),
        part("profiles.*.preimports", "list", "Modules that a warm interpreter imports ahead of requests.").local(Ignored),
        part("profiles.*.network", "table", "Network access: `{ mode = \"hosts\", hosts = [\"pypi.org\"] }`."),
        part("profiles.*.image", "text", "`host`, the name of an image, or the folder of an unpacked root."),
        part("profiles.*.mounts", "list", "Host folders, `SOURCE:DESTINATION[:ro|rw]`."),
        part("profiles.*.build_packages", "true or false",
            "Whether packages may be built from source and run install scripts, in a sandbox without network.").default("false"),
        part("profiles.*.policy", "text", "Default policy; it also applies in addition to the request's choice."),
    ]
}

#[rustfmt::skip]
fn policies() -> Vec<Setting> {
    vec![
        part("policies.*.extends", "text", "Policy to extend.").default("off"),
        part("policies.*.default", "action", "Action where nothing more specific applies."),
        part("policies.*.categories", "table", "Actions by category."),
        part("policies.*.rules", "table", "Actions by rule."),
        part("policies.*.allow_modules", "list", "Modules that are always allowed."),
        part("policies.*.listed_modules", "list", "Additional modules that the rules `*-LISTED-MODULE` match."),
        part("policies.*.listed_calls", "list", "Additional names that the rules `*-LISTED-CALL` match."),
        part("policies.*.unread", "action", "Action for code that cannot be analyzed."),
        part("policies.*.comments", "true or false", "Whether `# belljar: allow RULE reason` suppresses findings."),
    ]
}

#[rustfmt::skip]
fn providers() -> Vec<Setting> {
    let usual = row!("providers.usual", Maybe<Text>, config.providers.default_provider, "Provider of requests that name none.")
        .flag("--provider").default("native");
    let kinds = KINDS.iter().flat_map(|kind| Setting::of_provider(kind.name, &kind.schema(), kind.environment));
    [usual].into_iter().chain(kinds).collect()
}

#[rustfmt::skip]
fn dependencies() -> Vec<Setting> {
    vec![
        row!("dependencies.direct", Switch, config.dependencies.direct, "Whether URLs, paths and repositories are accepted in place of registry packages."),
        row!("dependencies.python.imports", Structure, config.dependencies.python.imports, "Python modules, each with the requirement that provides it."),
        row!("dependencies.python.allow", List<String>, config.dependencies.python.allow, "If set, the only Python packages that may be installed."),
        row!("dependencies.python.deny", List<String>, config.dependencies.python.deny, "Python packages that are never installed."),
        row!("dependencies.python.pins", Structure, config.dependencies.python.pins, "The only version of a Python package that may be installed, such as `==1.26.4`."),
        row!("dependencies.npm.imports", Structure, config.dependencies.npm.imports, "JavaScript modules, each with the requirement that provides it."),
        row!("dependencies.npm.allow", List<String>, config.dependencies.npm.allow, "If set, the only JavaScript packages that may be installed."),
        row!("dependencies.npm.deny", List<String>, config.dependencies.npm.deny, "JavaScript packages that are never installed."),
        row!("dependencies.npm.pins", Structure, config.dependencies.npm.pins, "The only version of a JavaScript package that may be installed."),
        row!("dependencies.folder", Maybe<FilePath<true>>, config.layers.folder, "Folder of the layer store. A server has its own in the data folder.")
            .flag("--folder").aliases(&[("DEPENDENCY_CACHE_DIR", "")]).documented("`belljar/layers` in the user's cache folder"),
        row!("dependencies.max_bytes", Size, config.layers.bounds.bytes, "Maximum total size of layers."),
        row!("dependencies.max_layers", Count<ANY>, config.layers.bounds.layers, "Maximum number of layers."),
        row!("dependencies.max_cache_bytes", Size, config.layers.cache_bytes, "Maximum size of the installers' own caches."),
        row!("dependencies.ttl", Time, config.layers.ttl, "How long a resolution of requirements to exact packages stays valid.")
            .aliases(&[("DEPENDENCY_CACHE_TTL_HOURS", "h")]),
        row!("dependencies.shared", Switch, config.layers.shared, "Whether tenants share layers."),
        row!("dependencies.shared_cache", Maybe<Url>, config.layers.cache_address, "Cache shared between machines: `file:///FOLDER` or `s3://BUCKET/FOLDER`."),
        row!("dependencies.shared_cache_read_only", Switch, config.layers.cache_read_only, "Whether the shared cache is only read."),
        row!("dependencies.shared_cache_wait", Time, config.layers.cache_wait,
            "Time limit of one transfer to or from the shared cache; after it, packages are installed locally."),
    ]
}

#[rustfmt::skip]
fn images() -> Vec<Setting> {
    vec![
        row!("images.folder", Maybe<FilePath<true>>, config.images.folder, "Folder of the image store. A server has its own in the data folder.")
            .flag("--folder").documented("`belljar/images` in the user's cache folder"),
        row!("images.allow", List<ImageName>, config.images.allow, "Stored images that requests to a server may name."),
        row!("images.mirrors", Structure, config.images.registries.mirrors,
            "Mirrors to ask first, by registry: `{ \"docker.io\" = [\"mirror.example\"] }`."),
        row!("images.plain_http", List<String>, config.images.registries.plain_http, "Registries on this machine that are reached without TLS.")
            .check(image::check_plain_http),
    ]
}

#[rustfmt::skip]
fn network() -> Vec<Setting> {
    vec![
        row!("network.not_public", Ranges, config.private_ranges,
            "Addresses and ranges that no allowed host name may resolve to, in addition to the built-in ones."),
    ]
}

#[rustfmt::skip]
fn warm() -> Vec<Setting> {
    vec![
        row!("warm.mode", Choice<WarmPoolMode>, config.warm.mode,
            "`pool`: children are forked ahead of requests. `fork`: a child is forked for each request. `off`: each run starts an interpreter."),
        row!("warm.memory", Size<0>, config.warm.memory_bytes, "Maximum memory of all waiting children together."),
        row!("warm.idle", Time<SECOND, DAY>, config.warm.idle, "Time without requests after which a pool is emptied."),
    ]
}

#[rustfmt::skip]
fn server() -> Vec<Setting> {
    vec![
        row!("server.listen", Address, config.server.listen, "Address and port to listen on.").flag("--listen"),
        row!("server.data_dir", Maybe<FilePath>, config.server.data_dir, "Folder for all persistent data.")
            .flag("--data-dir").aliases(&[("BELLJAR_DATA_DIR", "")]).documented("`belljar` in the user's state folder"),
        row!("server.metrics_listen", Maybe<Address>, config.server.metrics_listen, "Address and port for metrics and health only, without a key.").flag("--metrics-listen"),
        row!("server.otlp_endpoint", Maybe<Text>, config.server.otlp_endpoint, "OpenTelemetry collector that traces are sent to, such as `http://127.0.0.1:4318`.")
            .aliases(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]),
        row!("server.tls_cert", Maybe<FilePath>, config.server.tls_cert, "TLS certificate, a PEM file; reloaded on SIGHUP.")
            .flag("--tls-cert").aliases(&[("BELLJAR_TLS_CERT", "")]),
        row!("server.tls_key", Maybe<FilePath>, config.server.tls_key, "Private key of the TLS certificate, a PEM file.")
            .flag("--tls-key").aliases(&[("BELLJAR_TLS_KEY", "")]),
        row!("server.secrets_key", Maybe<FilePath>, config.server.secrets_key, "File with the key that encrypts providers' secrets.").documented("`secrets.key` in the data folder"),
        row!("server.durability", Choice<Durability>, config.server.durability, "Failure that a committed result survives: a crash of the `process`, or also a loss of `power`."),
        row!("server.drain", Time, config.server.service.drain, "How long running work may continue after the request to stop."),
        row!("server.keep", Maybe<Time>, config.server.service.retention.max_age, "How long results are kept."),
        row!("server.keep_bytes", Maybe<Size>, config.server.service.retention.max_bytes, "Maximum size of kept results."),
        row!("server.origins", List<String>, config.server.service.origins, "Origins of web pages that may call the server, such as `https://app.example`.")
            .check(serve::check_origins),
        row!("server.host_folders", Structure, config.server.host_folders,
            "Folders of this machine that sandboxes may mount, by the name used in requests: `{ sets = { path = \"/srv/sets\", writable = false, tenants = [] } }`.")
            .check(serve::check_host_folders),
        row!("server.network", Maybe<Choice<NetworkCeiling>>, config.server.network, "Widest network access that requests may ask for.")
            .documented("`names`; `full` with `--temporary`").default("names"),
    ]
}

#[rustfmt::skip]
fn server_limits() -> Vec<Setting> {
    let sandbox_memory = Access::Field(
        |settings, raw| settings.config.set_sandbox_memory(Size::<MIN_SANDBOX_MEMORY_BYTES>::parse(raw)?),
        |settings| Maybe::<Size>::show(&settings.config.machine.memory_bytes),
    );
    vec![
        row!("server.concurrency", Count, config.server.service.concurrency, "Maximum number of concurrent executions.").documented("4 for each processor, at least 8"),
        row!("server.queue", Count, config.server.service.queue, "Maximum number of queued executions of one tenant."),
        row!("server.sandboxes", Count, config.server.service.sandboxes, "Maximum number of sandboxes."),
        row!("server.sandbox_idle", Time, config.server.service.sandbox_idle, "How long a sandbox may be idle before it expires."),
        row!("server.sandbox_sweep", Time, config.server.service.sandbox_sweep, "Interval of the check for expired sandboxes."),
        row!("server.sandbox_life", Time, config.server.service.sandbox_life, "Maximum lifetime of a sandbox, including extensions and resumes."),
        Setting::new("server.sandbox_memory", "Memory limit of all sandboxes together, at least 64M.", Size::<1>::name(), Size::<1>::EXAMPLE, sandbox_memory)
            .documented("nine tenths of the machine's memory"),
        row!("server.terminal_silence", Time, config.server.service.terminal_silence, "How long a terminal's client may be silent, not even answering pings."),
        row!("server.max_body", Size, config.server.service.max_body, "Maximum size of a request body, and of a line of a batch."),
        row!("server.connections", Count, config.server.service.connections,
            "Maximum number of connections; never more than half of the open files that the system allows."),
        row!("server.streams", Count, config.server.service.streams, "Maximum number of event streams, WebSockets and batches at one time."),
        row!("server.tenant_streams", Count, config.server.service.tenant_streams, "Maximum number of event streams, WebSockets and batches of one tenant."),
        row!("server.body_timeout", Time, config.server.service.body_timeout, "How long a client may stall while sending or receiving a body."),
        row!("server.tenant_disk", Size, config.server.service.tenant_disk, "Maximum size of the volumes and snapshots of a tenant without a quota."),
    ]
}

#[rustfmt::skip]
fn ceiling() -> Vec<Setting> {
    let rows = vec![
        row!("ceiling.timeout_ms", Millis, config.ceiling.timeout, "Wall-clock time."),
        row!("ceiling.memory_bytes", Bytes, config.ceiling.memory_bytes, "Memory of a sandbox.").documented("64 GB, or what the machine has for sandboxes"),
        row!("ceiling.cpus", Cores, config.ceiling.cpu_millis, "CPU share; 1.0 is one core.").documented("128, or what the machine has"),
        row!("ceiling.disk_bytes", Bytes, config.ceiling.disk_bytes, "Data that a program writes to disk, which is in memory.")
            .documented("64 GB, or what the machine has for sandboxes"),
        row!("ceiling.processes", Count<ANY>, config.ceiling.processes, "Processes and threads of a sandbox.").documented("4096, or what the machine has"),
        row!("ceiling.output_bytes", Bytes, config.ceiling.output_bytes, "How much of each output stream is kept."),
    ];
    rows.into_iter().map(|row| row.unit_in_name().check(|settings| settings.config.check_ceiling())).collect()
}
