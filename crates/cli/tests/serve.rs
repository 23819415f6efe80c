//! `belljar serve` end to end: the real binary, real sandboxes, curl, `kill -9`.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;
mod expect;
mod mcp;
#[path = "serve/tenants.rs"]
mod tenants;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use common::host::{self, alive_with};
use common::server::{KEY, Server};
use serde_json::Value;

#[test]
fn code_runs_over_http_and_the_server_shuts_down() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start(folder.path(), Some(KEY), &[]);
    let (status, result) = server.run(r#"{"language":"python","code":"print(6 * 7)"}"#);
    assert_eq!(
        (status.as_str(), &result["stdout"], &result["exit_code"]),
        ("200", &"42\n".into(), &0.into())
    );
    assert!(result["receipt"]["isolation"].as_array().unwrap().iter().any(|layer| layer == "seccomp"));
    let (status, result) = server.run(r#"{"language":"bash","code":"exit 3"}"#);
    assert_eq!((status.as_str(), &result["status"]), ("200", &"failed".into()));
    let events =
        ["-N", "-H", "Accept: text/event-stream", "--json", r#"{"language":"bash","code":"echo hi"}"#];
    let (_, text) = server.curl(&events, "/v1/executions");
    assert!(text.contains("event: output") && text.contains("event: result"), "{text}");
    let (status, text) = server.curl(&[], "/healthz?ready");
    assert_eq!((status.as_str(), text.as_str()), ("200", r#"{"status":"ready"}"#));
    server.signal("-TERM");
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn sighup_does_not_end_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::new(folder.path());
    server.signal("-HUP");
    assert_eq!(server.get("/healthz").status, 200);
    assert!(server.child.try_wait().unwrap().is_none());
}

#[test]
fn the_first_start_shows_a_key_and_the_second_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), None, &[]);
    let key =
        server.lines.iter().find_map(|line| line.strip_prefix("admin key, shown only this once: ")).unwrap();
    let header = format!("Authorization: Bearer {key}");
    let tenants =
        Command::new("curl").args(["-s", "-H", &header]).arg(format!("{}/v1/tenants", server.url)).output();
    assert!(String::from_utf8(tenants.unwrap().stdout).unwrap().contains("\"default\""));
    drop(server);
    let again = Server::start(folder.path(), None, &[]);
    assert_eq!(again.lines.len(), 1, "{:?}", again.lines);
}

#[test]
fn a_killed_server_loses_nothing_that_it_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..2 {
        let mut server = Server::start(folder.path(), Some(KEY), &[]);
        let (_, done) = server.run(r#"{"language":"bash","code":"echo kept"}"#);
        let token = format!("64.{}{round}", std::process::id());
        let long = format!(r#"{{"command":["sleep","{token}"],"wait":false}}"#);
        let ids: Vec<_> = (0..6).map(|_| server.run(&long).1["id"].as_str().unwrap().to_owned()).collect();
        server.signal("-KILL");
        server.child.wait().unwrap();
        assert_eq!(alive_with(&token, Duration::from_secs(60)), Vec::<String>::new());
        let server = Server::start(folder.path(), Some(KEY), &[]);
        let (status, kept) = server.curl(&[], &format!("/v1/executions/{}", done["id"].as_str().unwrap()));
        assert_eq!((status.as_str(), serde_json::from_str::<Value>(&kept).unwrap()), ("200", done));
        for id in ids {
            let (_, text) = server.curl(&[], &format!("/v1/executions/{id}"));
            assert!(text.contains(r#""status":"interrupted""#), "{text}");
        }
        let (_, list) = server.curl(&[], "/v1/executions?status=interrupted");
        let list: Value = serde_json::from_str(&list).unwrap();
        assert_eq!(list["executions"].as_array().unwrap().len(), 6 * (round + 1));
    }
}

#[test]
fn invalid_server_settings_prevent_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let serve = |flags: &[&str], key: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
        command.args(["serve", "--data-dir"]).arg(folder.path()).args(flags).env("BELLJAR_ADMIN_KEY", key);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(125));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(
        serve(&["--listen", "0.0.0.0:0", "--without-keys"], "").contains("is reachable from other machines")
    );
    assert!(serve(&["--temporary"], "").contains("cannot be used with"));
    assert!(serve(&[], "short").contains("BELLJAR_ADMIN_KEY: must be 32 bytes or more"));
    let _first = Server::start(folder.path(), Some(KEY), &[]);
    assert!(
        serve(&["--listen", "127.0.0.1:0"], KEY).contains("another belljar process uses this data folder")
    );
}

#[test]
fn a_temporary_server_ends_with_its_input_and_keeps_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let kept = || std::fs::read_dir(folder.path()).unwrap().count();
    let mut command = common::belljar();
    command.args(["serve", "--temporary", "--allow-degraded", "--listen", "127.0.0.1:0"]);
    command.env("TMPDIR", folder.path()).env("BELLJAR_ADMIN_KEY", KEY).env("BELLJAR_LOG", "warn");
    let mut server = Server::of(command.stdin(Stdio::piped()));
    assert_eq!(kept(), 1);
    let token = format!("65.{}", std::process::id());
    let (status, _) = server.run(&format!(r#"{{"command":["sleep","{token}"],"wait":false}}"#));
    assert_eq!(status, "202");
    drop(server.child.stdin.take());
    assert!(server.child.wait().unwrap().success());
    assert_eq!(alive_with(&token, Duration::from_secs(60)), Vec::<String>::new());
    assert_eq!(kept(), 0);
}

/// Runs a command that calls the server. Returns its exit status, and its output with its messages.
fn call(server: &Server, arguments: &[&str], key: &str) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
    command.args(arguments).env("BELLJAR_SERVER", &server.url).env("BELLJAR_API_KEY", key);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    (output.status.code().unwrap(), text)
}

#[test]
fn the_command_line_is_a_client() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), Some(KEY), &[]);
    let belljar = |arguments: &[&str], key: &str| call(&server, arguments, key);
    let run = |arguments: &[&str]| belljar(&[&["run", "--server", &server.url], arguments].concat(), KEY);
    assert_eq!(run(&["-c", "print(6 * 7)"]), (0, "42\n".to_owned()));
    assert_eq!(run(&["-c", "exit 3", "--language", "bash"]).0, 3);
    assert_eq!(run(&["-c", "kill -SEGV $$", "--language", "bash"]).0, 139);
    assert_eq!(run(&["-c", "import time; time.sleep(9)", "--timeout", "200ms"]).0, 124);
    assert_eq!(run(&["-c", "def main(n): return n + 1", "--args", r#"{"n": 1}"#]).1, "2\n");
    let (status, text) = run(&["-c", "print(1)", "--json"]);
    assert_eq!((status, serde_json::from_str::<Value>(&text).unwrap()["stdout"].as_str()), (0, Some("1\n")));
    assert_eq!(run(&["-c", "1", "--memory", "0"]).0, 125);
    assert!(run(&["-c", "1", "--workspace", "."]).1.contains("a server cannot use them"));

    let (status, list) = belljar(&["executions", "list", "--limit", "2"], KEY);
    assert!(status == 0 && list.contains("exec_") && list.contains("there are more"), "{list}");
    let id = list.split_whitespace().find(|word| word.starts_with("exec_")).unwrap();
    assert!(belljar(&["executions", "show", id], KEY).1.contains("\"status\""));
    assert!(belljar(&["executions", "cancel", id], KEY).1.contains("has already ended"));
    assert_eq!(belljar(&["tenant", "create", "ada", "--concurrency", "2"], KEY).0, 0);
    let (_, made) = belljar(&["key", "create", "--tenant", "ada", "--scopes", "run"], KEY);
    let made: Value = serde_json::from_str(&made).unwrap();
    let key = made["key"].as_str().unwrap();
    assert_eq!(belljar(&["executions", "list"], key).0, 0);
    assert!(belljar(&["tenant", "list"], key).1.contains("does not have the scope 'admin'"));
    let id = made["record"]["id"].as_str().unwrap();
    assert_eq!(belljar(&["key", "revoke", id, "--tenant", "ada"], KEY).0, 0);
    assert!(belljar(&["executions", "list"], key).1.contains("a valid API key is needed"));
    let profile = folder.path().join("tight.json");
    std::fs::write(&profile, r#"{"limits":{"timeout_ms":20000}}"#).unwrap();
    assert_eq!(belljar(&["profile", "set", "tight", profile.to_str().unwrap()], KEY).0, 0);
    assert_eq!(run(&["-c", "print(1)", "--profile", "tight"]).0, 0);
}

fn fields(line: &Value) -> Value {
    let own: Vec<_> = ["index", "status", "exit_code", "limit", "stdout", "metadata"]
        .map(|name| line[name].clone())
        .to_vec();
    let error = line["error"]["message"].as_str().unwrap_or_default();
    // The server's limit on body size differs; all other messages are the same.
    serde_json::json!([own, line["error"]["code"], error])
}

/// Returns the exit status, the results by index, and standard error.
fn batch(arguments: &[&str], lines: &str) -> (Option<i32>, Vec<Value>, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), lines).unwrap();
    let mut command = common::belljar();
    command.args(["run", "--batch"]).arg(file.path()).args(arguments).env("BELLJAR_API_KEY", KEY);
    let output = command.output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let mut lines: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    lines.sort_by_key(|line| line["index"].as_u64().unwrap());
    (output.status.code(), lines, String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_remote_batch_behaves_like_a_local_one() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), Some(KEY), &[]);
    let lines = concat!(
        "{\"language\":\"python\",\"code\":\"print(6 * 7)\",\"metadata\":{\"n\":1}}\n",
        "\n",
        "{\"command\":[\"true\"]\n",
        "{\"command\":[\"true\"],\"workspace\":\"/\"}\n",
        "{\"language\":\"klingon\",\"code\":\"1\"}\n",
        "{\"command\":[\"true\"],\"limits\":{\"timeout_ms\":0}}\n",
        "{\"command\":[\"sleep\",\"9\"],\"limits\":{\"timeout_ms\":100}}\n",
        "{\"arguments\":{\"n\":1}}\n",
        "{\"language\":\"sh\",\"code\":\"printenv A; exit 3\"}",
    );
    let flags = ["--jobs", "2", "--env", "A=common", "-c", "def main(n): print(n)"];
    let here = batch(&flags, lines);
    let there = batch(&[&flags[..], &["--server", &server.url]].concat(), lines);
    assert_eq!((here.0, there.0), (Some(1), Some(1)), "{there:?}");
    let compared: Vec<Value> = there.1.iter().map(fields).collect();
    assert_eq!(compared, here.1.iter().map(fields).collect::<Vec<_>>());
    assert!(there.2.contains("4 ran (2 succeeded, 2 failed), 4 could not run; "), "{}", there.2);

    let good: String = (0..40).map(|n| format!("{{\"command\":[\"echo\",\"{n}\"]}}\n")).collect();
    let (code, results, _) = batch(&["--jobs", "3", "--server", &server.url], &good);
    assert_eq!(code, Some(0));
    let said: Vec<_> = results.iter().map(|result| result["stdout"].as_str().unwrap().trim_end()).collect();
    assert_eq!(said, (0..40).map(|n| n.to_string()).collect::<Vec<_>>());
    let (code, none, said) = batch(&["--server", &server.url, "--image", "/srv"], &good);
    assert!(code == Some(125) && none.is_empty() && said.contains("a server cannot use them"), "{said}");
    let (code, none, said) = batch(&["--server", "http://127.0.0.1:9"], &good);
    assert!(code == Some(125) && none.is_empty() && said.contains("call http://127.0.0.1:9"), "{said}");
}

