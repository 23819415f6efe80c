//! Storage that outlives sandboxes: volumes, allowed host folders, snapshots.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};

use crate::common::host::alive_with;
use crate::common::server::{KEY, Reply, Server};
use crate::wait_for;

const JSON: &str = "Content-Type: application/json\r\n";

fn volume(server: &Server, name: &str, size_bytes: u64) {
    let made = server.post("/v1/volumes", &json!({"name": name, "size_bytes": size_bytes}));
    assert_eq!(made.status, 201, "{}", made.text());
}

fn on(name: &str, read_only: bool) -> Value {
    json!({"volumes": [{"name": name, "path": "/data", "read_only": read_only}]})
}

fn shell(server: &Server, url: &str, line: &str) -> Reply {
    server.post(&format!("{url}/executions"), &json!({"language": "bash", "code": line}))
}

fn says(server: &Server, url: &str, line: &str) -> String {
    let ran = shell(server, url, line);
    assert_eq!(ran.json()["status"], "succeeded", "{line}: {}", ran.text());
    ran.json()["stdout"].as_str().unwrap().trim_end().to_owned()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_volume_outlives_its_sandbox_and_is_private_to_its_tenant() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let other = server.tenant("other", json!({}));
    volume(&server, "kept", 64 << 20);
    let first = server.sandbox(&on("kept", false));
    says(&server, &first, "mkdir -p /data/a && echo hello > /data/a/file && ln -s file /data/a/link");
    let busy = server.delete("/v1/volumes/kept");
    assert_eq!((busy.status, busy.code().as_str()), (409, "conflict"));
    assert_eq!(server.delete(&first).status, 200);

    let second = server.sandbox(&on("kept", true));
    assert_eq!(server.get(&second).json()["volumes"], on("kept", true)["volumes"]);
    assert_eq!(
        says(&server, &second, "cat /data/a/link; echo no > /data/x || echo refused"),
        "hello\nrefused"
    );
    let used = server.get("/v1/volumes/kept").json();
    assert!(used["used_bytes"].as_u64().unwrap() >= 4096, "{used}");
    // Another tenant can neither see nor name it.
    let asked = server.call_as(&other, "GET", "/v1/volumes/kept", "", b"");
    assert_eq!(asked.status, 404);
    let theirs =
        server.call_as(&other, "POST", "/v1/sandboxes", JSON, on("kept", true).to_string().as_bytes());
    assert_eq!((theirs.status, theirs.code().as_str()), (422, "invalid_request"));
    assert_eq!(server.call_as(&other, "DELETE", "/v1/volumes/kept", "", b"").status, 404);

    assert_eq!(server.delete(&second).status, 200);
    drop(server);
    let server = Server::new(folder.path());
    let third = server.sandbox(&on("kept", false));
    assert_eq!(says(&server, &third, "cat /data/a/file"), "hello", "it outlives the server");
    assert_eq!(server.delete(&third).status, 200);
    assert_eq!(server.delete("/v1/volumes/kept").status, 204);
    assert!(names(&folder.path().join("volumes")).is_empty());
    assert_eq!(server.post("/v1/sandboxes", &on("kept", false)).status, 422);
}

