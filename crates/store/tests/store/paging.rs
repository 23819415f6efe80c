//! Lists are ordered newest first, match their filter, and contain each execution once despite concurrent
//! inserts.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use belljar_engine::report::Status;
use belljar_store::executions::{ExecutionFilter, NewExecution};
use belljar_store::{AuditEntry, AuditOutcome, ExecutionId, Store, TenantName};
use serde_json::json;

use crate::common::{begin, finish, object, running_execution, test_store, timestamp};

async fn all(store: &Store, tenant: &TenantName, filter: &ExecutionFilter, limit: u32) -> Vec<ExecutionId> {
    let (mut ids, mut cursor) = (Vec::new(), None);
    loop {
        let page = store.executions(tenant, filter.clone(), cursor, limit).await.unwrap();
        assert!(page.executions.len() <= limit as usize);
        ids.extend(page.executions.into_iter().map(|execution| execution.id));
        cursor = page.next_cursor;
        if cursor.is_none() {
            return ids;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_are_stable_under_inserts() {
    let fixture = test_store().await;
    let (store, tenant) = (Arc::new(fixture.store), fixture.tenant);
    let mut before = BTreeSet::new();
    for _ in 0..100 {
        before.insert(begin(&store, running_execution(&tenant)).await);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let inserting = {
        let (store, tenant, stop) = (Arc::clone(&store), tenant.clone(), Arc::clone(&stop));
        tokio::spawn(async move {
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) {
                begin(&store, running_execution(&tenant)).await;
                count += 1;
            }
            count
        })
    };
    for limit in [1, 7, 100] {
        let seen = all(&store, &tenant, &ExecutionFilter::default(), limit).await;
        assert!(seen.is_sorted_by(|newer, older| newer > older), "newest first, without duplicates");
        let seen: BTreeSet<_> = seen.into_iter().collect();
        assert!(seen.is_superset(&before));
    }
    stop.store(true, Ordering::Relaxed);
    assert!(inserting.await.unwrap() > 0);
}

#[tokio::test]
async fn lists_match_their_filter() {
    let fixture = test_store().await;
    let (store, tenant) = (&fixture.store, &fixture.tenant);
    let with = |language: &str, metadata| NewExecution {
        language: language.to_owned(),
        metadata: object(metadata),
        ..running_execution(tenant)
    };
    let a = begin(store, with("python", json!({"agent": "a", "user": 7, "beta": true}))).await;
    let b = begin(store, with("bash", json!({"agent": "a", "user": "8", "half": 0.5}))).await;
    let c = begin(store, NewExecution { started: None, ..with("bash", json!({"agent": "ab"})) }).await;
    finish(store, tenant, &b, 2_000, 10).await;

    let plain = |pairs: &[(&str, &str)]| ExecutionFilter {
        metadata: pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect(),
        ..ExecutionFilter::default()
    };
    let status = |status| ExecutionFilter { status: Some(status), ..ExecutionFilter::default() };
    let bash = ExecutionFilter { language: Some("bash".to_owned()), ..ExecutionFilter::default() };
    let finished = ExecutionFilter { status: Some(Status::Failed), ..plain(&[("agent", "a")]) };
    let cases = [
        (ExecutionFilter::default(), vec![&a, &b, &c]),
        (status(Status::Running), vec![&a]),
        (status(Status::Queued), vec![&c]),
        (status(Status::Succeeded), vec![]),
        (bash, vec![&b, &c]),
        (plain(&[("agent", "a")]), vec![&a, &b]),
        (plain(&[("agent", "a"), ("user", "7")]), vec![&a]),
        (plain(&[("user", "8")]), vec![&b]),
        (plain(&[("beta", "true")]), vec![&a]),
        (plain(&[("half", "0.5")]), vec![&b]),
        (plain(&[("agent", "%")]), vec![]),
        (plain(&[("agent' OR 1=1 --", "a")]), vec![]),
        (finished, vec![&b]),
    ];
    for (filter, expected) in cases {
        for limit in [1, 10] {
            let found: BTreeSet<_> = all(store, tenant, &filter, limit).await.into_iter().collect();
            assert_eq!(found, expected.iter().map(|id| (*id).clone()).collect(), "{filter:?}");
        }
    }
    let nine = plain(&[("k", "v"); 9]);
    assert!(store.executions(tenant, nine, None, 1).await.is_err());
    for limit in [0, 201] {
        assert!(store.executions(tenant, ExecutionFilter::default(), None, limit).await.is_err());
    }
}

#[tokio::test]
async fn metadata_is_bounded() {
    let fixture = test_store().await;
    let (store, tenant) = (&fixture.store, &fixture.tenant);
    let long = object(json!({"k": "x".repeat(17 << 10)}));
    let refused = store.begin_execution(NewExecution { metadata: long, ..running_execution(tenant) }).await;
    assert!(refused.unwrap_err().to_string().starts_with("metadata: "));
    let many = (0..100).map(|n| (format!("k{n:02}"), json!("v"))).collect();
    begin(store, NewExecution { metadata: many, ..running_execution(tenant) }).await;
    for (key, found) in [("k00", 1), ("k31", 1), ("k32", 0)] {
        let filter = ExecutionFilter {
            metadata: vec![(key.to_owned(), "v".to_owned())],
            ..ExecutionFilter::default()
        };
        assert_eq!(all(store, tenant, &filter, 10).await.len(), found, "{key}");
    }
}

#[tokio::test]
async fn an_execution_is_read_back_unchanged() {
    let fixture = test_store().await;
    let (store, tenant) = (&fixture.store, &fixture.tenant);
    let new = NewExecution {
        started: None,
        metadata: object(json!({"n": {"a": [1]}})),
        ..running_execution(tenant)
    };
    let id = begin(store, new.clone()).await;
    store.start_execution(tenant, &id, timestamp(1_500)).await.unwrap();
    assert!(store.start_execution(tenant, &id, timestamp(1_600)).await.is_err(), "it is already running");
    finish(store, tenant, &id, 2_000, 3).await;
    let execution = store.execution(tenant, &id).await.unwrap().unwrap();
    let summary = execution.summary;
    assert_eq!((summary.started, summary.ended), (Some(timestamp(1_500)), Some(timestamp(2_000))));
    assert_eq!((summary.created, summary.metadata), (new.created, new.metadata));
    assert_eq!(execution.result.unwrap(), format!(r#"{{"id":"{id}","stdout":"xxx"}}"#));
}

#[tokio::test]
async fn the_audit_log_is_read_newest_first() {
    let fixture = test_store().await;
    for number in 0..5 {
        let entry = AuditEntry {
            at: timestamp(number),
            actor: "bj_x".to_owned(),
            tenant: (number % 2 == 0).then(|| "default".to_owned()),
            action: "key.create".to_owned(),
            target: Some(number.to_string()),
            outcome: AuditOutcome::Refused,
            request_id: Some("r".to_owned()),
            detail: None,
        };
        fixture.store.audit(entry).await.unwrap();
    }
    let page = fixture.store.audit_log(None, None, 3).await.unwrap();
    let targets = |page: &belljar_store::AuditPage| -> Vec<_> {
        page.entries.iter().filter_map(|record| record.entry.target.clone()).collect()
    };
    assert_eq!(targets(&page), ["4", "3", "2"]);
    let rest = fixture.store.audit_log(None, page.next_cursor, 3).await.unwrap();
    assert_eq!((targets(&rest), rest.next_cursor), (vec!["1".to_owned(), "0".to_owned()], None));
    let own = fixture.store.audit_log(Some("default".to_owned()), None, 10).await.unwrap();
    assert_eq!(targets(&own), ["4", "2", "0"]);
}
