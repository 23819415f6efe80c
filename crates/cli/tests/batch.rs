//! `belljar run --batch` over the real binary: one request per line in, one result per line out, each
//! independent.
#![cfg(target_os = "linux")]

mod common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{belljar, host};
use serde_json::{Value, json};

/// Results of a batch, in the order in which they arrived.
#[derive(Debug)]
struct Answers {
    code: Option<i32>,
    lines: Vec<Value>,
    stderr: String,
}

impl Answers {
    fn of(output: Output) -> Self {
        let stdout = String::from_utf8(output.stdout).expect("results are text");
        let lines = stdout.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        Self { code: output.status.code(), lines, stderr }
    }

    /// Returns one field of every result, in the order of the input.
    fn each(&self, pointer: &str) -> Value {
        let mut lines: Vec<_> = self.lines.iter().collect();
        lines.sort_by_key(|line| line["index"].as_u64().expect("every line has its index"));
        lines.into_iter().map(|line| line.pointer(pointer).cloned().unwrap_or_default()).collect()
    }
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(text.as_bytes()).expect("a batch");
    file
}

fn of_lines(lines: &[Value]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn command(arguments: &[&str]) -> Command {
    let mut command = belljar();
    command.arg("run").args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a batch with this text and further arguments.
fn batch(text: &str, arguments: &[&str]) -> Answers {
    let file = file(text);
    let path = file.path().to_str().expect("a path");
    Answers::of(command(&[&["--batch", path], arguments].concat()).output().expect("the binary starts"))
}

fn signal(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("the process exists");
}

/// Starts a batch with this text and waits for its first result.
fn until_first_result(text: &str, arguments: &[&str]) -> (Child, BufReader<ChildStdout>, Value) {
    let mut child = command(&[&["--batch", "-"], arguments].concat())
        .stdin(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    child.stdin.as_mut().expect("it is piped").write_all(text.as_bytes()).expect("it reads");
    let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
    let first = next(&mut stdout);
    (child, stdout, first)
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "timed out waiting until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn next(stdout: &mut impl BufRead) -> Value {
    let mut line = String::new();
    stdout.read_line(&mut line).expect("a line");
    serde_json::from_str(&line).expect("a result")
}

#[test]
fn every_line_has_its_result() {
    let lines: Vec<_> = (0..30)
        .map(|n| match n % 3 {
            0 => json!({"language": "python", "code": format!("print({n})"), "metadata": {"n": n}}),
            1 => json!({"language": "sh", "code": "read line; echo $line", "stdin": format!("{n}\n")}),
            _ => json!({"command": ["printenv", "N"], "env": {"N": n.to_string()}}),
        })
        .collect();
    let answers = batch(&of_lines(&lines), &["--jobs", "4"]);
    assert_eq!(answers.code, Some(0), "{answers:#?}");
    assert_eq!(answers.each("/index"), json!((0..30).collect::<Vec<_>>()));
    assert_eq!(answers.each("/stdout"), json!((0..30).map(|n| format!("{n}\n")).collect::<Vec<_>>()));
    assert_eq!(answers.each("/metadata/n")[27], 27);
    let summary = "30 ran (30 succeeded, 0 failed), 0 could not run; ";
    assert!(answers.stderr.contains(summary) && answers.stderr.ends_with(" runs/s\n"), "{answers:#?}");
}

#[test]
fn a_refused_line_does_not_affect_the_others() {
    let text = concat!(
        "{\"command\": [\"true\"]}\n",
        "\n",
        "{\"command\": [\"true\"]\n",
        "{\"command\": [\"true\"], \"workspace\": \"/\"}\n",
        "  \r\n",
        "[\"python\", \"print(1)\"]\n",
        "{\"language\": \"klingon\", \"code\": \"1\"}\n",
        "{\"command\": [\"true\"], \"limits\": {\"timeout_ms\": 0}}\n",
        "{\"command\": [\"true\"], \"policy\": \"lax\"}\n",
        "{\"command\": [\"no-such-program\"]}\n",
        "{\"arguments\": {}}\n",
        "{\"command\": [\"sh\", \"-c\", \"exit 3\"]}",
    );
    let answers = batch(text, &["--jobs", "2", "--json"]);
    assert_eq!(answers.code, Some(1), "{answers:#?}");
    assert_eq!(answers.each("/index"), json!([0, 2, 3, 5, 6, 7, 8, 9, 10, 11]));
    let codes = [
        "invalid_request",
        "invalid_request",
        "invalid_request",
        "unknown_language",
        "invalid_limit",
        "invalid_request",
        "invalid_request",
        "invalid_request",
    ];
    assert_eq!(answers.each("/error/code").as_array().expect("a list")[1..9], codes);
    assert!(answers.each("/error/message")[2].to_string().contains("unknown field `workspace`"));
    assert_eq!(answers.each("/error/message")[8], "language: is missing; say which language the code is in");
    let refused = answers.lines.iter().find(|line| line["index"] == 2).expect("a result with index 2");
    assert_eq!(refused.as_object().map(serde_json::Map::len), Some(2));
    assert_eq!(
        (&answers.each("/status")[0], &answers.each("/exit_code")[9]),
        (&json!("succeeded"), &json!(3))
    );
    assert!(answers.stderr.contains("2 ran (1 succeeded, 1 failed), 8 could not run; "), "{answers:#?}");
}

#[test]
fn one_piece_of_code_runs_over_many_arguments() {
    let folder = tempfile::tempdir().expect("a folder");
    let job = folder.path().join("job.py");
    fs::write(&job, "def main(n, by=2):\n    return n // by\n").expect("a file");
    let lines = [
        json!({"arguments": {"n": 6}}),
        json!({"arguments": {"n": 9, "by": 3}}),
        json!({"arguments": {"n": 1, "by": 0}}),
        json!({"code": "def main(): return 'own'", "arguments": {}}),
        json!({"command": ["echo", "own"]}),
    ];
    let answers = batch(&of_lines(&lines), &[job.to_str().expect("a path")]);
    assert_eq!(answers.code, Some(1), "{answers:#?}");
    assert_eq!(answers.each("/result/value"), json!([3, 3, null, "own", null]));
    assert_eq!(answers.each("/error")[2], "ZeroDivisionError: integer division or modulo by zero");
    assert_eq!(answers.each("/stdout")[4], "own\n");

    let lines = of_lines(&[json!({"env": {"WHO": "a"}}), json!({"env": {"WHO": "b"}})]);
    let answers = batch(&lines, &["-c", "echo $WHO", "--language", "bash", "--quiet"]);
    assert_eq!((answers.code, answers.stderr.as_str()), (Some(0), ""));
    assert_eq!(answers.each("/stdout"), json!(["a\n", "b\n"]));
}

#[test]
fn flags_are_defaults_of_every_line() {
    let given = file("common");
    let lines = [
        json!({"code": "import os; print(os.environ['A'], os.environ['B'], open('note').read())"}),
        json!({"language": "sh", "code": "echo $A $B; cat note", "env": {"B": "own"},
               "files": [{"path": "note", "content": "own"}]}),
        json!({"code": "while True: pass"}),
        json!({"code": "import time; time.sleep(5)", "limits": {"timeout_ms": 20_000}}),
    ];
    let note = format!("{}:note", given.path().display());
    let mut flags = vec!["--language", "python", "--env", "A=1", "--env", "B=2", "--file", &note];
    flags.extend([
        "--timeout",
        "4s",
        "--require",
        "seccomp",
        "--no-deps",
        "--policy",
        "off",
        "--image",
        "host",
    ]);
    let answers = batch(&of_lines(&lines), &flags);
    assert_eq!(answers.each("/status"), json!(["succeeded", "succeeded", "timed_out", "succeeded"]));
    assert_eq!(answers.each("/stdout"), json!(["1 2 common\n", "1 own\nown", "", ""]));
    assert_eq!(answers.code, Some(1));
}

#[test]
fn results_come_as_they_finish() {
    let lines =
        of_lines(&[json!({"command": ["sleep", "2"]}), json!({"command": ["true"]}), json!({"nope": 1})]);
    let order = |jobs: &str| -> Vec<Value> {
        batch(&lines, &["--jobs", jobs]).lines.iter().map(|line| line["index"].clone()).collect()
    };
    assert_eq!(order("1"), [0, 1, 2]);
    assert_eq!(order("3").last(), Some(&json!(0)));
}

#[test]
fn standard_input_is_read_on_demand() {
    let line = "{\"command\": [\"echo\", \"again\"]}\n";
    let (mut child, mut stdout, first) = until_first_result(line, &["--quiet"]);
    assert_eq!((&first["index"], &first["stdout"]), (&json!(0), &json!("again\n")));
    child.stdin.as_mut().expect("it is piped").write_all(line.as_bytes()).expect("it still reads");
    assert_eq!(next(&mut stdout)["index"], 1);
    drop(child.stdin.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert_eq!(stdout.fill_buf().expect("the rest"), b"");
}

#[test]
fn an_empty_batch_succeeds() {
    for text in ["", "\n\n"] {
        let answers = batch(text, &[]);
        assert_eq!((answers.code, answers.lines.len()), (Some(0), 0));
        assert!(answers.stderr.contains("0 ran (0 succeeded, 0 failed), 0 could not run; "));
    }
}

#[test]
fn an_oversized_line_fails_alone() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let mut long = File::create(file.path()).expect("it opens");
    long.set_len(200 << 20).expect("a file with a hole");
    std::io::Seek::seek(&mut long, std::io::SeekFrom::End(0)).expect("its end");
    long.write_all(b"\n{\"command\": [\"true\"]}\n").expect("a line after it");
    let path = file.path().to_str().expect("a path");
    let answers = Answers::of(command(&["--batch", path]).output().expect("the binary starts"));
    assert_eq!(answers.code, Some(1));
    let message = "request: more than 160 MB; leave out some of its input";
    assert_eq!(answers.each("/error/message"), json!([message, null]));
    assert_eq!(answers.each("/status"), json!([null, "succeeded"]));
}

#[test]
fn a_closed_stdout_ends_the_batch_quietly() {
    let lines = of_lines(&vec![json!({"command": ["true"]}); 50]) + "{\"command\": [\"sleep\", \"600\"]}\n";
    let (child, stdout, _) = until_first_result(&lines, &["--jobs", "2", "--timeout", "1h"]);
    drop(stdout);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1));
    assert!(!String::from_utf8_lossy(&output.stderr).contains("error"), "{output:?}");
    assert!(!String::from_utf8_lossy(&output.stderr).contains(" ran "), "{output:?}");
}

#[test]
fn an_interrupt_cancels_running_lines_and_stops_reading() {
    let token = format!("600.{}", std::process::id());
    let sleep = json!({"command": ["sleep", token]});
    let lines = of_lines(&[json!({"command": ["true"]}), sleep.clone(), sleep.clone(), sleep.clone(), sleep]);
    let (child, stdout, first) = until_first_result(&lines, &["--jobs", "2", "--timeout", "1h"]);
    assert_eq!(first["status"], "succeeded");
    // The next two are running. Standard input stays open and must not delay the end.
    let sleeps = |line: &String| line.starts_with(&format!("sleep {token}"));
    until("both sleep", || host::processes().values().filter(|line| sleeps(line)).count() == 2);
    signal(&child);
    let rest: Vec<Value> =
        stdout.lines().map(|line| serde_json::from_str(&line.expect("a line")).expect("a result")).collect();
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(rest.len(), 2, "{rest:#?}");
    assert!(rest.iter().all(|line| line["status"] == "cancelled"), "{rest:#?}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("3 ran (1 succeeded, 0 failed, 2 canceled), 0 could not run; "), "{stderr}");
}

#[test]
fn a_slow_reader_does_not_delay_time_limits() {
    let code = "import sys\nfor _ in range(4): sys.stdout.write('x' * (1 << 20))";
    let lines = of_lines(&vec![json!({"language": "python", "code": code}); 6]);
    let flags = ["--jobs", "3", "--output", "8M", "--timeout", "5s", "--quiet"];
    let (child, mut stdout, first) = until_first_result(&lines, &flags);
    assert_eq!(first["status"], "succeeded");
    std::thread::sleep(Duration::from_secs(6));
    for _ in 1..6 {
        assert_eq!(next(&mut stdout)["status"], "succeeded");
    }
    assert_eq!(child.wait_with_output().expect("it ends").status.code(), Some(0));
}

#[test]
fn results_that_cannot_be_written_are_a_failure() {
    let file = file("{\"command\": [\"true\"]}\n");
    let full = File::options().write(true).open("/dev/full").expect("it is there");
    let output = command(&["--batch", file.path().to_str().expect("a path")])
        .stdout(full)
        .output()
        .expect("it starts");
    assert_eq!(output.status.code(), Some(125));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("error: write the results to standard output: No space left"), "{stderr}");
}

#[test]
fn an_unreadable_batch_fails() {
    let output = command(&["--batch", "/proc/self/mem"]).output().expect("the binary starts");
    assert_eq!(output.status.code(), Some(125));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("error: --batch: cannot read the next line: "),
        "{output:?}"
    );
}

