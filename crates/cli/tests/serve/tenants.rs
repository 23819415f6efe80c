//! Tenants from the command line: quotas, usage, and removal with everything they run and own.

use std::time::Duration;

use serde_json::Value;

use crate::common::host::{self, alive_with};
use crate::common::server::{KEY, Server};
use crate::{call, until};

/// Creates the tenant `ada` with a volume, a mounted sandbox and an execution, which run `token` in a command
/// line. Returns its key.
fn busy_tenant(server: &Server, token: &str) -> String {
    let key = server.tenant("ada", serde_json::json!({"concurrency": 2}));
    let belljar = |arguments: &[&str]| {
        let (code, text) = call(server, arguments, &key);
        assert_eq!(code, 0, "{text}");
        text.trim().to_owned()
    };
    assert_eq!(belljar(&["run", "--server", &server.url, "-c", "print(6 * 7)"]), "42");
    belljar(&["sandbox", "volume", "create", "data", "--size", "1M"]);
    let sandbox = belljar(&["sandbox", "create", "--volume", "data:/data"]);
    belljar(&["sandbox", "exec", &sandbox, "--", "sh", "-c", "echo secret > /data/file"]);
    belljar(&["sandbox", "snapshot", "create", &sandbox]);
    let started = server.call_as(
        &key,
        "POST",
        &format!("/v1/sandboxes/{sandbox}/commands"),
        "Content-Type: application/json\r\n",
        format!(r#"{{"command":["sleep","{token}"],"background":true}}"#).as_bytes(),
    );
    assert!(started.status < 300, "{started:?}");
    let detached = format!(r#"{{"command":["sleep","{token}"],"wait":false}}"#);
    let json = "Content-Type: application/json\r\n";
    assert_eq!(server.call_as(&key, "POST", "/v1/executions", json, detached.as_bytes()).status, 202);
    until(|| host::processes().values().filter(|line| line.contains(&format!("sleep {token}"))).count() >= 2);
    key
}

#[test]
fn a_tenant_is_removed_with_everything_that_it_runs_and_owns() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let token = format!("68.{}", std::process::id());
    let key = busy_tenant(&server, &token);
    let belljar = |arguments: &[&str]| call(&server, arguments, KEY);

    let (code, quotas) = belljar(&["tenant", "quotas", "ada", "--sandboxes", "3", "--memory", "4G"]);
    let quotas: Value = serde_json::from_str(&quotas).unwrap_or_else(|_| panic!("{code} {quotas}"));
    assert_eq!((&quotas["quotas"]["concurrency"], &quotas["quotas"]["sandboxes"]), (&2.into(), &3.into()));
    assert_eq!(quotas["quotas"]["memory_bytes"], 4_u64 << 30);
    let removed = belljar(&["tenant", "quotas", "ada", "--concurrency", "none"]).1;
    let removed: Value = serde_json::from_str(&removed).unwrap();
    assert_eq!(
        (&removed["quotas"]["concurrency"], &removed["quotas"]["sandboxes"]),
        (&Value::Null, &3.into())
    );
    assert!(belljar(&["tenant", "quotas", "ada", "--disk", "-1"]).1.contains("--disk"));

    let (_, usage) = belljar(&["tenant", "usage", "ada"]);
    let row = |title: &str| {
        let line = usage.lines().find(|line| line.starts_with(title));
        line.map(|line| line[title.len()..].split_whitespace().collect::<Vec<_>>()).unwrap_or_default()
    };
    assert_eq!(row("running executions"), ["1", "none"], "{usage}");
    assert_eq!(row("sandboxes"), ["1", "3"], "{usage}");
    let json: Value = serde_json::from_str(&belljar(&["tenant", "usage", "ada", "--json"]).1).unwrap();
    assert_eq!(
        (&json["volumes"], &json["snapshots"], &json["stored_executions"]),
        (&1.into(), &1.into(), &2.into())
    );
    let (_, said) = belljar(&["tenant", "policy", "ada", "audit"]);
    assert!(said.contains("policy floor of 'ada': 'audit'"), "{said}");

    let (code, said) = belljar(&["tenant", "remove", "ada"]);
    assert!(code == 125 && said.contains("sandboxes: 1, volumes: 1"), "{said}");
    assert!(said.contains("add --yes to confirm"), "{said}");
    let waiting = ["run", "--server", &server.url, "--timeout", "5m", "-c", "import time; time.sleep(250)"];
    let running = || server.call_as(&key, "GET", "/v1/executions?status=running", "", b"").json();
    let (code, said) = std::thread::scope(|scope| {
        let client = scope.spawn(|| call(&server, &waiting, &key));
        until(|| running()["executions"].as_array().is_some_and(|running| running.len() == 2));
        assert_eq!(belljar(&["tenant", "remove", "ada", "--yes"]), (0, String::new()));
        client.join().unwrap()
    });
    assert!(code == 125 && said.contains("its tenant was disabled or deleted"), "{code} {said}");
    assert_eq!(alive_with(&token, Duration::from_secs(60)), Vec::<String>::new());
    assert!(call(&server, &["executions", "list"], &key).1.contains("a valid API key is needed"));
    assert!(!belljar(&["tenant", "list"]).1.contains("ada"));
    let left = |name: &str| std::fs::read_dir(folder.path().join(name)).map_or(0, Iterator::count);
    assert_eq!((left("volumes"), left("snapshots")), (0, 0));
}

#[test]
fn a_server_that_is_killed_during_a_removal_completes_it_at_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..4 {
        let mut server = Server::new(folder.path());
        let token = format!("69{round}.{}", std::process::id());
        let key = busy_tenant(&server, &token);
        let _removal = server.send_as(KEY, "DELETE", "/v1/tenants/ada", "", b"");
        // Killed at a different moment in each round.
        std::thread::sleep(Duration::from_millis(15 * round));
        server.signal("-KILL");
        server.child.wait().unwrap();
        assert_eq!(alive_with(&token, Duration::from_secs(60)), Vec::<String>::new());
        let server = Server::new(folder.path());
        let log = || server.get("/v1/audit?limit=200").json();
        let entries = |action: &str| {
            let log = log();
            log["entries"].as_array().unwrap().iter().filter(|entry| entry["action"] == action).count()
        };
        if server.call_as(&key, "GET", "/v1/executions", "", b"").status == 200 {
            // Nothing was recorded before the server died.
            assert_eq!(server.delete("/v1/tenants/ada").status, 204);
        }
        until(|| server.get("/v1/tenants/ada").status == 404);
        until(|| entries("tenant.removed") >= 1);
        let left = |name: &str| std::fs::read_dir(folder.path().join(name)).map_or(0, Iterator::count);
        until(|| (left("volumes"), left("snapshots")) == (0, 0));
    }
}

#[test]
fn stored_executions_are_removed_after_a_confirmation() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let id = server.run(r#"{"language":"bash","code":"echo kept"}"#).1["id"].as_str().unwrap().to_owned();
    let (code, said) = call(&server, &["executions", "remove", &id], KEY);
    assert!(code == 125 && said.contains("this would remove 1 executions with their results"), "{said}");
    assert_eq!(call(&server, &["executions", "show", &id], KEY).0, 0);
    assert_eq!(call(&server, &["executions", "remove", &id, "--yes"], KEY), (0, String::new()));
    assert!(call(&server, &["executions", "show", &id], KEY).1.contains("no such execution"));
}
