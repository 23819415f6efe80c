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

use crate::connection::Taken;
use crate::connections::Connections;
use crate::doors::Doors;
use crate::tls::Tls;
use crate::world::World;
use crate::{bearers, connection, mismatches, roster, routes, sandboxes};

/// How long canceled work may take to be recorded, and answers to be sent.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Delay before accepting again after `accept` failed, for example because file descriptors ran out.
const BREATH: Duration = Duration::from_millis(50);
/// Maximum number of connections to the metrics listener.
const SCRAPERS: usize = 64;
/// Response to a client whose address has used up its share of the connections.
const NO_ROOM: &[u8] =
    b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
/// Interval at which expired results are removed.
const SWEEP: Duration = Duration::from_secs(300);

/// Serves until `shutdown` completes, then shuts down within bounded time.
pub async fn run(doors: impl Into<Doors>, world: Arc<World>, shutdown: impl Future<Output = ()>) {
    let doors = doors.into();
    let (end, ending) = watch::channel(false);
    // Every connection holds a sender, so the channel closes with the last connection.
    let (alive, mut connections) = mpsc::channel::<()>(1);
    let sweepers = [
        tokio::spawn(sweep(Arc::clone(&world))),
        tokio::spawn(sandboxes::sweep(Arc::clone(&world))),
        tokio::spawn(bearers::watch(Arc::clone(&world))),
        tokio::spawn(roster::watch(Arc::clone(&world))),
        tokio::spawn(mismatches::watch(Arc::clone(&world))),
    ];
    let mut accepting = JoinSet::new();
    for door in open(doors, &world) {
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
        let _ = timeout(LAST_WORDS, world.live.idle()).await;
    }
    sandboxes::end_all(&world).await;
    let _ = timeout(LAST_WORDS, connections.recv()).await;
    sweepers.iter().for_each(JoinHandle::abort);
    let _ = timeout(LAST_WORDS, mismatches::enter(&world)).await;
    if let Some(tracer) = &world.tracer {
        tracer.close().await;
    }
}

/// A listener and the routes it serves.
struct Door {
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    router: Router,
    connections: Connections,
}

fn open(doors: Doors, world: &Arc<World>) -> Vec<Door> {
    let Doors { api, tls, metrics } = doors;
    let (router, connections) = (routes::router(Arc::clone(world)), world.connections.clone());
    let mut open = vec![Door { listener: api, tls, router, connections }];
    open.extend(metrics.map(|listener| {
        let router = routes::metrics(Arc::clone(world));
        Door { listener, tls: None, router, connections: Connections::new(SCRAPERS, &world.rivals) }
    }));
    open
}

async fn accept(door: Door, world: Arc<World>, ending: watch::Receiver<bool>, alive: mpsc::Sender<()>) {
    loop {
        let (stream, peer) = match door.listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection");
                sleep(BREATH).await;
                continue;
            }
        };
        let tls = door.tls.as_ref().map(|tls| tls.acceptor());
        let bearer = world.bearers.new_one();
        let Some(place) = door.connections.admit(peer.ip(), &bearer) else {
            if tls.is_none() {
                // Writes what fits into the socket buffer; the accept loop does not wait for a client.
                let _ = stream.try_write(NO_ROOM);
            }
            continue;
        };
        bearer.has_place(&place);
        let taken = Taken { place: Some(place), _alive: alive.clone() };
        let (router, world) = (door.router.clone(), Arc::clone(&world));
        tokio::spawn(connection::serve(stream, taken, bearer, tls, router, world, ending.clone()));
    }
}

/// Removes results that exceed the retention limits.
async fn sweep(world: Arc<World>) {
    loop {
        world.written.begin_anew();
        match world.store.prune(world.settings.retention, belljar_store::Timestamp::now()).await {
            Ok(pruned) if pruned.executions > 0 => {
                tracing::info!(executions = pruned.executions, bytes = pruned.bytes, "removed old results");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "cannot remove old results"),
        }
        tokio::select! {
            () = sleep(SWEEP) => {}
            () = world.written.is_much() => {}
        }
    }
}
