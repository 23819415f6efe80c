//! Concurrent calls: nothing is lost, counted twice or mixed up.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use belljar_engine::Fault;
use belljar_engine::outcome::{Kernel, Receipt, Usage, Warmth};
use belljar_engine::report::{Report, Status};
use belljar_store::executions::{ExecutionFilter, ExecutionOutcome, FinishResult};
use belljar_store::{DailyUsage, ExecutionId, StoreOptions};
use serde_json::{Map, Value};

use crate::common::{begin, running_execution, tenant, test_store, test_store_with, timestamp};

fn report(id: &ExecutionId, cpu: Duration) -> Report {
    Report {
        exit_code: Some(0),
        stdout: "1\n".to_owned(),
        duration_ms: 2.5,
        usage: Usage { cpu, peak_memory_bytes: 1, peak_processes: None },
        receipt: Some(Receipt {
            provider: "native",
            kernel: Kernel::Host,
            isolation: Vec::new(),
            warm: Warmth::Cold,
            simulated: false,
            network: None,
            root: None,
            disk_storage: None,
            instead_of: None,
            service: None,
        }),
        ..Report::blank(id.to_string(), Status::Succeeded, None, Map::new())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_and_sizes_add_up_under_load() {
    let fixture = test_store().await;
    let store = Arc::new(fixture.store);
    let names = [fixture.tenant, tenant(&store, "other").await];
    let tasks: Vec<_> = (0..32)
        .map(|task| {
            let (store, tenant) = (Arc::clone(&store), names[task % 2].clone());
            tokio::spawn(async move {
                for _ in 0..20 {
                    let id = begin(&store, running_execution(&tenant)).await;
                    let end = ExecutionOutcome::from_report(
                        &report(&id, Duration::from_micros(1_500)),
                        timestamp(2_000),
                    )
                    .unwrap();
                    let first = store.finish_execution(&tenant, &id, end.clone()).await.unwrap();
                    let second = store.finish_execution(&tenant, &id, end).await.unwrap();
                    assert_eq!(
                        (first, second),
                        (FinishResult::Recorded, FinishResult::AlreadyFinished(Status::Succeeded))
                    );
                    let read = store.execution(&tenant, &id).await.unwrap().unwrap();
                    let result: Value = serde_json::from_str(&read.result.unwrap()).unwrap();
                    assert_eq!(result["id"], id.as_str());
                    assert_eq!((read.summary.exit_code, read.summary.cpu_ms), (Some(0), 2));
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    for tenant in &names {
        let day = timestamp(2_000).day();
        let expected = DailyUsage { cpu_ms: 640, executions: 320 };
        assert_eq!(store.usage(tenant, day).await.unwrap(), expected);
        assert_eq!(store.usage_between(tenant, day, day.next()).await.unwrap(), [(day, expected)]);
        let (mut size, mut cursor) = (0, None);
        loop {
            let page = store.executions(tenant, ExecutionFilter::default(), cursor, 50).await.unwrap();
            size += page.executions.iter().map(|execution| execution.size_bytes).sum::<u64>();
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(store.tenant(tenant).await.unwrap().unwrap().stored_bytes, size);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn excess_load_is_refused() {
    let max_queued = NonZeroU16::new(8).unwrap();
    let fixture = test_store_with(&StoreOptions { max_queued, ..StoreOptions::default() }).await;
    let (store, tenant) = (Arc::new(fixture.store), fixture.tenant);
    let tasks: Vec<_> = (0..500)
        .map(|_| {
            let (store, new) = (Arc::clone(&store), running_execution(&tenant));
            tokio::spawn(async move { (new.id.clone(), store.begin_execution(new).await) })
        })
        .collect();
    let mut served = 0;
    for task in tasks {
        let (id, begun) = task.await.unwrap();
        if let Err(error) = &begun {
            assert_eq!(error.fault(), Fault::Capacity, "{error}");
        }
        let there = loop {
            // The read queue has the same length.
            match store.execution(&tenant, &id).await {
                Ok(found) => break found.is_some(),
                Err(error) => assert_eq!(error.fault(), Fault::Capacity, "{error}"),
            }
        };
        assert_eq!(there, begun.is_ok());
        served += usize::from(there);
    }
    assert!(served >= 8, "{served}");
}
