//! `belljar serve`: wires engine, store and server, and ends them in order.

mod log;
mod secrets;
mod service;
mod spec;
mod tls;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use belljar_engine::Engine;
use belljar_engine::layer::Layer;
use belljar_engine::profile::Profiles;
use belljar_engine::provider::{Blind, Capabilities};
use belljar_engine::report::Status;
use belljar_engine::request::{HostPaths, Request};
use belljar_layers::shelf::Notice;
use belljar_server::{Doors, Providers, World};
use belljar_store::{Options, SealingKey, Store};
use clap::Args;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::config::Config;
use crate::env::Environment;
use crate::failure::{Failure, shown};
use crate::fleet::{ProviderSpec, Wired};
use crate::os::{self, Hangups, Host, Interrupts, Started};
use crate::{deps, fleet, image, say};

use service::Service;
pub(crate) use spec::{HostFolderSpec, ServerSpec};
use tls::{Certificate, TlsFiles};

const EXAMPLES: &str = "\
Examples:
  belljar serve                                         for this machine; the first start shows a key
  belljar serve --without-keys                          for this machine, and nobody needs a key
  belljar serve --listen 0.0.0.0:443 --tls-cert cert.pem --tls-key key.pem
  belljar serve --data-dir /var/lib/belljar --metrics-listen 127.0.0.1:9117";

/// `belljar serve`.
#[derive(Debug, Default, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArgs {
    /// Address and port to listen on [default: 127.0.0.1:7117]
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Folder for everything that is kept [default: belljar in the state folder]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Address and port for /metrics and /healthz alone, without a key
    #[arg(long, value_name = "ADDR")]
    metrics_listen: Option<SocketAddr>,
    /// Certificate for HTTPS, a PEM file; read again on SIGHUP
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Its key, a PEM file
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Serve although layers are missing on this host; receipts say which held
    #[arg(long)]
    allow_degraded: bool,
    /// Ask nobody for a key; on a loopback address only
    #[arg(long)]
    without_keys: bool,
    /// Belong to whoever started this: keep nothing, and end at once when standard input does
    #[arg(long, conflicts_with = "data_dir")]
    temporary: bool,
}

/// Serves until it is asked to end.
pub(crate) fn run(args: ServeArgs, environment: &Environment, config: Config) -> Result<u8, Failure> {
    // Held to the end, and removed then.
    let (args, _folder) = in_its_folder(args)?;
    let mut service = Service::of(args, environment, &config.server)?;
    log::start(service.level);
    // Half is for what runs: whoever only connects must not take the files that a sandbox needs.
    let connections = usize::try_from(os::room_for_files() / 2).unwrap_or(usize::MAX);
    service.settings.connections = service.settings.connections.min(connections);
    let started = os::launch()?;
    os::server_runtime()?.block_on(serve(started, service, environment, config)).map(|()| 0)
}

/// A temporary service has a folder of its own.
fn in_its_folder(args: ServeArgs) -> Result<(ServeArgs, Option<TempDir>), Failure> {
    if !args.temporary {
        return Ok((args, None));
    }
    let folder = tempfile::Builder::new().prefix("belljar-").tempdir();
    let folder = folder.map_err(|error| Failure::host(format!("make a temporary folder: {error}")))?;
    Ok((ServeArgs { data_dir: Some(folder.path().to_owned()), ..args }, Some(folder)))
}

async fn serve(
    started: Started,
    mut service: Service,
    environment: &Environment,
    config: Config,
) -> Result<(), Failure> {
    crate::os::outlive_sandboxes();
    let mut interrupts = Interrupts::listen()?;
    let mut impatience = Interrupts::listen()?;
    let hangups = Hangups::listen()?;
    let temporary = service.temporary;
    let certificate = service.tls.take().map(TlsFiles::load).transpose()?;
    let store = open(&service)?;
    let tls = certificate.as_ref().map(Certificate::tls);
    let metrics = match service.metrics_listen {
        Some(address) => Some(listen(address).await?),
        None => None,
    };
    let doors = Doors { api: listen(service.listen).await?, tls, metrics };
    let host = started.connect(config.warm, config.sandbox_memory).await?;
    let folder = config.layers.folder(Some(&service.data_dir.join("layers")), environment)?;
    let tell = Arc::new(|notice: &Notice| tracing::warn!(%notice, "packages"));
    let libraries = deps::Libraries::new(host.provider(), folder, &config, environment, tell);
    let engine = Engine::over(
        fleet::usual(&host.provider(), &ProviderSpec::default())?,
        config.profiles.clone(),
        config.ceiling,
    );
    let engine = engine.with_policies(config.policies).with_packages(libraries).with_reach(service.reach);
    let engine = engine.with_private_ranges(config.private_ranges.clone());
    let images = image::Listed::of(&config.images, &service.data_dir.join("images"), environment);
    let engine = Arc::new(match images {
        Some(images) => engine.with_images(images),
        None => engine,
    });
    let ready = match prove(&engine, service.allow_degraded).await {
        Ok(()) => {
            let told = config.providers.filled_by(environment);
            let key = secrets::key(&service, environment, &store).await?;
            prepare(&engine, store, &host, config.profiles, (told, key), service, &doors).await
        }
        Err(failure) => Err(failure),
    };
    if let Ok(world) = &ready {
        let serving = belljar_server::run(doors, Arc::clone(world), async { interrupts.next().await });
        tokio::select! {
            () = serving => {}
            () = tls::follow(certificate, hangups) => {}
            () = abandoned(), if temporary => {}
            // The first one asks for an end, the second for one at once.
            () = async { impatience.next().await; impatience.next().await } => {}
        }
    }
    engine.shut_down().await;
    ready.map(drop)
}

