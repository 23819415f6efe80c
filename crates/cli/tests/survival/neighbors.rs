//! A normal tenant beside a hostile one: every run of the normal one succeeds, whatever the other does. The
//! slowdown is
//! printed and not asserted.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::host::{Snapshot, left_after};
use crate::common::server::Server;
use crate::{PATIENCE, percentile, sized};

const HOSTILE_CLIENTS: usize = 3;

pub(crate) fn tenants_are_served_beside_hostile_ones() {
    let honest_runs = sized(5, 40, 300);
    let folder = tempfile::tempdir().unwrap();
    let before = Snapshot::take();
    let mut server = Server::configured(folder.path(), "concurrency = 8\nqueue = 64");
    let honest = server.tenant("honest", json!({}));
    let hostile = server.tenant("hostile", json!({"concurrency": HOSTILE_CLIENTS}));
    let alone = serve(&server, &honest, honest_runs);
    println!("alone: {}", told(&alone));
    for (name, abuse) in abuses() {
        let (over, done) = (AtomicBool::new(false), AtomicUsize::new(0));
        let beside = std::thread::scope(|scope| {
            for _ in 0..HOSTILE_CLIENTS {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        // Refused or not, only the effect on the other tenant matters.
                        post(&server, &hostile, &abuse);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            // Let the abuse start before the first normal run.
            std::thread::sleep(Duration::from_millis(100));
            let beside = serve(&server, &honest, honest_runs);
            over.store(true, Ordering::Relaxed);
            beside
        });
        println!("beside {name} ({} runs): {}", done.load(Ordering::Relaxed), told(&beside));
    }
    server.signal("-TERM");
    server.child.wait().unwrap();
    assert_eq!(left_after(&before, PATIENCE), Vec::<String>::new());
}

fn abuses() -> Vec<(&'static str, Value)> {
    let limits =
        json!({"timeout_ms": 2_000, "memory_bytes": 64 << 20, "disk_bytes": 32 << 20, "processes": 64});
    let run = |language: &str, code: &str| json!({"language": language, "code": code, "policy": "off", "limits": limits});
    let maps = "import ctypes, mmap\nlibc = ctypes.CDLL(None)\nlibc.mmap.restype = ctypes.c_void_p\n\
                for _ in range(15000): libc.mmap(None, ctypes.c_size_t(1 << 30), 1, 0x4022, -1, ctypes.c_long(0))\n";
    let refused = "import ctypes\nlibc = ctypes.CDLL(None)\nwhile True: libc.unshare(0x10000000)\n";
    vec![
        ("a fork bomb", run("bash", "f() { f | f & f; }; f 2>/dev/null; while :; do :; done")),
        ("a flood of output", run("bash", "yes")),
        ("a full disk", run("bash", "cat /dev/zero > /tmp/fill; while :; do :; done")),
        ("memory that runs out", run("python", "b = []\nwhile True: b.append(bytearray(1 << 20))")),
        ("thousands of mappings", run("python", maps)),
        ("refused calls", run("python", refused)),
        ("sleepers", run("bash", "sleep 60")),
        (
            "code that is slow to read",
            json!({"language": "python", "code": format!("x{}", ".a()".repeat(500))}),
        ),
    ]
}

fn post(server: &Server, key: &str, request: &Value) -> crate::common::server::Reply {
    let json = "Content-Type: application/json\r\n";
    server.call_as(key, "POST", "/v1/executions", json, request.to_string().as_bytes())
}

/// Runs code that must succeed, and returns how long each run took.
fn serve(server: &Server, key: &str, runs: usize) -> Vec<f64> {
    let one = |number: usize| {
        let request = match number % 2 {
            0 => json!({"command": ["echo", "fine"], "limits": {"timeout_ms": 60_000}}),
            _ => json!({"language": "python", "code": "print('fine')", "limits": {"timeout_ms": 60_000}}),
        };
        let started = Instant::now();
        let answer = post(server, key, &request);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let result = answer.json();
        assert_eq!(
            (&result["status"], &result["stdout"]),
            (&json!("succeeded"), &json!("fine\n")),
            "{result}"
        );
        started.elapsed().as_secs_f64() * 1e3
    };
    (0..runs).map(one).collect()
}

fn told(millis: &[f64]) -> String {
    format!("p50 {:.1} ms, p99 {:.1} ms", percentile(millis, 0.5), percentile(millis, 0.99))
}
