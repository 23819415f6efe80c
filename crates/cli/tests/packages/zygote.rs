//! Packages and warm interpreters: code of a request runs only fully confined, and even a hostile zygote
//! gains nothing from it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::host::launcher;
use crate::common::server::Server;
use crate::fixture::{Kit, PackageFixture};

const HOOK: &str = include_str!("zygote/hook.py");

fn server(fixture: &PackageFixture, settings: &str) -> Server {
    let config = fixture.folder().join("server.toml");
    std::fs::write(&config, settings).expect("a file of the test's own");
    let mut command = fixture.with_only_links();
    command.arg("--config").arg(config).args(["serve", "--allow-degraded"]);
    Server::by(command, &fixture.folder().join("data"))
}

fn run(server: &Server, key: &str, body: &Value) -> Value {
    let head = "Content-Type: application/json\r\n";
    let reply = server.call_as(key, "POST", "/v1/executions", head, body.to_string().as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

/// Runs code until a warm child served it. All results before that must be right as well.
fn until_warm(server: &Server, key: &str, body: &Value, check: &dyn Fn(&Value)) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let result = run(server, key, body);
        check(&result);
        if result["receipt"]["warm"] != json!(false) {
            return;
        }
        assert!(Instant::now() < end, "no run was served warm: {result}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the processes of that name on this machine.
fn named(name: &str) -> Vec<PathBuf> {
    let processes = std::fs::read_dir("/proc").expect("a folder").flatten().map(|entry| entry.path());
    let is_it =
        |path: &PathBuf| std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim_end() == name);
    processes.filter(is_it).collect()
}

fn none_is_left(name: &str, when: &str) {
    let end = Instant::now() + Duration::from_secs(60);
    while !named(name).is_empty() {
        assert!(Instant::now() < end, "{when}: {:?} still run", named(name));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A wheel that uses every hook of the interpreter, run twenty times by a tenant of a server.
#[test]
fn package_code_runs_only_fully_confined() {
    let fixture = fixture!(Kit::Fast);
    // Process names are short.
    let name = format!("evil-{}", std::process::id());
    let hook = HOOK.replace("SURVIVOR", &name);
    let files = ["sitecustomize.py", "usercustomize.py", "json.py", "random.py"];
    let mut files: Vec<(&str, &str)> = files.iter().map(|file| (*file, hook.as_str())).collect();
    files.push(("bell_evil.py", ""));
    files.push(("bell_evil.pth", "import bell_hook\n"));
    files.push(("bell_hook.py", hook.as_str()));
    fixture.make_wheel("bell_evil", "1.0", &[], &files);
    let mut server = server(&fixture, "");
    let key = server.tenant("mallory", json!({}));
    let body = json!({"language": "python", "code": "import bell_evil, json, random\nprint(json.dumps(6 * 7))",
        "dependencies": {"packages": ["bell-evil"]}});
    let confined = |result: &Value| {
        assert_eq!(result["stdout"], "42\n", "{result}");
        let hooks: Vec<&str> = result["stderr"].as_str().unwrap_or_default().lines().collect();
        assert!(!hooks.is_empty(), "no hook ran in the program's process: {result}");
        let expected = "hook 2 CapEff=0000000000000000 CapBnd=0000000000000000 NoNewPrivs=1 Seccomp=2";
        assert!(hooks.iter().all(|hook| *hook == expected), "{result}");
    };
    until_warm(&server, &key, &body, &confined);
    for _ in 0..20 {
        confined(&run(&server, &key, &body));
    }
    none_is_left(&name, "after the runs");
    // Limits are enforced as the receipt says, and usage is reported.
    let mut greedy = body.clone();
    greedy["code"] = json!("import bell_evil\nx = bytearray(200 << 20)\nprint(len(x))");
    greedy["limits"] = json!({"memory_bytes": 64 << 20});
    greedy["require"] = json!(["cgroup.memory", "cgroup.pids", "pid_ns", "user_ns", "seccomp", "landlock"]);
    until_warm(&server, &key, &greedy, &|result| {
        assert_eq!(
            (&result["status"], &result["limit"]),
            (&json!("limit_exceeded"), &json!("memory")),
            "{result}"
        );
        assert!(result["usage"]["cpu_ms"].as_f64().is_some_and(|cpu| cpu > 0.0), "{result}");
    });
    // No process outlives a server that is killed.
    let mut forever = body.clone();
    forever["code"] = json!("import bell_evil, time\ntime.sleep(600)");
    forever["wait"] = json!(false);
    let head = "Content-Type: application/json\r\n";
    server.call_as(&key, "POST", "/v1/executions", head, forever.to_string().as_bytes());
    let end = Instant::now() + Duration::from_secs(60);
    while named(&name).is_empty() {
        assert!(Instant::now() < end, "the last run never started");
        std::thread::sleep(Duration::from_millis(10));
    }
    server.child.kill().expect("a server to kill");
    let _status = server.child.wait();
    none_is_left(&name, "after kill -9 of the server");
}

const TEAM: &str = "[profiles.team]\npackages = [\"bell-team\"]\npreimports = [\"bell_team\"]\n";

/// A hostile preimported module of the operator: it forges the replies about warm children, and is detected.
#[test]
fn a_zygote_that_forges_children_is_detected() {
    let fixture = fixture!(Kit::Fast);
    if !cfg!(target_arch = "x86_64") {
        return crate::expect::skip("a forging zygote", "its system calls are those of x86-64");
    }
    fixture.make_wheel("bell_team", "1.0", &[], &[("bell_team.py", include_str!("zygote/forger.py"))]);
    let server = server(&fixture, TEAM);
    let key = server.tenant("mallory", json!({}));
    let body = json!({"language": "python", "code": "print(6 * 7)", "profile": "team",
        "require": ["pid_ns", "user_ns", "seccomp", "cgroup.memory"]});
    let mismatches = || {
        let metrics = server.call_as(crate::common::server::KEY, "GET", "/metrics", "", b"").text();
        let line = metrics
            .lines()
            .find_map(|line| line.strip_prefix("belljar_pool_mismatches{runtime=\"python\"} "))
            .map(str::to_owned);
        line.and_then(|count| count.trim().parse::<f64>().ok()).unwrap_or(0.0)
    };
    let end = Instant::now() + Duration::from_secs(60);
    while mismatches() < 1.0 {
        let result = run(&server, &key, &body);
        assert_eq!(
            (result["stdout"].as_str(), &result["receipt"]["warm"]),
            (Some("42\n"), &json!(false)),
            "{result}"
        );
        assert!(Instant::now() < end, "no mismatch was detected");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Each mismatch is in the audit log, once.
    let entered = || {
        let log = server.get("/v1/audit?limit=200").json();
        let entries = log["entries"].as_array().cloned().unwrap_or_default();
        entries.into_iter().filter(|entry| entry["action"] == "isolation.mismatch").collect::<Vec<_>>()
    };
    while (entered().len() as f64) < mismatches() {
        assert!(Instant::now() < end, "{:?} of {}", entered(), mismatches());
        std::thread::sleep(Duration::from_millis(20));
    }
    // Pending entries are written in the next round.
    std::thread::sleep(Duration::from_secs(1));
    let (entries, counted) = (entered(), mismatches());
    assert!(entries.len() as f64 <= counted, "{entries:?} of {counted}");
    for entry in entries {
        assert_eq!((&entry["actor"], &entry["outcome"]), (&json!("server"), &json!("failed")), "{entry}");
        assert_eq!(
            (&entry["tenant"], &entry["target"]),
            (&json!("mallory"), &json!("python+bell_team")),
            "{entry}"
        );
        let detail = entry["detail"].as_str().expect("the entry has a detail");
        assert!(detail.starts_with("a warm child was not confined as claimed: "), "{entry}");
    }
}

/// Reports on every descriptor that a waiting fork has open, during preimport, that a step failed with an
/// errno that the
/// kernel does not have.
const FORGED_FAILURE: &str = "import os, stat, struct\n\
    for number in range(3, 64):\n    \
    try:\n        \
    mode = os.fstat(number).st_mode\n        \
    if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode): os.write(number, struct.pack('IIi', 2, 1, NUMBER))\n    \
    except OSError: pass\n";

/// A tenant's module that writes to the launcher's socket ends only its own fork.
#[test]
fn a_module_that_speaks_to_the_launcher_ends_only_its_own_fork() {
    let fixture = fixture!(Kit::Fast);
    for (name, number) in [("six", "0"), ("idna", "1 << 20"), ("toml", "-1")] {
        fixture.make_wheel(
            name,
            "99.0",
            &[],
            &[(&format!("{name}.py"), &FORGED_FAILURE.replace("NUMBER", number))],
        );
    }
    let server = server(&fixture, "");
    let key = server.tenant("mallory", json!({}));
    let launcher_before = launcher(server.child.id());
    for name in ["six", "idna", "toml"] {
        let body = json!({"language": "python", "code": format!("import {name}\nprint(6 * 7)"),
            "dependencies": {"packages": [name]}});
        // Frequently used modules are preimported by waiting forks.
        for _ in 0..40 {
            let result = run(&server, &key, &body);
            assert_eq!(result["stdout"], "42\n", "{result}");
            assert_eq!(launcher(server.child.id()), launcher_before, "the launcher is still the same");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Closing the last copy of a descriptor may block or do work, so the launcher accepts none from tenant code.
#[test]
fn the_launcher_accepts_no_descriptors_from_tenant_code() {
    let fixture = fixture!(Kit::Fast);
    fixture.make_wheel("six", "99.0", &[], &[("six.py", include_str!("zygote/linger.py"))]);
    let server = server(&fixture, "");
    let (mallory, ada) = (server.tenant("mallory", json!({})), server.tenant("ada", json!({})));
    let body = json!({"language": "python", "code": "import six\nprint(6 * 7)",
        "dependencies": {"packages": ["six"]}});
    for _ in 0..40 {
        let result = run(&server, &mallory, &body);
        assert_eq!(result["stdout"], "42\n", "{result}");
        let result = run(&server, &ada, &json!({"command": ["echo", "served"]}));
        assert_eq!(result["stdout"], "served\n", "{result}");
    }
}

/// Tries everything that a hostile zygote could attempt.
#[test]
fn a_zygote_cannot_create_namespaces_or_mounts() {
    let fixture = fixture!(Kit::Fast);
    if !cfg!(target_arch = "x86_64") {
        return crate::expect::skip("a probing zygote", "its system calls are those of x86-64");
    }
    fixture.make_wheel("bell_team", "1.0", &[], &[("bell_team.py", include_str!("zygote/probe.py"))]);
    fixture.make_wheel("bell_more", "1.0", &[], &[("bell_more.py", "")]);
    let server = server(&fixture, TEAM);
    let key = server.tenant("mallory", json!({}));
    let body = json!({"language": "python", "profile": "team", "dependencies": {"packages": ["bell-more"]},
        "code": "import sys\nwas_there = 'bell_team' in sys.modules\nimport bell_team, bell_more, json\n\
                 print(json.dumps([was_there, bell_team.results]))"});
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let result = run(&server, &key, &body);
        let said: Value =
            serde_json::from_str(result["stdout"].as_str().unwrap_or_default()).unwrap_or_default();
        if said[0] == json!(true) {
            let results = said[1].as_object().expect("an object");
            for (attempt, became) in results {
                let held = became == &json!([])
                    || ["EPERM", "ENOSYS", "EINVAL", "ESRCH"].iter().any(|errno| became == errno);
                assert!(held, "{attempt}: {became}");
            }
            for attempt in ["unshare user", "clone user", "mount", "open_tree", "setns any"] {
                assert_eq!(
                    results[attempt],
                    json!("ENOSYS"),
                    "{attempt}: its filter tells, and nobody listens"
                );
            }
            return;
        }
        assert!(Instant::now() < end, "no run was served warm with it: {result}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
