//! Tracks which key each connection uses. When the key is revoked or expires, the connection is closed,
//! whatever it carries: a terminal, an event stream, a batch.

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

/// Interval at which expired keys are looked for.
const LOOK: Duration = Duration::from_secs(5);

/// The handle of one connection.
#[derive(Debug, Default)]
pub(crate) struct Bearer {
    key: Mutex<Option<KeyId>>,
    cut: AtomicBool,
    waker: AtomicWaker,
    /// The connection's slot, while it is open.
    place: OnceLock<Weak<Place>>,
}

impl Bearer {
    /// Records the key of the request in progress; `None` for a caller without a revocable key.
    pub(crate) fn comes_with(&self, key: Option<KeyId>) {
        *lock(&self.key) = key;
    }

    /// Returns whether the connection must end, and registers the task to be woken when it must.
    pub(crate) fn is_cut(&self, context: &Context<'_>) -> bool {
        self.waker.register(context.waker());
        self.cut.load(Ordering::Acquire)
    }

    /// Sets the connection's slot.
    pub(crate) fn has_place(&self, place: &Arc<Place>) {
        // Called once per connection.
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

    /// Closes the connection.
    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// Handles of all connections.
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

    /// Triggers a check of all keys, after one was revoked or changed.
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

/// Closes connections whose key is no longer valid. Runs forever.
pub(crate) async fn watch(world: Arc<World>) {
    loop {
        tokio::select! {
            () = world.bearers.changed.notified() => {}
            () = sleep(LOOK) => {}
        }
        for (key, bearers) in world.bearers.by_key() {
            match world.store.key_opens(&key, Timestamp::now()).await {
                Ok(true) => {}
                // On a keep-alive connection, a later request may have used another key meanwhile.
                Ok(false) => {
                    let theirs = bearers.iter().filter(|bearer| lock(&bearer.key).as_ref() == Some(&key));
                    theirs.for_each(|bearer| bearer.cut());
                }
                Err(error) => tracing::warn!(%key, %error, "cannot check whether a key is still valid"),
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
