//! Commands: running them, reading their output, and access to them.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::common::host::alive_with;
use crate::common::server::{KEY, Server};
use crate::terminal::mute;
use crate::{own_sleep, wait_for};

const JSON: &str = "Content-Type: application/json\r\n";
const EVENTS: &str = "Content-Type: application/json\r\nAccept: text/event-stream\r\n";

/// A stream of server-sent events.
struct Events(BufReader<TcpStream>);

impl Events {
    fn post(server: &Server, path: &str, body: &Value) -> Self {
        Self(BufReader::new(server.send_as(KEY, "POST", path, EVENTS, body.to_string().as_bytes())))
    }

    fn get(server: &Server, path: &str) -> Self {
        Self(BufReader::new(server.send_as(KEY, "GET", path, EVENTS, b"")))
    }
}

impl Iterator for Events {
    type Item = (String, Value);

    fn next(&mut self) -> Option<Self::Item> {
        let (mut line, mut name) = (String::new(), None);
        while self.0.read_line(&mut line).unwrap() > 0 {
            if let Some(event) = line.strip_prefix("event: ") {
                name = Some(event.trim().to_owned());
            } else if let Some(data) = line.strip_prefix("data: ") {
                return Some((name.unwrap(), serde_json::from_str(data).unwrap()));
            }
            line.clear();
        }
        None
    }
}

/// Returns the bytes of an `output` event.
fn bytes_of(data: &Value) -> Vec<u8> {
    match data["base64"].as_str() {
        Some(base64) => STANDARD.decode(base64).unwrap(),
        None => data["text"].as_str().unwrap().as_bytes().to_vec(),
    }
}

/// Returns all output of these events, which must be without a gap.
fn joined(events: &[(String, Value)], mut from: u64) -> Vec<u8> {
    let mut all = Vec::new();
    for (name, data) in events {
        match name.as_str() {
            "output" => {
                assert_eq!(data["offset"], from, "{data}");
                let bytes = bytes_of(data);
                from += bytes.len() as u64;
                all.extend(bytes);
            }
            "lost" => {
                assert_eq!(data["offset"], from, "{data}");
                from += data["bytes"].as_u64().unwrap();
            }
            _ => {}
        }
    }
    all
}

#[test]
fn a_commands_ending_is_reported_exactly() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let url = server.sandbox(&json!({"env": {"GIVEN": "by the sandbox"}}));
    let run = |request: Value| server.post(&format!("{url}/commands"), &request);
    let ended = |request: Value| {
        let command = run(request).json();
        (command["exit_code"].clone(), command["signal"].clone(), command["timed_out"].clone())
    };
    for code in 0..=255 {
        assert_eq!(ended(json!({"shell": format!("exit {code}")})), (json!(code), Value::Null, json!(false)));
    }
    assert_eq!(ended(json!({"shell": "no-such-program"})).0, 127);
    assert_eq!(ended(json!({"shell": "echo > plain; ./plain"})).0, 126);
    for (program, wanted) in [("no-such-program", "no such file"), ("./plain", "permission denied")] {
        let refused = run(json!({"command": [program]}));
        assert_eq!((refused.status, refused.code().as_str()), (422, "invalid_request"));
        assert!(refused.text().contains(wanted), "{}", refused.text());
    }
    assert!(run(json!({"shell": "true", "workdir": "nowhere"})).text().contains("no such work folder"));
    for signal in ["KILL", "TERM", "SEGV", "PIPE", "ABRT"] {
        let (code, name, _) = ended(json!({"shell": format!("kill -{signal} $$")}));
        assert_eq!((code, name), (Value::Null, json!(format!("SIG{signal}"))));
    }
    let late = ended(json!({"command": ["sleep", "60"], "timeout_ms": 200}));
    assert_eq!(late, (Value::Null, Value::Null, json!(true)));

    let whole = run(json!({
        "shell": "echo $GIVEN $OWN $(pwd) $(cat); echo wrong >&2", "env": {"OWN": "and me"}, "workdir": "/tmp", "stdin": "in"
    }));
    let command = whole.json();
    assert_eq!((whole.status, &command["state"]), (200, &json!("ended")));
    assert_eq!(command["stdout"], "by the sandbox and me /tmp in\n");
    assert_eq!((&command["stderr"], &command["output_bytes"]), (&json!("wrong\n"), &json!(36)));
    assert!(command["duration_ms"].as_f64().unwrap() > 0.0 && command["pid"].as_u64().unwrap() > 1);
    // Arguments are passed on unchanged, whatever they contain.
    let words = json!({"command": ["printf", "%s|", "--help", "$(id)", "a b", "'\"\n;", "-"]});
    assert_eq!(run(words).json()["stdout"], "--help|$(id)|a b|'\"\n;|-|");
    let listed = server.get(&format!("{url}/commands")).json();
    let last = listed["commands"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(server.get(&format!("{url}/commands/{}", last["id"])).json(), last);
    for unknown in ["999999", "x", "-1", "0x1"] {
        assert_eq!(server.get(&format!("{url}/commands/{unknown}")).code(), "not_found", "{unknown}");
    }
}

