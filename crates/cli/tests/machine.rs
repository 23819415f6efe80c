//! What the machine has decides what sandboxes may ask for, and who goes first when memory runs out.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::host::{groups_of, sandboxed_with};
use common::is_root;
use common::server::Server;
use serde_json::json;

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
fn more_than_the_machine_has_is_refused() {
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

/// Whatever their limits allow, all sandboxes together leave something to the rest of the machine.
#[test]
fn sandboxes_together_have_less_memory_than_the_machine() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    if !is_root() {
        return println!("skipped: only root's sandboxes are in a group here for certain");
    }
    let place = server.sandbox(&json!({}));
    let word = format!("3700.{}", std::process::id());
    server.post(&format!("{place}/commands"), &json!({"command": ["sleep", word], "background": true}));
    let end = Instant::now() + Duration::from_secs(60);
    let pid = loop {
        if let Some(pid) = sandboxed_with(&word) {
            break pid;
        }
        assert!(Instant::now() < end, "nothing runs");
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
fn sandboxes_go_first_when_memory_runs_out() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let code = "print(open('/proc/self/oom_score_adj').read().strip())";
    for round in 0..4 {
        let ran = server.post("/v1/executions", &json!({"language": "python", "code": code})).json();
        assert_eq!(ran["stdout"], "1000\n", "round {round}: {ran}");
    }
    let place = server.sandbox(&json!({}));
    let ran =
        server.post(&format!("{place}/executions"), &json!({"language": "python", "code": code})).json();
    assert_eq!(ran["stdout"], "1000\n", "{ran}");
    let launcher = child_named(server.child.id(), "belljar-launcher").unwrap();
    if may_lower_scores() {
        assert_eq!(score(&server.child.id().to_string()), -900);
        assert_eq!(score(&launcher), -900);
    } else {
        println!("skipped: this user has no CAP_SYS_RESOURCE, which lowering a score takes");
    }
}
