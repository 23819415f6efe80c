//! Running programs in a sandbox: streams, exit status, signals.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command};

use serde_json::Value;

use crate::{SandboxFixture, piped};

#[test]
fn streams_are_exact_and_separate() {
    let fixture = SandboxFixture::new();
    let program = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 2000); sys.stderr.buffer.write(b'\\xff\\xe9')";
    let output = fixture.run(&["exec", &fixture.id, "--", "python3", "-c", program]);
    let expected: Vec<u8> = (0..=255).cycle().take(256 * 2000).collect();
    assert!(output.status.success() && output.stdout == expected, "{:?}", output.stdout.len());
    assert_eq!(output.stderr, b"\xff\xe9");
    let given = ["exec", &fixture.id, "--workdir", "/tmp", "--env", "A=x", "--", "sh", "-c", "echo $A $PWD"];
    assert_eq!(fixture.text(&given), "x /tmp\n");
    let json = fixture.run(&["exec", &fixture.id, "--json", "--", "sh", "-c", "echo o; echo e >&2; exit 4"]);
    let result: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(
        (json.status.code(), &result["stdout"], &result["stderr"]),
        (Some(4), &"o\n".into(), &"e\n".into())
    );
}

#[test]
fn the_exit_status_is_the_commands() {
    let fixture = SandboxFixture::new();
    let status = |line: &str| fixture.run(&["exec", &fixture.id, "--", "sh", "-c", line]).status.code();
    assert_eq!(status("exit 3"), Some(3));
    assert_eq!(status("kill -TERM $$"), Some(143));
    let late = fixture.run(&["exec", &fixture.id, "--timeout", "300ms", "--", "sleep", "60"]);
    assert_eq!(late.status.code(), Some(124), "{late:?}");
    assert!(fixture.refusal(&["exec", &fixture.id, "--", "/no/such/program"]).contains("command"));
}

#[test]
fn standard_input_is_passed_on() {
    let fixture = SandboxFixture::new();
    let bytes: Vec<u8> =
        (0..3_000_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut child = piped(fixture.command(&["exec", &fixture.id, "-i", "--", "cat"]));
    let (mut stdin, sent) = (child.stdin.take().unwrap(), bytes.clone());
    let writer = std::thread::spawn(move || stdin.write_all(&sent).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success() && output.stdout == bytes, "{:?}", output.status);
    assert_eq!(fixture.text(&["exec", &fixture.id, "--", "cat"]), "", "without -i, standard input is empty");
}

#[test]
fn a_detached_command_is_managed_by_number() {
    let fixture = SandboxFixture::new();
    let line = "echo out; echo err >&2; read go < /tmp/pipe; echo more; sleep 60";
    fixture.text(&["exec", &fixture.id, "--", "mkfifo", "/tmp/pipe"]);
    let number = fixture.text(&["exec", &fixture.id, "--detach", "--", "sh", "-c", line]);
    let number = number.trim_end();
    let mut follower = piped(fixture.command(&["logs", &fixture.id, number, "--follow"]));
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "out");
    let table = fixture.text(&["ps", &fixture.id]);
    assert!(table.contains("running") && table.contains("echo out"), "{table}");
    fixture.text(&["exec", &fixture.id, "--", "sh", "-c", "echo go > /tmp/pipe"]);
    assert_eq!(lines.next().unwrap().unwrap(), "more");
    fixture.text(&["kill", &fixture.id, number]);
    assert!(lines.next().is_none() && follower.wait().unwrap().success());
    assert!(fixture.text(&["ps", &fixture.id]).contains("SIGTERM"));
    let logs = fixture.run(&["logs", &fixture.id, number]);
    assert_eq!((logs.stdout.as_slice(), logs.stderr.as_slice()), (&b"out\nmore\n"[..], &b"err\n"[..]));
    assert_eq!(fixture.text(&["logs", &fixture.id, number, "--from", "8"]), "more\n");
    assert!(fixture.refusal(&["kill", &fixture.id, number]).contains("ended"));
}

fn interrupt(child: &Child) {
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn the_first_interrupt_is_forwarded_and_the_second_kills() {
    let fixture = SandboxFixture::new();
    let line = "trap 'echo interrupted' INT; echo ready; while :; do sleep 0.05; done";
    let mut child = piped(fixture.command(&["exec", &fixture.id, "--", "bash", "-c", line]));
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    interrupt(&child);
    assert_eq!(lines.next().unwrap().unwrap(), "interrupted");
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let command = || {
        let commands: Value = serde_json::from_str(&fixture.text(&["ps", &fixture.id, "--json"])).unwrap();
        commands["commands"][0].clone()
    };
    // The command was killed, and the client did not wait for it.
    let ended = (0..200).map(|_| command()).find(|command| command["state"] == "ended").unwrap();
    assert_eq!(ended["signal"], "SIGKILL", "{ended}");
}

#[test]
fn a_command_with_closed_output_is_killed() {
    let fixture = SandboxFixture::new();
    let mut child = piped(fixture.command(&["exec", &fixture.id, "--", "yes"]));
    let mut some = [0; 4];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    assert_eq!((&some, child.wait().unwrap().code()), (b"y\ny\n", Some(141)));
}
