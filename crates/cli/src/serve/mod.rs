//! `belljar serve`: wires engine, store and server, and shuts them down in order.

mod log;
mod options;
mod secrets;
pub(crate) mod settings;
mod tls;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use belljar_engine::Engine;
use belljar_engine::layer::Layer;
use belljar_engine::profile::Profiles;
use belljar_engine::provider::{Capabilities, DiscardSink};
use belljar_engine::report::Status;
use belljar_engine::request::{HostPaths, Request};
use belljar_layers::store::StoreWarning;
use belljar_server::{AppState, InitialProviders, Listeners};
use belljar_store::{SealingKey, Store, StoreOptions};
use clap::Args;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::config::{BuildCacheSettings, Config};
use crate::env::Environment;
use crate::error::{CliError, quote_path};
use crate::os::{self, Hangups, Interrupts, NativeHost, StartedLauncher};
use crate::provider_kinds::{KindCatalog, ProviderSpec};
use crate::wire::{self, EngineParts};
use crate::{image, provider_kinds, say};

use options::ServeOptions;
use tls::{ServedCertificate, TlsFiles};

const EXAMPLES: &str = "\
Examples:
  belljar serve                                         serve this machine; the first start prints a key
  belljar serve --without-keys                          serve this machine without API keys
  belljar serve --listen 0.0.0.0:443 --tls-cert cert.pem --tls-key key.pem
  belljar serve --data-dir /var/lib/belljar --metrics-listen 127.0.0.1:9117";

/// Arguments of `belljar serve`.
#[derive(Debug, Default, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArgs {
    /// Address and port to listen on [default: 127.0.0.1:7117]
    #[arg(long, value_name = "ADDR", value_parser = parse_address)]
    listen: Option<SocketAddr>,
    /// Folder for all persistent data [default: belljar in the state folder]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Address and port for /metrics and /healthz only, without a key
    #[arg(long, value_name = "ADDR", value_parser = parse_address)]
    metrics_listen: Option<SocketAddr>,
    /// TLS certificate, a PEM file; reloaded on SIGHUP
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Private key of the TLS certificate, a PEM file
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Start even if isolation layers are missing on this host; receipts list those in force
    #[arg(long)]
    allow_degraded: bool,
    /// Require no API keys; only allowed on a loopback address
    #[arg(long)]
    without_keys: bool,
    /// Store nothing permanently, and stop when standard input closes
    #[arg(long, conflicts_with = "data_dir")]
    temporary: bool,
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "write an IP address with a port, for example 127.0.0.1:7117".to_owned())
}

/// Serves until asked to stop.
pub(crate) fn run(args: ServeArgs, environment: &Environment, config: Config) -> Result<u8, CliError> {
    // The temporary folder is removed when this value is dropped.
    let (args, _folder) = with_temporary_folder(args)?;
    let mut service = ServeOptions::merge(args, environment, config.server.clone())?;
    log::start(service.level);
    // Half of the file descriptors are reserved for sandboxes, so that connections cannot use them up.
    let connections = usize::try_from(os::max_open_files() / 2).unwrap_or(usize::MAX);
    let bound = &mut service.server.service.connections;
    *bound = connections.min(*bound);
    let started = os::start_launcher()?;
    os::server_runtime()?.block_on(serve(started, service, environment, config)).map(|()| 0)
}

/// Creates the data folder of a temporary server.
fn with_temporary_folder(args: ServeArgs) -> Result<(ServeArgs, Option<TempDir>), CliError> {
    if !args.temporary {
        return Ok((args, None));
    }
    let folder = tempfile::Builder::new().prefix("belljar-").tempdir();
    let folder =
        folder.map_err(|error| CliError::host(format!("cannot create a temporary folder: {error}")))?;
    Ok((ServeArgs { data_dir: Some(folder.path().to_owned()), ..args }, Some(folder)))
}

async fn serve(
    started: StartedLauncher,
    mut service: ServeOptions,
    environment: &Environment,
    config: Config,
) -> Result<(), CliError> {
    crate::os::lower_oom_score();
    let mut interrupts = Interrupts::listen()?;
    let mut second_interrupt = Interrupts::listen()?;
    let hangups = Hangups::listen()?;
    let temporary = service.temporary;
    let certificate = service.tls.take().map(TlsFiles::load).transpose()?;
    let store = open(&service)?;
    let tls = certificate.as_ref().map(ServedCertificate::tls);
    let metrics = match service.server.metrics_listen {
        Some(address) => Some(listen(address).await?),
        None => None,
    };
    let listeners =
        Listeners { api: listen(service.server.listen).await?, dialects: Vec::new(), tls, metrics };
    let builds = BuildCacheSettings { folder: Some(service.data_dir.join("builds")), ..config.builds };
    let disks = Some(service.data_dir.clone());
    let host =
        started.connect(config.warm, config.sandbox_memory, builds, config.always_proxy, disks).await?;
    let folder = service.data_dir.join("layers");
    let warnings = Arc::new(|notice: &StoreWarning| tracing::warn!(%notice, "packages"));
    let libraries = wire::libraries(host.provider(), folder, &config, environment, warnings);
    let images = image::AllowedImages::of(&config.images, &service.data_dir.join("images"));
    let parts = EngineParts {
        // The database has the configured providers.
        providers: provider_kinds::configured_providers(&host.provider(), &ProviderSpec::default())?,
        packages: Some(Arc::new(libraries)),
        images: images.map(|images| images as _),
        network_ceiling: service.reach,
        sandboxes: service.server.sandboxes,
    };
    let engine = Arc::new(wire::build_engine(&config, parts));
    let ready = match check_isolation(&engine, service.allow_degraded).await {
        Ok(()) => {
            let configured = config.providers.with_environment(environment);
            let key = secrets::key(&service, environment, &store).await?;
            prepare(&engine, store, &host, config.profiles, (configured, key), service, &listeners).await
        }
        Err(failure) => Err(failure),
    };
    if let Ok(state) = &ready {
        let serving = belljar_server::run(listeners, Arc::clone(state), async { interrupts.next().await });
        tokio::select! {
            () = serving => {}
            () = tls::reload_on_hangup(certificate, hangups) => {}
            () = stdin_closed(), if temporary => {}
            // The first interrupt asks for an orderly stop, the second for an immediate one.
            () = async { second_interrupt.next().await; second_interrupt.next().await } => {}
        }
    }
    engine.shut_down().await;
    ready.map(drop)
}

