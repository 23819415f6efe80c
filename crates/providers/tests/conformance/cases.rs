//! Input, output, files, arguments, isolation and receipts.

use std::time::{Duration, Instant};

use belljar_engine::layer::Layer;
use belljar_engine::outcome::to_millis;
use belljar_engine::provider::{Sink, SinkControl, Stream};
use belljar_engine::report::{Status, exit_status};
use serde_json::json;

use crate::fixture::{Case, Fixture, Verdict, check};

pub(crate) fn all() -> Vec<(&'static str, Case)> {
    vec![
        ("output_and_exit_status", output_and_exit_status),
        ("standard_input", standard_input),
        ("large_input_and_output_do_not_block_each_other", large_input_and_output),
        ("bytes_are_kept_exactly", bytes_are_kept_exactly),
        ("output_streams_as_it_comes", output_streams),
        ("environment_is_clean_and_request_variables_are_set", environment),
        ("files_arrive_with_their_modes", files),
        ("workdir", workdir),
        ("arguments_and_result", arguments_and_result),
        ("printed_output_is_never_taken_for_a_result", forged_result),
        ("artifacts_are_returned", artifacts),
        ("commands_run", commands),
        ("a_missing_command_is_a_request_error", missing_command),
        ("nothing_persists", nothing_persists),
        ("two_sandboxes_have_different_users", different_users),
        ("loopback_works_and_is_private", loopback),
        ("no_network", no_network),
        ("receipt_has_the_floor", receipt),
        ("usage_is_measured", usage),
        ("many_at_once", many_at_once),
    ]
}

fn output_and_exit_status(fixture: &Fixture) -> Verdict {
    let report = fixture.python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")?;
    check!((report.stdout.as_str(), report.stderr.as_str()) == ("out\n", "err\n"), report);
    check!((report.status, report.exit_code, exit_status(&report)) == (Status::Failed, Some(7), 7), report);
    let report = fixture.python("pass")?;
    check!(
        (report.status, report.exit_code, report.error.as_deref()) == (Status::Succeeded, Some(0), None),
        report
    );
    let report = fixture.python("x")?;
    check!(report.error.as_deref() == Some("NameError: name 'x' is not defined"), report);
    Ok(())
}

fn standard_input(fixture: &Fixture) -> Verdict {
    let code = "import sys; print(sys.stdin.read().upper())";
    let report = fixture.run(json!({"language": "python", "code": code, "stdin": "quiet"}))?;
    check!(report.stdout == "QUIET\n", report);
    let report = fixture.python("import sys; print(repr(sys.stdin.read()))")?;
    check!(report.stdout == "''\n", report);
    Ok(())
}

fn large_input_and_output(fixture: &Fixture) -> Verdict {
    let code = "import sys, shutil; shutil.copyfileobj(sys.stdin, sys.stdout)";
    let stdin = "0123456789abcdef".repeat(1 << 15);
    let report = fixture.run(json!({"language": "python", "code": code, "stdin": stdin}))?;
    check!(report.stdout == stdin, report.stdout.len());
    // A program that never reads its input must not block anything.
    let report = fixture.run(json!({"language": "python", "code": "print('done')", "stdin": stdin}))?;
    check!(report.stdout == "done\n", report);
    Ok(())
}

fn bytes_are_kept_exactly(fixture: &Fixture) -> Verdict {
    let report = fixture.python("import sys; sys.stdout.buffer.write(bytes(range(256)))")?;
    let base64 = report.stdout_base64.clone().unwrap_or_default();
    check!(base64.starts_with("AAECAwQF") && base64.ends_with("/P3+/w=="), report);
    check!(report.stdout.contains('\u{fffd}') && report.stderr_base64.is_none(), report);
    Ok(())
}

/// A sink that signals when output arrives.
struct OutputSignal(std::sync::mpsc::Sender<()>);

impl Sink for OutputSignal {
    fn output(&mut self, _stream: Stream, _bytes: &[u8]) -> SinkControl {
        // Fails once the receiver is dropped, which is fine.
        let _heard = self.0.send(());
        SinkControl::Continue
    }
}

struct Arrivals(Vec<Instant>);

impl Sink for Arrivals {
    fn output(&mut self, stream: Stream, bytes: &[u8]) -> SinkControl {
        if stream == Stream::Stdout && !bytes.is_empty() {
            self.0.push(Instant::now());
        }
        SinkControl::Continue
    }
}