#[test]
fn refused_requests_name_the_field() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let url = server.sandbox(&json!({}));
    let cases = [
        (json!({}), "command: is missing"),
        (json!({"command": ["a"], "shell": "a"}), "shell: cannot be combined"),
        (json!({"shell": "a", "timeout_ms": 0}), "timeout_ms: must be above zero"),
        (json!({"shell": "a", "env": {"A=B": "c"}}), "env: 'A=B'"),
        (json!({"command": ["a\0"]}), "command: has a NUL"),
        (json!({"shell": "a", "keep_bytes": 5}), "keep_bytes: must be"),
        (json!({"shell": "a", "pty": true}), "unknown field `pty`"),
    ];
    for (request, wanted) in cases {
        let refused = server.post(&format!("{url}/commands"), &request);
        assert_eq!(refused.status, 422, "{request}");
        assert!(refused.text().contains(wanted), "{}", refused.text());
    }
    let started =
        server.post(&format!("{url}/commands"), &json!({"command": ["sleep", "60"], "background": true}));
    let url = format!("{url}/commands/{}", started.json()["id"]);
    for (verb, body, wanted) in [
        ("signal", json!({"signal": 0}), "signal: no such signal"),
        ("signal", json!({"signal": "SIGNOT"}), "signal: no such signal"),
        ("signal", json!({}), "missing field `signal`"),
        ("resize", json!({"rows": 0, "columns": 80}), "above zero"),
        ("resize", json!({"rows": 24, "columns": 80}), "has no terminal"),
    ] {
        let refused = server.post(&format!("{url}/{verb}"), &body);
        assert_eq!(refused.status, 422, "{body}");
        assert!(refused.text().contains(wanted), "{}", refused.text());
    }
    assert_eq!(server.get(&format!("{url}/output?from=1")).status, 422);
    assert_eq!(server.get(&format!("{url}/output?since=1")).status, 422);
    assert_eq!(server.get(&format!("{url}/terminal")).status, 422);
    let typed = server.call("POST", &format!("{url}/stdin"), "Content-Type: text/plain\r\n", b"x");
    assert_eq!(typed.status, 415);
    // The program does not read its input.
    assert_eq!(server.call("POST", &format!("{url}/stdin"), "", b"x").status, 409);
}