#[test]
fn a_sandbox_that_overfills_a_volume_is_halted() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    volume(&server, "small", 8 << 20);
    let (url, reader) = (server.sandbox(&on("small", false)), server.sandbox(&on("small", true)));
    let fill =
        "(setsid sleep 98123 &) ; while true; do head -c 1000000 /dev/zero >> /data/big; sleep 0.02; done";
    let ran = shell(&server, &url, fill).json();
    assert_eq!((&ran["status"], &ran["limit"]), (&json!("limit_exceeded"), &json!("disk")), "{ran}");
    wait_for("its background processes are dead", || {
        alive_with("sleep 98123", std::time::Duration::ZERO).is_empty()
    });
    let refused = shell(&server, &url, "true");
    assert_eq!((refused.status, refused.code().as_str()), (409, "disk_full"), "{}", refused.text());
    assert!(refused.text().contains("volume 'small' exceeds its size"), "{}", refused.text());
    let halted = server.get(&url).json();
    assert_eq!(
        (&halted["state"], &halted["halted"]),
        (&json!("halted"), &json!("volume 'small' exceeds its size"))
    );
    let listed = |state: &str| {
        let page = server.get(&format!("/v1/sandboxes?state={state}")).json();
        page["sandboxes"].as_array().unwrap().iter().any(|sandbox| sandbox["id"] == halted["id"])
    };
    assert!(listed("halted") && !listed("running"));
    assert!(server.get("/v1/volumes/small").json()["used_bytes"].as_u64().unwrap() > 8 << 20);
    // A sandbox that only reads the volume continues; a new one that could write is halted from the start.
    assert_eq!(says(&server, &reader, "test -s /data/big && echo fine"), "fine");
    let another = server.sandbox(&on("small", false));
    assert_eq!(shell(&server, &another, "true").code(), "disk_full");
    // Freeing space resumes them; nothing else is needed.
    let big = server_file(folder.path(), "big");
    std::fs::remove_file(big).unwrap();
    for url in [&url, &another] {
        wait_for("the sandbox continues", || shell(&server, url, "true").status == 200);
        assert_eq!(server.get(url).json()["halted"], Value::Null);
    }
    assert!(listed("running"));
}

fn server_file(data: &Path, name: &str) -> std::path::PathBuf {
    let volumes = data.join("volumes");
    volumes.join(&names(&volumes)[0]).join(name)
}

#[test]
fn a_new_sandbox_has_the_files_of_a_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let other = server.tenant("other", json!({}));
    volume(&server, "apart", 64 << 20);
    let request = json!({"volumes": [{"name": "apart", "path": "/workspace/apart"}]});
    let url = server.sandbox(&request);
    let make = "mkdir -p a/b && echo one > a/b/file && chmod 640 a/b/file && printf '#!/bin/sh\\necho ran\\n' > run \
                && chmod 755 run && ln -s a/b/file link && ln -s /nowhere dangling && echo no > apart/secret";
    says(&server, &url, make);
    // Programs are paused while the snapshot is taken, and continue afterwards.
    let counting = json!({"language": "bash", "code": "while true; do echo >> counted; sleep 0.02; done", "wait": false});
    assert_eq!(server.post(&format!("{url}/executions"), &counting).status, 202);
    let made = server.post(&format!("{url}/snapshots"), &json!({"label": "before"}));
    let snapshot = made.json();
    assert_eq!((made.status, &snapshot["label"]), (201, &json!("before")), "{snapshot}");
    assert!(snapshot["ready"].is_i64() && snapshot["size_bytes"].as_u64().unwrap() > 1024, "{snapshot}");
    let path = format!("/v1/snapshots/{}", snapshot["id"].as_str().unwrap());
    assert_eq!(server.get(&path).json(), snapshot);
    assert_eq!(server.get("/v1/snapshots").json()["snapshots"], json!([snapshot]));
    assert_eq!(server.delete(&url).status, 200);

    let from = json!({"snapshot": snapshot["id"]});
    let new = server.sandbox(&from);
    let look =
        "cat link; ./run; stat -c %a a/b/file run; readlink dangling; test -e apart/secret || echo apart";
    assert_eq!(says(&server, &new, look), "one\nran\n640\n755\n/nowhere\napart");
    let theirs = |method: &str| server.call_as(&other, method, &path, "", b"").status;
    assert_eq!((theirs("GET"), theirs("DELETE")), (404, 404));
    let refused = server.call_as(&other, "POST", "/v1/sandboxes", JSON, from.to_string().as_bytes());
    assert_eq!(refused.status, 422);
    let tight = server.tenant("tight", json!({"disk_bytes": 1500}));
    let opened = server.call_as(&tight, "POST", "/v1/sandboxes", JSON, b"{}").json();
    let url = format!("/v1/sandboxes/{}/snapshots", opened["id"].as_str().unwrap());
    let kept = server.call_as(&tight, "POST", &url, JSON, b"{}");
    assert_eq!(kept.status, 201, "an empty one fits: {}", kept.text());
    let refused = server.call_as(&tight, "POST", &url, JSON, b"{}");
    assert_eq!((refused.status, refused.code().as_str()), (429, "quota_exceeded"), "{}", refused.text());
    assert_eq!(server.delete(&path).status, 204);
    assert_eq!(server.post("/v1/sandboxes", &from).status, 422);
    assert_eq!(names(&folder.path().join("snapshots")).len(), 1, "the other tenant's snapshot");
}

