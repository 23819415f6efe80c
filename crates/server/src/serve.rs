//! The server takes its world as arguments, and ends in order.
//!
//! ```text
//! accept … ─▶ asked to end ─▶ accepts no more, refuses new work, lets what runs finish
//!          ─▶ its time is over ─▶ cancels what still runs ─▶ its results are committed ─▶ sandboxes end ─▶ connections close
//! ```

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::world::World;
use crate::{connection, routes, sandboxes};

/// How long cancelled work has to be recorded, and answers to be sent.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// When the system has no room for another connection, it may have in a moment.
const BREATH: Duration = Duration::from_millis(50);
/// How often old results are looked for.
const SWEEP: Duration = Duration::from_secs(300);

/// Serves until `shutdown` completes, and then until everything has ended, within bounds.
pub async fn run(listener: TcpListener, world: Arc<World>, shutdown: impl Future<Output = ()>) {
    let (end, ending) = watch::channel(false);
    // Every connection holds a sender, so this ends with the last one.
    let (alive, mut connections) = mpsc::channel::<()>(1);
    let sweepers =
        [tokio::spawn(sweep(Arc::clone(&world))), tokio::spawn(sandboxes::sweep(Arc::clone(&world)))];
    let accepting = accept(listener, &world, ending, alive);
    tokio::select! {
        () = accepting => {}
        () = shutdown => {}
    }
    tracing::info!(under_way = world.live.count(), "ending");
    world.live.close();
    end.send_replace(true);
    if timeout(world.settings.drain, world.live.idle()).await.is_err() {
        tracing::warn!(under_way = world.live.count(), "time is over; cancelling");
        world.live.cancel_all();
        let _ = timeout(LAST_WORDS, world.live.idle()).await;
    }
    sandboxes::end_all(&world).await;
    let _ = timeout(LAST_WORDS, connections.recv()).await;
    sweepers.iter().for_each(JoinHandle::abort);
}

async fn accept(
    listener: TcpListener,
    world: &Arc<World>,
    ending: watch::Receiver<bool>,
    alive: mpsc::Sender<()>,
) {
    let router = routes::router(Arc::clone(world));
    let room = Arc::new(Semaphore::new(world.settings.connections));
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "a connection could not be accepted");
                sleep(BREATH).await;
                continue;
            }
        };
        let (router, world, ending, alive) =
            (router.clone(), Arc::clone(world), ending.clone(), alive.clone());
        tokio::spawn(async move {
            connection::serve(stream, router, world, ending).await;
            drop((place, alive));
        });
    }
}

/// Lets go of what is older or larger than is kept.
async fn sweep(world: Arc<World>) {
    loop {
        match world.store.prune(world.settings.retention, belljar_store::Timestamp::now()).await {
            Ok(pruned) if pruned.executions > 0 => {
                tracing::info!(
                    executions = pruned.executions,
                    bytes = pruned.bytes,
                    "old results were removed"
                );
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "old results could not be removed"),
        }
        sleep(SWEEP).await;
    }
}
