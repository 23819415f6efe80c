//! Disks of sandboxes in files of the server.

use std::path::Path;

use serde_json::{Value, json};

use crate::common::server::{KEY, Server};
use crate::wait_for;

const JSON: &str = "Content-Type: application/json\r\n";

fn in_file(disk_bytes: u64, memory_bytes: u64) -> Value {
    json!({"disk_storage": "file", "limits": {"disk_bytes": disk_bytes, "memory_bytes": memory_bytes}})
}

/// Runs a line of shell, which must succeed, and returns its output without the final newline.
fn shell(server: &Server, url: &str, line: &str) -> String {
    let code = json!({"language": "bash", "code": line});
    let ran = server.post(&format!("{url}/executions"), &code).json();
    assert_eq!(ran["status"], "succeeded", "{line}: {ran}");
    ran["stdout"].as_str().unwrap().trim_end().to_owned()
}

/// Returns why no disk can be in a file here.
fn obstacle(server: &Server) -> Option<String> {
    let opened = server.post("/v1/sandboxes", &in_file(32 << 20, 128 << 20));
    if opened.status == 201 {
        let url = format!("/v1/sandboxes/{}", opened.json()["id"].as_str().unwrap());
        assert_eq!(server.delete(&url).status, 200);
        return None;
    }
    assert_eq!(opened.code(), "unsupported", "{}", opened.text());
    Some(opened.text())
}

/// Starts a server that can have disks in files, or says why none can.
fn start(folder: &Path, settings: &str) -> Result<Server, String> {
    let server = Server::configured(folder, settings);
    obstacle(&server).map_or(Ok(server), Err)
}

/// Starts a server, or ends the test where no disk can be in a file.
macro_rules! server_or_skip {
    ($folder:expr, $settings:expr) => {
        match start($folder, $settings) {
            Ok(server) => server,
            Err(why) => return eprintln!("skipped: {why}"),
        }
    };
}

/// Returns the loop devices whose file is in this folder.
fn loop_devices_of(folder: &Path) -> usize {
    let folder = folder.canonicalize().unwrap();
    let devices = std::fs::read_dir("/sys/block").unwrap().flatten();
    let files =
        devices.filter_map(|device| std::fs::read_to_string(device.path().join("loop/backing_file")).ok());
    files.filter(|file| Path::new(file).starts_with(&folder)).count()
}

#[test]
fn a_disk_in_a_file_holds_more_than_memory_and_no_more_than_its_size() {
    let folder = tempfile::tempdir().unwrap();
    let server = server_or_skip!(folder.path(), "");
    let url = server.sandbox(&in_file(512 << 20, 64 << 20));
    let shown = server.get(&url).json();
    assert_eq!(
        (&shown["receipt"]["disk_storage"], &shown["limits"]["disk_bytes"]),
        (&json!("file"), &json!(536870912))
    );
    assert!(shown["receipt"]["isolation"].as_array().unwrap().contains(&json!("disk_quota")), "{shown}");
    // Four times the memory of the sandbox, in all writable places.
    for place in ["/workspace", "/tmp", "/dev/shm", "/home/sandbox"] {
        shell(
            &server,
            &url,
            &format!("head -c 64M /dev/zero | tr '\\0' x > {place}/large && wc -c < {place}/large"),
        );
    }
    let stats = server.get(&format!("{url}/stats")).json();
    assert!(stats["disk_bytes"].as_u64().unwrap() >= 256 << 20, "{stats}");

    let overfull = json!({"language": "bash", "code": "head -c 1G /dev/zero > /tmp/more"});
    let ended = server.post(&format!("{url}/executions"), &overfull).json();
    assert_eq!((&ended["status"], &ended["limit"]), (&json!("limit_exceeded"), &json!("disk")), "{ended}");
    assert_eq!(shell(&server, &url, "rm /tmp/more && echo still here > /tmp/x && cat /tmp/x"), "still here");
    let inodes = "i=0; while : > /tmp/$i; do i=$((i+1)); done 2>&1 | grep -o 'No space left on device'; rm -f /tmp/[0-9]*";
    assert_eq!(shell(&server, &url, inodes), "No space left on device");
    assert_eq!(server.delete(&url).status, 200);
    wait_for("the disk is gone", || loop_devices_of(folder.path()) == 0);
}

