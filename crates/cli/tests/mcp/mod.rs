//! `belljar mcp` over its wire protocol: one line of JSON per message.

mod client;
mod http;

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use self::client::Client;
use crate::common::belljar;
use crate::common::host::{alive_with, processes};
use crate::expect::{packages, skip};

fn waits_for(token: &str) {
    let end = Instant::now() + Duration::from_secs(60);
    while !processes().values().any(|command| command.contains(token)) {
        assert!(Instant::now() < end, "{token} never ran");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_client_finds_tools_and_works_with_them() {
    let mut client = Client::start();
    let begun = client.initialize("2025-06-18");
    assert_eq!(
        (&begun["protocolVersion"], &begun["serverInfo"]["name"]),
        (&json!("2025-06-18"), &json!("belljar"))
    );
    let tools = client.ask("tools/list", json!({}))["result"]["tools"].clone();
    let names: Vec<_> = tools.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    let all = "run_code run_command sandbox_open sandbox_close read_file write_file list_files check_code";
    assert_eq!(names.join(" "), all);
    assert_eq!(tools[4]["annotations"]["readOnlyHint"], true);

    let ran = client.call("run_code", json!({"language": "python", "code": "print(6 * 7)"}));
    assert_eq!((&ran["structuredContent"]["stdout"], &ran["isError"]), (&json!("42\n"), &json!(false)));
    assert!(ran["content"][0]["text"].as_str().unwrap().ends_with("stdout:\n42"), "{ran}");
    // A failed program is a result; only a request that could not run is an error.
    let failed = client.call("run_code", json!({"language": "bash", "code": "exit 3"}));
    assert_eq!((&failed["structuredContent"]["exit_code"], &failed["isError"]), (&json!(3), &json!(false)));
    let wrong = client.call("run_code", json!({"language": "python", "codes": ""}));
    assert_eq!(wrong["isError"], true);
    assert!(wrong["content"][0]["text"].as_str().unwrap().contains("unknown field `codes`"), "{wrong}");
    assert_eq!(client.ask("tools/call", json!({"name": "nope"}))["error"]["code"], -32602);
    let checked = client.call("check_code", json!({"language": "bash", "code": "rm -rf /"}));
    assert_eq!(checked["structuredContent"]["status"], "refused");
    assert!(client.end().success());
}

#[test]
fn a_model_reads_return_values_exit_codes_and_findings() {
    let mut client = Client::start();
    client.initialize("2025-06-18");
    let mut answers = |tool: &str, input: Value, expected: &str| {
        let answer = client.call(tool, input);
        let text = answer["content"][0]["text"].as_str().unwrap().to_owned();
        assert!(text.contains(expected), "no {expected:?} in {text:?}");
        answer["structuredContent"].clone()
    };
    let opened = answers("sandbox_open", json!({}), "Opened sandbox")["sandbox"].clone();
    for sandbox in [Value::Null, opened] {
        let code = "def main(n): return n * n";
        let input = json!({"language": "python", "code": code, "arguments": {"n": 12}, "sandbox": sandbox});
        answers("run_code", input, "\nmain() returned: 144");
        let commands = [
            ("exit 7", "Failed with exit code 7 "),
            (
                "echo x > /etc/motd",
                "\nTo change: '/etc/motd' could not be written: the sandbox's root is read-only; ",
            ),
            ("python3 -c 'import nosuchmodule'", "\nTo change: "),
            ("rm -rf --no-preserve-root /", "\nTo change: line 1: `rm` would delete the whole system; "),
        ];
        for (command, expected) in commands {
            answers("run_command", json!({"command": command, "sandbox": sandbox}), expected);
        }
    }
    assert!(client.end().success());
}

#[test]
fn files_of_a_sandbox_stay_and_are_resources() {
    let mut client = Client::start();
    client.initialize("2025-11-25");
    let opened = client.call("sandbox_open", json!({}));
    let sandbox = opened["structuredContent"]["sandbox"].as_str().unwrap().to_owned();
    let path = "data/über.txt";
    client.call("write_file", json!({"sandbox": sandbox, "path": path, "content": "first"}));
    let command = format!("printf ' second' >> {path}; printf '\\211PNG' > plot.png");
    let ran = client.call("run_command", json!({"sandbox": sandbox, "command": command}));
    assert_eq!(ran["structuredContent"]["status"], "succeeded", "{ran}");
    let read = client.call("read_file", json!({"sandbox": sandbox, "path": path, "offset": 6}));
    assert_eq!(read["structuredContent"]["content"], "second");
    let image = client.call("read_file", json!({"sandbox": sandbox, "path": "plot.png"}));
    assert_eq!(
        (&image["content"][1]["type"], &image["content"][1]["mimeType"]),
        (&json!("image"), &json!("image/png"))
    );
    let listed = client.call("list_files", json!({"sandbox": sandbox}));
    assert_eq!(listed["content"][0]["text"], "data/\nplot.png (4 bytes)");
    let resources = client.ask("resources/list", json!({}))["result"]["resources"].clone();
    let found = resources.as_array().unwrap().iter().find(|resource| resource["name"] == path).unwrap();
    let contents = client.ask("resources/read", json!({"uri": found["uri"]}));
    assert_eq!(contents["result"]["contents"][0]["text"], "first second");
    let outside = client.ask("resources/read", json!({"uri": "file:///etc/passwd"}));
    assert!(outside["error"].is_object(), "{outside}");
    client.call("sandbox_close", json!({"sandbox": sandbox}));
    let gone = client.call("run_command", json!({"sandbox": sandbox, "command": "true"}));
    assert_eq!(gone["isError"], true);
}

#[test]
fn a_cancelled_call_leaves_nothing_running() {
    let mut client = Client::start();
    client.initialize("2025-06-18");
    let sandbox = client.call("sandbox_open", json!({}))["structuredContent"]["sandbox"].clone();
    let token = format!("61.{}", std::process::id());
    for sandbox in [Value::Null, sandbox] {
        let command = json!({"command": format!("sleep {token} & sleep {token}"), "sandbox": sandbox});
        let id = client.send("tools/call", json!({"name": "run_command", "arguments": command}));
        waits_for(&token);
        client.notify("notifications/cancelled", json!({"requestId": id, "reason": "no longer wanted"}));
        assert_eq!(alive_with(&token, Duration::from_secs(60)), Vec::<String>::new());
        let after = client.call("run_command", json!({"command": "echo on", "sandbox": sandbox}));
        assert_eq!(after["structuredContent"]["stdout"], "on\n");
    }
    let command = json!({"command": format!("sleep {token}")});
    client.send("tools/call", json!({"name": "run_command", "arguments": command}));
    waits_for(&token);
    client.kill();
    assert_eq!(alive_with(&token, Duration::from_secs(60)), Vec::<String>::new());
}

/// Builds a call of `sandbox_open` that installs a package and asks for progress notifications.
fn furnished() -> Value {
    let input = json!({"dependencies": ["six==1.16.0"]});
    json!({"name": "sandbox_open", "arguments": input, "_meta": {"progressToken": "how far"}})
}

/// Asserts that the install was reported before the response.
fn hears_of_the_install(told: &[Value], answer: &Value) {
    assert_eq!(answer["result"]["structuredContent"]["packages"], json!(["six==1.16.0"]), "{answer}");
    let told: Vec<_> = told.iter().filter(|message| message["method"] == "notifications/progress").collect();
    let said = |message: &&Value| message["params"]["message"] == "installing six 1.16.0";
    assert!(told.iter().any(said), "{told:?}");
    assert!(told.iter().all(|message| message["params"]["progressToken"] == "how far"), "{told:?}");
}

#[test]
fn opening_a_sandbox_reports_installs() {
    let Some(installers) = packages("installers") else {
        return skip("packages of a sandbox", "uv is not installed; ./test installs it");
    };
    let cache = tempfile::tempdir().unwrap();
    let path = format!("{}:{}", installers.display(), std::env::var("PATH").unwrap());
    let mut client = Client::by(belljar().arg("mcp").env("PATH", path).env("XDG_CACHE_HOME", cache.path()));
    client.initialize("2025-11-25");
    let answer = client.ask("tools/call", furnished());
    hears_of_the_install(&client.told, &answer);
    assert!(client.end().success());
}

#[test]
fn the_sessionless_revision_needs_no_initialization() {
    let mut client = Client::start();
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {}
    });
    let found = client.ask("server/discover", json!({"_meta": meta}));
    let versions = found["result"]["supportedVersions"].as_array().unwrap();
    assert!(versions.contains(&json!("2026-07-28")) && versions.contains(&json!("2025-06-18")), "{found}");
    let input = json!({"language": "bash", "code": "echo hi"});
    let ran = client.ask("tools/call", json!({"name": "run_code", "arguments": input, "_meta": meta}));
    assert_eq!(ran["result"]["structuredContent"]["stdout"], "hi\n", "{ran}");
}
