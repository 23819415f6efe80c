//! The command line over the real binary: snapshots in `tests/cmd`, and tests that a snapshot cannot express
//! (signals, pipes, large input).
#![cfg(unix)]

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// Runs snapshot cases without the user's configuration and variables.
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
    // The command may refuse its arguments before it reads all of standard input.
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
    let message = "code: 100 MB is more than 16 MB; pass data with --file instead";
    assert_eq!(json(&output)["error"]["message"], message);

    let output = run_with(&["-", "--language", "python"], &vec![b'#'; 17 << 20]);
    assert_eq!(output.status.code(), Some(125));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        said,
        "belljar: error: code: standard input is more than 16 MB; pass data with --file instead\n"
    );
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
        assert!(result.get(name).is_some(), "field {name} is missing");
    }
    assert_eq!((&result["status"], &result["exit_code"]), (&Value::from("failed"), &Value::from(3)));
    assert_eq!((&result["stdout"], &result["stderr"]), (&Value::from("out\n"), &Value::from("err\n")));
}

#[test]
fn a_closed_stdout_does_not_panic() {
    let mut child = spawn(&["--quiet", "-c", "for i in range(100000): print(i)"]);
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn an_interrupt_cancels_the_run() {
    // A terminal sends Ctrl-C to the whole process group, helpers included; `kill` sends a signal to one
    // process.
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
        assert!(String::from_utf8_lossy(&output.stderr).contains("the execution was canceled"));
    }
}

/// Runs the binary in a real terminal, which gets colors unless a variable turns them off.
fn at_a_terminal(arguments: &str, variables: &[(&str, &str)]) -> String {
    let line = format!("{} run {arguments}", env!("CARGO_BIN_EXE_belljar"));
    let mut script = Command::new("script");
    script.args(["--quiet", "--echo", "never", "--command", &line, "/dev/null"]).stdin(Stdio::null());
    script
        .env_remove("NO_COLOR")
        .env_remove("CLICOLOR")
        .env_remove("CLICOLOR_FORCE")
        .env_remove("CI")
        .env("TERM", "xterm")
        .envs(ENVIRONMENT.iter().copied());
    let output = script.envs(variables.iter().copied()).output().expect("script is part of every system");
    String::from_utf8_lossy(&output.stdout).replace("\r\n", "\n")
}

#[test]
fn color_is_never_the_only_signal() {
    let run = "--provider simulated -c 'print(1)'";
    let plain = "belljar: warning: the code does not run: the result is simulated\n\
        simulated: python of 1 line was not run\n";
    assert_eq!(at_a_terminal(run, &[]), plain.replace("warning:", "\x1b[1;33mwarning:\x1b[0m"));
    assert_eq!(at_a_terminal(run, &[("NO_COLOR", "1")]), plain);
    assert_eq!(at_a_terminal(run, &[("TERM", "dumb")]), plain);
    let quiet = "simulated: python of 1 line was not run\n";
    assert_eq!(at_a_terminal(&format!("{run} --quiet"), &[]), quiet);
    // The reason why nothing ran is printed even with --quiet.
    let refused =
        "belljar: error: policy: unknown policy 'none'; known: audit, balanced, off, ragflow, strict\n";
    assert_eq!(at_a_terminal(&format!("{run} --quiet --policy none"), &[("NO_COLOR", "1")]), refused);
}

fn belljar(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
    command.args(arguments).envs(ENVIRONMENT.iter().copied()).output().expect("the binary starts")
}

#[test]
fn a_shell_completes_commands_and_flags() {
    let asked = r#"eval "$("$BELLJAR" completions bash)"
        try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _belljar belljar "${!#}" "${COMP_WORDS[-2]}"; echo "${COMPREPLY[*]}"; }
        try belljar com
        try belljar sandbox ex
        try belljar run --ti
        try belljar completions z"#;
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", asked]).env("BELLJAR", env!("CARGO_BIN_EXE_belljar"));
    let output = bash.envs(ENVIRONMENT.iter().copied()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "completions\nextend exec\n--timeout\nzsh\n", "{output:?}");
    for shell in ["elvish", "fish", "powershell", "zsh"] {
        let script = belljar(&["--config", "/not/there", "completions", shell]).stdout;
        assert!(String::from_utf8_lossy(&script).contains("snapshot"), "{shell}");
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    assert!(belljar(&["man", "--folder", pages.to_str().unwrap()]).status.success());
    let written = |name: &str| std::fs::read(pages.join(format!("{name}.1"))).unwrap();
    assert_eq!(belljar(&["man"]).stdout, written("belljar"));
    assert_eq!(belljar(&["man", "sandbox", "exec"]).stdout, written("belljar-sandbox-exec"));
    let run = String::from_utf8(written("belljar-run")).unwrap();
    assert!(run.contains(".SH EXAMPLES\n.nf\n  belljar run hello.py       "), "{run}");

    let unknown = belljar(&["man", "sandbox", "nope"]);
    assert_eq!(unknown.status.code(), Some(125));
    let said = "belljar: error: unknown command 'sandbox nope'; list commands with: belljar help\n";
    assert_eq!(String::from_utf8_lossy(&unknown.stderr), said);
}
