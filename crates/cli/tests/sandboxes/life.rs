//! The lifecycle of sandboxes: creation, state, pausing, expiry and removal.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::host::{alive_with, groups_of, launcher, sandboxed_with};
use crate::common::is_root;
use crate::common::server::{KEY, Server};
use crate::{own_sleep, wait_for};

fn python(code: &str) -> Value {
    json!({"language": "python", "code": code})
}

#[test]
fn state_survives_between_executions_and_ends_with_the_sandbox() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let request = json!({"env": {"TOKEN": "s3cret", "HIDDEN": "never-stored"}, "metadata": {"agent": "a"}, "limits": {"memory_bytes": 268435456}});
    let opened = server.post("/v1/sandboxes", &request);
    let sandbox = opened.json();
    let url = format!("/v1/sandboxes/{}", sandbox["id"].as_str().unwrap());
    assert_eq!((opened.status, opened.header("location")), (201, Some(url.as_str())));
    assert_eq!((&sandbox["state"], &sandbox["env_names"]), (&json!("running"), &json!(["HIDDEN", "TOKEN"])));
    assert_eq!(sandbox["limits"]["memory_bytes"], 268435456);
    assert!(
        sandbox["receipt"]["isolation"].as_array().unwrap().iter().any(|layer| layer == "landlock"),
        "{sandbox}"
    );
    assert_eq!(server.get(&url).json(), sandbox);
    let run = |request: &Value| server.post(&format!("{url}/executions"), request);
    let wrote = run(&python("import os; open('kept','w').write(os.environ['TOKEN']); print('wrote')"));
    assert_eq!((wrote.status, &wrote.json()["stdout"]), (200, &json!("wrote\n")));
    let read = run(&json!({"command": ["cat", "kept"]})).json();
    assert_eq!((&read["stdout"], &read["status"]), (&json!("s3cret"), &json!("succeeded")));
    assert!(read["receipt"]["isolation"].as_array().unwrap().iter().any(|layer| layer == "seccomp"));
    // It is recorded like any other execution.
    let again = server.get(&format!("/v1/executions/{}", read["id"].as_str().unwrap())).json();
    assert_eq!(again, read);
    // Settings of the sandbox cannot be overridden by an execution.
    let refused = run(&json!({"language": "python", "code": "", "network": {"mode": "full"}}));
    assert_eq!((refused.status, refused.code().as_str()), (422, "invalid_request"));

    let stats = server.get(&format!("{url}/stats")).json();
    assert!(stats["disk_bytes"].as_u64().unwrap() > 0 && stats["output_bytes"] == 12, "{stats}");
    let found = |query: &str| {
        server.get(&format!("/v1/sandboxes?{query}")).json()["sandboxes"].as_array().unwrap().len()
    };
    assert_eq!((found("metadata.agent=a"), found("metadata.agent=b"), found("state=ended")), (1, 0, 0));
    let ended = server.delete(&url);
    assert_eq!((ended.status, &ended.json()["ended_because"]), (200, &json!("closed")));
    assert_eq!(run(&python("")).code(), "sandbox_ended");
    assert_eq!((server.delete(&url).status, found(""), found("state=ended")), (410, 0, 1));
    assert_eq!(server.get(&url).json()["state"], "ended");
    for file in ["belljar.db", "belljar.db-wal"] {
        let bytes = std::fs::read(folder.path().join(file)).unwrap_or_default();
        assert!(
            !bytes.windows(12).any(|part| part == b"never-stored"),
            "a value of the environment was stored"
        );
    }
}

#[test]
fn executions_in_one_sandbox_keep_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let url = server.sandbox(&json!({}));
    let ids: Vec<_> = (0..8)
        .map(|number| {
            let code = format!("echo {number} >> log; sleep 0.0{}", 8 - number);
            let queued = server.post(
                &format!("{url}/executions"),
                &json!({"language": "bash", "code": code, "wait": false}),
            );
            assert_eq!(queued.status, 202);
            queued.json()["id"].as_str().unwrap().to_owned()
        })
        .collect();
    let last = server.post(&format!("{url}/executions"), &json!({"command": ["cat", "log"]})).json();
    assert_eq!(last["stdout"], "0\n1\n2\n3\n4\n5\n6\n7\n");
    // The next execution starts before the result of this one is stored.
    for id in ids {
        wait_for("the execution succeeded", || {
            server.get(&format!("/v1/executions/{id}")).json()["status"] == "succeeded"
        });
    }
}

