//! The effect of hostile tenants on the launcher's loop: abuses of every kind against one server, then the
//! CPU time of the longest turn. Wall time depends on other load and is only printed.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::print_stdout, reason = "the longest turns are printed")]

mod common;

use std::path::Path;

use common::server::{KEY, Server};
use serde_json::{Value, json};

/// Maximum CPU time of one turn of the loop.
const MOST_SECONDS: f64 = 0.020;

/// Creates 15,000 mappings of a gigabyte each, which cost no memory and are not merged because their
/// protection differs.
const MAPPINGS: &str = r"
import ctypes
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
made = 0
for i in range(15000):
    made += libc.mmap(None, 1 << 30, 1 if i % 2 else 5, 0x4022, -1, 0) != ctypes.c_void_p(-1).value
print(made)
";

/// Makes refused calls for a while, below as many generations of processes as the argument says.
const REFUSED: &str = r"
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
for _ in range(14):
    if child := os.fork():
        os.waitpid(child, 0)
        os._exit(0)
end = time.monotonic() + 4
calls = 0
while time.monotonic() < end:
    if not os.fork():
        libc.syscall(250, 0, 0, 0)
        os._exit(0)
    libc.syscall(250, 0, 0, 0)
    os.wait()
    calls += 1
print(calls)
";

/// Writes a large file, which takes long to free when the last process with the disk exits.
const LARGE_FILE: &str = r"
with open('large', 'wb') as large:
    for _ in range(600): large.write(bytes(1 << 20))
print(large.name)
";

const ABUSES: &[&str] = &[
    "import os\nwhile True:\n    try: os.fork()\n    except OSError: os._exit(1)",
    "import threading, time\ntry:\n    while True: threading.Thread(target=time.sleep, args=(1,), \
     daemon=True).start()\nexcept RuntimeError: pass",
    "import sys\nfor _ in range(2000): sys.stdout.write('x' * 65536)",
    "import ctypes\nlibc = ctypes.CDLL(None)\nfor _ in range(5000): libc.syscall(250, 0, 0, 0)",
    "import os\nfor _ in range(3000):\n    os.mkdir('d'); os.chdir('d')",
    "import os\nopened = []\ntry:\n    while True: opened.append(os.open('/dev/null', 0))\nexcept OSError: \
     pass\nprint(len(opened))",
    "kept = []\nwhile True: kept.append(bytearray(1 << 20))",
    "import os\nos.makedirs('artifacts', exist_ok=True)\nfor i in range(2000): open(f'artifacts/{i}', \
     'w').write('x')",
    "import mmap\nkept = [mmap.mmap(-1, 8192) for _ in range(20000)]\nfor each in kept: each[0] = 1",
    "import os\nfor i in range(50000):\n    try: open(f'f{i}', 'w').close()\n    except OSError: break",
];

fn execute(server: &Server, code: &str, limits: &Value) -> Value {
    let request = json!({"language": "python", "code": code, "limits": limits});
    server.post("/v1/executions", &request).json()
}

/// Returns the CPU time of the longest turn over all handlers.
fn longest_turn(server: &Server) -> f64 {
    let text = server.get("/metrics").text();
    let lines = text.lines().filter(|line| line.starts_with("belljar_launcher_longest_turn_"));
    let mut longest = Vec::new();
    for line in lines {
        println!("{line}");
        if line.contains("_cpu_seconds{") {
            longest.push(line.rsplit(' ').next().unwrap().parse::<f64>().unwrap());
        }
    }
    assert_eq!(longest.len(), 6, "one for each handler: {text}");
    longest.into_iter().fold(0.0, f64::max)
}

/// Sandboxes that make refused calls endlessly, while others with hardly any CPU time are paused and resumed.
fn flood_from_living_sandboxes(server: &Server) {
    let flooding: Vec<String> = (0..4).map(|_| server.sandbox(&json!({}))).collect();
    let slow: Vec<String> = (0..3).map(|_| server.sandbox(&json!({"limits": {"cpus": 0.01}}))).collect();
    std::thread::scope(|scope| {
        for place in &flooding {
            let request = json!({"language": "python", "code": REFUSED});
            scope.spawn(move || server.post(&format!("{place}/executions"), &request));
        }
        for place in &slow {
            scope.spawn(move || {
                let busy =
                    json!({"command": ["sh", "-c", "while :; do :; done"], "limits": {"timeout_ms": 4000}});
                let running = server.send_as(
                    KEY,
                    "POST",
                    &format!("{place}/executions"),
                    "Content-Type: application/json\r\n",
                    busy.to_string().as_bytes(),
                );
                for _ in 0..4 {
                    let paused = server.post(&format!("{place}/pause"), &json!({}));
                    assert!(matches!(paused.status, 200 | 409 | 429 | 503), "{paused:?}");
                    server.post(&format!("{place}/resume"), &json!({}));
                }
                drop(running);
            });
        }
    });
    for place in flooding.iter().chain(&slow) {
        server.delete(place);
    }
}

/// Deletes sandboxes with a full disk.
fn delete_full_sandbox(server: &Server) {
    let large = server.sandbox(&json!({"limits": {"memory_bytes": 1 << 30, "disk_bytes": 1 << 30}}));
    let fill = json!({"command": ["dd", "if=/dev/zero", "of=large", "bs=1M", "count=600"]});
    let filled = server.post(&format!("{large}/executions"), &fill).json();
    assert_eq!(filled["status"], "succeeded", "{filled}");
    server.delete(&large);
}

#[test]
fn hostile_tenants_cannot_stall_the_launcher_loop() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    for round in 0..12 {
        let ended = execute(&server, MAPPINGS, &json!({}));
        assert_eq!(ended["stdout"], "15000\n", "round {round}: {ended}");
    }
    for round in 0..6 {
        let limits = json!({"timeout_ms": 20_000, "memory_bytes": 1 << 30, "disk_bytes": 1 << 30});
        let ended = execute(&server, LARGE_FILE, &limits);
        assert_eq!(ended["stdout"], "large\n", "round {round}: {ended}");
    }
    println!("after mappings and large files");
    assert!(longest_turn(&server) <= MOST_SECONDS);
    for code in ABUSES.iter().chain(ABUSES) {
        execute(&server, code, &json!({"timeout_ms": 5000, "memory_bytes": 268_435_456}));
    }
    println!("after abuses");
    assert!(longest_turn(&server) <= MOST_SECONDS);
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/escape");
    for entry in std::fs::read_dir(suite).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "py") {
            let code = std::fs::read_to_string(&path).unwrap();
            execute(&server, &code, &json!({"timeout_ms": 10_000, "memory_bytes": 67_108_864}));
        }
    }
    println!("after the escape suite");
    assert!(longest_turn(&server) <= MOST_SECONDS);
    flood_from_living_sandboxes(&server);
    delete_full_sandbox(&server);
    println!("after living sandboxes");
    assert!(longest_turn(&server) <= MOST_SECONDS);
}
