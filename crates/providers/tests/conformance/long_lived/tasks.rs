//! Code in a sandbox behaves like a one-shot run.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use belljar_engine::layer::Layer;
use belljar_engine::outcome::Limit;
use belljar_engine::packages::{PYTHON_BOOTSTRAP, PYTHON_LAYER, PYTHON_SITE_FOLDER, PackageLayer};
use belljar_engine::provider::ProviderError;
use belljar_engine::report::{Report, Status};
use belljar_engine::request::Request;
use belljar_engine::sandbox_handle::SandboxError;
use serde_json::{Value, json};

use super::{Case, OpenSandbox, cases, text, until};
use crate::fixture::{Fixture, Quiet, Verdict, check};

pub(super) fn all() -> Vec<(&'static str, Case)> {
    cases![
        code_runs_with_existing_files,
        results_and_artifacts_are_returned,
        limits_of_a_task_are_distinguished,
        a_task_is_canceled,
        a_paused_task_times_out,
        programs_are_compiled,
        a_task_leaves_nothing_behind,
        packages_are_attached_to_an_open_sandbox,
    ]
}

async fn run(fixture: &Fixture, open: &OpenSandbox, request: Value) -> Result<Report, String> {
    run_until(fixture, open, request, std::future::pending()).await
}

async fn run_until(
    fixture: &Fixture,
    open: &OpenSandbox,
    request: Value,
    cancel: impl Future<Output = ()> + Send + 'static,
) -> Result<Report, String> {
    let request: Request = serde_json::from_value(request).map_err(text)?;
    let admitted = fixture.engine().admit_in_sandbox(&open.admitted, request, None).map_err(text)?;
    let (id, mut view) = ("exec_test".to_owned(), Quiet);
    let (engine, cancel) = (fixture.engine(), Box::pin(cancel));
    let run = engine.execute_in_sandbox(&*open.handle, &open.packages, id, admitted, &mut view, cancel);
    run.await.map_err(text)
}

fn python(code: &str) -> Value {
    json!({"language": "python", "code": code})
}

async fn packages_are_attached_to_an_open_sandbox(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    let folder = tempfile::tempdir().map_err(text)?;
    let layer = |name: &str, destination, file: &str, content: &str| {
        let source = folder.path().join(name);
        std::fs::create_dir(&source).and_then(|()| std::fs::write(source.join(file), content))?;
        Ok::<_, std::io::Error>(PackageLayer { source, destination })
    };
    let bootstrap = layer("site", PYTHON_SITE_FOLDER, "sitecustomize.py", PYTHON_BOOTSTRAP).map_err(text)?;
    let first = layer("first", PYTHON_LAYER, "bell.py", "WHO = 'first'").map_err(text)?;
    let second = layer("second", PYTHON_LAYER, "bell.py", "WHO = 'second'").map_err(text)?;
    for place in [folder.path(), &bootstrap.source, &first.source, &second.source] {
        std::fs::set_permissions(place, std::fs::Permissions::from_mode(0o755)).map_err(text)?;
    }
    let capabilities = fixture.engine().capabilities().sandboxes.clone();
    if capabilities.is_none_or(|can| can.cannot_add_packages.is_some()) {
        let refused = open.handle.attach_packages(&[first]).await;
        check!(matches!(refused, Err(SandboxError::Provider(ProviderError::Unsupported { .. }))), refused);
        return open.close().await;
    }
    let import = "python3 -c 'import bell; print(bell.WHO, bell.__file__)'";
    open.handle.attach_packages(&[first, bootstrap]).await.map_err(text)?;
    check!(open.shell_output(import).await? == "first /opt/belljar/python/bell.py", "the first layer");
    let ran = run(&fixture, &open, python("import bell; print(bell.WHO)")).await?;
    check!(ran.stdout == "first\n", ran);
    // A later layer takes the place of an earlier one. It is read-only.
    open.handle.attach_packages(&[second]).await.map_err(text)?;
    check!(open.shell_output(import).await? == "second /opt/belljar/python/bell.py", "the second layer");
    let written = open.shell("echo > /opt/belljar/python/bell.py").await?;
    check!(written.stderr.contains("Read-only file system"), written);
    // What is not a folder of the host is refused, and the sandbox continues.
    let link = folder.path().join("link");
    std::os::unix::fs::symlink("/etc", &link).map_err(text)?;
    for source in [folder.path().join("missing"), link] {
        let refused =
            open.handle.attach_packages(&[PackageLayer { source, destination: PYTHON_LAYER }]).await;
        check!(matches!(refused, Err(SandboxError::Provider(ProviderError::Setup { .. }))), refused);
    }
    check!(open.shell_output(import).await? == "second /opt/belljar/python/bell.py", "nothing changed");
    open.close().await
}