#[test]
fn a_paused_sandbox_uses_no_cpu_and_resumes() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let url = server.sandbox(&json!({}));
    let spin = json!({"language": "python", "wait": false, "code":
        "import signal\nfor n in range(1, 32):\n  try: signal.signal(n, signal.SIG_IGN)\n  except OSError: pass\nwhile True: pass"});
    assert_eq!(server.post(&format!("{url}/executions"), &spin).status, 202);
    let cpu = || server.get(&format!("{url}/stats")).json()["cpu_ms"].as_u64();
    let Some(before) = cpu() else { return eprintln!("skipped: CPU time is not accounted here") };
    wait_for("the program spins", || cpu().unwrap() > before + 200);
    let paused = server.post(&format!("{url}/pause"), &json!({}));
    if paused.status == 422 {
        return eprintln!("skipped: {}", paused.text());
    }
    assert_eq!((&paused.json()["state"], &paused.json()["expires"]), (&json!("paused"), &Value::Null));
    let still = cpu();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(cpu(), still);
    let refused = server.post(&format!("{url}/extend"), &json!({"timeout_ms": 1000}));
    assert_eq!((refused.status, refused.code().as_str()), (409, "sandbox_paused"));
    let resumed = server.post(&format!("{url}/resume"), &json!({})).json();
    assert!(resumed["state"] == "running" && resumed["expires"].is_i64(), "{resumed}");
    wait_for("the program continues", || cpu() > still);
    assert_eq!(server.delete(&url).status, 200);
}

/// Limits a cgroup to one millisecond of CPU time per second, so that its processes take long to do anything,
/// even to stop.
fn starve(groups: &[PathBuf]) -> bool {
    let write = |group: &PathBuf, file: &str, text: &str| std::fs::write(group.join(file), text).is_ok();
    let older = |group: &PathBuf| {
        write(group, "cpu.cfs_quota_us", "1000") && write(group, "cpu.cfs_period_us", "1000000")
    };
    groups.iter().any(|group| older(group) || write(group, "cpu.max", "1000 1000000"))
}

/// Returns whether a cgroup was asked to freeze and has not done so yet.
fn is_stopping(group: &Path) -> bool {
    let read = |file: &str| std::fs::read_to_string(group.join(file)).unwrap_or_default();
    let newer = || read("cgroup.freeze").starts_with('1') && read("cgroup.events").contains("frozen 0");
    read("freezer.state").starts_with("FREEZING") || newer()
}

/// The system calls that sleep for a given time.
const SLEEPS: [&str; 2] = if cfg!(target_arch = "x86_64") { ["35 ", "230 "] } else { ["101 ", "115 "] };

/// Returns whether the launcher sleeps outside its poll.
fn is_asleep(launcher: u32) -> bool {
    let call = std::fs::read_to_string(format!("/proc/{launcher}/syscall")).unwrap_or_default();
    SLEEPS.iter().any(|number| call.starts_with(number))
}

/// Pauses a sandbox and runs code in others until the pause is answered. Returns how many runs were served
/// meanwhile.
fn serve_while_pausing(server: &Server, url: &str, groups: &[PathBuf]) -> u32 {
    let answered = AtomicBool::new(false);
    let is_answered = || answered.load(Ordering::SeqCst);
    let launcher = launcher(server.child.id());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let paused = server.post(&format!("{url}/pause"), &json!({}));
            assert!(matches!(paused.status, 200 | 429 | 503), "{}", paused.text());
            answered.store(true, Ordering::SeqCst);
        });
        while !is_answered() && !groups.iter().any(|group| is_stopping(group)) {
            assert!(!is_asleep(launcher), "the launcher sleeps");
        }
        let watch = scope.spawn(|| {
            while !is_answered() {
                assert!(!is_asleep(launcher), "the launcher sleeps");
            }
        });
        let mut served = 0;
        while !is_answered() {
            let echoed = server.post("/v1/executions", &json!({"command": ["echo", "served"]})).json();
            assert_eq!(echoed["stdout"], "served\n", "{echoed}");
            served += u32::from(!is_answered());
        }
        watch.join().unwrap();
        served
    })
}

