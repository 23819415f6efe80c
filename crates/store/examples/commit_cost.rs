//! Measures the cost of a committed write: by one writer and by 64 concurrent ones, with and without waiting
//! for the disk.
//!
//! ```console
//! $ cargo run --release -p belljar-store --example commit_cost [FOLDER]
//! ```
//!
//! Uses a temporary directory unless one is given. Each write finishes an execution with a 2 KB result.
#![expect(clippy::print_stdout, reason = "prints its measurements")]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_store::executions::{ExecutionOutcome, NewExecution};
use belljar_store::{Durability, ExecutionId, Quotas, Store, StoreOptions, TenantName, Timestamp};
use serde_json::{Map, json};

type AnyResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Latencies of one measurement.
#[derive(Default)]
struct Samples {
    begin: Vec<Duration>,
    finish: Vec<Duration>,
}

#[tokio::main]
async fn main() -> AnyResult<()> {
    let temporary = tempfile::tempdir()?;
    let folder = std::env::args_os().nth(1).map_or_else(|| temporary.path().to_owned(), Into::into);
    println!(
        "{:<9} {:>7}  {:<8} {:>9} {:>9} {:>9}  {:>9}",
        "survives", "writers", "write", "p50", "p95", "p99", "writes/s"
    );
    for (durability, name, rounds) in
        [(Durability::Process, "process", 4_000), (Durability::Power, "power", 400)]
    {
        for writers in [1, 64] {
            measure(&folder, durability, name, writers, rounds).await?;
        }
    }
    Ok(())
}

async fn measure(
    folder: &Path,
    durability: Durability,
    name: &str,
    writers: usize,
    rounds: usize,
) -> AnyResult<()> {
    let folder = tempfile::tempdir_in(folder)?;
    let options = StoreOptions { durability, ..StoreOptions::default() };
    let store = Arc::new(Store::open(&folder.path().join("belljar.db"), &options)?);
    let tenant: TenantName = "default".parse()?;
    store.add_tenant(&tenant, Quotas::default(), Timestamp::now()).await?;
    let begun = Instant::now();
    let mut tasks = Vec::new();
    for _ in 0..writers {
        let each = if writers == 1 { rounds } else { rounds * 4 / writers };
        tasks.push(tokio::spawn(write(Arc::clone(&store), tenant.clone(), each)));
    }
    let mut all = Samples::default();
    for task in tasks {
        let samples = task.await??;
        all.begin.extend(samples.begin);
        all.finish.extend(samples.finish);
    }
    let rate = (all.begin.len() + all.finish.len()) as f64 / begun.elapsed().as_secs_f64();
    for (write, mut samples) in [("begin", all.begin), ("finish", all.finish)] {
        samples.sort_unstable();
        let at = |share: f64| micros(samples.get((samples.len() as f64 * share) as usize));
        println!(
            "{name:<9} {writers:>7}  {write:<8} {:>9} {:>9} {:>9}  {rate:>9.0}",
            at(0.5),
            at(0.95),
            at(0.99)
        );
    }
    Ok(())
}

fn micros(sample: Option<&Duration>) -> String {
    sample.map_or_else(String::new, |sample| format!("{} µs", sample.as_micros()))
}

async fn write(store: Arc<Store>, tenant: TenantName, rounds: usize) -> AnyResult<Samples> {
    let mut samples = Samples::default();
    for _ in 0..rounds {
        let now = Timestamp::now();
        let id = ExecutionId::generate()?;
        let new = NewExecution {
            id: id.clone(),
            tenant: tenant.clone(),
            language: "python".to_owned(),
            metadata: Map::new(),
            idempotency: None,
            created: now,
            started: Some(now),
        };
        let begun = Instant::now();
        store.begin_execution(new).await?;
        samples.begin.push(begun.elapsed());
        let finished = ExecutionOutcome::failed_to_start(&json!({"stdout": "x".repeat(2_000)}), now)?;
        let begun = Instant::now();
        store.finish_execution(&tenant, &id, finished).await?;
        samples.finish.push(begun.elapsed());
    }
    Ok(samples)
}
