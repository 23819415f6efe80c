//! Batches over a fake provider: the command `n` yields to the scheduler `n` times; `wait` runs until
//! canceled.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::limits::Limits;
use crate::outcome::{Ending, Kernel, Outcome, Receipt, Usage, Warmth};
use crate::plan::{Plan, Program, Task};
use crate::profile::Profiles;
use crate::provider::{Capabilities, PoolMetrics, Provider, ProviderError, Sandbox, Sink};

#[derive(Debug, Default)]
struct Counts {
    running: AtomicUsize,
    most: AtomicUsize,
}

#[derive(Debug, Default)]
struct Fake(Arc<Counts>);

impl Provider for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
    fn open<'a>(&'a self, _: &'a Plan) -> BoxFuture<'a, Result<Box<dyn Sandbox>, ProviderError>> {
        Box::pin(async { Ok(Box::new(FakeSandbox(Arc::clone(&self.0))) as Box<dyn Sandbox>) })
    }
    fn pools(&self) -> BoxFuture<'_, Vec<PoolMetrics>> {
        Box::pin(async { Vec::new() })
    }
    fn shut_down(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

#[derive(Debug)]
struct FakeSandbox(Arc<Counts>);

impl Sandbox for FakeSandbox {
    fn run<'a>(
        &'a mut self,
        task: &'a Task,
        _sink: &'a mut dyn Sink,
        cancel: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, Result<Outcome, ProviderError>> {
        let Program::Command(words) = &task.program else { panic!("only commands here") };
        Box::pin(async move {
            let running = self.0.running.fetch_add(1, SeqCst) + 1;
            self.0.most.fetch_max(running, SeqCst);
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
            self.0.running.fetch_sub(1, SeqCst);
            Ok(outcome(ending))
        })
    }
}

fn outcome(ending: Ending) -> Outcome {
    Outcome {
        ending,
        duration: Duration::ZERO,
        usage: Usage::default(),
        result: None,
        artifacts: Vec::new(),
        findings: Vec::new(),
        receipt: Receipt {
            provider: "fake",
            kernel: Kernel::Host,
            isolation: Vec::new(),
            warm: Warmth::Cold,
            simulated: false,
            instead_of: None,
            service: None,
        },
    }
}

fn engine() -> (Engine, Arc<Counts>) {
    let fake = Fake::default();
    let counts = Arc::clone(&fake.0);
    (Engine::new(Arc::new(fake), Profiles::built_in(), Limits::CEILING), counts)
}

fn entry(index: u64, json: &str) -> BatchEntry {
    let wanted = crate::request::parse(json.as_bytes()).map(|request| (request, HostPaths::default()));
    BatchEntry { index, request: wanted }
}

fn command(index: u64, word: &str) -> BatchEntry {
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
