//! Creating, listing, changing and removing sandboxes; and the errors when that fails.

use serde_json::Value;

use crate::fake::Fake;
use crate::{SandboxFixture, client, refusal};

#[test]
fn a_sandbox_is_opened_changed_and_ended() {
    let fixture = SandboxFixture::new();
    let id = fixture.id.as_str();
    assert!(id.starts_with("sbx_") && !id.contains(char::is_whitespace), "{id}");
    let shown: Value = serde_json::from_str(&fixture.text(&["show", id])).unwrap();
    assert_eq!((&shown["state"], &shown["limits"]["disk_bytes"]), (&"running".into(), &(64 << 20).into()));
    fixture.text(&["pause", id]);
    assert!(fixture.text(&["list", "--state", "paused"]).contains(id));
    fixture.text(&["resume", id]);
    fixture.text(&["extend", id, "20m"]);
    let table = fixture.text(&["list"]);
    assert!(table.contains("running") && table.contains("in 19m"), "{table}");
    assert!(fixture.text(&["stats", id]).contains("peak memory"));
    assert_eq!(fixture.text(&["rm", id]), format!("{id}\n"));
    assert!(fixture.refusal(&["rm", id]).contains("ended (closed on request)"));
    assert!(fixture.text(&["list", "--state", "ended"]).contains("closed on request"));
}

#[test]
fn files_are_removed() {
    let fixture = SandboxFixture::new();
    let id = fixture.id.as_str();
    let shell = |line: &str| fixture.text(&["exec", id, "--", "sh", "-c", line]);
    shell("mkdir -p full/deep && touch a 'b c' full/deep/file && ln -s full link");
    fixture.text(&["rm-file", id, "a", "/workspace/b c", "link"]);
    assert_eq!(shell("ls"), "full\n", "a link is removed, and not what it points to");
    assert!(fixture.refusal(&["rm-file", id, "a"]).contains("a: "));
    assert!(fixture.refusal(&["rm-file", id, "full"]).contains("not empty"));
    assert_eq!(shell("ls full/deep"), "file\n");
    fixture.text(&["rm-file", id, "full", "--recursive"]);
    assert_eq!(shell("ls"), "");
}

#[test]
fn a_halted_sandbox_says_why_and_continues_when_files_are_removed() {
    let fixture = SandboxFixture::new();
    fixture.text(&["volume", "create", "small", "--size", "1M"]);
    let id = fixture.text(&["create", "--volume", "small:/data"]).trim_end().to_owned();
    let state =
        |id: &str| serde_json::from_str::<Value>(&fixture.text(&["show", id])).unwrap()["state"].clone();
    let wait_for = |wanted: &str| {
        let started = std::time::Instant::now();
        while state(&id) != wanted {
            assert!(started.elapsed() < std::time::Duration::from_secs(60), "never {wanted}");
        }
    };
    // The command is killed when the sandbox is halted.
    fixture.run(&["exec", &id, "--", "sh", "-c", "head -c 2M /dev/zero > /data/big; sleep 1000"]);
    wait_for("halted");
    let table = fixture.text(&["list", "--state", "halted"]);
    assert!(table.contains(&id) && table.contains("volume 'small' exceeds its size"), "{table}");
    let refused = fixture.refusal(&["exec", &id, "--", "true"]);
    assert!(refused.contains("the sandbox is halted: volume 'small' exceeds its size"), "{refused}");
    fixture.text(&["rm-file", &id, "/data/big"]);
    wait_for("running");
    fixture.text(&["exec", &id, "--", "true"]);
}

#[test]
fn hosts_are_listed_and_changed() {
    let fixture = SandboxFixture::new();
    let id = fixture.text(&["create", "--network", "pypi.org,*.example.com:8443"]).trim_end().to_owned();
    let shown = |arguments: &[&str]| serde_json::from_str::<Value>(&fixture.text(arguments)).unwrap();
    assert_eq!(shown(&["network", &id])["hosts"], serde_json::json!(["pypi.org", "*.example.com:8443"]));
    assert_eq!(shown(&["network", &id, "a.com,b.com:1"])["hosts"], serde_json::json!(["a.com", "b.com:1"]));
    assert!(fixture.refusal(&["network", &id, "*"]).contains("mode 'internet'"));
    assert!(fixture.refusal(&["network", &id, "internet"]).contains("requests may not use 'internet' here"));
    assert!(fixture.refusal(&["network", &id, "none"]).contains("can only change to 'hosts' or 'internet'"));
    assert!(fixture.refusal(&["network", &fixture.id, "a.com"]).contains("mode 'hosts'"));
}

