//! Repeated requests are recognized by their idempotency key.

use std::sync::Arc;

use belljar_engine::report::Status;
use belljar_store::executions::{
    BeginResult, ExecutionOutcome, FinishResult, Idempotency, IdempotencyKey, NewExecution,
};
use belljar_store::{Digest, Error, TenantName};
use serde_json::json;

use crate::common::{begin, finish, running_execution, tenant, test_store, timestamp};

fn keyed(tenant: &TenantName, key: &str, request: &[u8]) -> NewExecution {
    let key = Idempotency { key: key.parse().unwrap(), request: Digest::compute(request) };
    NewExecution { idempotency: Some(key), ..running_execution(tenant) }
}

#[tokio::test]
async fn the_same_request_is_in_progress_then_done_and_another_conflicts() {
    let fixture = test_store().await;
    let (store, tenant) = (&fixture.store, &fixture.tenant);
    let first = begin(store, keyed(tenant, "k", b"one")).await;
    let again = store.begin_execution(keyed(tenant, "k", b"one")).await.unwrap();
    assert_eq!(again, BeginResult::InProgress(first.clone()));
    assert_eq!(store.begin_execution(keyed(tenant, "k", b"two")).await.unwrap(), BeginResult::Conflict);
    finish(store, tenant, &first, 2_000, 10).await;
    assert_eq!(store.begin_execution(keyed(tenant, "k", b"one")).await.unwrap(), BeginResult::Done(first));
    assert_eq!(store.begin_execution(keyed(tenant, "k", b"two")).await.unwrap(), BeginResult::Conflict);
}

#[tokio::test]
async fn idempotency_keys_are_per_tenant() {
    let fixture = test_store().await;
    let other = tenant(&fixture.store, "other").await;
    begin(&fixture.store, keyed(&fixture.tenant, "k", b"one")).await;
    begin(&fixture.store, keyed(&other, "k", b"two")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_concurrent_requests_begins() {
    let fixture = test_store().await;
    let store = Arc::new(fixture.store);
    for round in 0..20 {
        let tasks: Vec<_> = (0..16)
            .map(|_| {
                let (store, new) = (Arc::clone(&store), keyed(&fixture.tenant, &format!("k{round}"), b"one"));
                tokio::spawn(async move { (new.id.clone(), store.begin_execution(new).await.unwrap()) })
            })
            .collect();
        let mut begun = Vec::new();
        for task in tasks {
            begun.push(task.await.unwrap());
        }
        let fresh: Vec<_> = begun.iter().filter(|(_, begun)| *begun == BeginResult::Fresh).collect();
        assert_eq!(fresh.len(), 1);
        let winner = BeginResult::InProgress(fresh[0].0.clone());
        assert_eq!(begun.iter().filter(|(_, begun)| *begun == winner).count(), 15);
    }
}

#[tokio::test]
async fn an_abandoned_execution_frees_its_key() {
    let fixture = test_store().await;
    let (store, tenant) = (&fixture.store, &fixture.tenant);
    let first = begin(store, keyed(tenant, "k", b"one")).await;
    store.abandon_execution(tenant, &first).await.unwrap();
    assert!(store.execution(tenant, &first).await.unwrap().is_none());
    let second = begin(store, keyed(tenant, "k", b"two")).await;
    finish(store, tenant, &second, 2_000, 10).await;
    assert!(matches!(store.abandon_execution(tenant, &second).await, Err(Error::NotFound(_))));
}

#[tokio::test]
async fn an_end_is_final() {
    let fixture = test_store().await;
    let (store, tenant) = (&fixture.store, &fixture.tenant);
    let id = begin(store, running_execution(tenant)).await;
    assert_eq!(store.interrupt_unfinished_executions(timestamp(5_000)).await.unwrap(), 1);
    assert_eq!(store.interrupt_unfinished_executions(timestamp(6_000)).await.unwrap(), 0);
    let late = ExecutionOutcome::failed_to_start(&json!({}), timestamp(7_000)).unwrap();
    let finished = store.finish_execution(tenant, &id, late).await.unwrap();
    assert_eq!(finished, FinishResult::AlreadyFinished(Status::Interrupted));
    let execution = store.execution(tenant, &id).await.unwrap().unwrap();
    assert_eq!((execution.summary.ended, execution.result), (Some(timestamp(5_000)), None));
    assert_eq!(store.usage(tenant, timestamp(7_000).day()).await.unwrap().executions, 0);
}

#[test]
fn keys_are_visible_ascii() {
    for bad in ["", "a b", "é", "a\n", &"x".repeat(256)] {
        assert!(bad.parse::<IdempotencyKey>().is_err(), "{bad}");
    }
    assert!("018f-{x}".parse::<IdempotencyKey>().is_ok());
}
