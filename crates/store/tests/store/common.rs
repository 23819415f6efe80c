//! Helpers shared by the store's tests.

use std::path::Path;

use belljar_store::executions::{BeginResult, ExecutionOutcome, FinishResult, NewExecution};
use belljar_store::{ExecutionId, Quotas, Store, StoreOptions, TenantName, Timestamp};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// A store in its own directory, with one tenant.
pub(crate) struct TestStore {
    pub(crate) store: Store,
    pub(crate) tenant: TenantName,
    pub(crate) folder: TempDir,
}

pub(crate) async fn test_store() -> TestStore {
    test_store_with(&StoreOptions::default()).await
}

pub(crate) async fn test_store_with(options: &StoreOptions) -> TestStore {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), options);
    let tenant = tenant(&store, "default").await;
    TestStore { store, tenant, folder }
}

pub(crate) fn open(folder: &Path, options: &StoreOptions) -> Store {
    Store::open(&folder.join("belljar.db"), options).unwrap()
}

pub(crate) async fn tenant(store: &Store, name: &str) -> TenantName {
    let name: TenantName = name.parse().unwrap();
    store.add_tenant(&name, Quotas::default(), timestamp(0)).await.unwrap();
    name
}

pub(crate) fn timestamp(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

pub(crate) fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

/// Returns a running Python execution.
pub(crate) fn running_execution(tenant: &TenantName) -> NewExecution {
    NewExecution {
        id: ExecutionId::generate().unwrap(),
        tenant: tenant.clone(),
        language: "python".to_owned(),
        metadata: Map::new(),
        idempotency: None,
        created: timestamp(1_000),
        started: Some(timestamp(1_001)),
    }
}

pub(crate) async fn begin(store: &Store, new: NewExecution) -> ExecutionId {
    let id = new.id.clone();
    assert_eq!(store.begin_execution(new).await.unwrap(), BeginResult::Fresh);
    id
}

pub(crate) async fn finish(store: &Store, tenant: &TenantName, id: &ExecutionId, ended: i64, bytes: usize) {
    let done =
        ExecutionOutcome::failed_to_start(&json!({"id": id, "stdout": "x".repeat(bytes)}), timestamp(ended))
            .unwrap();
    assert_eq!(store.finish_execution(tenant, id, done).await.unwrap(), FinishResult::Recorded);
}
