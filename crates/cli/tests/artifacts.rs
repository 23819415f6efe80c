//! Artifacts: what programs leave below `./artifacts`, in results, in folders and over HTTP.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use common::server::{KEY, Server};
use common::warm::Conversation;
use common::{Answer, belljar, finish, run};
use serde_json::{Value, json};

/// Leaves files of all kinds.
const TREE: &str = "import os\n\
    os.makedirs('artifacts/plots/deep')\n\
    open('artifacts/plots/deep/a.png', 'wb').write(b'\\x89PNG\\r\\n\\x1a\\n')\n\
    open('artifacts/model.bin', 'wb').write(bytes(range(256)))\n\
    open('artifacts/.hidden', 'w').write('h')\n\
    open('artifacts/Makefile', 'w').write('all:\\n')\n\
    open('artifacts/empty', 'w').close()\n";

fn names(result: &Value) -> Vec<&str> {
    let artifacts = result["artifacts"].as_array().unwrap();
    artifacts.iter().map(|artifact| artifact["name"].as_str().unwrap()).collect()
}

/// Returns the messages of findings about artifacts.
fn left_out(result: &Value) -> Vec<&str> {
    let findings = result["findings"].as_array().unwrap().iter();
    let about = findings.filter(|finding| finding["rule"] == "artifact-left-out");
    about.map(|finding| finding["message"].as_str().unwrap()).collect()
}

/// Runs Python with settings, cold or warm.
fn python(code: &str, settings: &[(&str, &str)]) -> Answer {
    finish(belljar().args(["run", "--json", "-c", code]).envs(settings.iter().copied()))
}

#[test]
fn the_folder_exists_and_every_file_below_it_comes_back() {
    let answer = run(["-c", &format!("{TREE}print(sorted(os.listdir('.')))")]);
    assert_eq!(answer.status(), "succeeded", "{answer:#?}");
    assert!(answer.text("stdout").contains("'artifacts'"));
    let all = [".hidden", "Makefile", "empty", "model.bin", "plots/deep/a.png"];
    assert_eq!(names(&answer.json), all);
    let types: Vec<_> =
        answer.json["artifacts"].as_array().unwrap().iter().map(|a| &a["mime_type"]).collect();
    let expected =
        ["text/plain", "text/plain", "application/octet-stream", "application/octet-stream", "image/png"];
    assert_eq!(types, expected);
    let model = STANDARD.decode(answer.json["artifacts"][3]["content_base64"].as_str().unwrap()).unwrap();
    assert_eq!(model, (0..=255).collect::<Vec<u8>>());
    assert!(left_out(&answer.json).is_empty(), "{answer:#?}");
    for (language, code) in
        [("bash", "echo 1 > artifacts/a"), ("javascript", "require('fs').writeFileSync('artifacts/a', '1')")]
    {
        let answer = run(["--language", language, "-c", code]);
        assert_eq!((answer.status(), names(&answer.json)), ("succeeded", vec!["a"]), "{answer:#?}");
    }
}

#[test]
fn a_program_that_leaves_nothing_has_no_artifacts() {
    for code in ["pass", "import os; os.rmdir('artifacts')", "import os; os.mkdir('artifacts/a')"] {
        let answer = run(["-c", code]);
        assert_eq!((answer.status(), names(&answer.json).len()), ("succeeded", 0), "{answer:#?}");
        assert!(left_out(&answer.json).is_empty(), "{answer:#?}");
    }
}

