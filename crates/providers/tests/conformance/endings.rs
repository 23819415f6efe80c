//! Endings: every limit is enforced, and endings are distinguished.

use std::time::{Duration, Instant};

use belljar_engine::layer::Layer;
use belljar_engine::outcome::{Limit, to_millis};
use belljar_engine::report::{Report, Status, exit_status};
use serde_json::{Value, json};

use crate::fixture::{Case, Fixture, Quiet, Verdict, check};

pub(crate) fn all() -> Vec<(&'static str, Case)> {
    vec![
        ("a_timeout_kills_the_process", a_timeout_kills_the_process),
        ("memory_runs_out", memory_runs_out),
        ("memory_of_a_child_runs_out", memory_of_a_child),
        ("processes_run_out", processes_run_out),
        ("the_disk_is_full", disk_is_full),
        ("inodes_run_out", inodes_run_out),
        ("surviving_a_full_disk_is_not_an_ending", full_disk_survived),
        ("output_is_cut_in_the_middle", output_is_cut),
        ("output_can_end_a_run", output_kills),
        ("the_open_file_limit_is_enforced", open_files),
        ("the_cpu_limit_is_enforced", processor_share),
        ("signals_are_named", signals),
        ("a_self_inflicted_kill_is_not_a_limit", own_kill),
        ("a_canceled_run_ends", cancelled),
        ("a_dropped_run_is_killed", dropped),
        ("surviving_processes_are_not_awaited", survivors),
        ("closing_output_does_not_end_a_run", closed_output),
        ("partial_output_is_kept", partial_output),
    ]
}

fn with_limits(code: &str, limits: Value) -> Value {
    json!({"language": "python", "code": code, "limits": limits})
}

fn ended_by(report: &Report, limit: Limit) -> bool {
    // A killed program has no exit status; one that fails by itself does.
    let ended = matches!(limit, Limit::Memory | Limit::Output);
    report.status == Status::LimitExceeded
        && report.limit == Some(limit)
        && report.exit_code.is_none() == ended
}

fn a_timeout_kills_the_process(fixture: &Fixture) -> Verdict {
    for code in ["while True: pass", "import time; time.sleep(100)"] {
        let report = fixture.run(with_limits(code, json!({"timeout_ms": 300})))?;
        check!(
            (report.status, report.exit_code, exit_status(&report)) == (Status::TimedOut, None, 124),
            report
        );
        check!(report.duration_ms >= 300.0, report);
    }
    Ok(())
}

fn memory_runs_out(fixture: &Fixture) -> Verdict {
    if !fixture.has(Layer::CgroupMemory) {
        return Ok(());
    }
    let code = "b = bytearray(200 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1";
    let report = fixture.run(with_limits(code, json!({"memory_bytes": 64 << 20})))?;
    check!(ended_by(&report, Limit::Memory) && exit_status(&report) == 137, report);
    check!(report.error.as_deref().unwrap_or_default().contains("64 MB"), report);
    Ok(())
}

fn memory_of_a_child(fixture: &Fixture) -> Verdict {
    if !fixture.has(Layer::CgroupMemory) {
        return Ok(());
    }
    let code = "import subprocess, sys, time\n\
        subprocess.run([sys.executable, '-c', 'b = bytearray(200 << 20)\\nfor i in range(0, len(b), 4096): b[i] = 1'])\n\
        time.sleep(20)";
    let report = fixture.run(with_limits(code, json!({"memory_bytes": 64 << 20})))?;
    check!(ended_by(&report, Limit::Memory), report);
    Ok(())
}

fn processes_run_out(fixture: &Fixture) -> Verdict {
    let code = "import os, time\nfor i in range(50):\n    if os.fork() == 0: time.sleep(60)";
    let report = fixture.run(with_limits(code, json!({"processes": 10})))?;
    // Without a cgroup the kernel refuses forks too, but does not count refusals.
    let expected = if fixture.has(Layer::CgroupPids) { Status::LimitExceeded } else { Status::Failed };
    check!(report.status == expected, report);
    check!(report.stderr.contains("BlockingIOError"), report);
    let report = fixture.run(with_limits("print(1)", json!({"processes": 1})))?;
    check!(report.status == Status::Succeeded, report);
    Ok(())
}

fn disk_is_full(fixture: &Fixture) -> Verdict {
    for path in ["x", "/tmp/x", "/dev/shm/x", "/home/sandbox/x"] {
        let code = format!("open('{path}', 'wb').write(b'x' * (20 << 20))");
        let report = fixture.run(with_limits(&code, json!({"disk_bytes": 4 << 20})))?;
        check!(ended_by(&report, Limit::Disk), (path, report));
    }
    Ok(())
}

fn inodes_run_out(fixture: &Fixture) -> Verdict {
    let code = "for i in range(100000): open(str(i), 'w').close()";
    let report = fixture.run(with_limits(code, json!({"disk_bytes": 4 << 20})))?;
    check!(ended_by(&report, Limit::Disk), report);
    Ok(())
}