#[test]
fn incomplete_snapshots_are_discarded() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::new(folder.path());
    let url = server.sandbox(&json!({"limits": {"memory_bytes": 1_u64 << 30, "disk_bytes": 512 << 20}}));
    says(&server, &url, "head -c 300000000 /dev/zero > big");
    let waiting = server.send_as(KEY, "POST", &format!("{url}/snapshots"), JSON, b"{}");
    let snapshots = folder.path().join("snapshots");
    wait_for("the snapshot is being written", || {
        names(&snapshots).iter().any(|name| name.ends_with(".part"))
    });
    // Kill it directly, because starting another program to do so would take too long.
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    drop(waiting);
    assert!(
        names(&snapshots).iter().all(|name| name.ends_with(".part")),
        "the server was killed while writing it"
    );
    let server = Server::new(folder.path());
    assert_eq!(server.get("/v1/snapshots").json(), json!({"snapshots": []}));
    assert!(names(&snapshots).is_empty());
}

#[test]
fn only_allowed_host_folders_can_be_mounted() {
    let (folder, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for name in ["sets", "shared", "private"] {
        std::fs::create_dir(host.path().join(name)).unwrap();
        std::fs::write(host.path().join(name).join("file"), name).unwrap();
    }
    std::fs::set_permissions(host.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let at = |name: &str| host.path().join(name).display().to_string();
    let settings = format!(
        "[server.host_folders]\nsets = {{ path = \"{}\" }}\nshared = {{ path = \"{}\", writable = true }}\n\
         private = {{ path = \"{}\", tenants = [\"other\"] }}",
        at("sets"),
        at("shared"),
        at("private")
    );
    let server = Server::configured(folder.path(), &settings);
    let asked = |entry: Value| server.post("/v1/sandboxes", &json!({"volumes": [entry]}));
    let url = server.sandbox(&json!({"volumes": [
        {"host": "sets", "path": "/data/sets", "read_only": true}, {"host": "shared", "path": "/data/shared"}]}));
    let line = "cat /data/sets/file; echo x > /data/sets/y || echo refused; echo back > /data/shared/back";
    assert_eq!(says(&server, &url, line), "setsrefused");
    assert_eq!(std::fs::read_to_string(host.path().join("shared/back")).unwrap(), "back\n");
    for entry in [
        json!({"host": "sets", "path": "/data"}),
        json!({"host": "private", "path": "/data", "read_only": true}),
        json!({"host": "/etc", "path": "/data", "read_only": true}),
        json!({"host": "..", "path": "/data", "read_only": true}),
        json!({"name": "sets", "path": "/data", "read_only": true}),
        json!({"host": "sets", "source": "/etc", "path": "/data", "read_only": true}),
        json!({"host": "sets", "path": "/etc", "read_only": true}),
    ] {
        assert_eq!(asked(entry.clone()).status, 422, "{entry}");
    }
    let other = server.tenant("other", json!({}));
    let private = json!({"volumes": [{"host": "private", "path": "/data", "read_only": true}]}).to_string();
    assert_eq!(server.call_as(&other, "POST", "/v1/sandboxes", JSON, private.as_bytes()).status, 201);
    // A replaced folder of the same name is not the one that was allowed.
    std::fs::rename(host.path().join("sets"), host.path().join("old")).unwrap();
    std::os::unix::fs::symlink("/etc", host.path().join("sets")).unwrap();
    let refused = asked(json!({"host": "sets", "path": "/data", "read_only": true}));
    assert!(refused.status >= 500 && !refused.text().contains(&at("")), "{}", refused.text());
}