#[test]
fn limits_are_settings_and_name_what_is_left_out() {
    let code = "for name, size in [('a', 3000), ('b', 5000), ('c', 3000), ('d', 10), ('e', 10)]: \
                open(f'artifacts/{name}', 'w').write('x' * size)";
    let limits = [
        ("BELLJAR_ARTIFACTS_MAX_FILES", "2"),
        ("BELLJAR_ARTIFACTS_MAX_FILE_BYTES", "4K"),
        ("BELLJAR_ARTIFACTS_MAX_BYTES", "5K"),
    ];
    let answer = python(code, &limits);
    assert_eq!(names(&answer.json), ["a", "d"], "{answer:#?}");
    assert_eq!(
        left_out(&answer.json),
        [
            "artifacts/b was not returned: it is larger than 4 KB",
            "artifacts/c was not returned: all artifacts together would be larger than 5 KB",
            "artifacts/e was not returned: there are more than 2 files",
        ]
    );
    let settings: Vec<_> = answer.json["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["decided_by"].clone())
        .collect();
    let expected =
        ["artifacts.max_file_bytes = 4096", "artifacts.max_bytes = 5120", "artifacts.max_files = 2"];
    assert_eq!(settings, expected);
    let shown = belljar().args(["run", "-c", code]).envs(limits).output().unwrap();
    let stderr = String::from_utf8_lossy(&shown.stderr);
    assert!(
        stderr.contains("artifacts/b was not returned") && stderr.contains("artifacts.max_file_bytes"),
        "{stderr}"
    );
}

#[test]
fn hostile_artifacts_are_named_and_never_read() {
    let code = "import os, socket\n\
        os.chdir('artifacts')\n\
        os.symlink('/etc/passwd', 'link')\n\
        os.symlink('/etc', 'linked-folder')\n\
        os.mkfifo('pipe')\n\
        os.mknod('socket', 0o140644)\n\
        open('a\\n\\x1b[31mb', 'w').write('x')\n\
        open(b'\\xff', 'w').write('x')\n\
        open('unreadable', 'w').write('x'); os.chmod('unreadable', 0)\n\
        with open('sparse', 'w') as f: f.truncate(90 << 20)\n\
        for n in range(20):\n    os.mkdir('d'); os.chdir('d')\n\
        open('deep', 'w').write('x')\n\
        os.chdir('/workspace/artifacts')\n\
        open('zz-fine', 'w').write('fine')\n";
    let answer = run(["-c", code]);
    assert_eq!((answer.status(), names(&answer.json)), ("succeeded", vec!["zz-fine"]), "{answer:#?}");
    let mut messages = left_out(&answer.json);
    messages.sort_unstable();
    let deepest =
        format!("artifacts/{} was not returned: it is below more than 16 folders", ["d"; 17].join("/"));
    let mut expected = vec![
        "artifacts/a\\n\\u{1b}[31mb was not returned: its name is not UTF-8, has control characters or is too long",
        "artifacts/link was not returned: it is a symbolic link",
        "artifacts/linked-folder was not returned: it is a symbolic link",
        "artifacts/pipe was not returned: it is not a regular file",
        "artifacts/socket was not returned: it is not a regular file",
        "artifacts/sparse was not returned: it is larger than 32 MB",
        "artifacts/unreadable was not returned: it could not be read",
        "artifacts/\u{fffd} was not returned: its name is not UTF-8, has control characters or is too long",
        &deepest,
    ];
    expected.sort_unstable();
    assert_eq!(messages, expected);
    let linked = run(["-c", "import os; os.rmdir('artifacts'); os.symlink('/etc', 'artifacts')"]);
    assert_eq!(left_out(&linked.json), ["artifacts was not returned: it is a symbolic link"]);
}

#[test]
fn many_files_are_counted() {
    let answer = run(["-c", "for n in range(2000): open(f'artifacts/{n:04}', 'w').close()"]);
    assert_eq!((answer.status(), names(&answer.json).len()), ("succeeded", 100));
    let messages = left_out(&answer.json);
    assert_eq!(messages.len(), 21, "{messages:?}");
    assert_eq!(messages[20], "1880 more files below ./artifacts were not returned");
}

#[test]
fn a_host_workspace_gets_no_folder() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let workspace = folder.path().to_str().unwrap();
    let listed = run(["--workspace", workspace, "-c", "import os; print(os.path.exists('artifacts'))"]);
    assert_eq!(listed.text("stdout"), "False\n", "{listed:#?}");
    assert!(!folder.path().join("artifacts").exists());
    let code = "import os; os.makedirs('artifacts/x'); open('artifacts/x/y', 'w').write('1')";
    assert_eq!(names(&run(["--workspace", workspace, "-c", code]).json), ["x/y"]);
}

#[test]
fn they_are_saved_below_a_folder_and_nowhere_else() {
    let folder = tempfile::tempdir().unwrap();
    let (made, outside) = (folder.path().join("new/made"), folder.path().join("outside"));
    fs::create_dir(&outside).unwrap();
    let saves = |code: &str| belljar().args(["run", "-c", code, "--artifacts"]).arg(&made).output().unwrap();
    let output = saves(TREE);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.contains("saved 5 artifacts in "), "{stderr}");
    assert_eq!(fs::read(made.join("model.bin")).unwrap().len(), 256);
    assert!(fs::read(made.join("plots/deep/a.png")).unwrap().starts_with(b"\x89PNG"));
    fs::remove_dir_all(made.join("plots")).unwrap();
    std::os::unix::fs::symlink(&outside, made.join("plots")).unwrap();
    drop(saves(TREE));
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "a link was followed");
}

#[test]
fn a_batch_saves_each_line_in_its_own_folder() {
    let folder = tempfile::tempdir().unwrap();
    let lines = folder.path().join("lines.jsonl");
    let line =
        |n: u32| json!({"language": "python", "code": format!("open('artifacts/n', 'w').write('{n}')")});
    fs::write(&lines, format!("{}\n{}\n", line(0), line(1))).unwrap();
    let saved = |made: &Path, flags: &[&str]| {
        let mut command = belljar();
        command.arg("run").arg("--batch").arg(&lines).arg("--artifacts").arg(made).args(flags);
        let output = command.env("BELLJAR_API_KEY", KEY).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        [0, 1].map(|n| fs::read_to_string(made.join(format!("{n}/n"))).unwrap())
    };
    assert_eq!(saved(&folder.path().join("here"), &[]), ["0", "1"]);
    let server = server_with_small_results(&folder.path().join("data"));
    assert_eq!(saved(&folder.path().join("there"), &["--server", &server.url]), ["0", "1"]);
}