/// Starts a batch from a pipe and waits until two lines have finished and the third, with this token, runs.
fn under_way(server: &Server, token: &str) -> (Child, ChildStdin) {
    let mut command = common::belljar();
    command.args(["run", "--batch", "-", "--quiet", "--server", &server.url]).env("BELLJAR_API_KEY", KEY);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut client = command.spawn().unwrap();
    let mut lines = client.stdin.take().unwrap();
    let mut results = BufReader::new(client.stdout.take().unwrap());
    for _ in 0..2 {
        writeln!(lines, r#"{{"command":["echo","hello"]}}"#).unwrap();
        let mut line = String::new();
        results.read_line(&mut line).unwrap();
        assert!(line.contains("hello"), "{line}");
    }
    writeln!(lines, r#"{{"command":["sleep","{token}"]}}"#).unwrap();
    until(|| host::processes().values().any(|line| line.contains(&format!("sleep {token}"))));
    (client, lines)
}

#[test]
fn a_remote_batch_ends_with_its_client_or_server() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start(folder.path(), Some(KEY), &[]);
    // A token that no other test of this program uses, because they run in parallel and search for theirs.
    let token = format!("66.{}", std::process::id());
    let (mut client, _lines) = under_way(&server, &token);
    signal(&client, "-INT");
    assert_eq!(client.wait().unwrap().code(), Some(130));
    assert_eq!(alive_with(&format!("sleep {token}"), Duration::from_secs(60)), Vec::<String>::new());

    let (client, _lines) = under_way(&server, &format!("67.{}", std::process::id()));
    server.signal("-KILL");
    server.child.wait().unwrap();
    let output = client.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(125) && said.contains("the server's response"), "{said}");
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

fn until(condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < end, "timed out waiting for a condition");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn config_show_lists_the_origin_of_every_setting() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("belljar.toml");
    std::fs::write(&file, "[server]\nqueue = 7\n[profiles.x]\nenv = { TOKEN = \"hush\" }\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_belljar"));
    command.args(["config", "show", "--json", "--config"]).arg(&file);
    command.env("BELLJAR_DATA_DIR", "/d").env("BELLJAR_ADMIN_KEY", KEY);
    let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let settings: Vec<Value> = serde_json::from_str(&text).unwrap();
    let origin = |name: &str| {
        let found =
            settings.iter().find(|setting| setting["name"] == name).unwrap_or_else(|| panic!("{name}"));
        (found["value"].as_str().unwrap().to_owned(), found["origin"].as_str().unwrap().to_owned())
    };
    let file = file.display().to_string();
    assert_eq!(origin("server.queue"), ("7".to_owned(), format!("{file}:server.queue")));
    assert_eq!(origin("server.tenant_disk"), ("10 GB".to_owned(), "default".to_owned()));
    assert_eq!(origin("server.data_dir"), ("/d".to_owned(), "BELLJAR_DATA_DIR".to_owned()));
    assert_eq!(origin("ceiling.processes").1, "default");
    assert_eq!(origin("profiles.x.env.TOKEN"), ("(set)".to_owned(), format!("{file}:profiles.x.env.TOKEN")));
    assert_eq!(origin("admin_key").0, "(set)");
    assert!(!text.contains("hush") && !text.contains(KEY));
}
