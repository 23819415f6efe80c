//! Many more concurrent executions than processors, all of which time out: each reports that, and no process
//! survives.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use crate::common::host::{Snapshot, alive_with, left_after};
use crate::common::server::Server;
use crate::{PATIENCE, percentile, sized};

const LIMIT_MS: u32 = 200;
const OVERCOMMIT: usize = 4;

pub(crate) fn many_concurrent_timeouts() {
    let runs = sized(80, 1_000, 10_000);
    let clients = OVERCOMMIT * std::thread::available_parallelism().unwrap().get();
    let folder = tempfile::tempdir().unwrap();
    let before = Snapshot::take();
    let mut server =
        Server::configured(folder.path(), &format!("concurrency = {clients}\nqueue = {clients}"));
    let token = format!("3602.{}", std::process::id());
    let programs = [format!("sleep {token}"), "while :; do :; done".to_owned()];
    let (next, late) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= runs {
                        return;
                    }
                    let code = &programs[number % programs.len()];
                    let limits = json!({"timeout_ms": LIMIT_MS, "cpus": 0.5});
                    let answer = server
                        .post("/v1/executions", &json!({"language": "bash", "code": code, "limits": limits}));
                    let result = answer.json();
                    assert_eq!(result["status"], "timed_out", "{}", answer.text());
                    let took = result["duration_ms"].as_f64().unwrap();
                    late.lock().unwrap().push(took - f64::from(LIMIT_MS));
                }
            });
        }
    });
    let late = late.into_inner().unwrap();
    assert_eq!(late.len(), runs);
    assert!(late.iter().all(|late| *late >= 0.0), "one ended before its time");
    println!(
        "{runs} time-outs by {clients} clients: late by p50 {:.1} ms, p99 {:.1} ms, at most {:.1} ms",
        percentile(&late, 0.5),
        percentile(&late, 0.99),
        percentile(&late, 1.0)
    );
    assert_eq!(alive_with(&token, PATIENCE), Vec::<String>::new());
    server.signal("-TERM");
    server.child.wait().unwrap();
    assert_eq!(left_after(&before, PATIENCE), Vec::<String>::new());
}
