//! Denials by a sandbox appear in the results of its commands, in the format of all other findings.

use serde_json::{Value, json};

use crate::common::server::Server;
use crate::wait_for;

/// A program that survives a refused system call.
const UNSHARE: &str = "import ctypes; ctypes.CDLL(None).unshare(0x10000000)";

/// Returns the rules of findings about the run itself; policy findings have a line, or another rule.
fn rules(report: &Value) -> Vec<&str> {
    let findings = report["findings"].as_array().unwrap();
    let rules = findings.iter().map(|finding| finding["rule"].as_str().unwrap());
    rules.filter(|rule| rule.starts_with("sandbox-")).collect()
}

#[test]
fn denials_are_reported_for_commands_and_code() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let sandbox = server.sandbox(&json!({}));
    let (commands, stats) = (format!("{sandbox}/commands"), format!("{sandbox}/stats"));
    let run = |command: Value| server.post(&commands, &command).json();
    assert_eq!(rules(&run(json!({"shell": "echo fine"}))), [""; 0]);
    assert_eq!(server.get(&stats).json()["findings"], json!([]));

    let refused = run(json!({"command": ["python3", "-c", UNSHARE]}));
    assert_eq!((rules(&refused), &refused["exit_code"]), (vec!["sandbox-syscall"], &json!(0)), "{refused}");
    let finding = &refused["findings"].as_array().unwrap().last().unwrap();
    assert_eq!(finding["decided_by"], "the system-call filter");
    assert!(finding["suggestion"].as_str().unwrap().starts_with("no setting allows it"), "{finding}");
    assert_eq!(rules(&run(json!({"shell": "echo fine"}))), [""; 0], "the denial belongs to another command");
    assert_eq!(rules(&server.get(&stats).json()), ["sandbox-syscall"]);

    let code = server.post(&format!("{sandbox}/executions"), &json!({"language": "python", "code": UNSHARE}));
    assert_eq!(rules(&code.json()), ["sandbox-syscall"], "{}", code.json());

    // Output of a command is interpreted as in any other run.
    for (shell, rule) in [
        ("touch /etc/motd", "sandbox-read-only"),
        ("cat /root/notes", "sandbox-not-shared"),
        ("curl -sS -m 5 http://a.test", "sandbox-no-network"),
        ("cat nothing", ""),
        ("touch /etc/motd; true", ""),
    ] {
        let report = run(json!({"shell": shell}));
        assert_eq!(rules(&report), Vec::from_iter(Some(rule).filter(|rule| !rule.is_empty())), "{report}");
    }

    // A background command is inspected later.
    let left = run(json!({"command": ["python3", "-c", UNSHARE], "background": true}));
    let url = format!("{commands}/{}", left["id"]);
    wait_for("its end", || server.get(&url).json()["state"] == "ended");
    assert_eq!(rules(&server.get(&url).json()), ["sandbox-syscall"]);
    let events = server.call("GET", &format!("{url}/output"), "Accept: text/event-stream\r\n", b"");
    assert!(String::from_utf8_lossy(&events.body).contains("sandbox-syscall"), "{events:?}");
}

#[test]
fn limits_and_hosts_are_only_reported_for_unambiguous_commands() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::configured(folder.path(), "network = \"hosts\"\n[network]\ngate = \"proxy\"");
    let limits = json!({"memory_bytes": 100 << 20, "processes": 12, "disk_bytes": 4 << 20});
    let network = json!({"mode": "hosts", "hosts": ["pypi.org"]});
    let sandbox = server.sandbox(&json!({"limits": limits, "network": network}));
    let run = |shell: &str| server.post(&format!("{sandbox}/commands"), &json!({"shell": shell})).json();
    let counted = server.get(&format!("{sandbox}/stats")).json()["processes"].is_number();
    if !counted {
        return println!("skipped: no cgroup counts processes here");
    }
    let cases = [
        ("python3 -c 'x = bytearray(1 << 30)'", "sandbox-memory"),
        ("for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do sleep 2 & done; wait", "sandbox-processes"),
        ("curl -sS -m 5 --noproxy '' http://127.0.0.1:1", "network-host"),
        ("head -c 8M /dev/zero > big; true", "sandbox-disk-full"),
    ];
    // A shell that cannot fork exits before the processes that it has started.
    let alone = || {
        wait_for("the end of what ran before", || {
            server.get(&format!("{sandbox}/stats")).json()["processes"].as_u64() <= Some(1)
        });
    };
    for (shell, rule) in cases {
        alone();
        let report = run(shell);
        let found = report["findings"].as_array().unwrap();
        assert!(found.iter().any(|finding| finding["rule"] == rule), "{shell}: {rule}: {report:#}");
        alone();
        let once = run("rm -f big; echo fine");
        assert_eq!(once["findings"], json!([]), "{shell}");
    }
    // With another command running, the cause is ambiguous, so neither is blamed.
    let beside = json!({"command": ["sleep", "100"], "background": true});
    assert_eq!(server.post(&format!("{sandbox}/commands"), &beside).status, 201);
    let crowded = run("python3 -c 'x = bytearray(1 << 30)'; true");
    assert_eq!(rules(&crowded), [""; 0], "{crowded:#}");
    let all = server.get(&format!("{sandbox}/stats")).json();
    assert!(rules(&all).contains(&"sandbox-memory") && rules(&all).contains(&"sandbox-processes"), "{all:#}");
}

/// Makes refused calls for a second, and prints how many were answered in which period.
const FLOOD: &str = "import ctypes, time\nlibc = ctypes.CDLL(None)\nstart = time.monotonic()\ncalls = 0\n\
    while time.monotonic() < start + 1:\n    libc.unshare(0x10000000)\n    calls += 1\n\
    print(calls, start, time.monotonic())";

/// The launcher handles every refused call, so their rate is limited: per sandbox to a burst of 256 and then
/// 10 a second, over all sandboxes to a burst of 72 and then 800 a second. A busy machine answers fewer.
#[test]
fn refused_calls_are_rate_limited() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::configured(folder.path(), "concurrency = 8");
    let sandboxes: Vec<String> = (0..8).map(|_| server.sandbox(&json!({}))).collect();
    let floods: Vec<[f64; 3]> = std::thread::scope(|scope| {
        let run = |url: &String| {
            let path = format!("{url}/executions");
            let request = json!({"language": "python", "code": FLOOD, "policy": "off"});
            let result = server.post(&path, &request).json();
            let said = result["stdout"].as_str().unwrap_or_default();
            let numbers: Vec<f64> = said.split_whitespace().map(|number| number.parse().unwrap()).collect();
            numbers.try_into().unwrap_or_else(|_| panic!("{result}"))
        };
        let running: Vec<_> = sandboxes.iter().map(|url| scope.spawn(move || run(url))).collect();
        running.into_iter().map(|flood| flood.join().unwrap()).collect()
    });
    for [calls, start, end] in &floods {
        assert!(*calls <= 256.0 + 10.0 * (end - start) + 2.0, "{calls} calls in {} s", end - start);
    }
    let calls: f64 = floods.iter().map(|flood| flood[0]).sum();
    let start = floods.iter().map(|flood| flood[1]).fold(f64::INFINITY, f64::min);
    let end = floods.iter().map(|flood| flood[2]).fold(0.0, f64::max);
    assert!(calls <= 72.0 + 800.0 * (end - start) + 16.0, "{calls} calls in {} s", end - start);
}