/// Starts a server whose results hold ten bytes of artifacts.
fn server_with_small_results(folder: &Path) -> Server {
    fs::create_dir_all(folder).unwrap();
    Server::configured(folder, "[artifacts]\ninline_bytes = 10\n")
}

#[test]
fn large_ones_travel_by_reference() {
    let folder = tempfile::tempdir().unwrap();
    let server = server_with_small_results(folder.path());
    let code = "import os; os.mkdir('artifacts/a b'); open('artifacts/a b/l.html', 'w').write('<b>' * 1000000); \
                open('artifacts/s.txt', 'w').write('small')";
    let result = server.post("/v1/executions", &json!({"language": "python", "code": code})).json();
    let (large, small) = (&result["artifacts"][0], &result["artifacts"][1]);
    assert_eq!((&large["name"], &large["size"]), (&json!("a b/l.html"), &json!(3_000_000)), "{result}");
    assert_eq!((&large["content_base64"], small.get("url")), (&Value::Null, None));
    assert_eq!(small["content_base64"], STANDARD.encode("small"));
    let url = large["url"].as_str().unwrap();
    let id = result["id"].as_str().unwrap();
    assert_eq!(url, format!("/v1/executions/{id}/artifacts/a%20b/l.html"));

    let reply = server.get(url);
    assert_eq!((reply.status, reply.text()), (200, "<b>".repeat(1_000_000)));
    for (name, value) in [
        ("content-disposition", "attachment; filename=\"l.html\"; filename*=UTF-8''l.html"),
        ("content-security-policy", "sandbox"),
        ("x-content-type-options", "nosniff"),
        ("content-type", "text/html"),
        ("content-length", "3000000"),
    ] {
        assert_eq!(reply.header(name), Some(value), "{name}");
    }
    let small = server.get(&format!("/v1/executions/{id}/artifacts/s.txt"));
    assert_eq!((small.status, small.text().as_str()), (200, "small"));
    for missing in ["nothing", "a b", "..%2f..", "a%20b%2fl.htm"] {
        let path = format!("/v1/executions/{id}/artifacts/{}", missing.replace(' ', "%20"));
        assert_eq!(server.get(&path).status, 404, "{missing}");
    }
    let other = server.tenant("other", json!({}));
    assert_eq!(server.call_as(&other, "GET", url, "", b"").status, 404);
    let made = folder.path().join("made");
    let run = belljar()
        .args(["run", "--server", &server.url, "-c", code, "--artifacts"])
        .arg(&made)
        .env("BELLJAR_API_KEY", KEY)
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert_eq!(fs::metadata(made.join("a b/l.html")).unwrap().len(), 3_000_000);
    assert_eq!(fs::read_to_string(made.join("s.txt")).unwrap(), "small");
}

#[test]
fn a_sandbox_returns_what_is_new() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let sandbox = server.sandbox(&json!({}));
    let execute = |code: &str| {
        server.post(&format!("{sandbox}/executions"), &json!({"language": "python", "code": code})).json()
    };
    let first = execute(
        "import os; os.makedirs('artifacts/x'); os.symlink('/etc', 'artifacts/l'); \
                         open('artifacts/x/a', 'w').write('1')",
    );
    assert_eq!(names(&first), ["x/a"], "{first}");
    assert_eq!(left_out(&first), ["artifacts/l was not returned: it is a symbolic link"]);
    let second = execute("open('artifacts/x/b', 'w').write('2')");
    assert_eq!((names(&second), left_out(&second).len()), (vec!["x/b"], 0), "{second}");
}

#[test]
fn warm_runs_return_the_same() {
    let mut warm = Conversation::start("mode = \"pool\"", "", ["--language", "python"]);
    warm.until("pool");
    let line = json!({"code": format!("{TREE}os.symlink('/etc', 'artifacts/l')")});
    let result = warm.ask_warm("pool", &line);
    assert_eq!(names(&result), [".hidden", "Makefile", "empty", "model.bin", "plots/deep/a.png"], "{result}");
    assert_eq!(left_out(&result), ["artifacts/l was not returned: it is a symbolic link"]);
    let nothing = warm.ask_warm("pool", &json!({"code": "import os; print(os.listdir('artifacts'))"}));
    assert_eq!((nothing["stdout"].as_str(), names(&nothing).len()), (Some("[]\n"), 0), "{nothing}");
}

#[test]
fn curl_saves_one_under_its_own_name() {
    let folder = tempfile::tempdir().unwrap();
    let server = server_with_small_results(folder.path());
    let (_, result) =
        server.run(r#"{"language":"python","code":"open('artifacts/t.csv', 'w').write('1,2\\n' * 100)"}"#);
    let url = format!("{}{}", server.url, result["artifacts"][0]["url"].as_str().unwrap());
    let saved = Command::new("curl")
        .args(["-sOJ", "-H", &format!("Authorization: Bearer {KEY}"), &url])
        .current_dir(folder.path())
        .status();
    assert!(saved.unwrap().success());
    assert_eq!(fs::read_to_string(folder.path().join("t.csv")).unwrap().len(), 400);
}