async fn code_runs_with_existing_files(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({"env": {"GREETING": "hi"}})).await?;
    open.write_file("helper.py", b"def f(): return 42").await?;
    let code = "import helper, os, sys\nprint(helper.f(), os.environ['GREETING'], sys.stdin.read())\nopen('left', 'w').write('x')\nsys.exit(3)";
    let request = json!({"language": "python", "code": code, "stdin": "input", "files": [{"path": "d/f", "content": "y", "mode": "0755"}]});
    let report = run(&fixture, &open, request).await?;
    check!((report.status, report.exit_code) == (Status::Failed, Some(3)), report);
    check!(report.stdout == "42 hi input\n", report);
    check!(open.shell_output("cat left d/f; stat -c %a d/f").await? == "xy755", "files of the task");
    let report = run(&fixture, &open, python("import os; os.kill(os.getpid(), 11)")).await?;
    check!((report.signal.as_deref(), report.exit_code) == (Some("SIGSEGV"), None), report);
    for layer in Layer::MANDATORY {
        check!(report.isolation().contains(layer), (layer, &report.receipt));
    }
    let report = run(&fixture, &open, json!({"command": ["sh", "-c", "echo $GREETING; exit 9"]})).await?;
    check!((report.stdout.as_str(), report.exit_code) == ("hi\n", Some(9)), report);
    let report =
        run(&fixture, &open, json!({"language": "bash", "code": "echo $(( x + 1 ))", "arguments": {"x": 4}}))
            .await?;
    check!(report.stdout == "5\n", report);
    open.close().await
}

async fn results_and_artifacts_are_returned(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    let code = "import os\ndef main(a):\n    os.makedirs(f'artifacts/{a}')\n    open(f'artifacts/{a}/b.exe', 'w').write('1,2')\n    os.symlink('/etc/passwd', f'artifacts/{a}/link')\n    print('working')\n    return {'twice': 2 * a}";
    for a in [1, 2] {
        let request = json!({"language": "python", "code": code, "arguments": {"a": a}});
        let report = run(&fixture, &open, request).await?;
        check!(report.result.present && report.result.value == json!({"twice": 2 * a}), report);
        check!(report.stdout == "working\n", report);
        let names: Vec<_> = report.artifacts.iter().map(|artifact| artifact.name.clone()).collect();
        // Artifacts of an earlier task are not returned again.
        check!(names == [format!("{a}/b.exe")], names);
        let left_out = report.findings.iter().filter(|finding| finding.rule == "artifact-left-out").count();
        check!(left_out == 1, report.findings);
    }
    let report = run(&fixture, &open, python("print('{\"present\": true}')")).await?;
    check!(!report.result.present && report.artifacts.is_empty(), report);
    open.close().await
}