/// Checks the order of events, not durations: one round in which several runs were served is sufficient, and
/// there is none if the launcher blocks until a sandbox has stopped.
#[test]
fn other_sandboxes_are_served_during_a_pause() {
    if !is_root() {
        return eprintln!("skipped: only root may change a sandbox's cgroup");
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let url = server.sandbox(&json!({}));
    let word = own_sleep(3800);
    let spin = json!({"command": ["sh", "-c", "while :; do :; done", word], "background": true});
    assert!(server.post(&format!("{url}/commands"), &spin).status < 300);
    let mut found = None;
    wait_for("the program spins", || {
        found = sandboxed_with(&word);
        found.is_some()
    });
    let groups = groups_of(found.unwrap());
    if !starve(&groups) {
        return eprintln!("skipped: no cgroup limits CPU time here");
    }
    wait_for("others are served meanwhile", || {
        let served = serve_while_pausing(&server, &url, &groups);
        let resumed = server.post(&format!("{url}/resume"), &json!({}));
        assert!(matches!(resumed.status, 200 | 409 | 429 | 503), "{}", resumed.text());
        served >= 5
    });
}

#[test]
fn sandboxes_expire_and_can_be_extended() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::configured(folder.path(), "sandbox_life = \"10m\"");
    let url = server.sandbox(&json!({"timeout_ms": 400}));
    let long = server.sandbox(&json!({"timeout_ms": 60000}));
    let extended = server.post(&format!("{long}/extend"), &json!({"timeout_ms": 120000})).json();
    assert!(extended["expires"].as_i64().unwrap() - extended["created"].as_i64().unwrap() >= 120000);
    let why = |url: &str| server.get(url).json()["ended_because"].clone();
    wait_for("the end", || why(&url) == "expired");
    assert_eq!(why(&long), Value::Null);
    let shortened = server.post(&format!("{long}/extend"), &json!({"timeout_ms": 100}));
    assert_eq!(shortened.status, 200);
    wait_for("the end", || why(&long) == "expired");
    for (timeout, status) in [(0, 422), (-1, 422), (3_600_000, 422)] {
        assert_eq!(server.post("/v1/sandboxes", &json!({"timeout_ms": timeout})).status, status, "{timeout}");
    }
    let pausing = server.post("/v1/sandboxes", &json!({"timeout_ms": 300, "on_timeout": "pause"}));
    if pausing.status == 422 {
        return eprintln!("skipped: {}", pausing.text());
    }
    let pausing = format!("/v1/sandboxes/{}", pausing.json()["id"].as_str().unwrap());
    wait_for("the pause", || server.get(&pausing).json()["state"] == "paused");
    assert_eq!(server.post(&format!("{pausing}/resume"), &json!({})).json()["state"], "running");
}

#[test]
fn resuming_restores_the_lifetime_even_if_the_client_disconnects() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::configured(folder.path(), "sandbox_life = \"10m\"");
    let url = server.sandbox(&json!({"timeout_ms": 60000}));
    let extended = server.post(&format!("{url}/extend"), &json!({"timeout_ms": 300000}));
    assert_eq!(extended.status, 200);
    let pause = || server.post(&format!("{url}/pause"), &json!({}));
    if pause().status == 422 {
        return eprintln!("skipped: {}", pause().text());
    }
    // The extended lifetime applies, not the original one.
    let resumed = server.post(&format!("{url}/resume"), &json!({})).json();
    assert!(resumed["expires"].as_i64() >= extended.json()["expires"].as_i64(), "{resumed}");
    let mut resumed = 0;
    for round in 0..30 {
        assert_eq!(pause().json()["expires"], Value::Null);
        // Some clients disconnect before the server has read the request, some after that.
        let asked = server.send_as(KEY, "POST", &format!("{url}/resume"), "", b"");
        std::thread::sleep(Duration::from_millis(3 * round));
        drop(asked);
        let end = Instant::now() + Duration::from_millis(300);
        while Instant::now() < end && server.get(&url).json()["state"] == "paused" {}
        if server.get(&url).json()["state"] == "running" {
            wait_for("the sandbox has an expiry time", || server.get(&url).json()["expires"].is_i64());
            resumed += 1;
        }
    }
    assert!(resumed > 0, "no request was read before its client disconnected");
}