#[test]
fn large_input_and_output_are_complete() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let url = server.sandbox(&json!({"limits": {"output_bytes": 16 << 20}}));
    let text: String = (0..).map(|number| format!("{number}é\n")).take(1_300_000).collect();
    assert!(text.len() > 10 << 20);
    let echoed = server.post(&format!("{url}/commands"), &json!({"command": ["cat"], "stdin": text})).json();
    assert!(echoed["stdout"] == text && echoed["exit_code"] == 0 && echoed["stdout_truncated"] == false);
    let ignored =
        server.post(&format!("{url}/commands"), &json!({"command": ["true"], "stdin": text})).json();
    assert_eq!(ignored["exit_code"], 0);

    // In a complete response, the head and the tail are kept; the rest is counted.
    let small = server.sandbox(&json!({"limits": {"output_bytes": 1000}}));
    let flood = json!({"shell": "echo first; seq 200000; echo last"});
    let flooded = server.post(&format!("{small}/commands"), &flood).json();
    let stdout = flooded["stdout"].as_str().unwrap();
    assert!(stdout.starts_with("first\n1\n") && stdout.ends_with("200000\nlast\n"));
    assert!(stdout.contains("bytes left out") && flooded["stdout_truncated"] == true && stdout.len() < 1_100);

    // As events, nothing is dropped, however little is kept.
    let held = json!({"shell": "seq 300000", "keep_bytes": 65536});
    let events: Vec<_> = Events::post(&server, &format!("{url}/commands"), &held).collect();
    let wanted: String = (1..=300_000).map(|number| format!("{number}\n")).collect();
    assert!(joined(&events, 0) == wanted.as_bytes());
    assert!(events.iter().all(|(name, _)| name != "lost"));
    assert_eq!(events.last().unwrap().1["output_bytes"], wanted.len());
}

#[test]
fn events_arrive_in_order_while_a_command_runs() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let url = format!("{}/commands", server.sandbox(&json!({})));
    // The program continues only after its output has been seen.
    let shell = "for n in 1 2 3; do echo out$n; echo err$n >&2; read line; done; exit 5";
    let mut events = Events::post(&server, &url, &json!({"shell": shell, "stdin_open": true}));
    let (name, started) = events.next().unwrap();
    assert!(name == "started" && started["pid"].as_u64().unwrap() > 1);
    let (mut streams, mut offset) = ([String::new(), String::new()], 0);
    for number in 1..=3 {
        while !streams[0].contains(&format!("out{number}\n"))
            || !streams[1].contains(&format!("err{number}\n"))
        {
            let (name, data) = events.next().unwrap();
            assert_eq!((name.as_str(), data["offset"].as_u64().unwrap()), ("output", offset));
            offset += data["text"].as_str().unwrap().len() as u64;
            streams[usize::from(data["stream"] == "stderr")] += data["text"].as_str().unwrap();
        }
        let typed = server.call("POST", &format!("{url}/{}/stdin", started["id"]), "", b"\n");
        assert_eq!(typed.status, 204);
    }
    let (name, ended) = events.next().unwrap();
    assert_eq!((name.as_str(), &ended["exit_code"], &ended["id"]), ("ended", &json!(5), &started["id"]));
    assert!(events.next().is_none());

    let bytes = b"\xff\x00\xc3\xa9\xf0\x9f\x98\x80\xe2\x82";
    let octal: String = bytes.iter().map(|byte| format!("\\{byte:03o}")).collect();
    let binary = json!({"command": ["printf", octal]});
    let events: Vec<_> = Events::post(&server, &url, &binary).collect();
    assert_eq!(joined(&events, 0), bytes);
    assert_eq!(events[1].1["text"], "\u{fffd}\0é😀");
    let whole = server.post(&url, &binary).json();
    assert_eq!(STANDARD.decode(whole["stdout_base64"].as_str().unwrap()).unwrap(), bytes);
}

