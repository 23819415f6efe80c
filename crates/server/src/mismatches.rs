//! Warm interpreters that were caught lying about their forks are in the audit log.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use belljar_engine::provider::Mismatch;
use belljar_store::{AuditEntry, AuditOutcome, Store, Timestamp};
use tokio::sync::Mutex;
use tokio::time::sleep;

use crate::error::Error;
use crate::world::World;

/// How often providers are asked; they keep what is not asked for.
const ROUND: Duration = Duration::from_millis(500);
/// How many wait to be written while the database cannot write.
const MOST_UNWRITTEN: usize = 256;
/// Who is said to have done it: no key did.
const ACTOR: &str = "server";
const ACTION: &str = "isolation.mismatch";
/// Characters of a name and of a reason, below what the log takes of each.
const MOST_TARGET: usize = 64;
const MOST_DETAIL: usize = 200;

/// What is still to be written.
#[derive(Debug, Default)]
pub(crate) struct Unwritten(Mutex<VecDeque<AuditEntry>>);

/// Enters them as they come.
pub(crate) async fn watch(world: Arc<World>) {
    loop {
        sleep(ROUND).await;
        enter(&world).await;
    }
}

/// Enters what has come, each once. What cannot be written now is written the next time.
pub(crate) async fn enter(world: &World) {
    let mut unwritten = world.mismatches.0.lock().await;
    for mismatch in world.engine.take_mismatches() {
        let Mismatch { pool, tenant, what } = &mismatch;
        tracing::error!(%pool, %tenant, %what, "a fork of a warm interpreter was not confined as it said");
        if unwritten.len() < MOST_UNWRITTEN {
            unwritten.push_back(entry(mismatch));
        }
    }
    while let Some(entry) = unwritten.front() {
        if let Err(error) = write(&world.store, entry.clone()).await {
            tracing::warn!(%error, "the audit log cannot be written now");
            return;
        }
        unwritten.pop_front();
    }
}

async fn write(store: &Store, entry: AuditEntry) -> Result<(), Error> {
    Ok(store.audit(entry).await?)
}

fn entry(mismatch: Mismatch) -> AuditEntry {
    let Mismatch { pool, tenant, what } = mismatch;
    let detail = format!("a fork was not confined as it said: {what}; it and its interpreter were ended");
    AuditEntry {
        at: Timestamp::now(),
        actor: ACTOR.to_owned(),
        tenant: Some(tenant.chars().take(MOST_TARGET).collect()),
        action: ACTION.to_owned(),
        target: Some(pool.chars().take(MOST_TARGET).collect()),
        outcome: AuditOutcome::Failed,
        request_id: None,
        detail: Some(detail.chars().take(MOST_DETAIL).collect()),
    }
}
