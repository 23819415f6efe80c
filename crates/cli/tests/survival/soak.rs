//! Executions of every kind over HTTP, a third of them abusive: nothing is left, and the server does not grow.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::host::{Snapshot, alive_with, left_after};
use crate::common::server::Server;
use crate::everything;

const CLIENTS: usize = 8;
/// What C3 allows is 64 MB, over five times as many.
const GROWTH: u64 = 64 << 20;

pub(crate) fn of_every_kind() {
    let (warm_up, runs) = if everything() { (2_000, 20_000) } else { (200, 600) };
    let folder = tempfile::tempdir().unwrap();
    let before = Snapshot::take();
    let mut server = Server::new(folder.path());
    let token = format!("3601.{}", std::process::id());
    let kinds = kinds(&token);
    many(&server, &kinds, warm_up);
    let (resident, files) = (resident(server.child.id()), files(server.child.id()));
    let counts = many(&server, &kinds, runs);
    println!("{runs} executions: {counts:?}");
    assert_eq!(alive_with(&token, Duration::from_secs(20)), Vec::<String>::new());
    let grown = resident_now(&server).saturating_sub(resident);
    println!("the server grew by {} kB from {} kB", grown >> 10, resident >> 10);
    assert!(grown < GROWTH, "the server grew by {grown} bytes");
    // The last of them are taken down behind their answers.
    let end = Instant::now() + Duration::from_secs(20);
    let more = || self::files(server.child.id()).saturating_sub(files);
    while more() > 8 {
        assert!(Instant::now() < end, "{} more descriptors than before", more());
        std::thread::sleep(Duration::from_millis(100));
    }
    server.signal("-TERM");
    server.child.wait().unwrap();
    assert_eq!(left_after(&before, Duration::from_secs(20)), Vec::<String>::new());
}

/// What to send, and how it may end.
struct Kind {
    name: &'static str,
    request: Value,
    endings: &'static [&'static str],
}

fn kinds(token: &str) -> Vec<Kind> {
    let kind = |name, endings, request| Kind { name, request, endings };
    let bash = |code: String| json!({"language": "bash", "code": code, "limits": {"timeout_ms": 5000}});
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
        kind("artifact", &["succeeded"], bash("mkdir artifacts; echo 1 > artifacts/a.csv".to_owned())),
        kind("time-out", &["timed_out"], short),
        kind("memory", &["limit_exceeded"], hungry),
        kind("crash", &["failed"], bash("kill -SEGV $$".to_owned())),
        kind("daemon", &["succeeded"], bash(format!("setsid sleep {token} >/dev/null 2>&1 & true"))),
        kind("flood", &["succeeded"], bash("yes | head -c 3000000".to_owned())),
    ]
}

fn many(server: &Server, kinds: &[Kind], runs: usize) -> BTreeMap<&'static str, usize> {
    let (next, counts) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= runs {
                        return;
                    }
                    let kind = &kinds[number % kinds.len()];
                    let answer = server.post("/v1/executions", &kind.request);
                    assert_eq!(answer.status, 200, "{}: {}", kind.name, answer.text());
                    let status = answer.json()["status"].as_str().unwrap_or_default().to_owned();
                    assert!(kind.endings.contains(&status.as_str()), "{}: {}", kind.name, answer.text());
                    *counts.lock().unwrap().entry(kind.name).or_default() += 1;
                }
            });
        }
    });
    counts.into_inner().unwrap()
}

fn resident_now(server: &Server) -> u64 {
    resident(server.child.id())
}

/// What a process has in memory.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}
