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
use crate::listeners::{DialectListener, Listeners};
use crate::mismatches::MismatchAudit;
use crate::sandboxes::lifecycle;
use crate::tls::Tls;
use crate::{connection, provider_registry, routes, tenant_deletion};

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
pub async fn run(listeners: impl Into<Listeners>, state: Arc<AppState>, shutdown: impl Future<Output = ()>) {
    let listeners = listeners.into();
    let (end, ending) = watch::channel(false);
    // Every connection holds a sender, so the channel closes with the last connection.
    let (alive, mut connections) = mpsc::channel::<()>(1);
    let mismatches = MismatchAudit::new(&state.engine, &state.store);
    let sweepers = [
        tokio::spawn(enforce_retention(Arc::clone(&state))),
        tokio::spawn(lifecycle::record_usage_periodically(Arc::clone(&state))),
        tokio::spawn(close_revoked(Arc::clone(&state))),
        tokio::spawn(provider_registry::check_health_periodically(Arc::clone(&state.engine))),
        tokio::spawn(Arc::clone(&mismatches).watch()),
        tokio::spawn(tenant_deletion::complete_interrupted(Arc::clone(&state))),
    ];
    let mut accepting = JoinSet::new();
    for bound in bind_routes(listeners, &state) {
        accepting.spawn(accept(bound, Arc::clone(&state), ending.clone(), alive.clone()));
    }
    drop(alive);
    shutdown.await;
    accepting.shutdown().await;
    tracing::info!(under_way = state.live_executions.count(), "shutting down");
    state.live_executions.close();
    end.send_replace(true);
    if timeout(state.settings.drain, state.live_executions.idle()).await.is_err() {
        tracing::warn!(under_way = state.live_executions.count(), "drain time is over; canceling");
        state.live_executions.cancel_all();
        let _ = timeout(SHUTDOWN_GRACE, state.live_executions.idle()).await;
    }
    lifecycle::end_all(&state).await;
    let _ = timeout(SHUTDOWN_GRACE, connections.recv()).await;
    sweepers.iter().for_each(JoinHandle::abort);
    let _ = timeout(SHUTDOWN_GRACE, mismatches.write_pending()).await;
    if let Some(tracer) = &state.tracer {
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

fn bind_routes(listeners: Listeners, state: &Arc<AppState>) -> Vec<BoundListener> {
    let Listeners { api, dialects, tls, metrics } = listeners;
    let bind = |listener, router| {
        let (tls, connections) = (tls.clone(), state.connections.clone());
        BoundListener { listener, tls, router, connections }
    };
    let mut open = vec![bind(api, routes::main(Arc::clone(state)))];
    open.extend(dialects.into_iter().map(|DialectListener { dialect, listener }| {
        bind(listener, routes::only(dialect, Arc::clone(state)))
    }));
    open.extend(metrics.map(|listener| {
        let router = routes::metrics(Arc::clone(state));
        BoundListener {
            listener,
            tls: None,
            router,
            connections: Connections::new(MAX_METRICS_CONNECTIONS, &state.other_tenants),
        }
    }));
    open
}

async fn accept(
    bound: BoundListener,
    state: Arc<AppState>,
    ending: watch::Receiver<bool>,
    alive: mpsc::Sender<()>,
) {
    loop {
        let (stream, peer) = match bound.listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection");
                sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        let tls = bound.tls.as_ref().map(|tls| tls.acceptor());
        let handle = state.connection_handles.register();
        let Some(slot) = bound.connections.admit(peer.ip(), &handle) else {
            if tls.is_none() {
                // Writes what fits into the socket buffer; the accept loop does not wait for a client.
                let _ = stream.try_write(TOO_MANY_CONNECTIONS);
            }
            continue;
        };
        handle.set_slot(&slot);
        let taken = ConnectionResources { slot: Some(slot), _alive: alive.clone() };
        let (router, state) = (bound.router.clone(), Arc::clone(&state));
        tokio::spawn(connection::serve(stream, taken, handle, tls, router, state, ending.clone()));
    }
}

async fn close_revoked(state: Arc<AppState>) {
    state.connection_handles.close_revoked(&state.store).await;
}

/// Removes results that exceed the retention limits.
async fn enforce_retention(state: Arc<AppState>) {
    loop {
        state.retention_trigger.reset();
        match state.store.prune(state.settings.retention, belljar_store::Timestamp::now()).await {
            Ok(pruned) if pruned.executions > 0 => {
                tracing::info!(executions = pruned.executions, bytes = pruned.bytes, "removed old results");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "cannot remove old results"),
        }
        tokio::select! {
            () = sleep(RETENTION_INTERVAL) => {}
            () = state.retention_trigger.reached_threshold() => {}
        }
    }
}
