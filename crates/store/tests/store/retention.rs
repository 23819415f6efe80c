//! Retention deletes what is too old or too large, keeps unfinished executions, and does not block writers
//! for long.

use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_store::executions::{ExecutionFilter, ExecutionOutcome, NewArtifact};
use belljar_store::{AuditEntry, AuditOutcome, Retention, Store, StoreOptions, TenantName};

use crate::common::{begin, finish, running_execution, tenant, test_store, test_store_with, timestamp};

async fn finished(store: &Store, tenant: &TenantName, ended: i64, bytes: usize) {
    let id = begin(store, running_execution(tenant)).await;
    finish(store, tenant, &id, ended, bytes).await;
}

async fn count(store: &Store, tenant: &TenantName) -> usize {
    store.executions(tenant, ExecutionFilter::default(), None, 200).await.unwrap().executions.len()
}

async fn stored(store: &Store, tenant: &TenantName) -> u64 {
    store.tenant(tenant).await.unwrap().unwrap().stored_bytes
}

#[tokio::test]
async fn old_executions_are_deleted_and_unfinished_ones_kept() {
    let fixture = test_store().await;
    let (store, tenant) = (&fixture.store, &fixture.tenant);
    for ended in 0..150 {
        finished(store, tenant, 2_000 + ended, 100).await;
    }
    begin(store, running_execution(tenant)).await;
    let retention = Retention { max_age: Some(Duration::from_secs(10)), ..Retention::default() };
    let first = store.prune_step(retention, timestamp(12_120)).await.unwrap();
    assert_eq!((first.executions, first.more), (100, true), "steps are small");
    let rest = store.prune(retention, timestamp(12_120)).await.unwrap();
    assert_eq!(rest.executions, 20);
    assert_eq!(count(store, tenant).await, 31);
    let last = store.prune(retention, timestamp(1 << 40)).await.unwrap();
    assert_eq!(last.executions, 30);
    assert_eq!((count(store, tenant).await, stored(store, tenant).await), (1, 0));
}

#[tokio::test]
async fn the_largest_tenant_is_pruned_first() {
    let fixture = test_store().await;
    let (store, large) = (&fixture.store, &fixture.tenant);
    let small = tenant(store, "small").await;
    finished(store, &small, 1_000, 50_000).await;
    for ended in 0..40 {
        finished(store, large, 2_000 + ended, 50_000).await;
    }
    let retention = Retention { max_bytes: Some(1_000_000), ..Retention::default() };
    let pruned = store.prune(retention, timestamp(3_000)).await.unwrap();
    assert!(pruned.bytes > 1_000_000, "{pruned:?}");
    assert_eq!(count(store, &small).await, 1);
    let remaining = stored(store, large).await + stored(store, &small).await;
    assert!((900_000..=1_000_000).contains(&remaining), "{remaining}");
    let page = store.executions(large, ExecutionFilter::default(), None, 200).await.unwrap();
    assert_eq!(page.executions[0].ended, Some(timestamp(2_039)), "the newest are kept");
}

#[tokio::test]
async fn a_full_database_reports_it_and_recovers() {
    let fixture =
        test_store_with(&StoreOptions { max_bytes: Some(4 << 20), ..StoreOptions::default() }).await;
    let (store, tenant) = (&fixture.store, &fixture.tenant);
    let mut waiting = None;
    for _ in 0..100 {
        let id = begin(store, running_execution(tenant)).await;
        let json = serde_json::json!({"stdout": "x".repeat(200_000)});
        let done =
            belljar_store::executions::ExecutionOutcome::failed_to_start(&json, timestamp(2_000)).unwrap();
        if let Err(error) = store.finish_execution(tenant, &id, done.clone()).await {
            assert_eq!(error.fault(), belljar_engine::Fault::Host);
            assert!(error.to_string().starts_with("no space left for the database"), "{error}");
            waiting = Some((id, done));
            break;
        }
    }
    let (id, done) = waiting.expect("the bound was never reached");
    assert!(count(store, tenant).await > 10, "reads still work");
    let half = Retention { max_bytes: Some(1 << 20), ..Retention::default() };
    store.prune(half, timestamp(3_000)).await.unwrap();
    store.finish_execution(tenant, &id, done).await.unwrap();
    store.probe(timestamp(4_000)).await.unwrap();
}

#[tokio::test]
async fn the_file_shrinks_after_pruning() {
    let fixture = test_store().await;
    let (store, tenant) = (&fixture.store, &fixture.tenant);
    for _ in 0..40 {
        finished(store, tenant, 2_000, 500_000).await;
    }
    store.prune(Retention { max_bytes: Some(0), ..Retention::default() }, timestamp(3_000)).await.unwrap();
    let path = fixture.folder.path().join("belljar.db");
    fixture.store.close().await;
    let size = std::fs::metadata(path).unwrap().len();
    assert!(size < 4 << 20, "{size}");
}

fn entry(at_ms: i64, tenant: &str, outcome: AuditOutcome) -> AuditEntry {
    AuditEntry {
        at: timestamp(at_ms),
        actor: "cli".to_owned(),
        tenant: Some(tenant.to_owned()),
        action: "tenant.create".to_owned(),
        target: None,
        outcome,
        request_id: None,
        detail: None,
    }
}

/// Checks that only retention can delete from the audit log.
async fn assert_append_only(fixture: crate::common::TestStore) {
    let path = fixture.folder.path().join("belljar.db");
    fixture.store.close().await;
    let connection = rusqlite::Connection::open(path).unwrap();
    for sql in [
        "DELETE FROM audit",
        "DELETE FROM audit WHERE outcome = 'refused'",
        "UPDATE audit SET actor = 'another actor'",
    ] {
        let error = connection.execute(sql, []).unwrap_err().to_string();
        assert_eq!(error, "the audit log is append-only");
    }
}

