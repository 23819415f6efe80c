//! The machine's resources bound what sandboxes may request, and the OOM killer's order.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::print_stdout, reason = "says why a test is left out")]

mod common;

use std::io::Read;
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use common::host::{groups_of, sandboxed_with};
use common::is_root;
use common::server::{Reply, Server};
use serde_json::{Value, json};

fn score(pid: &str) -> i32 {
    std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim().parse().unwrap()
}

fn child_named(parent: u32, name: &str) -> Option<String> {
    std::fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
        let pid = entry.file_name().into_string().ok()?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let is_child = status.lines().any(|line| line == format!("PPid:\t{parent}"));
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        (is_child && command.starts_with(name.as_bytes())).then_some(pid)
    })
}

fn may_lower_scores() -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(effective.trim(), 16).unwrap() >> CAP_SYS_RESOURCE & 1 == 1
}

fn machine_bytes() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
    total.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn limits_above_the_machine_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    for limit in ["memory_bytes", "disk_bytes"] {
        for bytes in [machine_bytes(), 1 << 50] {
            let request = json!({"language": "python", "code": "", "limits": {limit: bytes}});
            let refused = server.post("/v1/executions", &request);
            assert!(
                refused.status == 422 && refused.text().contains("is above the ceiling of"),
                "{limit} {bytes}: {}",
                refused.text()
            );
        }
    }
}

/// All sandboxes together leave some memory to the rest of the machine, whatever their limits allow.
#[test]
fn sandboxes_together_have_less_memory_than_the_machine() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    if !is_root() {
        return println!("skipped: only root's sandboxes are certain to be in a cgroup");
    }
    let place = server.sandbox(&json!({}));
    let word = format!("3700.{}", std::process::id());
    server.post(&format!("{place}/commands"), &json!({"command": ["sleep", word], "background": true}));
    let end = Instant::now() + Duration::from_secs(60);
    let pid = loop {
        if let Some(pid) = sandboxed_with(&word) {
            break pid;
        }
        assert!(Instant::now() < end, "no sandbox is running");
        std::thread::sleep(Duration::from_millis(10));
    };
    let limit = |folder: &Path| {
        let text = ["memory.limit_in_bytes", "memory.max"]
            .iter()
            .find_map(|file| std::fs::read_to_string(folder.join(file)).ok())?;
        text.trim().parse::<u64>().ok()
    };
    let groups = groups_of(pid);
    let together = groups.iter().filter_map(|group| limit(group.parent()?)).min();
    let rest = (machine_bytes() / 10).max(512 << 20);
    assert!(together.is_some_and(|bytes| bytes <= machine_bytes() - rest), "{together:?} {groups:?}");
}

#[test]
fn sandboxes_are_killed_first_when_memory_runs_out() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let code = "print(open('/proc/self/oom_score_adj').read().strip())";
    for round in 0..4 {
        let ran = server.post("/v1/executions", &json!({"language": "python", "code": code})).json();
        assert_eq!(ran["stdout"], "400\n", "round {round}: {ran}");
    }
    let place = server.sandbox(&json!({}));
    let ran =
        server.post(&format!("{place}/executions"), &json!({"language": "python", "code": code})).json();
    assert_eq!(ran["stdout"], "400\n", "{ran}");
    let launcher = child_named(server.child.id(), "belljar-launcher").unwrap();
    if may_lower_scores() {
        assert_eq!(score(&server.child.id().to_string()), -900);
        assert_eq!(score(&launcher), -900);
    } else {
        println!("skipped: lowering a score needs CAP_SYS_RESOURCE, which this user does not have");
    }
}

/// All sandboxes together have 512 MB, so a tenant's share is 256 MB while another tenant is active.
const CROWDED: &str = "concurrency = 16\nqueue = 64\nsandbox_memory = \"512M\"";
const MB: u64 = 1 << 20;

/// Returns code that allocates memory in small pieces, so that no share is used up at once, prints when it
/// has all of it, and holds it for a while.
fn hold(megabytes: u32, pause: f64, seconds: u32) -> String {
    format!(
        "import time\nkept = []\nfor _ in range({megabytes}):\n    kept.append(b'x' * (1 << 20))\n    time.sleep({pause})\n\
         print('holding', flush=True)\ntime.sleep({seconds})\nprint(len(kept))"
    )
}

fn request(code: &str, memory_bytes: u64) -> Value {
    json!({"language": "python", "code": code, "limits": {"memory_bytes": memory_bytes, "timeout_ms": 60_000}})
}

fn post_as(server: &Server, key: &str, path: &str, body: &Value) -> Reply {
    let headers = "Content-Type: application/json\r\n";
    server.call_as(key, "POST", path, headers, body.to_string().as_bytes())
}

