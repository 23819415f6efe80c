//! Batches over a fake provider: the command `n` yields to the scheduler `n` times; `wait` runs until
//! canceled.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::limits::Limits;
use crate::outcome::{Ending, Kernel, Outcome, Receipt};
use crate::plan::{Program, Task};
use crate::profile::Profiles;
use crate::testing::FakeProvider;

#[derive(Debug, Default)]
struct Counts {
    running: AtomicUsize,
    most: AtomicUsize,
}

async fn run(counts: &Counts, task: &Task, cancel: BoxFuture<'_, ()>) -> Ending {
    let Program::Command(words) = &task.program else { panic!("only commands here") };
    let running = counts.running.fetch_add(1, SeqCst) + 1;
    counts.most.fetch_max(running, SeqCst);
    let ending = match words[0].parse::<usize>() {
        Ok(turns) => {
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
            Ending::Exited(0)
        }
        Err(_) => {
            cancel.await;
            Ending::Cancelled
        }
    };
    counts.running.fetch_sub(1, SeqCst);
    ending
}

fn engine() -> (Engine, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    let shared = Arc::clone(&counts);
    let fake = FakeProvider::new("fake", move |_, task, _, cancel| {
        let counts = Arc::clone(&shared);
        Box::pin(async move {
            let ending = run(&counts, task, cancel).await;
            Ok(Outcome::new(ending, Duration::ZERO, Receipt::new("fake", Kernel::Host)))
        })
    });
    (Engine::new(Arc::new(fake), Profiles::built_in(), Limits::CEILING), counts)
}

fn entry(index: u64, json: &str) -> BatchEntry<(Request, HostPaths)> {
    let wanted = crate::request::parse(json.as_bytes()).map(|request| (request, HostPaths::default()));
    BatchEntry { index, request: wanted }
}

fn command(index: u64, word: &str) -> BatchEntry<(Request, HostPaths)> {
    entry(index, &json!({"command": [word], "metadata": {"word": word}}).to_string())
}

fn jobs(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap()
}

#[tokio::test]
async fn results_arrive_as_they_finish_within_the_job_limit() {
    let (engine, counts) = engine();
    let mut batch = Batch::new(&engine, jobs(3));
    let mut waiting = (0..20).map(|index| command(index, if index == 0 { "500" } else { "1" }));
    let mut order = Vec::new();
    loop {
        while let Some(entry) = batch.has_room().then(|| waiting.next()).flatten() {
            batch.start(format!("exec_{}", entry.index), entry, Box::pin(pending()));
        }
        let Some(finished) = batch.next().await else { break };
        assert_eq!(finished.result.unwrap().id, format!("exec_{}", finished.index));
        order.push(finished.index);
    }
    assert_eq!((order.len(), order.last()), (20, Some(&0)));
    order.sort_unstable();
    assert!(order.into_iter().eq(0..20));
    assert_eq!((counts.most.load(SeqCst), counts.running.load(SeqCst)), (3, 0));
}

#[tokio::test]
async fn invalid_requests_give_error_results() {
    let (engine, _) = engine();
    let mut batch = Batch::new(&engine, jobs(8));
    let lines = [r#"{"command":["0"]}"#, "{", r#"{"command":[]}"#, r#"{"language":"klingon","code":"1"}"#];
    for (index, line) in (0..).zip(lines) {
        batch.start("exec_x".to_owned(), entry(index, line), Box::pin(pending()));
    }
    let mut answers = vec![Value::Null; lines.len()];
    while let Some(finished) = batch.next().await {
        let index = finished.index as usize;
        answers[index] = serde_json::to_value(&finished).unwrap();
    }
    let codes: Vec<_> = answers.iter().map(|answer| answer["error"]["code"].clone()).collect();
    assert_eq!(json!(codes), json!([null, "invalid_request", "invalid_request", "unknown_language"]));
    let (ran, refused) = (&answers[0], &answers[2]);
    assert_eq!(
        (&ran["index"], &ran["id"], &ran["status"]),
        (&json!(0), &json!("exec_x"), &json!("succeeded"))
    );
    assert_eq!(ran.as_object().unwrap().len(), 19);
    let error = json!({"code": "invalid_request", "message": "command: is empty; name a program"});
    assert_eq!(*refused, json!({"index": 2, "error": error}));
}

#[tokio::test]
async fn one_signal_cancels_all_executions() {
    let (engine, _) = engine();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut batch = Batch::new(&engine, jobs(8));
    for index in 0..8 {
        let mut stopped = stopped.clone();
        let cancel = Box::pin(async move { stopped.wait_for(|stop| *stop).await.map(drop).unwrap() });
        batch.start(String::new(), command(index, "wait"), cancel);
    }
    let early = tokio::time::timeout(Duration::from_millis(20), batch.next()).await;
    assert!(early.is_err() && batch.running() == 8);
    stop.send(true).unwrap();
    while let Some(finished) = batch.next().await {
        assert_eq!(serde_json::to_value(&finished).unwrap()["status"], "cancelled");
    }
}
