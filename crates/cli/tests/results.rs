//! The fixed result object for every status that a run can have, and the exit status that goes with it.
#![cfg(target_os = "linux")]

mod common;
mod expect;

use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::host::processes;
use common::{Answer, belljar, finish, run};
use expect::skip;
use serde_json::{Value, json};

const FIELDS: &[&str] = &[
    "artifacts",
    "dependencies",
    "duration_ms",
    "error",
    "exit_code",
    "findings",
    "id",
    "limit",
    "metadata",
    "receipt",
    "result",
    "signal",
    "status",
    "stderr",
    "stderr_truncated",
    "stdout",
    "stdout_truncated",
    "usage",
];

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<_> =
        value.as_object().map(|object| object.keys().map(String::as_str).collect()).unwrap_or_default();
    keys.sort_unstable();
    keys
}

/// Asserts that every field is present, and that these have the given values.
#[track_caller]
fn is(answer: &Answer, exit: i32, expected: &Value) {
    assert_eq!(keys(&answer.json), FIELDS, "{answer:#?}");
    assert_eq!(keys(&answer.json["usage"]), ["cpu_ms", "peak_memory_bytes", "processes_peak"]);
    assert_eq!(
        keys(&answer.json["receipt"]),
        ["isolation", "kernel", "network", "provider", "simulated", "warm"]
    );
    assert_eq!(keys(&answer.json["result"]), ["present", "value"]);
    assert_eq!(keys(&answer.json["dependencies"]), ["cache", "install_ms", "packages"]);
    for (field, value) in expected.as_object().into_iter().flatten() {
        assert_eq!(&answer.json[field], value, "{field}: {answer:#?}");
    }
    assert_eq!(answer.code, Some(exit), "{answer:#?}");
}

#[test]
fn succeeded() {
    let answer = run(["-c", "print('out')"]);
    is(
        &answer,
        0,
        &json!({"status": "succeeded", "exit_code": 0, "signal": null, "limit": null, "error": null,
        "stdout": "out\n", "stderr": "", "stdout_truncated": false, "findings": [], "artifacts": [], "metadata": {}}),
    );
}

#[test]
fn failed() {
    let answer = run(["-c", "raise SystemExit(3)"]);
    is(&answer, 3, &json!({"status": "failed", "exit_code": 3, "signal": null, "limit": null}));
    let answer = run(["-c", "import os; os.abort()"]);
    is(&answer, 134, &json!({"status": "failed", "exit_code": null, "signal": "SIGABRT", "limit": null}));
}

#[test]
fn timed_out() {
    let answer = run(["--timeout", "300ms", "-c", "while True: pass"]);
    is(&answer, 124, &json!({"status": "timed_out", "exit_code": null, "signal": null, "limit": null}));
}

#[test]
fn limit_exceeded() {
    // A program that failed by itself keeps its exit status; a program that was killed has none.
    let exceeded = |limit: &str, status: Value| json!({"status": "limit_exceeded", "exit_code": status, "signal": null, "limit": limit});
    let fill = "open('x', 'wb').write(bytes(9 << 20))";
    is(&run(["--disk", "1M", "-c", fill]), 1, &exceeded("disk", json!(1)));
    if !run(["-c", "1"]).has_layer("cgroup.memory") {
        return skip("limit_exceeded", "no cgroups here");
    }
    is(&run(["--memory", "32M", "-c", "b'x' * (1 << 28)"]), 137, &exceeded("memory", Value::Null));
    let forks = "import os, time\nwhile True:\n    if os.fork() == 0: time.sleep(60)";
    is(&run(["--processes", "8", "-c", forks]), 1, &exceeded("processes", json!(1)));
}

#[test]
fn limit_exceeded_by_output() {
    let mut config = tempfile::NamedTempFile::new().expect("a file");
    let text = "[profiles.short]\noutput_overflow = \"kill\"\nlimits = { output_bytes = 100 }\n";
    config.write_all(text.as_bytes()).expect("a configuration");
    let mut command = belljar();
    command.arg("--config").arg(config.path()).args(["run", "--json", "--profile", "short"]);
    let answer = finish(command.args(["-c", "while True: print('x' * 1000)"]));
    is(&answer, 137, &json!({"status": "limit_exceeded", "limit": "output", "stdout_truncated": true}));
}

#[test]
fn cancelled() {
    let mut command = belljar();
    let token = format!("60.{}", std::process::id());
    command.args(["run", "--json", "--", "sleep", &token]).stdout(Stdio::piped());
    let child = command.spawn().expect("the binary starts");
    let end = Instant::now() + Duration::from_secs(60);
    while !processes().values().any(|line| line.starts_with(&format!("sleep {token}"))) {
        assert!(Instant::now() < end, "the program never ran");
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).expect("a pid")).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("the process exists");
    let output = child.wait_with_output().expect("it ends");
    let json = serde_json::from_slice(&output.stdout).expect("one object");
    let answer = Answer { code: output.status.code(), json, stderr: String::new() };
    is(&answer, 130, &json!({"status": "cancelled", "exit_code": null, "signal": null, "limit": null}));
}

#[test]
fn nothing_ran() {
    let answer = run(["-c", ""]);
    assert_eq!(answer.code, Some(125));
    assert_eq!(keys(&answer.json), ["error"]);
    assert_eq!(keys(&answer.json["error"]), ["code", "message"]);
}