#[tokio::test]
async fn the_audit_log_expires_by_age() {
    let fixture = test_store().await;
    for number in 0..3 {
        fixture.store.audit(entry(number * 1_000, "a", AuditOutcome::Refused)).await.unwrap();
    }
    let old = Retention { audit_age: Some(Duration::from_secs(1)), ..Retention::default() };
    assert_eq!(fixture.store.prune(old, timestamp(2_500)).await.unwrap().audit, 2);
    assert_append_only(fixture).await;
}

#[tokio::test]
async fn refusals_only_displace_refusals_of_their_tenant() {
    let fixture = test_store().await;
    let store = &fixture.store;
    store.audit(entry(0, "victim", AuditOutcome::Refused)).await.unwrap();
    store.audit(entry(1, "attacker", AuditOutcome::Done)).await.unwrap();
    for number in 0..1_100 {
        store.audit(entry(2 + number, "attacker", AuditOutcome::Refused)).await.unwrap();
    }
    let page = store.audit_log(Some("victim".to_owned()), None, 10).await.unwrap();
    assert_eq!(page.entries.len(), 1);
    let (mut cursor, mut remaining) = (None, Vec::new());
    loop {
        let page = store.audit_log(Some("attacker".to_owned()), cursor, 200).await.unwrap();
        remaining.extend(page.entries.into_iter().map(|record| record.entry));
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(remaining.len(), 1_001);
    assert_eq!(
        (remaining[0].at, remaining[999].at),
        (timestamp(1_101), timestamp(102)),
        "the newest are kept"
    );
    assert_eq!(remaining[1_000].outcome, AuditOutcome::Done);
    assert_append_only(fixture).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_do_not_wait_long_for_retention() {
    let fixture = test_store().await;
    let (store, tenant) = (Arc::new(fixture.store), fixture.tenant);
    for _ in 0..400 {
        finished(&store, &tenant, 2_000, 50_000).await;
    }
    let pruning = {
        let store = Arc::clone(&store);
        let all = Retention { max_age: Some(Duration::ZERO), ..Retention::default() };
        tokio::spawn(async move { store.prune(all, timestamp(3_000)).await.unwrap() })
    };
    let mut slowest = Duration::ZERO;
    while !pruning.is_finished() {
        let begun = Instant::now();
        begin(&store, running_execution(&tenant)).await;
        slowest = slowest.max(begun.elapsed());
    }
    assert_eq!(pruning.await.unwrap().executions, 400);
    println!("slowest write during retention: {slowest:?}");
}

#[tokio::test]
async fn artifacts_count_and_go_with_their_execution() {
    let fixture = test_store().await;
    let (store, tenant) = (&fixture.store, &fixture.tenant);
    let other = crate::common::tenant(store, "other").await;
    let content: Vec<u8> = (0..2_500_000_u32).map(|n| n as u8).collect();
    let artifact =
        |path: &str, content: Vec<u8>| NewArtifact { path: path.to_owned(), media_type: "text/csv", content };
    let id = begin(store, running_execution(tenant)).await;
    let done = ExecutionOutcome::failed_to_start(&serde_json::json!({}), timestamp(2_000)).unwrap();
    let done = done.with_artifacts(vec![artifact("a/b.csv", content.clone()), artifact("empty", Vec::new())]);
    // Storing may be retried.
    for _ in 0..2 {
        store.add_artifacts(tenant, &id, done.artifacts()).await.unwrap();
    }
    assert_eq!(store.artifact(tenant, &id, "a/b.csv").await.unwrap(), None, "the execution is not finished");
    store.finish_execution(tenant, &id, done.clone()).await.unwrap();
    store.add_artifacts(tenant, &id, done.artifacts()).await.unwrap();
    let found = store.artifact(tenant, &id, "a/b.csv").await.unwrap().unwrap();
    assert_eq!((found.media_type.as_str(), found.size), ("text/csv", 2_500_000));
    assert_eq!(store.artifact(tenant, &id, "empty").await.unwrap().unwrap().size, 0);
    let mut read = Vec::new();
    for number in 0.. {
        let Some(chunk) = store.artifact_chunk(tenant, &id, "a/b.csv", number).await.unwrap() else { break };
        read.extend(chunk);
    }
    assert!(read == content);
    assert_eq!(store.artifact(&other, &id, "a/b.csv").await.unwrap(), None);
    assert!(stored(store, tenant).await > 2_500_000);
    let interrupted = begin(store, running_execution(tenant)).await;
    store.add_artifacts(tenant, &interrupted, done.artifacts()).await.unwrap();
    store.interrupt_unfinished_executions(timestamp(2_001)).await.unwrap();
    assert_eq!(store.artifact(tenant, &interrupted, "a/b.csv").await.unwrap(), None);
    store.prune(Retention { max_bytes: Some(0), ..Retention::default() }, timestamp(3_000)).await.unwrap();
    assert_eq!(store.artifact(tenant, &id, "a/b.csv").await.unwrap(), None);
    assert_eq!(stored(store, tenant).await, 0);
    let path = fixture.folder.path().join("belljar.db");
    fixture.store.close().await;
    let connection = rusqlite::Connection::open(path).unwrap();
    let left: i64 =
        connection.query_row("SELECT count(*) FROM artifact_chunks", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0);
}
