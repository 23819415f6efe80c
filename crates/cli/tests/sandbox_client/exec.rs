//! Running programs in a sandbox: streams, exit status, signals.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command};

use serde_json::Value;

use crate::{Place, piped};

#[test]
fn streams_are_exact_and_separate() {
    let place = Place::new();
    let program = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 2000); sys.stderr.buffer.write(b'\\xff\\xe9')";
    let output = place.run(&["exec", &place.id, "--", "python3", "-c", program]);
    let expected: Vec<u8> = (0..=255).cycle().take(256 * 2000).collect();
    assert!(output.status.success() && output.stdout == expected, "{:?}", output.stdout.len());
    assert_eq!(output.stderr, b"\xff\xe9");
    let given = ["exec", &place.id, "--workdir", "/tmp", "--env", "A=x", "--", "sh", "-c", "echo $A $PWD"];
    assert_eq!(place.text(&given), "x /tmp\n");
    let json = place.run(&["exec", &place.id, "--json", "--", "sh", "-c", "echo o; echo e >&2; exit 4"]);
    let result: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(
        (json.status.code(), &result["stdout"], &result["stderr"]),
        (Some(4), &"o\n".into(), &"e\n".into())
    );
}

#[test]
fn the_exit_status_is_the_commands() {
    let place = Place::new();
    let status = |line: &str| place.run(&["exec", &place.id, "--", "sh", "-c", line]).status.code();
    assert_eq!(status("exit 3"), Some(3));
    assert_eq!(status("kill -TERM $$"), Some(143));
    let late = place.run(&["exec", &place.id, "--timeout", "300ms", "--", "sleep", "60"]);
    assert_eq!(late.status.code(), Some(124), "{late:?}");
    assert!(place.refusal(&["exec", &place.id, "--", "/no/such/program"]).contains("command"));
}

#[test]
fn standard_input_is_passed_on() {
    let place = Place::new();
    let bytes: Vec<u8> =
        (0..3_000_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut child = piped(place.command(&["exec", &place.id, "-i", "--", "cat"]));
    let (mut stdin, sent) = (child.stdin.take().unwrap(), bytes.clone());
    let writer = std::thread::spawn(move || stdin.write_all(&sent).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success() && output.stdout == bytes, "{:?}", output.status);
    assert_eq!(place.text(&["exec", &place.id, "--", "cat"]), "", "without -i, standard input is empty");
}

#[test]
fn a_detached_command_is_managed_by_number() {
    let place = Place::new();
    let line = "echo out; echo err >&2; read go < /tmp/pipe; echo more; sleep 60";
    place.text(&["exec", &place.id, "--", "mkfifo", "/tmp/pipe"]);
    let number = place.text(&["exec", &place.id, "--detach", "--", "sh", "-c", line]);
    let number = number.trim_end();
    let mut follower = piped(place.command(&["logs", &place.id, number, "--follow"]));
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "out");
    let table = place.text(&["ps", &place.id]);
    assert!(table.contains("running") && table.contains("echo out"), "{table}");
    place.text(&["exec", &place.id, "--", "sh", "-c", "echo go > /tmp/pipe"]);
    assert_eq!(lines.next().unwrap().unwrap(), "more");
    place.text(&["kill", &place.id, number]);
    assert!(lines.next().is_none() && follower.wait().unwrap().success());
    assert!(place.text(&["ps", &place.id]).contains("SIGTERM"));
    let logs = place.run(&["logs", &place.id, number]);
    assert_eq!((logs.stdout.as_slice(), logs.stderr.as_slice()), (&b"out\nmore\n"[..], &b"err\n"[..]));
    assert_eq!(place.text(&["logs", &place.id, number, "--from", "8"]), "more\n");
    assert!(place.refusal(&["kill", &place.id, number]).contains("ended"));
}

fn interrupt(child: &Child) {
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn the_first_interrupt_is_forwarded_and_the_second_kills() {
    let place = Place::new();
    let line = "trap 'echo interrupted' INT; echo ready; while :; do sleep 0.05; done";
    let mut child = piped(place.command(&["exec", &place.id, "--", "bash", "-c", line]));
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    interrupt(&child);
    assert_eq!(lines.next().unwrap().unwrap(), "interrupted");
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let command = || {
        let commands: Value = serde_json::from_str(&place.text(&["ps", &place.id, "--json"])).unwrap();
        commands["commands"][0].clone()
    };
    // The command was killed, and the client did not wait for it.
    let ended = (0..200).map(|_| command()).find(|command| command["state"] == "ended").unwrap();
    assert_eq!(ended["signal"], "SIGKILL", "{ended}");
}

#[test]
fn a_command_with_closed_output_is_killed() {
    let place = Place::new();
    let mut child = piped(place.command(&["exec", &place.id, "--", "yes"]));
    let mut some = [0; 4];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    assert_eq!((&some, child.wait().unwrap().code()), (b"y\ny\n", Some(141)));
}