fn open(service: &ServeOptions) -> Result<Arc<Store>, CliError> {
    let folder = &service.data_dir;
    os::create_private_folder(folder).map_err(|error| {
        CliError::host(format!("cannot create the data folder {}: {error}", quote_path(folder)))
    })?;
    let options = StoreOptions { durability: service.server.durability, ..StoreOptions::default() };
    let store = Store::open(&folder.join("belljar.db"), &options);
    store.map(Arc::new).map_err(|error| CliError::host(error.to_string()))
}

async fn prepare(
    engine: &Arc<Engine>,
    store: Arc<Store>,
    host: &NativeHost,
    profiles: Profiles,
    (configured, key): (ProviderSpec, Result<SealingKey, String>),
    service: ServeOptions,
    listeners: &Listeners,
) -> Result<Arc<AppState>, CliError> {
    let failed = |error: belljar_server::Error| CliError::host(error.to_string());
    let ServeOptions { data_dir, server, admin_key, .. } = service;
    let (engine, places) = (Arc::clone(engine), host.places(&data_dir, server.host_folders)?);
    let providers = InitialProviders {
        catalog: Arc::new(KindCatalog { native: host.provider() }),
        seeds: configured.configs,
        usual: configured.default_provider.unwrap_or_else(|| provider_kinds::NATIVE.to_owned()),
        key,
    };
    let prepared =
        belljar_server::prepare(engine, store, places, profiles, providers, server.service, admin_key);
    let (state, first_key) = prepared.await.map_err(failed)?;
    if let Some(key) = first_key {
        say::answer(&format!("admin key, shown only this once: {}", key.reveal()));
    }
    announce(listeners)?;
    Ok(state)
}

async fn listen(address: SocketAddr) -> Result<TcpListener, CliError> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|error| CliError::host(format!("cannot listen on {address}: {error}")))
}

fn announce(listeners: &Listeners) -> Result<(), CliError> {
    let address = |listener: &TcpListener| {
        listener.local_addr().map_err(|error| CliError::host(format!("listen: {error}")))
    };
    if let Some(metrics) = &listeners.metrics {
        say::answer(&format!("metrics on http://{}/metrics", address(metrics)?));
    }
    let scheme = if listeners.tls.is_some() { "https" } else { "http" };
    say::answer(&format!("listening on {scheme}://{}", address(&listeners.api)?));
    Ok(())
}

/// Waits until standard input closes, which happens even if the parent process is killed with SIGKILL.
async fn stdin_closed() {
    let (held, dropped) = oneshot::channel::<()>();
    // Not a thread of the runtime, which would wait at shutdown for a read that nothing can interrupt.
    std::thread::spawn(move || {
        let _held = held;
        // An input that cannot be read counts as closed.
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
    });
    let _ended = dropped.await;
}

/// Checks isolation before serving: every layer must be in force unless degraded mode is allowed; the floor
/// always must.
async fn check_isolation(engine: &Engine, allow_degraded: bool) -> Result<(), CliError> {
    if let Some(missing) = missing_layers(&engine.capabilities()) {
        if !allow_degraded {
            let advice = "see how to fix it with: belljar doctor; or start anyway with --allow-degraded";
            return Err(CliError::host(format!("not enforced on this machine: {missing}; {advice}")));
        }
        say::warning(&format!("not enforced on this machine: {missing} (see why with: belljar doctor)"));
    }
    let request = Request { command: Some(vec!["true".to_owned()]), ..Request::default() };
    let admitted = engine.admit(request, HostPaths::default())?;
    let never = Box::pin(std::future::pending());
    let report = engine.execute("proof".to_owned(), admitted, &mut DiscardSink, never).await?;
    let missing = |layer: &&Layer| !report.isolation().contains(layer);
    match Layer::MANDATORY.iter().find(missing) {
        None if report.status == Status::Succeeded => Ok(()),
        None => Err(CliError::host(format!(
            "command 'true' failed in the sandbox: {}",
            report.error.unwrap_or_default()
        ))),
        Some(layer) => Err(CliError::host(format!("a required isolation layer is missing: {layer}"))),
    }
}

fn missing_layers(capabilities: &Capabilities) -> Option<String> {
    let names: Vec<_> = capabilities.missing.iter().map(|missing| missing.layer.name()).collect();
    (!names.is_empty()).then(|| names.join(", "))
}
