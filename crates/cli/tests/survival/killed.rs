//! `kill -9` of the server during 200 to 1,000 executions and 20 sandboxes: none of their processes survives,
//! no acknowledged result is lost, and unfinished executions become interrupted, once.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::host::{Snapshot, alive_with, left_after};
use crate::common::server::Server;
use crate::{PATIENCE, sized};

const SANDBOXES: usize = 20;
/// None of the executions may time out before the server is killed, however long it takes to start them all.
const TIMEOUT_MS: u64 = 300_000;

fn how_many() -> usize {
    sized(200, 200, 1_000)
}

pub(crate) fn server_killed_under_load() {
    let folder = tempfile::tempdir().unwrap();
    let before = Snapshot::take();
    let rounds = sized(1, 5, 50);
    for round in 0..rounds {
        let work = begin(folder.path(), round);
        check(folder.path(), &work);
    }
    assert_eq!(left_after(&before, PATIENCE), Vec::<String>::new());
}

/// The state when the server was killed.
struct Work {
    results: Vec<Value>,
    executions: Vec<String>,
    sandboxes: Vec<String>,
}

fn server(folder: &Path) -> Server {
    // Commands in sandboxes use execution slots as well.
    Server::configured(folder, &format!("concurrency = {0}\nqueue = {0}", how_many() + SANDBOXES))
}

fn begin(folder: &Path, round: usize) -> Work {
    let mut server = server(folder);
    // The suffix makes the token unique.
    let token = format!("3600.{}{round}", std::process::id());
    let sandboxes: Vec<_> = (0..SANDBOXES).map(|_| server.sandbox(&json!({}))).collect();
    let start = |path: &str, code: &str| {
        let queued = server.post(
            path,
            &json!({"language": "bash", "code": code, "wait": false, "limits": {"timeout_ms": TIMEOUT_MS}}),
        );
        assert_eq!(queued.status, 202, "{}", queued.text());
        queued.json()["id"].as_str().unwrap().to_owned()
    };
    let sleep = format!("sleep {token}");
    let mut executions: Vec<_> =
        sandboxes.iter().map(|place| start(&format!("{place}/executions"), &sleep)).collect();
    let mut results = Vec::new();
    for number in 0..how_many() {
        executions.push(start("/v1/executions", &sleep));
        if number % 20 == 0 {
            let done = server.post("/v1/executions", &json!({"command": ["echo", number.to_string()]}));
            assert_eq!(done.json()["status"], "succeeded");
            results.push(done.json());
        }
    }
    // Sandboxes and executions share the slots and do not block each other, because all of them only sleep.
    let all = how_many() + SANDBOXES;
    let started = Instant::now();
    while alive_with(&token, Duration::ZERO).len() < all && started.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(50));
    }
    server.signal("-KILL");
    server.child.wait().unwrap();
    let killed = Instant::now();
    assert_eq!(alive_with(&token, PATIENCE), Vec::<String>::new(), "alive long after the server was killed");
    println!("round {round}: nothing alive after {:?}", killed.elapsed());
    Work { results, executions, sandboxes }
}

fn check(folder: &Path, work: &Work) {
    let started = Instant::now();
    let first = server(folder);
    assert_eq!(first.get("/healthz?ready").status, 200);
    println!("ready again after {:?}", started.elapsed());
    let seen = |server: &Server| {
        let list = |path: &str| server.get(path).json();
        for result in &work.results {
            assert_eq!(&list(&format!("/v1/executions/{}", result["id"].as_str().unwrap())), result);
        }
        for id in &work.executions {
            assert_eq!(list(&format!("/v1/executions/{id}"))["status"], "interrupted");
        }
        let ended: Vec<_> = work.sandboxes.iter().map(|place| list(place)["ended"].clone()).collect();
        assert!(ended.iter().all(Value::is_i64), "{ended:?}");
        // The time when each of them ended; a second interruption would change it.
        (ended, list("/v1/executions?status=interrupted&limit=200"))
    };
    let (once, twice) = (seen(&first), {
        drop(first);
        seen(&server(folder))
    });
    assert_eq!(once, twice);
}
