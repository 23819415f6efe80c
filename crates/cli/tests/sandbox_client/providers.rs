//! `belljar provider` against a real server, which keeps serving meanwhile; and `belljar setup`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::common::server::{KEY, Server};
use crate::common::{belljar, finish};
use crate::pty::Pty;

fn provider(server: &Server, words: &[&str]) -> Output {
    let mut command = belljar();
    command.arg("provider").args(words).args(["--server", &server.url]).env("BELLJAR_API_KEY", KEY);
    command.output().unwrap()
}

fn text(output: &Output) -> String {
    [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat()
}

fn served_by(server: &Server) -> Value {
    let (_, result) = server.run(r#"{"language":"python","code":"print(6 * 7)"}"#);
    result["receipt"]["provider"].clone()
}

#[test]
fn provider_settings_persist_on_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let key = folder.path().join("secrets.key");
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    let listed = text(&provider(&server, &["list"]));
    assert!(listed.contains("not configured") && listed.contains("default"), "{listed}");
    let schema: Value = serde_json::from_str(&text(&provider(&server, &["schema", "docker"]))).unwrap();
    assert_eq!(
        (&schema["properties"]["pool"]["maximum"], &schema["properties"]["image"]["title"]),
        (&json!(128), &json!("Image"))
    );
    let tested = provider(&server, &["test", "native"]);
    assert!(tested.status.success() && text(&tested).contains("printed \"42\\n\""), "{}", text(&tested));
    // A provider that is tested with other settings is shut down afterwards; the native one is not.
    let tried = server.post("/v1/providers/native/test", &json!({"settings": {}})).json();
    assert_eq!((&tried["passed"], served_by(&server)), (&json!(true), json!("native")));
    // No such daemon exists: the change is refused, and the configuration stays as it was.
    let refused = provider(&server, &["set", "docker", "host=unix:///nonexistent/docker.sock", "pool=2"]);
    assert!(
        !refused.status.success() && text(&refused).contains("nothing was changed"),
        "{}",
        text(&refused)
    );
    for (words, why) in [
        (&["set", "docker", "pool=1000"][..], "settings: pool: must be at most 128"),
        (&["set", "docker", "pol=1"], "settings: pol: unknown setting"),
        (&["use", "docker"], "'docker' is not configured"),
        (&["test", "docker"], "'docker' is not configured"),
        (&["set", "native", "--instead", "docker"], "'docker' is not configured"),
        (&["schema", "dokcer"], "known: agentrun, docker, e2b, native, simulated"),
    ] {
        let said = provider(&server, words);
        assert!(!said.status.success() && text(&said).contains(why), "{words:?}: {}", text(&said));
    }
    assert_eq!(served_by(&server), "native");
    assert!(provider(&server, &["set", "native", "--instead", "simulated"]).status.success());
    assert!(provider(&server, &["use", "simulated"]).status.success());
    assert_eq!(served_by(&server), "simulated");
    drop(server);
    let server = Server::new(folder.path());
    assert_eq!(served_by(&server), "simulated", "after a restart, too");
    let shown: Value = serde_json::from_str(&text(&provider(&server, &["show", "native"]))).unwrap();
    assert_eq!((&shown["version"], &shown["instead"]), (&json!(1), &json!(["simulated"])));
    assert!(provider(&server, &["use", "native"]).status.success());
    assert_eq!(served_by(&server), "native");
}

#[test]
fn an_invalid_secrets_key_prevents_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let start = |key: &str| {
        let mut command = belljar();
        command
            .args(["serve", "--allow-degraded", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(folder.path());
        let output = command.env("BELLJAR_SECRETS_KEY", key).env("BELLJAR_ADMIN_KEY", KEY).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        text(&output)
    };
    assert!(start("hunter2").contains("BELLJAR_SECRETS_KEY: secrets: the key must be 64 hexadecimal digits"));
    let file = folder.path().join("secrets.key");
    fs::write(&file, "a".repeat(64)).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(start("").contains("other users may read it"));
}

fn setup(file: &Path, words: &[&str]) -> Command {
    let mut command = belljar();
    command.arg("--config").arg(file).arg("setup").args(words);
    command
}

#[test]
fn setup_tests_the_provider_before_writing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("belljar.toml");
    let done = setup(&file, &["--provider", "simulated"]).output().unwrap();
    assert!(done.status.success() && fs::read_to_string(&file).unwrap().contains("usual = \"simulated\""));
    fs::write(&file, "# mine\n").unwrap();
    let nobody = setup(&file, &[]).output().unwrap();
    assert!(
        !nobody.status.success()
            && text(&nobody).contains("set --provider to one of agentrun, docker, e2b, native, simulated")
    );
    let words = ["--provider", "docker", "--set", "host=unix:///nonexistent/docker.sock"];
    let failed = setup(&file, &words).output().unwrap();
    assert!(!failed.status.success() && text(&failed).contains("nothing was written"), "{}", text(&failed));
    assert_eq!(fs::read_to_string(&file).unwrap(), "# mine\n");
    let done = setup(&file, &["--provider", "native"]).output().unwrap();
    assert!(done.status.success() && text(&done).contains("printed \"42\\n\""), "{}", text(&done));
    let written = fs::read_to_string(&file).unwrap();
    assert!(written.contains("# mine") && written.contains("usual = \"native\""), "{written}");
    // Interactively: a number for the provider, and defaults for the rest.
    let mut terminal = Pty::start(&setup(&file, &[]), 24, 100);
    terminal.wait_for("number or name [native]: ");
    terminal.type_in("9\n");
    terminal.wait_for("there is no provider '9'");
    terminal.type_in("5\n");
    let (status, seen) = terminal.end();
    assert_eq!(status, Some(0), "{seen}");
    assert!(fs::read_to_string(&file).unwrap().contains("usual = \"simulated\""));
    let run = finish(belljar().arg("--config").arg(&file).args(["run", "--json", "-c", "print(1)"]));
    assert_eq!(run.json["receipt"]["simulated"], true);
    let local = belljar().arg("--config").arg(&file).args(["provider", "list", "--local"]).output().unwrap();
    assert!(text(&local).contains("simulated") && text(&local).contains("default"), "{}", text(&local));
}

#[test]
fn a_service_key_from_the_environment_is_never_shown() {
    const SECRET: &str = "e2b_hunter2_and_then_some";
    let folder = tempfile::tempdir().unwrap();
    let (file, log) = (folder.path().join("belljar.toml"), folder.path().join("log"));
    // No server listens at this address.
    fs::write(&file, "[providers.e2b]\napi_url = \"http://127.0.0.1:1\"\ninstead = [\"native\"]\n").unwrap();
    let mut command = belljar();
    command
        .args(["serve", "--allow-degraded", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(folder.path().join("data"));
    command.env("BELLJAR_CONFIG", &file).env("E2B_API_KEY", SECRET).env("BELLJAR_ADMIN_KEY", KEY);
    let script = format!("exec \"$@\" 2>{}", log.display());
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, "sh"]).arg(command.get_program()).args(command.get_args());
    shell.env("BELLJAR_LOG", "trace");
    for (name, value) in command.get_envs() {
        value.map(|value| shell.env(name, value));
    }
    let server = Server::of(&mut shell);
    let shown: Value = serde_json::from_str(&text(&provider(&server, &["show", "e2b"]))).unwrap();
    assert_eq!((&shown["settings"]["api_key"], &shown["instead"]), (&json!("********"), &json!(["native"])));
    let refused = provider(&server, &["set", "e2b", "template=other"]);
    assert!(text(&refused).contains("nothing was changed"), "{}", text(&refused));
    let elsewhere = provider(&server, &["set", "e2b", "api_url=http://127.0.0.1:2"]);
    assert!(
        text(&elsewhere).contains("api_url: would send 'api_key' to another destination"),
        "{}",
        text(&elsewhere)
    );
    let said = ["list", "versions", "test", "schema"].map(|word| match word {
        "list" => text(&provider(&server, &[word])),
        word => text(&provider(&server, &[word, "e2b"])),
    });
    assert!(said.iter().all(|text| !text.contains(SECRET)), "{said:?}");
    drop(server);
    let logged = fs::read_to_string(&log).unwrap();
    assert!(logged.contains("provider.set") && !logged.contains(SECRET), "{logged}");
    for file in fs::read_dir(folder.path().join("data")).unwrap().map(Result::unwrap) {
        if file.file_type().unwrap().is_file() {
            let bytes = fs::read(file.path()).unwrap();
            assert!(!bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes()), "{:?}", file.path());
        }
    }
}
