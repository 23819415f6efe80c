//! `belljar run FILE --inputs`: one program, read, checked and compiled once, with many inputs.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::io::Write;
use std::process::{Command, Output, Stdio};

use common::belljar;
use common::server::{KEY, Server};
use serde_json::{Value, json};

fn file(text: &str, suffix: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::Builder::new().suffix(suffix).tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn lines(inputs: &[Value]) -> tempfile::NamedTempFile {
    file(&inputs.iter().map(|input| format!("{input}\n")).collect::<String>(), ".jsonl")
}

/// Returns the results in the order of the inputs.
fn results(output: &Output) -> Vec<Value> {
    let stdout = String::from_utf8(output.stdout.clone()).unwrap();
    let mut results: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    results.sort_by_key(|result| result["index"].as_u64());
    results
}

fn each(results: &[Value], pointer: &str) -> Value {
    results.iter().map(|result| result.pointer(pointer).cloned().unwrap_or_default()).collect()
}

fn run(arguments: &[&str]) -> Command {
    let mut command = belljar();
    command.arg("run").args(arguments);
    command
}

#[test]
fn a_file_runs_with_each_input() {
    let code = file(
        "import os, sys\ndef main(n, m=0): return [n, m, os.environ.get('K'), open('base').read(), sys.stdin.read()]",
        ".py",
    );
    let base = file("shared", "");
    let inputs = lines(&[
        json!({"arguments": {"n": 1}}),
        json!({"arguments": {"n": 2, "m": 3}, "env": {"K": "own"}, "stdin": "text"}),
        json!({"arguments": {"n": 4}, "files": [{"path": "base", "content": "own"}]}),
        json!({"arguments": {"n": 5}, "files": [{"path": "../base", "content": "own"}]}),
        json!({"code": "print(1)"}),
        json!({}),
    ]);
    let shared = format!("{}:base", base.path().display());
    let paths = [&code, &inputs].map(|file| file.path().to_str().unwrap());
    let arguments =
        [paths[0], "--inputs", paths[1], "--file", &shared, "--env", "K=base", "--args", "{\"n\": 0}"];
    let output = run(&[&arguments[..], &["--jobs", "2"]].concat()).output().unwrap();
    let results = results(&output);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let wanted = json!([
        [1, 0, "base", "shared", ""],
        [2, 3, "own", "shared", "text"],
        [4, 0, "base", "own", ""],
        null,
        null,
        [0, 0, "base", "shared", ""]
    ]);
    assert_eq!(
        (each(&results, "/index"), each(&results, "/result/value")),
        (json!([0, 1, 2, 3, 4, 5]), wanted)
    );
    assert_eq!(results[3]["error"]["message"], "files: '../base': '..' would leave the workspace");
    let unknown = results[4]["error"]["message"].as_str().unwrap();
    assert!(
        unknown.starts_with("request: unknown field `code`, expected one of `arguments`, `stdin`"),
        "{unknown}"
    );
    let summary = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(summary.contains("4 ran (4 succeeded, 0 failed), 2 could not run"), "{summary}");
}

/// Building takes several processes, and running a built program one.
#[test]
fn code_that_is_compiled_is_compiled_once() {
    let cache = tempfile::tempdir().unwrap();
    let code = "#include <stdio.h>\nint main(void) { int c; while ((c = getchar()) != EOF) putchar(c); }";
    let inputs = lines(&(0..12).map(|n| json!({"stdin": n.to_string()})).collect::<Vec<_>>());
    let path = inputs.path().to_str().unwrap();
    let mut command = run(&["--language", "c", "-c", code, "--inputs", path, "--jobs", "6"]);
    let output = command.env("BELLJAR_BUILD_CACHE_FOLDER", cache.path()).output().unwrap();
    let results = results(&output);
    let numbers: Vec<_> = (0..12).map(|n| n.to_string()).collect();
    assert_eq!(each(&results, "/stdout"), json!(numbers), "{output:?}");
    let processes = each(&results, "/usage/processes_peak");
    let built = processes.as_array().unwrap().iter().filter(|peak| peak.as_u64() > Some(1)).count();
    assert_eq!(built, 1, "{processes}");
}

#[test]
fn inputs_run_on_a_server_in_as_few_calls_as_they_need() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let mut inputs: Vec<_> = (0..620).map(|n| json!({"stdin": n.to_string()})).collect();
    inputs[7] = json!({"files": [{"path": "/x", "content": ""}]});
    inputs[600] = json!({"nope": 1});
    let inputs = lines(&inputs);
    let arguments =
        ["--server", &server.url, "--inputs", inputs.path().to_str().unwrap(), "--jobs", "3", "--", "cat"];
    let output = run(&arguments).env("BELLJAR_API_KEY", KEY).output().unwrap();
    let results = results(&output);
    assert_eq!(each(&results, "/index"), json!((0..620).collect::<Vec<_>>()), "{output:?}");
    for (index, result) in results.iter().enumerate() {
        match index {
            7 => assert!(result["error"]["message"].as_str().unwrap().starts_with("files: '/x'"), "{result}"),
            600 => assert!(result["error"]["message"].as_str().unwrap().contains("`nope`"), "{result}"),
            _ => assert_eq!(result["stdout"], index.to_string()),
        }
    }
    assert_eq!(output.status.code(), Some(1));
    // The program is wrong, so nothing runs.
    let wrong = ["--server", &server.url, "--inputs", arguments[3], "--language", "c", "-c", " "];
    let output = run(&wrong).env("BELLJAR_API_KEY", KEY).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(125), 0), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("code: is empty"), "{output:?}");
}

#[test]
fn results_arrive_while_inputs_are_still_written() {
    let mut child = run(&["--inputs", "-", "-c", "def main(n): return n"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (mut stdin, mut stdout) =
        (child.stdin.take().unwrap(), std::io::BufReader::new(child.stdout.take().unwrap()));
    for n in 0..3 {
        writeln!(stdin, "{}", json!({"arguments": {"n": n}})).unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
        let result: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&result["index"], &result["result"]["value"]), (&json!(n), &json!(n)));
    }
    drop(stdin);
    assert!(child.wait().unwrap().success());
}

#[test]
fn flags_that_contradict_are_refused() {
    for (arguments, message) in [
        (&["--inputs", "x", "--batch", "y"][..], "cannot be used with"),
        (&["-c", "1", "--inputs", "x", "--workspace", "."], "cannot be used with"),
        (&["-c", "1", "--jobs", "2"], "required"),
        (&["--inputs", "/dev/null"], "nothing to run"),
        (&["-", "--inputs", "-"], "--inputs: standard input is already used for the code"),
        (&["-c", "1", "--stdin", "-", "--inputs", "-"], "--inputs: standard input is already used"),
        (&["-c", "1", "--gpus", "0"], "a number of GPUs from 1 to 64"),
        (
            &["-c", "1", "--gpus", "all"],
            "gpus: provider 'native' gives programs no GPU; provider 'docker' can",
        ),
    ] {
        let output = run(arguments).stdin(Stdio::null()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(125) && stderr.contains(message), "{arguments:?}: {output:?}");
    }
}
