//! Denials by the sandbox appear in the result, with the setting that would allow them; cold and warm.
#![cfg(target_os = "linux")]

mod common;
mod expect;

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Stdio;
use std::time::Duration;

use common::host::{alive_with, children, groups_left_of};
use common::warm::Conversation;
use common::{belljar, is_root, run};
use expect::{run_code, skip};
use serde_json::{Value, json};

/// Returns rule, message and suggestion of each finding of the run, one per line. Policy findings are
/// excluded.
fn told(result: &Value) -> String {
    let findings = result["findings"].as_array().expect("a result has findings");
    let text = |finding: &Value, field: &str| finding[field].as_str().expect("a finding has it").to_owned();
    let line = |finding: &Value| {
        ["rule", "category", "message", "suggestion", "decided_by"]
            .map(|field| text(finding, field))
            .join(" | ")
    };
    findings.iter().filter(|finding| finding["line"].is_null()).map(line).collect::<Vec<_>>().join("\n")
}

/// Runs code and expects one finding that contains all of these words.
#[track_caller]
fn explains(language: &str, code: &str, arguments: &[&str], words: &[&str]) {
    let answer = run_code(language, code, arguments);
    if answer.error_code() == "language_unavailable" {
        return skip("findings", answer.error_message());
    }
    let told = told(&answer.json);
    assert_eq!(told.lines().count(), 1, "expected one finding, got {told:?}: {:#}", answer.json);
    assert!(words.iter().all(|word| told.contains(word)), "{words:?} in {told}");
}

/// Runs code and expects this status, without any finding.
#[track_caller]
fn explains_nothing(language: &str, status: &str, code: &str, arguments: &[&str]) {
    let answer = run_code(language, code, arguments);
    if answer.error_code() == "language_unavailable" {
        return skip("findings", answer.error_message());
    }
    assert_eq!((answer.status(), told(&answer.json).as_str()), (status, ""), "{:#}", answer.json);
}

/// Makes a few calls that are refused.
const CALLS: &str = "\
import ctypes, socket
libc = ctypes.CDLL(None, use_errno=True)
for _ in range(3):
    assert libc.unshare(0x10000000) == -1 and ctypes.get_errno() == 1, ctypes.get_errno()
assert libc.ptrace(0, 0, 0, 0) == -1 and ctypes.get_errno() == 1, ctypes.get_errno()
try:
    socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)
except PermissionError as error:
    print(error.errno)
try:
    socket.socket().setsockopt(6, 31, b'tls')
except PermissionError as error:
    print(error.errno)
";

/// A call is refused with the same errno and the same finding in every mode.
#[test]
fn refused_calls_are_named() {
    let line = json!({"code": CALLS});
    for mode in ["off", "fork", "pool"] {
        let settings = format!("mode = \"{mode}\"");
        let mut conversation = Conversation::start(&settings, "", ["--language", "python", "-c", "0"]);
        let result = if mode == "off" { conversation.ask(&line) } else { conversation.ask_warm(mode, &line) };
        assert_eq!(
            (&result["status"], &result["stdout"]),
            (&json!("succeeded"), &json!("1\n1\n")),
            "{result:#}"
        );
        let told = told(&result);
        let lines: Vec<_> = told.lines().collect();
        assert_eq!(lines.len(), 4, "{mode}: {told}");
        let expected = [
            "sandbox-syscall | process | the call unshare() was refused: sandboxes cannot create or \
             enter namespaces (3 times) | no setting allows it",
            "sandbox-syscall | introspection | the call ptrace() was refused: processes cannot inspect \
             each other's memory | no setting allows it; use an in-process debugger",
            "sandbox-syscall | network | the call socket(SOCK_RAW) was refused: only TCP, UDP and UNIX sockets",
            "sandbox-syscall | network | the call setsockopt(TCP_ULP) was refused: that socket option is not on",
        ];
        for (line, start) in lines.iter().zip(expected) {
            assert!(line.starts_with(start), "{mode}: {line}");
            assert!(line.ends_with("| the system-call filter"), "{mode}: {line}");
        }
    }
}

#[test]
fn denials_of_any_program_are_reported() {
    let answer = run(["--", "unshare", "--user", "true"]);
    assert_eq!(answer.status(), "failed");
    assert!(told(&answer.json).contains("the call unshare() was refused"), "{:#}", answer.json);
    explains("javascript", "require('fs').chmodSync('.', 0o4755)", &[], &["sandbox-syscall", "set-uid"]);
}

