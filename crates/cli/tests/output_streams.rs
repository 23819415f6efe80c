//! Output of a program arrives in whole lines, and none of it is lost when the program is killed.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::server::Server;
use common::warm::Conversation;
use common::{Live, run};
use serde_json::{Value, json};

#[test]
fn killed_programs_lose_no_lines() {
    // Far less than a block of output, then an endless loop.
    let endless = "print('first')\nprint('second\\nthird')\nwhile True: pass";
    let answer = run(["--timeout", "1s", "-c", endless]);
    assert_eq!(
        (answer.status(), answer.text("stdout")),
        ("timed_out", "first\nsecond\nthird\n"),
        "{answer:?}"
    );
    let answer = run([
        "--timeout",
        "1s",
        "--args",
        "{}",
        "-c",
        "def main():\n    print('first')\n    while True: pass",
    ]);
    assert_eq!((answer.status(), answer.text("stdout")), ("timed_out", "first\n"), "{answer:?}");
    let hungry = "print('first')\ndata = bytearray(1 << 30)";
    let answer = run(["--memory", "64M", "-c", hungry]);
    assert_eq!(answer.text("stdout"), "first\n", "{answer:?}");
    let gone = run(["-c", "import os\nprint('first')\nos.kill(os.getpid(), 9)"]);
    assert_eq!(gone.text("stdout"), "first\n", "{gone:?}");
    for mode in ["pool", "fork"] {
        let settings = format!("mode = \"{mode}\"");
        let mut batch =
            Conversation::start(&settings, "", ["--language", "python", "--timeout", "1s", "-c", "0"]);
        let result = batch.ask_warm(mode, &json!({"code": endless}));
        assert_eq!(
            (&result["status"], &result["stdout"]),
            (&json!("timed_out"), &json!("first\nsecond\nthird\n"))
        );
    }
}

#[test]
fn no_end_of_a_program_loses_lines() {
    let lines: String = (0..5_000).map(|n| format!("{n}\n")).collect();
    let printed = "import os, signal, sys\nfor n in range(5000): print(n)\n";
    let python = ["os._exit(3)", "os.kill(os.getpid(), 9)", "signal.alarm(1)\nwhile True: pass"];
    let python = python.map(|end| ("python", format!("{printed}{end}")));
    let printed = "for (let n = 0; n < 5000; n++) console.log(n)\n";
    let node = ["process.reallyExit(3)", "process.kill(process.pid, 'SIGKILL')", "for (;;) {}"];
    let node = node.map(|end| ("javascript", format!("{printed}{end}")));
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let sandbox = server.sandbox(&json!({}));
    for (language, code) in python.iter().chain(&node) {
        let answer = run(["--timeout", "5s", "--language", language, "-c", code]);
        assert!(answer.text("stdout") == lines && answer.status() != "succeeded", "{code}\n{answer:?}");
        let request = json!({"language": language, "code": code, "limits": {"timeout_ms": 5_000}});
        let result = server.post(&format!("{sandbox}/executions"), &request).json();
        assert!(result["stdout"] == *lines && result["status"] != "succeeded", "{code}\n{result}");
    }
}

#[test]
fn lines_arrive_while_the_program_runs() {
    // The program ends only after its line was read.
    let mut live = Live::start(&["--timeout", "60s", "-c", "import time\nprint('ready')\ntime.sleep(50)"]);
    assert_eq!(live.first_line(), "ready");
}

#[test]
fn events_have_all_output_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let code = "import time\nfor n in range(20):\n    print('line', n, '\\nsecond', n)\n    time.sleep(0.02)";
    let body = json!({"language": "python", "code": code}).to_string();
    let headers = "Content-Type: application/json\r\nAccept: text/event-stream\r\n";
    let events = server.call("POST", "/v1/executions", headers, body.as_bytes()).text();
    let outputs = events.split("\n\n").filter(|event| event.starts_with("event: output"));
    let data = outputs.filter_map(|event| event.split_once("data: ")).map(|(_, data)| data);
    let texts: Vec<String> = data
        .map(|data| serde_json::from_str::<Value>(data).unwrap()["text"].as_str().unwrap().to_owned())
        .collect();
    let wanted: String = (0..20).map(|n| format!("line {n} \nsecond {n}\n")).collect();
    assert_eq!(texts.concat(), wanted);
}

#[test]
fn the_environment_says_nothing_about_buffering() {
    let code = "import os, subprocess, sys\n\
        print(os.environ.get('PYTHONUNBUFFERED'), os.environ.get('PYTHONPATH'), sys.stdout.line_buffering)\n\
        print([entry for entry in sys.path if 'belljar' in entry], 'sitecustomize' in sys.modules)\n\
        print(subprocess.run([sys.executable, '-c', 'print(1)'], capture_output=True, text=True))";
    let answer = run(["-c", code]);
    let lines = answer.lines();
    assert_eq!(lines[0], "None None True", "{answer:?}");
    assert!(lines[1].starts_with("[] ") && lines[2].contains("stdout='1\\n'"), "{answer:?}");
    // A variable of the request stays.
    let code = "import os, sys; print(os.environ['PYTHONPATH'], '/tmp/mine' in sys.path)";
    let answer = run(["-c", code, "--env", "PYTHONPATH=/tmp/mine"]);
    assert_eq!(answer.text("stdout"), "/tmp/mine True\n", "{answer:?}");
}
