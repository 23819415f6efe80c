//! A database with an older schema, filled by the code of that version, is migrated without losing data.

use std::fs;
use std::path::Path;

use crate::common::{begin, finish, object, open, running_execution, timestamp};
use belljar_engine::report::Status;
use belljar_store::executions::{ExecutionFilter, Idempotency, NewExecution};
use belljar_store::{
    AuditEntry, AuditOutcome, Digest, NewSandbox, SandboxFilter, SandboxId, Scope, Store, StoreOptions,
    TenantName, Timestamp,
};
use serde_json::json;

const FIXTURES: [&str; 5] = [
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/schema-1.db"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/schema-2.db"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/schema-3.db"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/schema-4.db"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/schema-5.db"),
];

/// Creates a fixture. Each was created by the code of its version; the variable names the file to create.
#[tokio::test]
#[ignore = "creates a fixture at the path in BELLJAR_STORE_FIXTURE"]
async fn make_fixture() {
    let Some(target) = std::env::var_os("BELLJAR_STORE_FIXTURE") else { return };
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), &StoreOptions::default());
    for name in ["default", "other"] {
        fill(&store, &crate::common::tenant(&store, name).await).await;
    }
    store.backup_to(Path::new(&target)).await.unwrap();
}

async fn fill(store: &Store, tenant: &TenantName) {
    let scopes = [Scope::Run].into_iter().collect();
    store.add_key(tenant, "laptop", scopes, None, timestamp(5)).await.unwrap();
    let metadata = object(json!({"agent": "a1", "user": 7, "beta": true, "nested": {"x": 1}}));
    let key = Idempotency { key: "k-1".parse().unwrap(), request: Digest::compute(b"request") };
    let new = NewExecution { metadata, idempotency: Some(key), ..running_execution(tenant) };
    let done = begin(store, new).await;
    finish(store, tenant, &done, 2_000, 100).await;
    begin(store, running_execution(tenant)).await;
    let sandbox = NewSandbox {
        id: SandboxId::generate().unwrap(),
        tenant: tenant.clone(),
        settings: object(json!({"image": "host"})),
        metadata: object(json!({})),
        created: timestamp(3),
        expires: None,
    };
    store.add_sandbox(sandbox).await.unwrap();
    let entry = AuditEntry {
        at: timestamp(4),
        actor: "bj_000000000000".to_owned(),
        tenant: Some(tenant.to_string()),
        action: "key.create".to_owned(),
        target: None,
        outcome: AuditOutcome::Done,
        request_id: None,
        detail: None,
    };
    store.audit(entry).await.unwrap();
}

#[tokio::test]
async fn every_schema_is_brought_up_to_date() {
    for fixture in FIXTURES {
        bring_up_to_date(fixture).await;
    }
}

async fn bring_up_to_date(fixture: &str) {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(fixture, folder.path().join("belljar.db")).unwrap();
    let store = open(folder.path(), &StoreOptions::default());
    let names: Vec<_> = store.tenants().await.unwrap().into_iter().map(|tenant| tenant.name).collect();
    assert_eq!(names.len(), 2);
    for tenant in &names {
        let page = store.executions(tenant, ExecutionFilter::default(), None, 10).await.unwrap();
        let statuses: Vec<_> = page.executions.iter().map(|execution| execution.status).collect();
        assert_eq!(page.executions.len(), 2);
        assert!(statuses.contains(&Status::Running) && statuses.contains(&Status::Failed));
        for (key, value, found) in
            [("agent", "a1", 1), ("user", "7", 1), ("beta", "true", 1), ("nested", "", 0)]
        {
            let filter = ExecutionFilter {
                metadata: vec![(key.to_owned(), value.to_owned())],
                ..ExecutionFilter::default()
            };
            let page = store.executions(tenant, filter, None, 10).await.unwrap();
            assert_eq!(page.executions.len(), found, "{key}");
        }
        assert_eq!(store.keys(tenant).await.unwrap().len(), 1);
        assert_eq!(store.count_live_sandboxes(tenant).await.unwrap(), 1);
        let sandboxes = store.sandboxes(tenant, SandboxFilter::default(), None, 10).await.unwrap().sandboxes;
        assert_eq!(sandboxes[0].end_reason(), None);
        assert_eq!(store.usage(tenant, timestamp(2_000).day()).await.unwrap().executions, 1);
    }
    assert_eq!(store.audit_log(None, None, 10).await.unwrap().entries.len(), 2);
    assert_eq!(store.interrupt_unfinished_executions(Timestamp::now()).await.unwrap(), 2);
}