fn full_disk_survived(fixture: &Fixture) -> Verdict {
    let code = "try: open('x', 'wb').write(b'x' * (20 << 20))\nexcept OSError as e: print(e.errno)";
    let report = fixture.run(with_limits(code, json!({"disk_bytes": 4 << 20})))?;
    check!(report.status == Status::Succeeded && report.limit.is_none(), report);
    Ok(())
}

fn output_is_cut(fixture: &Fixture) -> Verdict {
    let code = "print('first')\nfor _ in range(1000): print('x' * 1000)\nprint('last')";
    let report = fixture.run(with_limits(code, json!({"output_bytes": 4096})))?;
    check!(report.status == Status::Succeeded && report.stdout_truncated && !report.stderr_truncated, report);
    check!(report.stdout.starts_with("first\n") && report.stdout.ends_with("last\n"), report);
    check!(report.stdout.len() < 4096 + 100, report.stdout.len());
    Ok(())
}

fn output_kills(fixture: &Fixture) -> Verdict {
    let code = "while True: print('x' * 1000)";
    let request = json!({"language": "python", "code": code, "profile": "kill-floods", "limits": {"output_bytes": 4096}});
    let report = fixture.run(request)?;
    check!(ended_by(&report, Limit::Output), report);
    Ok(())
}

fn open_files(fixture: &Fixture) -> Verdict {
    let code = "files = []\ntry:\n    while True: files.append(open('/dev/null'))\nexcept OSError as e: print(e.errno)";
    let report = fixture.python(code)?;
    check!(report.stdout == "24\n" && report.status == Status::Succeeded, report);
    Ok(())
}

fn processor_share(fixture: &Fixture) -> Verdict {
    if !fixture.has(Layer::CgroupCpu) {
        return Ok(());
    }
    let code = "import time\nend = time.monotonic() + 1\nwhile time.monotonic() < end: pass";
    let report = fixture.run(with_limits(code, json!({"cpus": 0.2})))?;
    check!(to_millis(report.usage.cpu) < 0.5 * report.duration_ms, report.usage);
    Ok(())
}

fn signals(fixture: &Fixture) -> Verdict {
    let report = fixture.python("import ctypes; ctypes.string_at(0)")?;
    check!((report.status, report.signal.as_deref()) == (Status::Failed, Some("SIGSEGV")), report);
    check!(report.exit_code.is_none() && exit_status(&report) == 139, report);
    Ok(())
}

fn own_kill(fixture: &Fixture) -> Verdict {
    let report = fixture.python("import os; os.kill(os.getpid(), 9)")?;
    check!(
        (report.status, report.signal.as_deref(), report.limit) == (Status::Failed, Some("SIGKILL"), None),
        report
    );
    check!(exit_status(&report) == 137, report);
    Ok(())
}

fn cancelled(fixture: &Fixture) -> Verdict {
    let cancel = tokio_sleep(Duration::from_millis(200));
    let report =
        fixture.run_until(with_limits("import time; time.sleep(60)", json!({})), cancel, &mut Quiet)?;
    check!(report.status == Status::Cancelled && report.exit_code.is_none(), report);
    Ok(())
}

async fn tokio_sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}

fn dropped(fixture: &Fixture) -> Verdict {
    let mark = format!("belljar-conformance-{}", std::process::id());
    let request = json!({"command": ["python3", "-c", "import time; time.sleep(600)", mark]});
    fixture.abandon(request, Duration::from_millis(700))?;
    let deadline = Instant::now() + Duration::from_secs(60);
    while host_has_process(&mark) {
        check!(Instant::now() < deadline, "still alive");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Searches all processes of the host. With providers that run elsewhere there are none to find.
fn host_has_process(mark: &str) -> bool {
    let me = std::process::id().to_string();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter(|entry| entry.file_name().to_str() != Some(&me)).any(|entry| {
        std::fs::read(entry.path().join("cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains(mark))
    })
}

fn survivors(fixture: &Fixture) -> Verdict {
    // A grandchild in its own session holds the pipes; another child is stopped.
    let code = "import os, signal, time\n\
        if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(100)\n    os._exit(0)\n\
        if os.fork() == 0: os.kill(os.getpid(), signal.SIGSTOP)\nprint('done')";
    let started = Instant::now();
    let report = fixture.python(code)?;
    check!(report.status == Status::Succeeded && report.stdout == "done\n", report);
    check!(started.elapsed() < Duration::from_secs(90), started.elapsed());
    Ok(())
}

fn closed_output(fixture: &Fixture) -> Verdict {
    let code = "import os, time\nos.closerange(0, 3)\ntime.sleep(0.5)\nos._exit(5)";
    let report = fixture.python(code)?;
    check!(report.exit_code == Some(5), report);
    Ok(())
}

fn partial_output(fixture: &Fixture) -> Verdict {
    let code = "print('kept', flush=True)\nwhile True: pass";
    let report = fixture.run(with_limits(code, json!({"timeout_ms": 3000})))?;
    check!(report.status == Status::TimedOut && report.stdout == "kept\n", report);
    Ok(())
}
