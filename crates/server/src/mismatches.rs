//! Writes an audit entry for every warm child whose confinement was not as claimed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use belljar_engine::Engine;
use belljar_engine::provider::ConfinementMismatch;
use belljar_store::{AuditEntry, AuditOutcome, Store, Timestamp};
use tokio::sync::Mutex;
use tokio::time::sleep;

/// Interval at which the engine is polled. Providers buffer mismatches until then.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of entries that wait while the database cannot write.
const MAX_PENDING: usize = 256;
/// Actor of the audit entries: the server itself, because no key was involved.
const ACTOR: &str = "server";
const ACTION: &str = "isolation.mismatch";
/// Maximum length of a name and of a reason in characters, below the limits of the audit log.
const MAX_TARGET_CHARS: usize = 64;
const MAX_DETAIL_CHARS: usize = 200;

/// Writes audit entries for the mismatches that an engine reports.
#[derive(Debug)]
pub(crate) struct MismatchAudit {
    engine: Arc<Engine>,
    store: Arc<Store>,
    /// Entries that are not yet written.
    unwritten: Mutex<VecDeque<AuditEntry>>,
}

impl MismatchAudit {
    pub(crate) fn new(engine: &Arc<Engine>, store: &Arc<Store>) -> Arc<Self> {
        let (engine, store) = (Arc::clone(engine), Arc::clone(store));
        Arc::new(Self { engine, store, unwritten: Mutex::default() })
    }

    /// Writes audit entries as mismatches occur. Runs forever.
    pub(crate) async fn watch(self: Arc<Self>) {
        loop {
            sleep(POLL_INTERVAL).await;
            self.write_pending().await;
        }
    }

    /// Writes all pending entries, each once. Entries that cannot be written now are retried on the next
    /// call.
    pub(crate) async fn write_pending(&self) {
        let mut unwritten = self.unwritten.lock().await;
        for mismatch in self.engine.take_mismatches() {
            let ConfinementMismatch { pool, tenant, what } = &mismatch;
            tracing::error!(%pool, %tenant, %what, "a warm child was not confined as its interpreter claimed");
            if unwritten.len() < MAX_PENDING {
                unwritten.push_back(entry(mismatch));
            }
        }
        while let Some(entry) = unwritten.front() {
            if let Err(error) = self.store.audit(entry.clone()).await {
                tracing::warn!(%error, "cannot write the audit log; retrying");
                return;
            }
            unwritten.pop_front();
        }
    }
}

fn entry(mismatch: ConfinementMismatch) -> AuditEntry {
    let ConfinementMismatch { pool, tenant, what } = mismatch;
    let detail = format!("a warm child was not confined as claimed: {what}; both processes were killed");
    AuditEntry {
        at: Timestamp::now(),
        actor: ACTOR.to_owned(),
        tenant: Some(tenant.chars().take(MAX_TARGET_CHARS).collect()),
        action: ACTION.to_owned(),
        target: Some(pool.chars().take(MAX_TARGET_CHARS).collect()),
        outcome: AuditOutcome::Failed,
        request_id: None,
        detail: Some(detail.chars().take(MAX_DETAIL_CHARS).collect()),
    }
}
