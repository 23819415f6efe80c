//! Executions of every kind over HTTP, a third of them abusive: nothing is left, and the server's memory does
//! not grow.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::host::{Snapshot, alive_with, left_after};
use crate::common::server::Server;
use crate::{PATIENCE, percentile, sized};

const CLIENTS: usize = 8;
/// Maximum growth of the server's memory.
const GROWTH: u64 = 64 << 20;

pub(crate) fn soak_with_every_kind_of_run() {
    let (warm_up, runs) = sized((200, 600), (2_000, 20_000), (10_000, 100_000));
    let folder = tempfile::tempdir().unwrap();
    let before = Snapshot::take();
    let mut server = Server::new(folder.path());
    let token = format!("3601.{}", std::process::id());
    let kinds = kinds(&token);
    many(&server, &kinds, warm_up);
    let (resident, files) = (resident(server.child.id()), files(server.child.id()));
    let (counts, millis) = many(&server, &kinds, runs);
    println!("{runs} executions: {counts:?}");
    let tenth = millis.len() / 10;
    for (which, part) in [("first", &millis[..tenth]), ("last", &millis[millis.len() - tenth..])] {
        println!("{which} tenth: p50 {:.1} ms, p99 {:.1} ms", percentile(part, 0.5), percentile(part, 0.99));
    }
    assert_eq!(alive_with(&token, PATIENCE), Vec::<String>::new());
    let grown = resident_now(&server).saturating_sub(resident);
    println!("the server grew by {} kB from {} kB", grown >> 10, resident >> 10);
    assert!(grown < GROWTH, "the server grew by {grown} bytes");
    // The last runs are cleaned up after their responses.
    let end = Instant::now() + PATIENCE;
    let more = || self::files(server.child.id()).saturating_sub(files);
    while more() > 8 {
        assert!(Instant::now() < end, "{} more descriptors than before", more());
        std::thread::sleep(Duration::from_millis(100));
    }
    server.signal("-TERM");
    server.child.wait().unwrap();
    assert_eq!(left_after(&before, PATIENCE), Vec::<String>::new());
}

/// A kind of request and its allowed endings.
struct Kind {
    name: &'static str,
    request: Value,
    endings: &'static [&'static str],
}

fn kinds(token: &str) -> Vec<Kind> {
    let kind = |name, endings, request| Kind { name, request, endings };
    let bash = |code: String| json!({"language": "bash", "code": code, "limits": {"timeout_ms": 60_000}});
    let python = |code: &str| json!({"language": "python", "code": code});
    let mut short = bash(format!("sleep {token}"));
    short["limits"] = json!({"timeout_ms": 60});
    let mut hungry = python("b = bytearray(200 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1");
    hungry["limits"] = json!({"memory_bytes": 48 << 20});
    vec![
        kind("python", &["succeeded"], python("print(6 * 7)")),
        kind(
            "result",
            &["succeeded"],
            json!({"language": "python", "code": "def main(a): return a", "arguments": {"a": 1}}),
        ),
        kind("bash", &["succeeded"], bash("echo hello".to_owned())),
        kind("command", &["succeeded"], json!({"command": ["cat"], "stdin": "input"})),
        kind("failure", &["failed"], bash("exit 3".to_owned())),
        kind("error", &["failed"], python("1 / 0")),
        kind("artifact", &["succeeded"], bash("echo 1 > artifacts/a.csv".to_owned())),
        kind("time-out", &["timed_out"], short),
        kind("memory", &["limit_exceeded"], hungry),
        kind("crash", &["failed"], bash("kill -SEGV $$".to_owned())),
        kind("daemon", &["succeeded"], bash(format!("setsid sleep {token} >/dev/null 2>&1 & true"))),
        kind("flood", &["succeeded"], bash("yes | head -c 3000000".to_owned())),
    ]
}

/// Returns the number of runs of each kind, and the latency of each response in order.
fn many(server: &Server, kinds: &[Kind], runs: usize) -> (BTreeMap<&'static str, usize>, Vec<f64>) {
    let (next, counts) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let millis = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= runs {
                        return;
                    }
                    let kind = &kinds[number % kinds.len()];
                    let started = Instant::now();
                    let answer = server.post("/v1/executions", &kind.request);
                    millis.lock().unwrap().push(started.elapsed().as_secs_f64() * 1e3);
                    assert_eq!(answer.status, 200, "{}: {}", kind.name, answer.text());
                    let status = answer.json()["status"].as_str().unwrap_or_default().to_owned();
                    assert!(kind.endings.contains(&status.as_str()), "{}: {}", kind.name, answer.text());
                    *counts.lock().unwrap().entry(kind.name).or_default() += 1;
                }
            });
        }
    });
    (counts.into_inner().unwrap(), millis.into_inner().unwrap())
}

fn resident_now(server: &Server) -> u64 {
    resident(server.child.id())
}

/// Returns the resident memory of a process.
pub(super) fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

pub(super) fn files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}