#[test]
fn unused_sandboxes_are_closed() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::configured(folder.path(), "sandbox_idle = \"4s\"\nsandboxes = 2");
    // Without a timeout of its own, a sandbox has the server's.
    let (idle, used) = (server.sandbox(&json!({})), server.sandbox(&json!({"timeout_ms": 60000})));
    assert_eq!(server.get(&idle).json()["timeout_ms"], 4000);
    let full = server.post("/v1/sandboxes", &json!({}));
    assert_eq!((full.status, full.code().as_str()), (429, "too_many_sandboxes"));
    assert_eq!(full.json()["error"]["message"], "Maximum number of sandboxes (2) reached");
    assert!(full.header("retry-after").is_some());
    wait_for("the end", || server.get(&idle).json()["ended_because"] == "expired");
    assert_eq!(server.get(&used).json()["state"], "running");
    server.sandbox(&json!({}));
}

/// Starts a use of a sandbox, and returns a function that ends it.
fn start_use<'a>(server: &'a Server, url: &str, kind: &str) -> Box<dyn FnOnce() + 'a> {
    let until_stopped = "until test -e stop; do sleep 0.05; done";
    let file = format!("{url}/files?path=stop");
    let stop = move || {
        let octets = "Content-Type: application/octet-stream\r\n";
        assert!(server.call("PUT", &file, octets, b"").status < 300);
    };
    match kind {
        "a running command" => {
            let command = json!({"shell": until_stopped, "background": true});
            assert_eq!(server.post(&format!("{url}/commands"), &command).status, 201);
            Box::new(stop)
        }
        "an execution" => {
            let run = json!({"language": "bash", "code": until_stopped, "wait": false});
            assert_eq!(server.post(&format!("{url}/executions"), &run).status, 202);
            Box::new(stop)
        }
        _ => {
            let watch = format!("{url}/files/watch?path=.");
            let mut stream = server.send_as(KEY, "GET", &watch, "Accept: text/event-stream\r\n", b"");
            // The first bytes are the head of the response: the watch has begun.
            stream.read_exact(&mut [0; 12]).unwrap();
            Box::new(move || drop(stream))
        }
    }
}

/// The uses begin before the timeouts are short, and the unused sandbox gets its timeout last: when it has
/// ended, the others would have ended, too, if they were not in use.
#[test]
fn a_sandbox_in_use_does_not_expire() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let extend = |url: &str, timeout_ms: u32| {
        let extended = server.post(&format!("{url}/extend"), &json!({"timeout_ms": timeout_ms}));
        assert_eq!((extended.status, &extended.json()["timeout_ms"]), (200, &json!(timeout_ms)));
    };
    let uses: Vec<_> = ["a running command", "an execution", "an open stream"]
        .into_iter()
        .map(|kind| {
            let url = server.sandbox(&json!({"timeout_ms": 600_000}));
            let stop = start_use(&server, &url, kind);
            (kind, url, stop)
        })
        .collect();
    uses.iter().for_each(|(_, url, _)| extend(url, 1_000));
    let unused = server.sandbox(&json!({"timeout_ms": 600_000}));
    extend(&unused, 1_100);
    wait_for("the end of the unused one", || server.get(&unused).json()["state"] == "ended");
    for (kind, url, _) in &uses {
        let info = server.get(url).json();
        assert_eq!((&info["state"], &info["halted"]), (&json!("running"), &Value::Null), "{kind}");
        assert!(info["expires"].as_i64().is_some(), "{kind}: {info}");
    }
    for (kind, url, stop) in uses {
        stop();
        wait_for(&format!("the end of one with {kind}"), || {
            server.get(&url).json()["halted"] == "expired: not used for 1s"
        });
    }
}