fn output_streams(fixture: &Fixture) -> Verdict {
    // More writes than the check needs: a delayed reader sees two at once.
    let code = "import time\nfor _ in range(10): print('.'); time.sleep(0.2)";
    let mut arrivals = Arrivals(Vec::new());
    let request = json!({"language": "python", "code": code});
    fixture.run_until(request, std::future::pending(), &mut arrivals)?;
    check!(arrivals.0.len() >= 3, arrivals.0.len());
    Ok(())
}

fn environment(fixture: &Fixture) -> Verdict {
    let code = "import os, json; print(json.dumps(dict(os.environ)))";
    let report = fixture.run(json!({"language": "python", "code": code, "env": {"GREETING": "hi there"}}))?;
    let seen: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(&report.stdout).map_err(|error| error.to_string())?;
    check!(seen.get("GREETING") == Some(&json!("hi there")), seen);
    check!(seen.get("OMP_NUM_THREADS") == Some(&json!("1")), seen);
    check!(!seen.keys().any(|key| key.starts_with("CARGO") || key.starts_with("BELLJAR")), seen);
    Ok(())
}

fn files(fixture: &Fixture) -> Verdict {
    let code = "import os, stat\n\
        print(open('data/a.csv').read(), oct(stat.S_IMODE(os.stat('run.sh').st_mode)), os.popen('./run.sh').read())";
    let files = json!([
        {"path": "data/a.csv", "content": "1,2"},
        {"path": "run.sh", "content_base64": "IyEvYmluL3NoCmVjaG8gcmFuCg==", "mode": "0755"},
    ]);
    let report = fixture.run(json!({"language": "python", "code": code, "files": files}))?;
    check!(report.stdout == "1,2 0o755 ran\n\n", report);
    Ok(())
}

fn workdir(fixture: &Fixture) -> Verdict {
    let request = |dir| json!({"command": ["pwd"], "workdir": dir});
    check!(fixture.run(json!({"command": ["pwd"]}))?.stdout == "/workspace\n", "default");
    check!(fixture.run(request("/tmp"))?.stdout == "/tmp\n", "/tmp");
    let error = fixture.run(request("/nope")).err().unwrap_or_default();
    check!(error.contains("enter folder /nope: ENOENT"), error);
    Ok(())
}

fn arguments_and_result(fixture: &Fixture) -> Verdict {
    let code = "def main(a, b=2):\n    print('working')\n    return {'sum': a + b}";
    let report = fixture.run(json!({"language": "python", "code": code, "arguments": {"a": 40}}))?;
    check!(report.result.present && report.result.value == json!({"sum": 42}), report);
    check!(report.stdout == "working\n", report);
    let report = fixture.run(json!({"language": "python", "code": code, "arguments": {"c": 1}}))?;
    check!(report.status == Status::Failed && !report.result.present, report);
    check!(report.error.as_deref().unwrap_or_default().starts_with("TypeError: main() got"), report);
    Ok(())
}

fn forged_result(fixture: &Fixture) -> Verdict {
    let code = "import os\nprint('{\"present\":true}')\ntry: os.write(3, b'{}')\nexcept OSError as e: print(e.errno)";
    let report = fixture.python(code)?;
    check!(!report.result.present && report.stdout.ends_with("9\n"), report);
    Ok(())
}

fn artifacts(fixture: &Fixture) -> Verdict {
    let code = "import os\n\
        os.makedirs('artifacts/b')\n\
        open('artifacts/b/c.csv', 'w').write('1,2')\n\
        open('artifacts/a.exe', 'w').write('x')\n\
        os.symlink('/etc/passwd', 'artifacts/link.txt')\n\
        os.mkfifo('artifacts/fifo.txt')\n\
        open('artifacts/a\\x07b', 'w').write('x')\n\
        with open('artifacts/sparse', 'w') as f: f.truncate(90 << 20)\n\
        os.chmod('artifacts/b/c.csv', 0o600)";
    let report = fixture.python(code)?;
    let names: Vec<_> = report.artifacts.iter().map(|artifact| artifact.name.as_str()).collect();
    check!(names == ["a.exe", "b/c.csv"], report);
    check!(
        report.artifacts[1].content.as_deref() == Some(b"1,2") && report.artifacts[1].mime_type == "text/csv",
        report
    );
    let left_out = report.findings.iter().filter(|finding| finding.rule == "artifact-left-out");
    let mut left_out: Vec<_> =
        left_out.filter_map(|finding| finding.message.split(" was not").next()).collect();
    left_out.sort_unstable();
    let expected = ["artifacts/a\\u{7}b", "artifacts/fifo.txt", "artifacts/link.txt", "artifacts/sparse"];
    check!(left_out == expected, left_out);
    Ok(())
}

