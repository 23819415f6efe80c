//! A data folder that is full, read-only or short of inodes: new work is refused with the reason, running
//! work continues, and no restart is needed once there is room again.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::is_root;
use crate::common::server::{KEY, Server};
use crate::expect::skip;

/// Mounts a small file system on the first argument and runs the rest with it.
const MOUNT: &str = "mount -t tmpfs -o \"$1\" none \"$2\" && shift 2 && exec \"$@\"";

/// Starts a server whose data folder is a file system of its own, in a private mount namespace.
fn belljar_on(options: &str, folder: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", MOUNT, "sh", options]).arg(folder);
    command.args([env!("CARGO_BIN_EXE_belljar"), "serve", "--allow-degraded"]);
    command
}

/// Returns whether this machine cannot run the test, and prints why.
fn skipped(test: &str) -> bool {
    if !is_root() {
        skip(test, "only root can mount a small disk");
    }
    !is_root()
}

struct SmallDisk {
    server: Server,
    /// The data folder, as seen by the server.
    data: PathBuf,
    folder: tempfile::TempDir,
}

impl SmallDisk {
    fn new(options: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::by(belljar_on(options, folder.path()), folder.path());
        let data = format!("/proc/{}/root{}", server.child.id(), folder.path().display()).into();
        Self { server, data, folder }
    }

    /// Fills the disk.
    fn fill(&self) -> PathBuf {
        let path = self.data.join("filler");
        let mut file = File::create(&path).unwrap();
        for size in [64 << 10, 4 << 10, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
        path
    }

    /// Runs code whose result takes some space.
    fn run(&self) -> (String, Value) {
        self.server.run(r#"{"language":"bash","code":"head -c 300000 /dev/zero | tr '\\0' x"}"#)
    }
}

#[test]
fn a_full_disk_refuses_new_work_and_heals() {
    if skipped("a_full_disk_refuses_new_work_and_heals") {
        return;
    }
    let disk = SmallDisk::new("size=16m");
    let server = &disk.server;
    let long = server.run(r#"{"command":["sleep","3"],"wait":false}"#);
    assert_eq!(long.0, "202");
    let id = long.1["id"].as_str().unwrap().to_owned();
    let filler = disk.fill();
    // Space that the write-ahead log has already allocated can still be used.
    let refused = (0..200).map(|_| disk.run()).find(|(status, _)| status != "200").unwrap();
    assert_eq!((refused.0.as_str(), &refused.1["error"]["code"]), ("507", &"storage_full".into()));
    let folder = disk.folder.path().to_str().unwrap();
    assert!(!refused.1.to_string().contains(folder), "{}", refused.1);
    assert_eq!(server.curl(&[], "/healthz").0, "200");
    assert_eq!(server.curl(&[], "/v1/executions?limit=1").0, "200", "reads still work");
    fs::remove_file(filler).unwrap();
    let healed = disk.run();
    assert_eq!((healed.0.as_str(), &healed.1["status"]), ("200", &"succeeded".into()), "{}", healed.1);
    assert_eq!(server.curl(&[], "/healthz/ready").0, "200");
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let (_, found) = server.curl(&[], &format!("/v1/executions/{id}"));
        let found: Value = serde_json::from_str(&found).unwrap();
        if found["status"] == "succeeded" {
            break;
        }
        assert!(
            found["status"] == "running" && Instant::now() < end,
            "the running execution was lost: {found}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn running_out_of_inodes_is_survived() {
    if skipped("running_out_of_inodes_is_survived") {
        return;
    }
    let disk = SmallDisk::new("size=64m,nr_inodes=40");
    let made = (0..).take_while(|number| File::create(disk.data.join(number.to_string())).is_ok()).count();
    assert!(made < 40);
    for _ in 0..5 {
        assert_eq!(disk.run().0, "200");
    }
    assert_eq!(disk.server.curl(&[], "/healthz/ready").0, "200");
}

#[test]
fn an_unwritable_data_folder_is_reported_at_start() {
    if skipped("an_unwritable_data_folder_is_reported_at_start") {
        return;
    }
    for (options, why) in [("ro", "ead-only"), ("nr_inodes=1", "o space"), ("size=4k", "no space left")] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = belljar_on(options, folder.path());
        command.args(["--listen", "127.0.0.1:0", "--data-dir"]).arg(folder.path());
        command.env("BELLJAR_ADMIN_KEY", KEY).stdin(Stdio::null());
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(125), "{options}: {said}");
        assert!(said.contains(why), "{options}: {said}");
    }
}