/// Starts an honest run and waits until it holds its memory.
fn honest(server: &Server, key: &str, memory_bytes: u64) -> (TcpStream, String) {
    let headers = "Content-Type: application/json\r\nAccept: text/event-stream\r\n";
    let body = request(&hold(150, 0.0, 12), memory_bytes).to_string();
    let mut stream = server.send_as(key, "POST", "/v1/executions", headers, body.as_bytes());
    let mut said = String::new();
    while !said.contains("holding") {
        let mut bytes = [0; 4096];
        let read = stream.read(&mut bytes).unwrap();
        assert!(read > 0, "{said}");
        said.push_str(&String::from_utf8_lossy(&bytes[..read]));
    }
    (stream, said)
}

fn end_of((mut stream, mut said): (TcpStream, String)) -> String {
    let mut rest = Vec::new();
    let _ended = stream.read_to_end(&mut rest);
    said.push_str(&String::from_utf8_lossy(&rest));
    said
}

/// One tenant has a run within its share, the largest of all; another has many smaller ones that exceed its
/// share.
fn only_the_greedy_one_is_hit(
    honest_limit: u64,
    greedy_pause: f64,
    greedy_path: impl Fn(&Server, &str) -> String + Sync,
) {
    if rustix::process::geteuid().as_raw() != 0 {
        println!("skipped: only root has memory cgroups everywhere");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::configured(folder.path(), CROWDED);
    let (greedy_key, honest_key) = (server.tenant("greedy", json!({})), server.tenant("modest", json!({})));
    let honest = honest(&server, &honest_key, honest_limit);
    let code = hold(90, greedy_pause, 3);
    let greedy: Vec<Reply> = std::thread::scope(|scope| {
        let run = || {
            let path = greedy_path(&server, &greedy_key);
            let mut body = request(&code, 128 * MB);
            if path != "/v1/executions" {
                body["limits"] = json!({"timeout_ms": 60_000});
            }
            post_as(&server, &greedy_key, &path, &body)
        };
        let runs: Vec<_> = (0..8).map(|_| scope.spawn(run)).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    let said = end_of(honest);
    assert!(said.contains("\"succeeded\""), "a run of the tenant within its share was killed: {said}");
    let (ended, lasted): (Vec<_>, Vec<_>) = greedy.iter().partition(|reply| reply.status != 200);
    assert!(!ended.is_empty(), "no run was killed");
    for reply in lasted {
        assert_eq!(reply.json()["status"], "succeeded", "the run has no limit of its own: {}", reply.text());
    }
    for reply in ended {
        assert_eq!(
            (reply.status, reply.code().as_str()),
            (503, "sandbox_memory_exhausted"),
            "{}",
            reply.text()
        );
        assert!(reply.text().contains("sandbox_memory in [server]"), "{}", reply.text());
        assert!(reply.header("retry-after").is_some(), "{}", reply.head);
    }
}

fn own_run(_: &Server, _: &str) -> String {
    "/v1/executions".to_owned()
}

#[test]
fn a_tenant_above_its_share_is_killed_first() {
    only_the_greedy_one_is_hit(200 * MB, 0.0, own_run);
}

#[test]
fn a_tenant_above_its_share_is_killed_first_despite_limits() {
    only_the_greedy_one_is_hit(400 * MB, 0.05, own_run);
}

#[test]
fn a_tenant_above_its_share_in_sandboxes_is_killed_first() {
    only_the_greedy_one_is_hit(200 * MB, 0.0, |server, key| {
        let opened = post_as(server, key, "/v1/sandboxes", &json!({"limits": {"memory_bytes": 128 * MB}}));
        assert!(opened.status < 300, "{}", opened.text());
        format!("/v1/sandboxes/{}/executions", opened.json()["id"].as_str().unwrap())
    });
}

/// The score is set before the program can have used any memory, so no tenant can be faster than another.
#[test]
fn runs_above_the_tenants_share_start_with_a_high_oom_score() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::configured(folder.path(), CROWDED);
    // The launcher sets the score while the program starts.
    let code = "import time\nscore = ''\nwhile score != '1000':\n    time.sleep(0.01)\n    \
                score = open('/proc/self/oom_score_adj').read().strip()\nprint(score)";
    for round in 0..4 {
        let ran = server.post("/v1/executions", &request(code, 257 * MB)).json();
        assert_eq!(ran["stdout"], "1000\n", "round {round}: {ran}");
    }
    let place = server.sandbox(&json!({"limits": {"memory_bytes": 257 * MB}}));
    let ran =
        server.post(&format!("{place}/executions"), &json!({"language": "python", "code": code})).json();
    assert_eq!(ran["stdout"], "1000\n", "{ran}");
}

#[test]
fn sandbox_memory_is_the_ceiling_of_one_sandbox() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::configured(folder.path(), CROWDED);
    let refused = server.post("/v1/executions", &request("", 513 * MB));
    assert!(refused.status == 422 && refused.text().contains("ceiling of 512 MB"), "{}", refused.text());
    let profile = json!({"limits": {"memory_bytes": 513 * MB}});
    let headers = "Content-Type: application/json\r\n";
    let refused = server.call("PUT", "/v1/profiles/large", headers, profile.to_string().as_bytes());
    assert!(refused.status == 422 && refused.text().contains("ceiling of 512 MB"), "{}", refused.text());
}