fn open(service: &Service) -> Result<Arc<Store>, Failure> {
    let folder = &service.data_dir;
    os::private_folder(folder)
        .map_err(|error| Failure::host(format!("make the data folder {}: {error}", shown(folder))))?;
    let options = Options { durability: service.durability, ..Options::default() };
    let store = Store::open(&folder.join("belljar.db"), &options);
    store.map(Arc::new).map_err(|error| Failure::host(error.to_string()))
}

async fn prepare(
    engine: &Arc<Engine>,
    store: Arc<Store>,
    host: &Host,
    profiles: Profiles,
    (told, key): (ProviderSpec, Result<SealingKey, String>),
    service: Service,
    doors: &Doors,
) -> Result<Arc<World>, Failure> {
    let failed = |error: belljar_server::Error| Failure::host(error.to_string());
    let Service { data_dir, host_folders, settings, admin_key, .. } = service;
    let (engine, places) = (Arc::clone(engine), host.places(&data_dir, host_folders)?);
    let providers = Providers {
        catalog: Arc::new(Wired { native: host.provider() }),
        seeds: told.seeds,
        usual: told.usual.unwrap_or_else(|| fleet::NATIVE.to_owned()),
        key,
    };
    let prepared = belljar_server::prepare(engine, store, places, profiles, providers, settings, admin_key);
    let (world, first_key) = prepared.await.map_err(failed)?;
    if let Some(key) = first_key {
        say::answer(&format!("admin key, shown this once: {}", key.reveal()));
    }
    announce(doors)?;
    Ok(world)
}

async fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|error| Failure::host(format!("listen on {address}: {error}")))
}

fn announce(doors: &Doors) -> Result<(), Failure> {
    let address = |listener: &TcpListener| {
        listener.local_addr().map_err(|error| Failure::host(format!("listen: {error}")))
    };
    if let Some(metrics) = &doors.metrics {
        say::answer(&format!("metrics on http://{}/metrics", address(metrics)?));
    }
    let scheme = if doors.tls.is_some() { "https" } else { "http" };
    say::answer(&format!("listening on {scheme}://{}", address(&doors.api)?));
    Ok(())
}

/// Completes when standard input ends: whoever held its other end has closed it or is gone, even by `kill -9`.
async fn abandoned() {
    let (held, dropped) = oneshot::channel::<()>();
    // No thread of the runtime's, which would wait for a read that nothing can interrupt.
    std::thread::spawn(move || {
        let _held = held;
        // What cannot be read has ended as well.
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
    });
    let _ended = dropped.await;
}

/// Serves others only where every layer holds, or somebody said that less will do; the floor always has to.
async fn prove(engine: &Engine, allow_degraded: bool) -> Result<(), Failure> {
    if let Some(missing) = missing_layers(&engine.capabilities()) {
        if !allow_degraded {
            let advice = "'belljar doctor' says how to mend that; --allow-degraded serves all the same";
            return Err(Failure::host(format!("not enforced here: {missing}; {advice}")));
        }
        say::warning(&format!("not enforced here: {missing} (belljar doctor says why)"));
    }
    let request = Request { command: Some(vec!["true".to_owned()]), ..Request::default() };
    let admitted = engine.admit(request, HostPaths::default())?;
    let never = Box::pin(std::future::pending());
    let report = engine.execute("proof".to_owned(), admitted, &mut Blind, never).await?;
    let holds = |layer: &&Layer| !report.isolation().contains(layer);
    match Layer::FLOOR.iter().find(holds) {
        None if report.status == Status::Succeeded => Ok(()),
        None => {
            Err(Failure::host(format!("'true' did not succeed inside: {}", report.error.unwrap_or_default())))
        }
        Some(layer) => Err(Failure::host(format!("the floor does not hold: {layer}"))),
    }
}

fn missing_layers(capabilities: &Capabilities) -> Option<String> {
    let names: Vec<_> = capabilities.missing.iter().map(|missing| missing.layer.name()).collect();
    (!names.is_empty()).then(|| names.join(", "))
}
