//! Tracks which key each connection uses. When the key is revoked or expires, the connection is closed,
//! whatever it carries: a terminal, an event stream, a batch. A request that can still be answered gets an error first;
//! see `last_answer.rs`.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use belljar_store::{KeyId, Store, TenantName, Timestamp};
use futures_util::task::AtomicWaker;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::connections::ConnectionSlot;
use crate::error::Error;

/// Interval at which expired keys are looked for.
const KEY_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The handle of one connection.
#[derive(Debug, Default)]
pub(crate) struct ConnectionHandle {
    key: Mutex<Option<KeyId>>,
    closed: AtomicBool,
    /// Whether the request in progress can still be answered with an error.
    can_answer: AtomicBool,
    /// Whether that error is complete.
    is_answered: AtomicBool,
    waker: AtomicWaker,
    /// The connection's slot, while it is open.
    slot: OnceLock<Weak<ConnectionSlot>>,
}

impl ConnectionHandle {
    /// Records the key of the request in progress; `None` for a caller without a revocable key.
    pub(crate) fn set_key(&self, key: Option<KeyId>) {
        *lock(&self.key) = key;
    }

    /// Returns whether the connection must end, and registers the task to be woken when it must.
    pub(crate) fn poll_closed(&self, context: &Context<'_>) -> bool {
        self.waker.register(context.waker());
        self.closed.load(Ordering::Acquire)
    }

    /// Completes when the connection must end.
    pub(crate) async fn closed(&self) {
        poll_fn(|context| if self.poll_closed(context) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    pub(crate) fn set_can_answer(&self, can_answer: bool) {
        self.can_answer.store(can_answer, Ordering::Release);
    }

    pub(crate) fn can_answer(&self) -> bool {
        self.can_answer.load(Ordering::Acquire)
    }

    pub(crate) fn set_answered(&self) {
        self.is_answered.store(true, Ordering::Release);
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.is_answered.load(Ordering::Acquire)
    }

    /// Sets the connection's slot.
    pub(crate) fn set_slot(&self, slot: &Arc<ConnectionSlot>) {
        // Called once per connection.
        let _ = self.slot.set(Arc::downgrade(slot));
    }

    /// Counts the connection for a tenant.
    pub(crate) fn assign_to_tenant(&self, tenant: &TenantName) -> Result<(), Error> {
        match self.slot.get().and_then(Weak::upgrade) {
            Some(slot) => slot.assign_to_tenant(tenant),
            None => Ok(()),
        }
    }

    #[cfg(test)]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Closes the connection.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// Handles of all connections.
#[derive(Debug, Default)]
pub(crate) struct ConnectionHandles {
    all: Mutex<Vec<Weak<ConnectionHandle>>>,
    keys_changed: Notify,
}

impl ConnectionHandles {
    pub(crate) fn register(&self) -> Arc<ConnectionHandle> {
        let handle = Arc::new(ConnectionHandle::default());
        let mut all = lock(&self.all);
        if all.len() == all.capacity() {
            all.retain(|handle| handle.strong_count() > 0);
        }
        all.push(Arc::downgrade(&handle));
        handle
    }

    /// Triggers a check of all keys, after one was revoked or changed.
    pub(crate) fn recheck_keys(&self) {
        self.keys_changed.notify_one();
    }

    /// Closes connections whose key is no longer valid. Runs forever.
    pub(crate) async fn close_revoked(&self, store: &Store) {
        loop {
            tokio::select! {
                () = self.keys_changed.notified() => {}
                () = sleep(KEY_CHECK_INTERVAL) => {}
            }
            self.close_invalid(store).await;
        }
    }

    /// Closes connections whose key is not valid now.
    pub(crate) async fn close_invalid(&self, store: &Store) {
        for (key, handles) in self.by_key() {
            match store.is_key_valid(&key, Timestamp::now()).await {
                Ok(true) => {}
                // On a keep-alive connection, a later request may have used another key meanwhile.
                Ok(false) => {
                    let theirs = handles.iter().filter(|handle| lock(&handle.key).as_ref() == Some(&key));
                    theirs.for_each(|handle| handle.close());
                }
                Err(error) => tracing::warn!(%key, %error, "cannot check whether a key is still valid"),
            }
        }
    }

    fn by_key(&self) -> HashMap<KeyId, Vec<Arc<ConnectionHandle>>> {
        let mut found: HashMap<_, Vec<_>> = HashMap::new();
        for handle in lock(&self.all).iter().filter_map(Weak::upgrade) {
            let key = lock(&handle.key).clone();
            if let Some(key) = key {
                found.entry(key).or_default().push(handle);
            }
        }
        found
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