#[test]
fn background_output_can_be_read_from_any_offset() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let url = format!("{}/commands", server.sandbox(&json!({})));
    let shell = "seq 30000; read go; echo more; read go; exit 3";
    let request = json!({"shell": shell, "background": true, "stdin_open": true, "keep_bytes": 65536});
    let started = server.post(&url, &request);
    let command = started.json();
    let own = format!("{url}/{}", command["id"]);
    assert_eq!((started.status, started.header("location")), (201, Some(own.as_str())));
    assert_eq!((&command["state"], &command["exit_code"]), (&json!("running"), &Value::Null));
    let all: String = (1..=30_000).map(|number| format!("{number}\n")).collect();
    let size = all.len() as u64;
    wait_for("all of it", || server.get(&own).json()["output_bytes"] == size);

    // Only the end of the output is kept, and the number of dropped bytes is reported.
    let page = server.get(&format!("{own}/output")).json();
    let lost = page["lost_bytes"].as_u64().unwrap();
    assert!(lost > 0 && size - lost <= 65_536 && page["next"] == size, "{lost}");
    assert!(page["stdout"] == all[lost as usize..] && page["command"]["state"] == "running");
    let now: Vec<_> = Events::get(&server, &format!("{own}/output?follow=false")).collect();
    assert_eq!(now[0], ("lost".to_owned(), json!({"offset": 0, "bytes": lost})));
    assert!(joined(&now, 0) == all.as_bytes()[lost as usize..] && now.last().unwrap().0 == "output");
    let tail = server.get(&format!("{own}/output?from={}", size - 6)).json();
    assert_eq!((&tail["stdout"], &tail["lost_bytes"]), (&json!("30000\n"), &json!(0)));
    let nothing = server.get(&format!("{own}/output?from={size}")).json();
    assert_eq!((&nothing["stdout"], &nothing["next"]), (&json!(""), &json!(size)));

    // Two viewers at once, each from its own offset, live and to the end.
    let viewers = [size - 6, size].map(|from| {
        let mut events = Events::get(&server, &format!("{own}/output?from={from}"));
        (from, if from < size { events.next() } else { None }, events)
    });
    for _ in 0..2 {
        assert_eq!(server.call("POST", &format!("{own}/stdin"), "", b"go\n").status, 204);
    }
    for (from, first, events) in viewers {
        let seen: Vec<_> = first.into_iter().chain(events).collect();
        assert_eq!(joined(&seen, from), format!("{all}more\n").as_bytes()[from as usize..]);
        let (name, ended) = seen.last().unwrap();
        assert_eq!((name.as_str(), &ended["exit_code"]), ("ended", &json!(3)));
    }
    let page = server.get(&format!("{own}/output?from={size}")).json();
    assert_eq!((&page["stdout"], &page["command"]["exit_code"]), (&json!("more\n"), &json!(3)));
    assert_eq!(server.post(&format!("{own}/signal"), &json!({"signal": "TERM"})).status, 409);
}

#[test]
fn a_program_can_be_driven_interactively() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let url = format!("{}/commands", server.sandbox(&json!({})));
    let request = json!({"command": ["cat"], "background": true, "stdin": "first ", "stdin_open": true});
    let own = format!("{url}/{}", server.post(&url, &request).json()["id"]);
    let type_in = |query: &str, bytes: &[u8]| {
        server
            .call("POST", &format!("{own}/stdin{query}"), "Content-Type: application/octet-stream\r\n", bytes)
            .status
    };
    let seen = || server.get(&format!("{own}/output")).json()["stdout"].as_str().unwrap().to_owned();
    wait_for("what was given", || seen() == "first ");
    assert_eq!(type_in("", b"second "), 204);
    wait_for("an answer", || seen() == "first second ");
    let much = vec![b'x'; 3 << 20];
    assert_eq!((type_in("", &much), type_in("?close=true", b"third"), type_in("", b"late")), (204, 204, 409));
    wait_for("the end", || server.get(&own).json()["exit_code"] == 0);
    let command = server.get(&own).json();
    assert_eq!(command["output_bytes"], "first second third".len() + much.len());
}

#[test]
fn a_signal_reaches_the_whole_group() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let url = format!("{}/commands", server.sandbox(&json!({"policy": "off"})));
    let sleep = own_sleep(97_651);
    for (signal, name) in [(json!("SIGTERM"), "SIGTERM"), (json!("INT"), "SIGINT"), (json!(9), "SIGKILL")] {
        let request = json!({"shell": format!("{sleep} & {sleep}; wait"), "background": true});
        let own = format!("{url}/{}", server.post(&url, &request).json()["id"]);
        // Wait for the programs themselves: an interrupt between a shell's fork and exec is lost on both.
        let sleeps = |line: &String| line.starts_with("sleep");
        wait_for("both run", || {
            alive_with(&sleep, Duration::ZERO).iter().filter(|line| sleeps(line)).count() == 2
        });
        assert_eq!(server.post(&format!("{own}/signal"), &json!({"signal": signal})).status, 204);
        wait_for("its end", || server.get(&own).json()["state"] == "ended");
        // A shell in the background ignores SIGINT for its own background processes.
        if name != "SIGINT" {
            assert!(alive_with(&sleep, Duration::from_secs(60)).is_empty(), "{name}");
        }
        assert_eq!(server.get(&own).json()["signal"], name);
        server.post(&url, &json!({"shell": "kill -9 -1"}));
    }
}

