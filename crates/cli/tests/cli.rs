//! The command line over the real binary: snapshots in `tests/cmd`, and what a snapshot cannot hold (signals, pipes,
//! big input).
#![cfg(unix)]

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// Cases that see neither this person's configuration nor their variables.
fn cases(pattern: &str) {
    let cases = trycmd::TestCases::new();
    for (name, value) in ENVIRONMENT {
        cases.env(*name, *value);
    }
    cases.case(pattern);
}

const ENVIRONMENT: &[(&str, &str)] = &[
    ("XDG_CONFIG_HOME", "/nonexistent"),
    ("BELLJAR_CONFIG", ""),
    ("BELLJAR_PROFILE", ""),
    ("CODE_EXECUTION_TIMEOUT", ""),
    ("CODE_EXECUTION_MEMORY_MB", ""),
    ("CODE_EXECUTION_CPU_CORES", ""),
];

#[test]
fn arguments() {
    cases("tests/cmd/*.trycmd");
}

#[test]
fn runs() {
    cases("tests/cmd/run/*.trycmd");
}

fn spawn(args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_belljar"))
        .arg("run")
        .args(args)
        .envs(ENVIRONMENT.iter().copied())
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts")
}

fn run_with(args: &[&str], stdin: &[u8]) -> Output {
    let mut child = spawn(args);
    // A refusal may come before everything is read.
    let _ = child.stdin.take().expect("it is piped").write_all(stdin);
    child.wait_with_output().expect("it ends")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("standard output is JSON")
}

#[test]
fn a_hundred_megabytes_of_code_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("big.py");
    File::create(&path).unwrap().set_len(100 << 20).unwrap();
    let output = run_with(&["--json", path.to_str().unwrap()], b"");
    assert_eq!(output.status.code(), Some(125));
    let message = "code: 100 MB is more than 16 MB; pass data as files instead";
    assert_eq!(json(&output)["error"]["message"], message);

    let output = run_with(&["-", "--language", "python"], &vec![b'#'; 17 << 20]);
    assert_eq!(output.status.code(), Some(125));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said, "belljar: error: code: standard input is more than 16 MB; pass data as files instead\n");
}

#[test]
fn code_and_input_come_through_pipes() {
    let output = run_with(&["--quiet", "-"], b"#!/usr/bin/env python3\nprint('from a pipe')\n");
    assert_eq!(output.stdout, b"from a pipe\n");
    let output = run_with(&["--quiet", "--stdin", "-", "--", "cat"], b"\xff\x00\x1b[2J");
    assert_eq!(output.stdout, b"\xff\x00\x1b[2J");
}

#[test]
fn the_result_object_is_one_line_and_has_its_fixed_names() {
    let output = run_with(
        &["--json", "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"],
        b"",
    );
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(output.stdout.iter().filter(|byte| **byte == b'\n').count(), 1);
    let result = json(&output);
    for name in [
        "id",
        "status",
        "exit_code",
        "signal",
        "limit",
        "stdout",
        "stderr",
        "stdout_truncated",
        "stderr_truncated",
        "result",
        "artifacts",
        "error",
        "findings",
        "dependencies",
        "duration_ms",
        "usage",
        "receipt",
        "metadata",
    ] {
        assert!(result.get(name).is_some(), "{name} is missing");
    }
    assert_eq!((&result["status"], &result["exit_code"]), (&Value::from("failed"), &Value::from(3)));
    assert_eq!((&result["stdout"], &result["stderr"]), (&Value::from("out\n"), &Value::from("err\n")));
}

#[test]
fn a_reader_that_leaves_is_no_panic() {
    let mut child = spawn(&["--quiet", "-c", "for i in range(100000): print(i)"]);
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn an_interrupt_cancels_the_run() {
    // A terminal sends Ctrl-C to the whole group, helpers included; `kill` sends to one.
    for (signal, whole_group) in [("INT", true), ("TERM", false)] {
        let mut child = spawn(&["-c", "import time; print('up', flush=True); time.sleep(60)"]);
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "up\n");
        let target = if whole_group { format!("-{}", child.id()) } else { child.id().to_string() };
        let sent = Command::new("kill").args(["-s", signal, "--", &target]).status().unwrap();
        assert!(sent.success());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "SIG{signal}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("the run was cancelled"));
    }
}