fn commands(fixture: &Fixture) -> Verdict {
    let report = fixture.run(json!({"command": ["sh", "-c", "echo \"$0\"; exit 3", "a b"]}))?;
    check!((report.stdout.as_str(), report.exit_code) == ("a b\n", Some(3)), report);
    Ok(())
}

fn missing_command(fixture: &Fixture) -> Verdict {
    let error = fixture.run(json!({"command": ["no-such-program"]})).err().unwrap_or_default();
    check!(error.contains("execute no-such-program: ENOENT"), error);
    Ok(())
}

fn nothing_persists(fixture: &Fixture) -> Verdict {
    let code = "import os\nfor d in ('.', '/tmp', '/dev/shm', os.path.expanduser('~')):\n\
        \x20   assert not os.path.exists(d + '/mark'), d\n    open(d + '/mark', 'w').write('x')";
    for _ in 0..2 {
        let report = fixture.python(code)?;
        check!(report.status == Status::Succeeded, report);
    }
    Ok(())
}

fn different_users(fixture: &Fixture) -> Verdict {
    if !fixture.has(Layer::SeparateUid) {
        return Ok(());
    }
    let code = "import os\n\
        for line in open('/proc/self/uid_map'):\n\
        \x20   inside, outside, count = map(int, line.split())\n\
        \x20   if inside <= os.getuid() < inside + count: print(outside + os.getuid() - inside, flush=True)\n";
    // The first run lasts until the second has ended: a later run may reuse its user id.
    let (told, printed) = std::sync::mpsc::channel();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let other = fixture.clone();
    let first = std::thread::spawn(move || {
        let request = json!({"language": "python", "code": format!("{code}import time; time.sleep(60)")});
        let cancel = async move { drop(ended.await) };
        other.run_until(request, cancel, &mut OutputSignal(told))
    });
    // If it fails earlier, its own result says why.
    let _printed = printed.recv_timeout(Duration::from_secs(60));
    let second = fixture.python(code)?.stdout;
    drop(end);
    let first = first.join().map_err(|_| "a run panicked".to_owned())??.stdout;
    check!(first != second && first.trim() != "0" && second.trim() != "0", (first, second));
    Ok(())
}

fn loopback(fixture: &Fixture) -> Verdict {
    let code = "import socket, time\ns = socket.create_server(('127.0.0.1', 7777))\n\
        c = socket.create_connection(('127.0.0.1', 7777)); a, _ = s.accept()\n\
        c.sendall(b'hi'); print(a.recv(2).decode(), flush=True); time.sleep(0.5)";
    let other = fixture.clone();
    // Both sandboxes use the same port at the same time.
    let first = std::thread::spawn(move || other.python(code));
    let second = fixture.python(code)?;
    let first = first.join().map_err(|_| "a run panicked".to_owned())??;
    check!(first.stdout == "hi\n" && second.stdout == "hi\n", (first, second));
    Ok(())
}

fn no_network(fixture: &Fixture) -> Verdict {
    let code = "import socket\nprint([name for _, name in socket.if_nameindex()])\n\
        try: socket.create_connection(('192.0.2.1', 80), 1)\nexcept OSError as e: print(e.errno)";
    let report = fixture.python(code)?;
    check!(report.stdout == "['lo']\n101\n", report);
    Ok(())
}

fn receipt(fixture: &Fixture) -> Verdict {
    let report = fixture.python("pass")?;
    for layer in Layer::MANDATORY {
        check!(report.isolation().contains(layer), (layer, &report.receipt));
    }
    for layer in Layer::ALL {
        check!(report.isolation().contains(layer) == fixture.has(*layer), (layer, &report.receipt));
    }
    check!(report.receipt.as_ref().is_some_and(|receipt| !receipt.simulated), report);
    Ok(())
}

fn usage(fixture: &Fixture) -> Verdict {
    let report = fixture.python("b = bytearray(64 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1")?;
    check!(report.usage.peak_memory_bytes > 64 << 20, report);
    check!(to_millis(report.usage.cpu) > 1.0 && report.duration_ms > 1.0, report);
    Ok(())
}

fn many_at_once(fixture: &Fixture) -> Verdict {
    fixture.python("print('first')")?;
    let run = |number: i32| {
        let fixture = fixture.clone();
        let code = format!("print({number})");
        std::thread::spawn(move || fixture.python_without_warmup(&code).map(|report| (number, report)))
    };
    let started = Instant::now();
    let runs: Vec<_> = (0..24).map(run).collect();
    for run in runs {
        let (number, report) = run.join().map_err(|_| "a run panicked".to_owned())??;
        check!(report.stdout == format!("{number}\n"), report);
    }
    check!(started.elapsed() < Duration::from_secs(60), started.elapsed());
    Ok(())
}