#[test]
fn a_command_ends_when_its_client_disconnects() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let url = format!("{}/commands", server.sandbox(&json!({})));
    for (headers, mark) in [(JSON, own_sleep(97_652)), (EVENTS, own_sleep(97_653))] {
        let body = json!({"shell": format!("{mark} & {mark}; wait")}).to_string();
        let stream = server.send_as(KEY, "POST", &url, headers, body.as_bytes());
        wait_for("it runs", || alive_with(&mark, Duration::ZERO).len() >= 2);
        drop(stream);
        assert!(alive_with(&mark, Duration::from_secs(60)).is_empty(), "{mark}");
    }
    // A background command keeps running, whatever viewers come and go.
    let request = json!({"command": ["sleep", "97654"], "background": true});
    let own = format!("{url}/{}", server.post(&url, &request).json()["id"]);
    drop(Events::get(&server, &format!("{own}/output")));
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(server.get(&own).json()["state"], "running");
}

fn resident_bytes(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn slow_readers_use_no_server_memory() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let url = format!("{}/commands", server.sandbox(&json!({})));
    let flood = json!({"command": ["yes", "x".repeat(1000)], "background": true});
    let own = format!("{url}/{}", server.post(&url, &flood).json()["id"]);
    let before = resident_bytes(&server);
    let lazy: Vec<_> = (0..8).map(|_| Events::get(&server, &format!("{own}/output"))).collect();
    let held = Events::post(&server, &url, &json!({"command": ["yes"], "keep_bytes": 65536}));
    let screen = json!({"command": ["yes"], "background": true, "terminal": {"rows": 24, "columns": 80}});
    let screen = format!("{url}/{}/terminal", server.post(&url, &screen).json()["id"]);
    let _blind: Vec<_> = (0..4).map(|_| mute(&server, &screen)).collect();
    let written = || server.get(&own).json()["output_bytes"].as_u64().unwrap();
    wait_for("a flood", || written() > 200 << 20);
    let listed = server.get(&url).json();
    let is_held = |command: &&Value| command["command"] == "yes" && command["terminal"] == false;
    let held_up = listed["commands"].as_array().unwrap().iter().find(is_held);
    // The command blocks on its reader: it can write no more than fits into pipes and buffers.
    assert!(held_up.unwrap()["output_bytes"].as_u64().unwrap() < 32 << 20, "{listed}");
    let grown = resident_bytes(&server).saturating_sub(before);
    assert!(grown < 32 << 20, "{grown}");
    // A late reader is told how much was dropped.
    let seen: Vec<_> = lazy.into_iter().next().unwrap().take(20_000).collect();
    assert!(seen.iter().any(|(name, _)| name == "lost"));
    joined(&seen, 0);
    drop(held);
}