#[test]
fn a_second_interrupt_abandons_unread_results() {
    let lines = of_lines(&vec![json!({"command": ["head", "-c", "3000000", "/dev/zero"]}); 4]);
    let (mut child, stdout, _) = until_first_result(&lines, &["--jobs", "2", "--output", "4M"]);
    // The pipe is full, and the test does not read it.
    until("the pipe is full", || {
        rustix::io::ioctl_fionread(stdout.get_ref()).expect("it is a pipe") > 30_000
    });
    signal(&child);
    std::thread::sleep(Duration::from_millis(1_000));
    assert!(child.try_wait().expect("it can be asked").is_none(), "the first interrupt waits for the reader");
    signal(&child);
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    drop(stdout);
}

#[test]
fn a_batch_survives_its_launcher() {
    let sleep =
        |n: usize| json!({"language": "python", "code": format!("import time; time.sleep(0.2); print({n})")});
    let lines = of_lines(&(0..40).map(sleep).collect::<Vec<_>>());
    let (mut child, stdout, _) = until_first_result(&lines, &["--jobs", "4", "--quiet"]);
    drop(child.stdin.take());
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).expect("a list");
    let launcher = children.split_whitespace().next().and_then(|pid| pid.parse().ok()).expect("it has one");
    let launcher = rustix::process::Pid::from_raw(launcher).expect("a pid");
    rustix::process::kill_process(launcher, rustix::process::Signal::KILL).expect("it is there");
    let rest: Vec<Value> =
        stdout.lines().map(|line| serde_json::from_str(&line.expect("a line")).expect("a result")).collect();
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), rest.len()), (Some(0), 39), "{rest:#?}");
    for line in rest {
        assert_eq!(line["stdout"], format!("{}\n", line["index"]), "{line:#?}");
    }
}

#[test]
fn more_jobs_than_open_files_allow_are_refused() {
    let script = format!("ulimit -n 400 && exec {} run --batch - --jobs 100", env!("CARGO_BIN_EXE_belljar"));
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).env("XDG_CONFIG_HOME", "/nonexistent").stdin(Stdio::null());
    let output = shell.output().expect("it starts");
    assert_eq!(output.status.code(), Some(125));
    let said = "belljar: error: --jobs: 100 jobs need 1664 open files, but the limit is 400; \
                use at most 21 jobs, or raise the limit (ulimit -n)\n";
    assert_eq!(String::from_utf8_lossy(&output.stderr), said);
}