/// At most 16 call names are reported, and a flood of refused calls slows down only its own program.
#[test]
fn a_flood_of_refused_calls_is_truncated() {
    let code = "\
import ctypes, threading
libc = ctypes.CDLL(None, use_errno=True)
seen = set()
def flood():
    for _ in range(300):
        if libc.unshare(0x10000000) != -1 or ctypes.get_errno() not in (1, 38):
            seen.add(ctypes.get_errno())
threads = [threading.Thread(target=flood) for _ in range(60)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(seen)
";
    for mode in ["fork", "pool"] {
        let settings = format!("mode = \"{mode}\"");
        let mut conversation = Conversation::start(&settings, "", ["--language", "python", "-c", "0"]);
        let result = conversation.ask_warm(mode, &json!({"code": code}));
        assert_eq!(
            (&result["status"], &result["stdout"]),
            (&json!("succeeded"), &json!("set()\n")),
            "{result:#}"
        );
        assert!(told(&result).contains("(at least 256 times)"), "{mode}: {}", told(&result));
    }
    let many =
        "import ctypes\nfor number in range(100, 330): ctypes.CDLL(None).syscall(number, -1, -1, -1, -1)";
    let answer = run_code("python", many, &[]);
    assert!(told(&answer.json).lines().count() <= 16, "{}", told(&answer.json));
}

/// A run that only makes refused calls, beside others in the same launcher.
#[test]
fn a_flood_does_not_delay_other_runs() {
    let temporary = tempfile::tempdir().expect("a folder");
    let token = format!("flood.{}", std::process::id());
    let flood = "\
import ctypes, threading
libc = ctypes.CDLL(None)
def flood():
    while True: libc.unshare(0x10000000)
[threading.Thread(target=flood).start() for _ in range(60)]
";
    let command = ["python3", "-c", flood, &token];
    let mut lines = format!("{}\n", json!({"command": command, "limits": {"timeout_ms": 10_000}}));
    for _ in 0..3 {
        lines += &format!("{}\n", json!({"language": "python", "code": "print(1)"}));
    }
    let mut command = belljar();
    command.args(["run", "--batch", "-", "--jobs", "2", "--quiet"]).env("TMPDIR", temporary.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    child.stdin.take().expect("it is piped").write_all(lines.as_bytes()).expect("it is read");
    let launcher = loop {
        assert!(child.try_wait().expect("it is our child").is_none(), "it ended without a launcher");
        if let Some(launcher) = children(child.id()).first() {
            break *launcher;
        }
    };
    let output = child.wait_with_output().expect("it ends");
    let output = String::from_utf8(output.stdout).expect("results are text");
    let results: Vec<Value> =
        output.lines().map(|line| serde_json::from_str(line).expect("a result is JSON")).collect();
    let statuses: Vec<_> =
        results.iter().map(|result| result["status"].as_str().unwrap_or_default()).collect();
    assert_eq!(statuses, ["succeeded", "succeeded", "succeeded", "timed_out"], "{output}");
    // The launcher tidies up after the answer.
    let patience = Duration::from_secs(120);
    assert_eq!(alive_with(&token, patience), Vec::<String>::new());
    assert_eq!(groups_left_of(launcher, patience), Vec::<String>::new());
    assert_eq!(temporary.path().read_dir().expect("it is a folder").count(), 0);
}

#[test]
fn writes_to_read_only_paths_are_explained() {
    let words = &[
        "sandbox-read-only",
        "'/etc/x' could not be written",
        "write below /workspace",
        "--mount SRC:DEST:rw",
    ];
    explains("python", "open('/etc/x', 'w')", &[], words);
    explains("javascript", "require('fs').writeFileSync('/etc/x', '')", &[], words);
    explains("bash", "echo > /etc/x", &[], words);
    let folder = tempfile::tempdir().expect("a folder");
    let mount = format!("{}:/data", folder.path().display());
    let words =
        &["sandbox-read-only", "'/data/x' could not", "/data is mounted read-only", "--mount SRC:/data:rw"];
    explains("python", "open('/data/x', 'w')", &["--mount", &mount], words);
}

#[test]
fn access_to_protected_files_is_explained() {
    let words = &["sandbox-no-access", "'/proc/slabinfo' is not accessible", "no setting allows it"];
    explains("python", "open('/proc/slabinfo')", &[], words);
    let words =
        &["sandbox-read-only", "'/proc/sys/kernel/hostname' is not accessible", "no setting allows it"];
    explains("python", "open('/proc/sys/kernel/hostname', 'w')", &[], words);
    if is_root() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a");
        std::fs::write(&file, "1").expect("a file");
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("its owner may");
        chown(&file, Some(12_345), None).expect("root may");
        let mount = format!("{}:/data", folder.path().display());
        let words = &["sandbox-no-access", "'/data/a' is not accessible", "--file SRC:DEST"];
        explains("python", "open('/data/a')", &["--mount", &mount], words);
    }
    let words = &["sandbox-not-shared", "'/home/ada/a.csv' is not in the sandbox", "--file SRC:DEST"];
    explains("python", "open('/home/ada/a.csv')", &[], words);
}

/// A path in a finding comes from the program, so it must be escaped for a terminal.
#[test]
fn a_path_is_shown_without_its_control_characters() {
    explains(
        "bash",
        "echo 'x: /etc/\x1b[2Jx: Read-only file system' >&2; exit 1",
        &[],
        &["'/etc/\u{fffd}[2Jx'"],
    );
}

#[test]
fn the_programs_own_errors_are_not_explained() {
    explains_nothing(
        "python",
        "failed",
        "import os; open('a', 'w').close(); os.chmod('a', 0); open('a')",
        &[],
    );
    let own = "import os; open('/tmp/a', 'w').close(); os.chmod('/tmp/a', 0); open('/tmp/../tmp/a')";
    explains_nothing("python", "failed", own, &[]);
    explains_nothing("bash", "failed", "echo 1 > a.sh; /workspace/a.sh", &[]);
    explains_nothing("python", "failed", "open('/tmp/nothing')", &[]);
    explains_nothing("python", "failed", "bytearray(1 << 60)", &[]);
    let printed = "import sys; sys.stderr.write(\"OSError: [Errno 30] Read-only file system: '/etc/x'\\n\")";
    explains_nothing("python", "succeeded", printed, &[]);
    explains_nothing("bash", "succeeded", "echo 'curl: (6) Could not resolve host: example.com' >&2", &[]);
    explains_nothing(
        "bash",
        "failed",
        "echo 'Could not resolve host: a.org' >&2; exit 1",
        &["--network", "full"],
    );
}

/// Ordinary programs of ordinary runtimes cause no findings.
#[test]
fn ordinary_programs_have_no_findings() {
    let python = "import subprocess, threading, tempfile, socket, asyncio, sqlite3, multiprocessing, os, ssl\n\
        subprocess.run(['true']); threading.Thread(target=print).start(); tempfile.TemporaryFile()\n\
        sqlite3.connect('a.db').execute('create table a (b)'); asyncio.run(asyncio.sleep(0))\n\
        if os.fork() == 0: os._exit(0)\nos.wait(); multiprocessing.Lock()";
    explains_nothing("python", "succeeded", python, &[]);
    let javascript = "require('child_process').execSync('ls -l /'); require('fs').readdirSync('/proc/self');\n\
        new (require('worker_threads').Worker)('0', {eval: true}); require('net').createServer().listen(0).close()";
    explains_nothing("javascript", "succeeded", javascript, &[]);
    let bash = "mkdir a; touch a/b; tar cf a.tar a; cp -a a c; rm -r a; sort /etc/passwd | head -1; git init -q . || true; date";
    explains_nothing("bash", "succeeded", bash, &[]);
    explains_nothing("c", "succeeded", "int main(void) { return 0; }", &[]);
}

#[test]
fn unreachable_hosts_are_explained() {
    let name = &["sandbox-no-network", "network.mode = none", "--network"];
    explains("python", "import urllib.request; urllib.request.urlopen('http://example.com')", &[], name);
    let address = "import socket; socket.create_connection(('1.1.1.1', 53))";
    explains("python", address, &[], &["sandbox-no-network", "a host could not be reached"]);
    explains("javascript", "fetch('https://example.com')", &[], &["'example.com'", "--network example.com"]);
    let connect = "require('net').connect(443, '1.1.1.1')";
    explains("javascript", connect, &[], &["'1.1.1.1:443'", "--network 1.1.1.1:443"]);
    explains("bash", "curl -sS https://example.com", &[], &["'example.com'", "--network example.com"]);
    explains("bash", "git clone -q https://example.com/a.git", &[], &["'example.com'"]);
}

#[test]
fn survived_limits_are_explained() {
    let threads = "import threading, time\ntry:\n    while True: threading.Thread(target=time.sleep, args=(1,), daemon=True).start()\n\
        except RuntimeError: print('enough')";
    let words = &["sandbox-processes", "the limit is 8", "limits.processes = 8", "--processes"];
    explains("python", threads, &["--processes", "8"], words);
    let full = "try:\n    open('a', 'wb').write(bytes(9 << 20))\nexcept OSError: print('full')";
    let words = &["sandbox-disk-full", "1 MB together", "--disk"];
    explains("bash", "head -c 9000000 /dev/zero > /tmp/a; true", &["--disk", "1M"], words);
    explains("python", full, &["--disk", "1M"], words);
    explains("python", "a = [open('/dev/null') for _ in range(2000)]", &[], &["sandbox-open-files", "1024"]);
}

/// A limit that ended the program is reported in `error`, not again as a finding.
#[test]
fn a_limit_that_ends_the_run_is_not_a_finding() {
    let answer = run_code("bash", "head -c 9000000 /dev/zero > /tmp/a || exit 1", &["--disk", "1M"]);
    assert_eq!((answer.text("limit"), told(&answer.json).as_str()), ("disk", ""), "{:#}", answer.json);
}

#[test]
fn text_output_shows_hints() {
    let said = |arguments: &[&str]| {
        let output = belljar().arg("run").args(arguments).output().expect("the binary starts");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let code = "open('/etc/x', 'w')";
    let shown = said(&["-c", code]);
    let hint = "\nbelljar: hint: '/etc/x' could not be written: the sandbox's root is read-only; write below /workspace";
    assert!(shown.contains(hint), "{shown}");
    assert!(!said(&["-c", code, "--quiet"]).contains("hint"));
    assert!(!said(&["-c", "try: open('/etc/x', 'w')\nexcept OSError: pass"]).contains("hint"));
}