#[test]
fn paused_and_ended_sandboxes_return_errors() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let sandbox = server.sandbox(&json!({}));
    let url = format!("{sandbox}/commands");
    let request = json!({"command": ["cat"], "background": true, "stdin_open": true});
    let own = format!("{url}/{}", server.post(&url, &request).json()["id"]);
    let verbs = |status: u16, code: &str| {
        let calls = [
            ("POST", url.clone(), r#"{"shell":"true"}"#),
            ("GET", url.clone(), ""),
            ("GET", own.clone(), ""),
            ("GET", format!("{own}/output"), ""),
            ("POST", format!("{own}/signal"), r#"{"signal":9}"#),
            ("POST", format!("{own}/resize"), r#"{"rows":1,"columns":1}"#),
            ("GET", format!("{own}/terminal"), ""),
        ];
        for (method, path, body) in calls {
            let reply = server.call(method, &path, JSON, body.as_bytes());
            assert_eq!((reply.status, reply.code().as_str()), (status, code), "{method} {path}");
        }
        let typed = server.call("POST", &format!("{own}/stdin"), "", b"x");
        assert_eq!((typed.status, typed.code().as_str()), (status, code));
    };
    let paused = server.post(&format!("{sandbox}/pause"), &json!({})).status;
    if paused == 200 {
        verbs(409, "sandbox_paused");
        // A command whose client disconnects during a pause does not survive.
        assert_eq!(server.post(&format!("{sandbox}/resume"), &json!({})).status, 200);
        let sleep = own_sleep(97_655);
        let body = json!({"shell": format!("exec {sleep}")}).to_string();
        let stream = server.send_as(KEY, "POST", &url, JSON, body.as_bytes());
        wait_for("it runs", || !alive_with(&sleep, Duration::ZERO).is_empty());
        assert_eq!(server.post(&format!("{sandbox}/pause"), &json!({})).status, 200);
        drop(stream);
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(server.post(&format!("{sandbox}/resume"), &json!({})).status, 200);
        assert!(alive_with(&sleep, Duration::from_secs(60)).is_empty());
    } else {
        eprintln!("skipped: sandboxes cannot be paused here");
    }
    let mut watching = Events::get(&server, &format!("{own}/output"));
    let mut head = String::new();
    watching.0.read_line(&mut head).unwrap();
    assert!(head.contains("200"), "{head}");
    let sleep = own_sleep(97_656);
    let body = json!({"shell": format!("exec {sleep}")}).to_string();
    let mut waiting = server.send_as(KEY, "POST", &url, JSON, body.as_bytes());
    wait_for("it runs", || !alive_with(&sleep, Duration::ZERO).is_empty());
    assert_eq!(server.delete(&sandbox).status, 200);
    let (name, data) = watching.last().unwrap();
    assert_eq!((name.as_str(), &data["error"]["code"]), ("error", &json!("sandbox_ended")));
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut waiting, &mut bytes).unwrap();
    let reply = crate::common::server::parse(&bytes);
    assert_eq!((reply.status, reply.code().as_str()), (410, "sandbox_ended"));
    verbs(410, "sandbox_ended");
}

#[test]
fn commands_of_other_tenants_are_not_found() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let other = server.tenant("other", json!({}));
    let url = format!("{}/commands", server.sandbox(&json!({})));
    let request = json!({"command": ["cat"], "background": true, "stdin_open": true});
    let own = format!("{url}/{}", server.post(&url, &request).json()["id"]);
    let unknown = "/v1/sandboxes/sbx_00000000000000000000000000000000000000/commands";
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let verbs = [
        ("POST", "", JSON, r#"{"shell":"true"}"#),
        ("GET", "", "", ""),
        ("GET", "/1", "", ""),
        ("GET", "/1/output", "", ""),
        ("GET", "/1/output", EVENTS, ""),
        ("POST", "/1/stdin?close=true", "", "x"),
        ("POST", "/1/signal", JSON, r#"{"signal":9}"#),
        ("POST", "/1/resize", JSON, r#"{"rows":1,"columns":1}"#),
        ("GET", "/1/terminal", "", ""),
        ("GET", "/1/terminal", upgrade, ""),
    ];
    for (method, verb, headers, body) in verbs {
        let answer = |url: &str| {
            let reply = server.call_as(&other, method, &format!("{url}{verb}"), headers, body.as_bytes());
            (reply.status, reply.json()["error"]["message"].clone())
        };
        assert_eq!(answer(&url), answer(unknown), "{method} {verb}");
        assert_eq!(answer(&url).0, 404, "{method} {verb}");
    }
    assert_eq!(server.get(&own).json()["state"], "running");
}

#[test]
fn commands_started_on_one_connection_keep_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let url = format!("{}/commands", server.sandbox(&json!({})));
    let address = server.url.trim_start_matches("http://");
    let mut all = String::new();
    for number in 0..20 {
        let body = json!({"shell": format!("echo {number}"), "background": true}).to_string();
        let last = if number == 19 { "Connection: close\r\n" } else { "" };
        let (key, length) = (KEY, body.len());
        all += &format!(
            "POST {url} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {key}\r\n{JSON}{last}Content-Length: {length}\r\n\r\n{body}"
        );
    }
    let mut stream = TcpStream::connect(address).unwrap();
    std::io::Write::write_all(&mut stream, all.as_bytes()).unwrap();
    std::io::Read::read_to_end(&mut stream, &mut Vec::new()).unwrap();
    let listed = server.get(&url).json();
    let lines: Vec<_> =
        listed["commands"].as_array().unwrap().iter().map(|it| it["command"].clone()).collect();
    assert_eq!(lines, (0..20).map(|number| json!(format!("echo {number}"))).collect::<Vec<_>>());
}

#[test]
fn an_exhausted_daily_quota_refuses_commands() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::configured(folder.path(), "sandbox_sweep = \"50ms\"");
    let key = server.tenant("busy", json!({"cpu_seconds_per_day": 1}));
    let opened = server.call_as(&key, "POST", "/v1/sandboxes", JSON, b"{}").json();
    let url = format!("/v1/sandboxes/{}/commands", opened["id"].as_str().unwrap());
    let run = |body: &str| server.call_as(&key, "POST", &url, JSON, body.as_bytes());
    // A busy machine gives it less than a whole processor.
    let spin = r#"{"shell":"while :; do :; done","timeout_ms":5000}"#;
    assert_eq!(run(spin).json()["timed_out"], true);
    let mut refused = run(r#"{"shell":"true"}"#);
    wait_for("it is counted", || {
        refused = run(r#"{"shell":"true"}"#);
        refused.status != 200
    });
    assert_eq!((refused.status, refused.code().as_str()), (429, "quota_exceeded"));
}

#[test]
fn awaited_commands_finish_during_shutdown() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::configured(folder.path(), "drain = \"20s\"");
    let url = format!("{}/commands", server.sandbox(&json!({})));
    let body = json!({"shell": "sleep 1.5; echo done"}).to_string();
    let mut waiting = server.send_as(KEY, "POST", &url, JSON, body.as_bytes());
    wait_for("it runs", || server.get(&url).json()["commands"].as_array().unwrap().len() == 1);
    server.signal("-TERM");
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut waiting, &mut bytes).unwrap();
    assert_eq!(crate::common::server::parse(&bytes).json()["stdout"], "done\n");
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn a_command_that_a_policy_refuses_is_not_started() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let sandbox = server.sandbox(&json!({}));
    let url = format!("{sandbox}/commands");
    for (command, rule) in [
        (json!({"shell": "touch made; rm -rf /"}), "SH-WIPE-ROOT"),
        (json!({"command": ["bash", "-c", "touch made; rm -rf /"]}), "SH-WIPE-ROOT"),
        (
            json!({"command": ["python3", "-c", "open('made', 'w'); import shutil; shutil.rmtree('/')"]}),
            "PY-WIPE-ROOT",
        ),
        (json!({"command": ["sh"], "stdin": "touch made; rm -rf /"}), "SH-WIPE-ROOT"),
        (json!({"shell": "touch made; rm -rf /", "background": true}), "SH-WIPE-ROOT"),
    ] {
        let answer = server.post(&url, &command);
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["code"]), (403, &json!("refused")), "{command}: {error}");
        assert_eq!(error["findings"][0]["rule"], rule, "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with("Security validation failed: dangerous "), "{message}");
    }
    let listed = server.post(&url, &json!({"shell": "ls"})).json();
    assert_eq!((&listed["stdout"], &listed["findings"]), (&json!(""), &json!([])), "nothing ran");
    // A warning is returned with the result.
    let warned = server.post(&url, &json!({"shell": "curl -m 1 http://a.test || true"})).json();
    assert_eq!(warned["findings"][0]["rule"], "SH-DOWNLOAD", "{warned}");
    // Code executed in the sandbox is under the same policy, and may only ask for a stricter one.
    let run =
        |request: Value| server.post(&format!("{sandbox}/executions"), &request).json()["status"].clone();
    let code = "import os\nos.system('ls')";
    assert_eq!(run(json!({"language": "bash", "code": "rm -rf /", "policy": "off"})), "refused");
    assert_eq!(run(json!({"language": "python", "code": code, "policy": "strict"})), "refused");
    assert_eq!(run(json!({"language": "python", "code": code})), "succeeded");
}
