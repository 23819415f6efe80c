//! Helpers shared by the store's tests.

use std::path::Path;

use belljar_store::executions::{Begun, Finish, Finished, NewExecution};
use belljar_store::{ExecutionId, Options, Quotas, Store, TenantName, Timestamp};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// A store in its own directory, with one tenant.
pub(crate) struct Place {
    pub(crate) store: Store,
    pub(crate) tenant: TenantName,
    pub(crate) folder: TempDir,
}

pub(crate) async fn place() -> Place {
    place_with(&Options::default()).await
}

pub(crate) async fn place_with(options: &Options) -> Place {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), options);
    let tenant = tenant(&store, "default").await;
    Place { store, tenant, folder }
}

pub(crate) fn open(folder: &Path, options: &Options) -> Store {
    Store::open(&folder.join("belljar.db"), options).unwrap()
}

pub(crate) async fn tenant(store: &Store, name: &str) -> TenantName {
    let name: TenantName = name.parse().unwrap();
    store.add_tenant(&name, Quotas::default(), at(0)).await.unwrap();
    name
}

pub(crate) fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

pub(crate) fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

/// Returns a running Python execution.
pub(crate) fn running(tenant: &TenantName) -> NewExecution {
    NewExecution {
        id: ExecutionId::generate().unwrap(),
        tenant: tenant.clone(),
        language: "python".to_owned(),
        metadata: Map::new(),
        idempotency: None,
        created: at(1_000),
        started: Some(at(1_001)),
    }
}

pub(crate) async fn begin(store: &Store, new: NewExecution) -> ExecutionId {
    let id = new.id.clone();
    assert_eq!(store.begin_execution(new).await.unwrap(), Begun::Fresh);
    id
}

pub(crate) async fn finish(store: &Store, tenant: &TenantName, id: &ExecutionId, ended: i64, bytes: usize) {
    let done = Finished::failed(&json!({"id": id, "stdout": "x".repeat(bytes)}), at(ended)).unwrap();
    assert_eq!(store.finish_execution(tenant, id, done).await.unwrap(), Finish::Recorded);
}