#[test]
fn a_disk_in_a_file_gives_no_rights_and_is_nobody_elses() {
    let folder = tempfile::tempdir().unwrap();
    let server = server_or_skip!(folder.path(), "disk_storage = \"file\"");
    let (one, two) = (server.sandbox(&json!({})), server.sandbox(&json!({})));
    shell(&server, &one, "echo mine > /tmp/secret; echo mine > /workspace/secret; echo mine > ~/secret");
    let found =
        "ls -A /tmp /workspace /dev/shm ~ | grep secret; find / -xdev -name lost+found 2>/dev/null; ls /dev";
    let seen = shell(&server, &two, found);
    assert!(!seen.contains("secret") && !seen.contains("lost+found") && !seen.contains("loop"), "{seen}");
    // Options of each of its mounts.
    let mounts = shell(&server, &two, "grep noinit_itable /proc/self/mounts | cut -d' ' -f2,4");
    assert_eq!(mounts.lines().count(), 4 + 2, "four places, the inbox, and what home covers: {mounts}");
    assert!(mounts.lines().all(|line| line.contains("nosuid") && line.contains("nodev")), "{mounts}");
    let owners =
        shell(&server, &two, "stat -c '%u %g %a' /workspace /tmp /dev/shm ~ && touch f && stat -c '%u' f");
    assert_eq!(owners, "1000 1000 755\n1000 1000 1777\n1000 1000 1777\n1000 1000 700\n1000");
    assert_eq!(server.get(&one).json()["receipt"]["disk_storage"], "file", "the setting is the default");
    let named = server.sandbox(&json!({"disk_storage": "memory"}));
    assert_eq!(server.get(&named).json()["receipt"]["disk_storage"], "memory");
    assert!(names_in(folder.path()).iter().all(|name| !name.starts_with("disk")), "no disk has a name");
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

#[test]
fn a_killed_server_leaves_no_disk() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = server_or_skip!(folder.path(), "");
    let url = server.sandbox(&in_file(64 << 20, 128 << 20));
    shell(&server, &url, "head -c 8M /dev/urandom > kept");
    assert_eq!(loop_devices_of(folder.path()), 1);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    wait_for("the kernel removed the disk", || loop_devices_of(folder.path()) == 0);
    let server = Server::new(folder.path());
    assert_eq!(server.get(&url).json()["state"], "ended");
    server.sandbox(&in_file(64 << 20, 128 << 20));
}

#[test]
fn snapshots_and_archives_fit_between_both_storages() {
    let folder = tempfile::tempdir().unwrap();
    let server = server_or_skip!(folder.path(), "");
    let url = server.sandbox(&in_file(64 << 20, 128 << 20));
    shell(&server, &url, "mkdir -p a && echo kept > a/file && ln -s a/file link");
    let snapshot = server.post(&format!("{url}/snapshots"), &json!({})).json();
    assert_eq!(server.delete(&url).status, 200);
    for storage in ["file", "memory"] {
        let request = json!({"disk_storage": storage, "snapshot": snapshot["id"]});
        let again = server.sandbox(&request);
        assert_eq!(shell(&server, &again, "cat link"), "kept", "{storage}");
    }
}

#[test]
fn disks_in_files_count_against_the_disk_quota() {
    let folder = tempfile::tempdir().unwrap();
    let server = server_or_skip!(folder.path(), "disk_file_bytes = \"256M\"");
    let key = server.tenant("small", json!({"disk_bytes": 100 << 20}));
    let post =
        |path: &str, body: Value| server.call_as(&key, "POST", path, JSON, body.to_string().as_bytes());
    let open = |bytes: u64| post("/v1/sandboxes", in_file(bytes, 128 << 20));
    let opened = open(64 << 20);
    assert_eq!(opened.status, 201, "{}", opened.text());
    let second = open(64 << 20);
    assert_eq!((second.status, second.code().as_str()), (429, "quota_exceeded"), "{}", second.text());
    assert!(second.text().contains("close a sandbox"), "{}", second.text());
    let volume = post("/v1/volumes", json!({"name": "v", "size_bytes": 64 << 20}));
    assert_eq!((volume.status, volume.code().as_str()), (429, "quota_exceeded"), "{}", volume.text());
    let used = server.get("/v1/tenants/small/usage").json();
    assert_eq!(used["disk_bytes"], 64 << 20, "{used}");

    let url = format!("/v1/sandboxes/{}", opened.json()["id"].as_str().unwrap());
    assert_eq!(server.call_as(&key, "DELETE", &url, "", b"").status, 200);
    let volume = post("/v1/volumes", json!({"name": "v", "size_bytes": 64 << 20}));
    assert_eq!(volume.status, 201, "{}", volume.text());
    let third = open(64 << 20);
    assert_eq!(third.code(), "quota_exceeded", "volumes count, too");
    assert_eq!(open(32 << 20).status, 201);
    // Above the setting, whatever the quota is.
    let above = server.call_as(
        KEY,
        "POST",
        "/v1/sandboxes",
        JSON,
        in_file(512 << 20, 128 << 20).to_string().as_bytes(),
    );
    assert_eq!(above.status, 422);
    assert!(above.text().contains("disk_file_bytes"), "{}", above.text());
}

#[test]
fn a_disk_that_the_data_folder_cannot_hold_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = server_or_skip!(folder.path(), "disk_file_bytes = \"1000T\"\ntenant_disk = \"1000T\"");
    let refused = server.post("/v1/sandboxes", &in_file(900 << 40, 128 << 20));
    assert_eq!((refused.status, refused.code().as_str()), (503, "setup_failed"), "{}", refused.text());
    assert!(refused.text().contains("the data folder has left for disks"), "{}", refused.text());
    assert_eq!(loop_devices_of(folder.path()), 0);
    // What was reserved for it is free again.
    server.sandbox(&in_file(64 << 20, 128 << 20));
}
