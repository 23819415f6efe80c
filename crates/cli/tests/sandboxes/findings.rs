//! What a sandbox keeps its commands from is in their results, in the form of every other finding.

use serde_json::{Value, json};

use crate::common::server::Server;
use crate::wait_for;

/// A program that makes a call which is refused, and gets over it.
const UNSHARE: &str = "import ctypes; ctypes.CDLL(None).unshare(0x10000000)";

/// Rules of the findings about the run itself; what policies say of the text has a line or is of another rule.
fn rules(report: &Value) -> Vec<&str> {
    let findings = report["findings"].as_array().unwrap();
    let rules = findings.iter().map(|finding| finding["rule"].as_str().unwrap());
    rules.filter(|rule| rule.starts_with("sandbox-")).collect()
}

#[test]
fn commands_and_code_are_told_what_they_were_refused() {
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
    assert_eq!(rules(&run(json!({"shell": "echo fine"}))), [""; 0], "that was another one");
    assert_eq!(rules(&server.get(&stats).json()), ["sandbox-syscall"]);

    let code = server.post(&format!("{sandbox}/executions"), &json!({"language": "python", "code": UNSHARE}));
    assert_eq!(rules(&code.json()), ["sandbox-syscall"], "{}", code.json());

    // Its own words, as in any other run.
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

    // What goes on by itself is looked at later.
    let left = run(json!({"command": ["python3", "-c", UNSHARE], "background": true}));
    let place = format!("{commands}/{}", left["id"]);
    wait_for("its end", || server.get(&place).json()["state"] == "ended");
    assert_eq!(rules(&server.get(&place).json()), ["sandbox-syscall"]);
    let events = server.call("GET", &format!("{place}/output"), "Accept: text/event-stream\r\n", b"");
    assert!(String::from_utf8_lossy(&events.body).contains("sandbox-syscall"), "{events:?}");
}

#[test]
fn limits_and_hosts_are_told_to_who_was_alone_with_them() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::configured(folder.path(), "network = \"hosts\"");
    let limits = json!({"memory_bytes": 100 << 20, "processes": 12, "disk_bytes": 4 << 20});
    let network = json!({"mode": "hosts", "hosts": ["pypi.org"]});
    let sandbox = server.sandbox(&json!({"limits": limits, "network": network}));
    let run = |shell: &str| server.post(&format!("{sandbox}/commands"), &json!({"shell": shell})).json();
    let counted = server.get(&format!("{sandbox}/stats")).json()["processes"].is_number();
    if !counted {
        return println!("skipped: no control group counts processes here");
    }
    let cases = [
        ("python3 -c 'x = bytearray(1 << 30)'", "sandbox-memory"),
        ("for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do sleep 2 & done; wait", "sandbox-processes"),
        ("curl -sS -m 5 --noproxy '' http://127.0.0.1:1", "network-host"),
        ("head -c 8M /dev/zero > big; true", "sandbox-disk-full"),
    ];
    // A shell that cannot fork ends before those that it has started.
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
    // With somebody else there, whose doing it was is not known.
    let beside = json!({"command": ["sleep", "100"], "background": true});
    assert_eq!(server.post(&format!("{sandbox}/commands"), &beside).status, 201);
    let crowded = run("python3 -c 'x = bytearray(1 << 30)'; true");
    assert_eq!(rules(&crowded), [""; 0], "{crowded:#}");
    let all = server.get(&format!("{sandbox}/stats")).json();
    assert!(rules(&all).contains(&"sandbox-memory") && rules(&all).contains(&"sandbox-processes"), "{all:#}");
}
