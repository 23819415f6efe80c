//! Which key a connection is used with. When that opens nothing any more, the connection ends, whatever it was for: a
//! terminal, a stream of events, a batch.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Context;
use std::time::Duration;

use belljar_store::{KeyId, TenantName, Timestamp};
use futures_util::task::AtomicWaker;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::connections::Place;
use crate::error::Error;
use crate::world::World;

/// How often keys are looked at that end by themselves.
const LOOK: Duration = Duration::from_secs(5);

/// One connection.
#[derive(Debug, Default)]
pub(crate) struct Bearer {
    key: Mutex<Option<KeyId>>,
    cut: AtomicBool,
    waker: AtomicWaker,
    /// The connection's place, as long as it is open.
    place: OnceLock<Weak<Place>>,
}

impl Bearer {
    /// The request under way is one of this key, or of none that could be taken back.
    pub(crate) fn comes_with(&self, key: Option<KeyId>) {
        *lock(&self.key) = key;
    }

    /// Whether the connection has to end. Whoever asked last is woken when it has.
    pub(crate) fn is_cut(&self, context: &Context<'_>) -> bool {
        self.waker.register(context.waker());
        self.cut.load(Ordering::Acquire)
    }

    /// Says which place the connection has.
    pub(crate) fn has_place(&self, place: &Arc<Place>) {
        // A connection has one place.
        let _ = self.place.set(Arc::downgrade(place));
    }

    /// Counts the connection for a tenant.
    pub(crate) fn belongs_to(&self, tenant: &TenantName) -> Result<(), Error> {
        match self.place.get().and_then(Weak::upgrade) {
            Some(place) => place.belongs_to(tenant),
            None => Ok(()),
        }
    }

    #[cfg(test)]
    pub(crate) fn is_closed(&self) -> bool {
        self.cut.load(Ordering::Acquire)
    }

    /// Ends the connection.
    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// All connections.
#[derive(Debug, Default)]
pub(crate) struct Bearers {
    all: Mutex<Vec<Weak<Bearer>>>,
    changed: Notify,
}

impl Bearers {
    pub(crate) fn new_one(&self) -> Arc<Bearer> {
        let bearer = Arc::new(Bearer::default());
        let mut all = lock(&self.all);
        if all.len() == all.capacity() {
            all.retain(|bearer| bearer.strong_count() > 0);
        }
        all.push(Arc::downgrade(&bearer));
        bearer
    }

    /// Some key may open less than before.
    pub(crate) fn look_again(&self) {
        self.changed.notify_one();
    }

    fn by_key(&self) -> HashMap<KeyId, Vec<Arc<Bearer>>> {
        let mut found: HashMap<_, Vec<_>> = HashMap::new();
        for bearer in lock(&self.all).iter().filter_map(Weak::upgrade) {
            let key = lock(&bearer.key).clone();
            if let Some(key) = key {
                found.entry(key).or_default().push(bearer);
            }
        }
        found
    }
}

/// Ends connections whose keys open nothing any more, for ever.
pub(crate) async fn watch(world: Arc<World>) {
    loop {
        tokio::select! {
            () = world.bearers.changed.notified() => {}
            () = sleep(LOOK) => {}
        }
        for (key, bearers) in world.bearers.by_key() {
            match world.store.key_opens(&key, Timestamp::now()).await {
                Ok(true) => {}
                // On a connection that is kept, another key may have come meanwhile.
                Ok(false) => {
                    let theirs = bearers.iter().filter(|bearer| lock(&bearer.key).as_ref() == Some(&key));
                    theirs.for_each(|bearer| bearer.cut());
                }
                Err(error) => tracing::warn!(%key, %error, "whether a key still opens is not known"),
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