#[test]
fn a_life_ends_however_much_the_sandbox_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::configured(folder.path(), "sandbox_life = \"10m\"");
    let url = server.sandbox(&json!({"life_ms": 3000}));
    let opened = server.get(&url).json();
    // The default timeout is no longer than the life.
    assert_eq!((&opened["life_ms"], &opened["timeout_ms"]), (&json!(3000), &json!(3000)));
    let sleeping = json!({"command": ["sleep", "1000"], "background": true});
    assert_eq!(server.post(&format!("{url}/commands"), &sleeping).status, 201);
    wait_for("the end", || server.get(&url).json()["halted"] == "expired: its life of 3s has ended");
    assert_eq!(server.get(&server.sandbox(&json!({}))).json()["life_ms"], 600_000);
    for (request, says) in [
        (
            json!({"life_ms": 660_000}),
            "life_ms: 11m is above 10m, the longest life here; server.sandbox_life",
        ),
        (json!({"life_ms": 0}), "life_ms: must be above zero"),
        (json!({"life_ms": 1000, "timeout_ms": 2000}), "timeout_ms: 2s is longer than this sandbox's life"),
    ] {
        let refused = server.post("/v1/sandboxes", &request);
        assert_eq!((refused.status, refused.code().as_str()), (422, "invalid_request"), "{request}");
        assert!(refused.text().contains(says), "{}", refused.text());
    }
}

#[test]
fn an_ended_sandbox_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let (expired, closed, open) = {
        let server = Server::new(folder.path());
        let url = server.sandbox(&json!({"timeout_ms": 100}));
        wait_for("the end", || server.get(&url).json()["state"] == "ended");
        let closed = server.sandbox(&json!({}));
        assert_eq!(server.delete(&closed).json()["halted"], "closed on request");
        (url, closed, server.sandbox(&json!({})))
    };
    // The reasons outlive the server.
    let server = Server::new(folder.path());
    for (url, why) in [
        (&expired, "expired: not used for 100ms"),
        (&closed, "closed on request"),
        (&open, "its server stopped unexpectedly"),
    ] {
        let info = server.get(url).json();
        assert_eq!((&info["halted"], &info["expires"]), (&json!(why), &Value::Null), "{info}");
        let later = server.post(&format!("{url}/executions"), &python("1"));
        assert_eq!((later.status, later.code().as_str()), (410, "sandbox_ended"));
        let message = later.json()["error"]["message"].clone();
        assert_eq!(message, format!("the sandbox has ended ({why}); open another"));
    }
    let listed = server.get("/v1/sandboxes?state=ended").json();
    let reasons = listed["sandboxes"].as_array().unwrap().iter().map(|sandbox| sandbox["halted"].clone());
    assert!(reasons.into_iter().any(|why| why == "expired: not used for 100ms"), "{listed}");
}

#[test]
fn sandboxes_of_other_tenants_are_not_found() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let other = server.tenant("other", json!({"sandboxes": 1}));
    let url = server.sandbox(&json!({}));
    let json = "Content-Type: application/json\r\n";
    let unknown = "/v1/sandboxes/sbx_00000000000000000000000000000000000000";
    let verbs = [
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/extend"),
        ("POST", "/pause"),
        ("POST", "/resume"),
        ("GET", "/stats"),
        ("POST", "/executions"),
    ];
    for (method, verb) in verbs {
        let body = br#"{"timeout_ms":1,"language":"python","code":""}"#;
        let answer = |url: &str| {
            let reply = server.call_as(&other, method, &format!("{url}{verb}"), json, body);
            (reply.status, reply.json()["error"]["message"].clone())
        };
        assert_eq!(answer(&url), answer(unknown), "{method} {verb}");
        assert_eq!(answer(&url).0, 404, "{method} {verb}");
    }
    let opened = server.call_as(&other, "POST", "/v1/sandboxes", json, b"{}");
    assert_eq!(opened.status, 201);
    let refused = server.call_as(&other, "POST", "/v1/sandboxes", json, b"{}");
    assert_eq!(refused.json()["error"]["message"], "Maximum number of sandboxes (1) reached");
    assert_eq!(server.get("/v1/sandboxes").json()["sandboxes"].as_array().unwrap().len(), 1);
    // A key without the scope gives no access.
    let key = server.post("/v1/tenants/other/keys", &json!({"scopes": ["run"]})).json()["key"].clone();
    let refused = server.call_as(key.as_str().unwrap(), "GET", "/v1/sandboxes", "", b"");
    assert_eq!((refused.status, refused.code().as_str()), (403, "forbidden"));
}