async fn limits_of_a_task_are_distinguished(fixture: Fixture) -> Verdict {
    let limits = json!({"memory_bytes": 96 << 20, "disk_bytes": 8 << 20, "processes": 10});
    let open = fixture.open(json!({"limits": limits})).await?;
    let request = json!({"language": "python", "code": "while True: pass", "limits": {"timeout_ms": 300}});
    let report = run(&fixture, &open, request).await?;
    check!((report.status, report.exit_code) == (Status::TimedOut, None), report);
    if fixture.has(Layer::CgroupMemory) {
        let hog = "b = bytearray(200 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1";
        let report = run(&fixture, &open, python(hog)).await?;
        check!((report.status, report.limit) == (Status::LimitExceeded, Some(Limit::Memory)), report);
    }
    if fixture.has(Layer::CgroupPids) {
        let bomb = "import os, time\nfor i in range(50):\n    if os.fork() == 0: time.sleep(2); os._exit(0)";
        let report = run(&fixture, &open, python(bomb)).await?;
        check!(report.limit == Some(Limit::Processes), report);
        until("the processes are gone", async || {
            Ok(open.shell_output("! pgrep python3 | grep -q .").await.is_ok())
        })
        .await?;
    }
    let report = run(
        &fixture,
        &open,
        python("open('x', 'wb').write(b'x' * (7 << 20))\nopen('y', 'wb').write(b'x' * (7 << 20))"),
    )
    .await?;
    check!((report.limit, report.exit_code) == (Some(Limit::Disk), Some(1)), report);
    open.shell_output("rm x y").await?;
    let flood = json!({"language": "python", "code": "print('first')\nfor _ in range(1000): print('x' * 1000)\nprint('last')", "limits": {"output_bytes": 4096}});
    let report = run(&fixture, &open, flood).await?;
    check!(
        report.stdout_truncated && report.stdout.starts_with("first\n") && report.stdout.ends_with("last\n"),
        report
    );
    check!(report.status == Status::Succeeded, report);
    open.close().await
}

async fn a_task_is_canceled(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    let cancel = tokio::time::sleep(Duration::from_millis(300));
    let report = run_until(&fixture, &open, python("import time; time.sleep(60)"), cancel).await?;
    check!(report.status == Status::Cancelled && report.exit_code.is_none(), report);
    check!(open.shell_output("pgrep -c python3 || true").await? == "0", "the program still runs");
    open.close().await
}

async fn a_paused_task_times_out(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    // Pausing earlier would fail the start. If the program has not started by then, it times out as well.
    let pause = async {
        for _ in 0..50 {
            if open.shell_output("ls").await?.contains("started") {
                return open.handle.pause().await.map_err(text);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    };
    let code = "import time; open('started', 'w').close(); time.sleep(60)";
    let request = json!({"language": "python", "code": code, "limits": {"timeout_ms": 3000}});
    let (report, _paused) = tokio::join!(run(&fixture, &open, request), pause);
    let report = report?;
    check!((report.status, report.duration_ms < 20_000.0) == (Status::TimedOut, true), report);
    open.close().await
}

async fn programs_are_compiled(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    let code = "#include <stdio.h>\nint main(void) { int x; scanf(\"%d\", &x); printf(\"%d\\n\", x * 2); return 4; }";
    let report = match run(&fixture, &open, json!({"language": "c", "code": code, "stdin": "21"})).await {
        Err(error) if error.contains("not available") => return Ok(()),
        report => report?,
    };
    check!((report.stdout.as_str(), report.exit_code) == ("42\n", Some(4)), report);
    let report =
        run(&fixture, &open, json!({"language": "c", "code": "int main(void) { return x; }"})).await?;
    check!(report.exit_code == Some(1) && report.stderr.contains("error"), report);
    open.close().await
}

async fn a_task_leaves_nothing_behind(fixture: Fixture) -> Verdict {
    let open = fixture.open(json!({})).await?;
    let request = json!({"language": "python", "code": "def main(): return 1", "arguments": {}});
    run(&fixture, &open, request).await?;
    check!(open.shell_output("ls -A /workspace /tmp | tr -d '\\n'").await? == "/tmp:/workspace:", "files");
    let error = run(&fixture, &open, json!({"command": ["ls"], "image": "host"})).await.err();
    check!(error.as_deref().is_some_and(|error| error.starts_with("image: was fixed")), error);
    open.close().await
}
