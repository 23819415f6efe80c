//! The accept loop and the orderly shutdown.
//!
//! ```text
//! accept … ─▶ shutdown requested ─▶ stops accepting, refuses new work, lets running work finish
//!          ─▶ drain time is over ─▶ cancels running work ─▶ commits results ─▶ ends sandboxes
//!          ─▶ closes connections
//! ```

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::app_state::AppState;
use crate::connection::ConnectionResources;
use crate::connections::Connections;
use crate::listeners::Listeners;
use crate::tls::Tls;
use crate::{connection, mismatches, provider_registry, revocation, routes, sandboxes};

/// How long canceled work may take to be recorded, and answers to be sent.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// Delay before accepting again after `accept` failed, for example because file descriptors ran out.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);
/// Maximum number of connections to the metrics listener.
const MAX_METRICS_CONNECTIONS: usize = 64;
/// Response to a client whose address has used up its share of the connections.
const TOO_MANY_CONNECTIONS: &[u8] =
    b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
/// Interval at which expired results are removed.
const RETENTION_INTERVAL: Duration = Duration::from_secs(300);

/// Serves until `shutdown` completes, then shuts down within bounded time.
pub async fn run(doors: impl Into<Listeners>, world: Arc<AppState>, shutdown: impl Future<Output = ()>) {
    let doors = doors.into();
    let (end, ending) = watch::channel(false);
    // Every connection holds a sender, so the channel closes with the last connection.
    let (alive, mut connections) = mpsc::channel::<()>(1);
    let sweepers = [
        tokio::spawn(enforce_retention(Arc::clone(&world))),
        tokio::spawn(sandboxes::end_idle_periodically(Arc::clone(&world))),
        tokio::spawn(revocation::close_revoked(Arc::clone(&world))),
        tokio::spawn(provider_registry::check_health_periodically(Arc::clone(&world))),
        tokio::spawn(mismatches::watch(Arc::clone(&world))),
    ];
    let mut accepting = JoinSet::new();
    for door in bind_routes(doors, &world) {
        accepting.spawn(accept(door, Arc::clone(&world), ending.clone(), alive.clone()));
    }
    drop(alive);
    shutdown.await;
    accepting.shutdown().await;
    tracing::info!(under_way = world.live.count(), "shutting down");
    world.live.close();
    end.send_replace(true);
    if timeout(world.settings.drain, world.live.idle()).await.is_err() {
        tracing::warn!(under_way = world.live.count(), "drain time is over; canceling");
        world.live.cancel_all();
        let _ = timeout(SHUTDOWN_GRACE, world.live.idle()).await;
    }
    sandboxes::end_all(&world).await;
    let _ = timeout(SHUTDOWN_GRACE, connections.recv()).await;
    sweepers.iter().for_each(JoinHandle::abort);
    let _ = timeout(SHUTDOWN_GRACE, mismatches::write_pending(&world)).await;
    if let Some(tracer) = &world.tracer {
        tracer.close().await;
    }
}

/// A listener and the routes it serves.
struct BoundListener {
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    router: Router,
    connections: Connections,
}

fn bind_routes(doors: Listeners, world: &Arc<AppState>) -> Vec<BoundListener> {
    let Listeners { api, tls, metrics } = doors;
    let (router, connections) = (routes::router(Arc::clone(world)), world.connections.clone());
    let mut open = vec![BoundListener { listener: api, tls, router, connections }];
    open.extend(metrics.map(|listener| {
        let router = routes::metrics(Arc::clone(world));
        BoundListener {
            listener,
            tls: None,
            router,
            connections: Connections::new(MAX_METRICS_CONNECTIONS, &world.rivals),
        }
    }));
    open
}

async fn accept(
    door: BoundListener,
    world: Arc<AppState>,
    ending: watch::Receiver<bool>,
    alive: mpsc::Sender<()>,
) {
    loop {
        let (stream, peer) = match door.listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection");
                sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        let tls = door.tls.as_ref().map(|tls| tls.acceptor());
        let bearer = world.bearers.register();
        let Some(place) = door.connections.admit(peer.ip(), &bearer) else {
            if tls.is_none() {
                // Writes what fits into the socket buffer; the accept loop does not wait for a client.
                let _ = stream.try_write(TOO_MANY_CONNECTIONS);
            }
            continue;
        };
        bearer.set_slot(&place);
        let taken = ConnectionResources { slot: Some(place), _alive: alive.clone() };
        let (router, world) = (door.router.clone(), Arc::clone(&world));
        tokio::spawn(connection::serve(stream, taken, bearer, tls, router, world, ending.clone()));
    }
}

/// Removes results that exceed the retention limits.
async fn enforce_retention(world: Arc<AppState>) {
    loop {
        world.written.reset();
        match world.store.prune(world.settings.retention, belljar_store::Timestamp::now()).await {
            Ok(pruned) if pruned.executions > 0 => {
                tracing::info!(executions = pruned.executions, bytes = pruned.bytes, "removed old results");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "cannot remove old results"),
        }
        tokio::select! {
            () = sleep(RETENTION_INTERVAL) => {}
            () = world.written.reached_threshold() => {}
        }
    }
}