#[test]
fn a_tenants_memory_quota_covers_all_its_sandboxes() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let key = server.tenant("small", json!({"memory_bytes": 600 << 20}));
    let post = |path: &str, body: Value| {
        server.call_as(&key, "POST", path, "Content-Type: application/json\r\n", body.to_string().as_bytes())
    };
    let opened = post("/v1/sandboxes", json!({}));
    assert_eq!(opened.status, 201, "{}", opened.text());
    let taken = post("/v1/sandboxes", json!({}));
    assert_eq!((taken.status, taken.code().as_str()), (429, "quota_exceeded"));
    let never = post("/v1/executions", json!({"command": ["true"], "limits": {"memory_bytes": 700 << 20}}));
    assert_eq!((never.status, never.code().as_str()), (422, "invalid_request"));
    let fits = post("/v1/executions", json!({"command": ["true"], "limits": {"memory_bytes": 64 << 20}}));
    assert_eq!(fits.json()["status"], "succeeded");
    let url = format!("/v1/sandboxes/{}", opened.json()["id"].as_str().unwrap());
    assert_eq!(server.call_as(&key, "DELETE", &url, "", b"").status, 200);
    assert_eq!(post("/v1/sandboxes", json!({})).status, 201);
}

#[test]
fn sandboxes_end_with_their_server() {
    let folder = tempfile::tempdir().unwrap();
    let mark = "sleep 98761";
    for signal in ["-KILL", "-TERM"] {
        let mut server = Server::configured(folder.path(), "drain = \"1s\"");
        let url = server.sandbox(&json!({}));
        let sleeping = json!({"command": ["sleep", "98761"], "wait": false});
        assert_eq!(server.post(&format!("{url}/executions"), &sleeping).status, 202);
        wait_for("the program runs", || !alive_with(mark, Duration::ZERO).is_empty());
        server.signal(signal);
        server.child.wait().unwrap();
        wait_for("nothing is left", || alive_with(mark, Duration::ZERO).is_empty());
        let again = Server::configured(folder.path(), "drain = \"1s\"");
        let ended = again.get(&url).json();
        assert_eq!(
            (&ended["state"], &ended["ended_because"]),
            (&json!("ended"), &json!("interrupted")),
            "{signal}"
        );
        assert_eq!(again.call_as(KEY, "GET", &format!("{url}/stats"), "", b"").status, 410);
    }
}

const REGISTRIES: [&str; 3] = ["pypi.org", "files.pythonhosted.org", "registry.npmjs.org"];

#[test]
fn packages_can_be_installed_inside_with_network() {
    let asked = "cd $(mktemp -d) && pip download -q six && npm pack is-odd";
    let host = std::process::Command::new("sh").args(["-c", asked]).output();
    if !host.is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: pip or npm of the host reach no registry");
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let limits = json!({"disk_bytes": 512 << 20, "memory_bytes": 1 << 30});
    let url = server.sandbox(&json!({"network": {"mode": "hosts", "hosts": REGISTRIES}, "limits": limits}));
    let shell = |line: &str| server.post(&format!("{url}/commands"), &json!({"shell": line})).json();
    for install in ["pip install six", "npm install is-odd"] {
        let installed = shell(install);
        assert_eq!(installed["exit_code"], 0, "{installed}");
    }
    // Installed packages are available to commands and to code.
    assert_eq!(shell("python3 -c 'import six; print(six.PY3)'")["stdout"], "True\n");
    let ran = |request: Value| server.post(&format!("{url}/executions"), &request).json()["stdout"].clone();
    assert_eq!(ran(python("import six; print(six.PY3)")), "True\n");
    let code = "console.log(require('is-odd')(3))";
    assert_eq!(ran(json!({"language": "javascript", "code": code})), "true\n");
}