#[test]
fn a_sandbox_has_the_requested_settings() {
    let fixture = SandboxFixture::new();
    let asked = [
        &[
            "create",
            "--json",
            "--timeout",
            "5m",
            "--life",
            "1h",
            "--on-timeout",
            "pause",
            "--memory",
            "256M",
            "--cpus",
            "0.5",
        ][..],
        &[
            "--processes",
            "20",
            "--network",
            "none",
            "--env",
            "A=b=c",
            "--metadata",
            "job=42",
            "--image",
            "host",
        ][..],
    ];
    let opened: Value = serde_json::from_str(&fixture.text(&asked.concat())).unwrap();
    assert_eq!((&opened["on_timeout"], &opened["life_ms"]), (&"pause".into(), &3_600_000.into()));
    assert_eq!(
        (&opened["limits"]["memory_bytes"], &opened["limits"]["processes"]),
        (&(256 << 20).into(), &20.into())
    );
    assert_eq!((&opened["env_names"][0], &opened["metadata"]["job"]), (&"A".into(), &"42".into()));
    let found: Value =
        serde_json::from_str(&fixture.text(&["list", "--metadata", "job=42", "--json"])).unwrap();
    assert_eq!(found["sandboxes"].as_array().unwrap().len(), 1);
    assert!(fixture.refusal(&["create", "--memory", "-1"]).contains("memory"));
    assert!(fixture.refusal(&["create", "--volume", "data"]).contains("NAME:/PATH"));
    assert!(
        fixture
            .refusal(&["rm", "--all"])
            .contains("would remove 2 sandboxes with everything in them; add --yes")
    );
    assert_eq!(fixture.text(&["rm", "--all", "--yes"]).lines().count(), 2);
    assert_eq!(fixture.text(&["rm", "--all"]), "");
}

#[test]
fn code_runs_in_an_existing_sandbox() {
    let fixture = SandboxFixture::new();
    fixture.text(&["exec", &fixture.id, "-c", "open('kept', 'w').write('42')"]);
    assert_eq!(fixture.text(&["exec", &fixture.id, "-c", "cat kept", "--language", "bash"]), "42");
    assert_eq!(
        fixture.run(&["exec", &fixture.id, "-c", "exit 3", "--language", "bash"]).status.code(),
        Some(3)
    );
    let json = fixture.text(&["exec", &fixture.id, "-c", "print(1)", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["stdout"], "1\n");
    assert!(fixture.refusal(&["exec", &fixture.id]).contains("nothing to run"));
}

#[test]
fn errors_say_what_to_do() {
    let fixture = SandboxFixture::new();
    let said = refusal(&mut client("http://127.0.0.1:9", &["list"]));
    assert!(said.contains("belljar serve") && said.contains("BELLJAR_SERVER"), "{said}");
    let said = refusal(fixture.command(&["list"]).env_remove("BELLJAR_API_KEY"));
    assert!(said.contains("a valid API key is needed") && said.contains("BELLJAR_API_KEY"), "{said}");
    assert!(fixture.refusal(&["show", "sbx_nothing"]).contains("no such sandbox"));
}

#[test]
fn volume_and_snapshot_requests_match_the_api() {
    let fake = Fake::start(|request| match request.path.as_str() {
        "/v1/sandboxes/sbx_1/snapshots" => (201, br#"{"id":"snap_1"}"#.to_vec()),
        "/v1/snapshots" => (200, br#"{"snapshots":[{"id":"snap_1","label":"\u001b[2J"}]}"#.to_vec()),
        _ => (204, Vec::new()),
    });
    let text = |arguments: &[&str]| {
        let output = client(&fake.url, arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    text(&["volume", "create", "data", "--size", "1G"]);
    text(&["volume", "rm", "a/b", "c"]);
    assert_eq!(text(&["snapshot", "create", "sbx_1", "--label", "clean"]), "snap_1\n");
    let table = text(&["snapshot", "list"]);
    assert!(table.contains("snap_1") && !table.contains('\x1b'), "{table:?}");
    text(&["snapshot", "rm", "snap_1"]);
    text(&["create", "--snapshot", "snap_1", "--volume", "data:/data:ro"]);
    let asked: Vec<_> = fake.requests().iter().map(|request| request.line()).collect();
    assert_eq!(
        asked[..6],
        [
            r#"POST /v1/volumes {"name":"data","size_bytes":1073741824}"#,
            "DELETE /v1/volumes/a%2Fb ",
            "DELETE /v1/volumes/c ",
            r#"POST /v1/sandboxes/sbx_1/snapshots {"label":"clean"}"#,
            "GET /v1/snapshots ",
            "DELETE /v1/snapshots/snap_1 ",
        ]
    );
    assert!(asked[6].contains(r#""snapshot":"snap_1""#), "{}", asked[6]);
    assert!(asked[6].contains(r#"{"name":"data","path":"/data","read_only":true}"#), "{}", asked[6]);
}
