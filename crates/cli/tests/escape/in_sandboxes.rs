//! The escape programs in sandboxes of a server: with disks in files, and with writable roots.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use libtest_mimic::Trial;
use serde_json::{Value, json};

use super::programs::{held, name_of, only_known};
use crate::common::server::Server;
use crate::common::{Answer, beside};

/// Smallest disk in a file.
const LEAST_DISK: &str = "16M";
type Checks = &'static [(&'static str, &'static [&'static str])];

/// Checks that differ on a disk in a file. All but the first differ in every sandbox that stays open.
const ON_A_DISK_FILE: Checks = &[
    // The file system itself takes some of its size, and no disk is as small as the program asks.
    ("disk_sparse", &["the disk is as large as was said"]),
    // PID 1 is the guest, of the same user: a signal to it is accepted and has no effect.
    ("javascript", &["end PID 1"]),
    ("other_processes", &["end PID 1"]),
    // Variables for installers, and standard input from `/dev/null`.
    ("own_world", &["the environment is clean", "they are pipes"]),
];
/// Programs that do not apply: what they fill is memory or smaller than a disk in a file, and when memory runs out in
/// a sandbox that stays open, one process ends.
const NOT_ON_A_DISK_FILE: &[&str] = &["memory_in_files", "memory_across_processes", "disk_bytes"];

/// Checks that differ for the root user of a writable root. Its receipt says so, and none of them leads outside:
/// `sandboxes/writable_root.rs` has the other side of each.
const WITH_A_WRITABLE_ROOT: Checks = &[
    (
        "own_world",
        &[
            "the user is its own",
            "there are no further groups",
            "the maps are one user each",
            "CapPrm is empty",
            "CapEff is empty",
            "CapBnd is empty",
        ],
    ),
    // It becomes other users of the sandbox's own, and programs are the root user.
    (
        "more_rights",
        &[
            "become user 0",
            "become group 0",
            "become all of 0",
            "become user 1",
            "become all of 1",
            "programs have the same user",
        ],
    ),
    // The image is a whole system, with files of these names that are the sandbox's own.
    (
        "host_files",
        &[
            "/etc/shadow",
            "/etc/gshadow",
            "/etc/fstab",
            "/var/lib",
            "/var/log",
            "/var/run",
            "/boot",
            "/mnt",
            "/media",
            "/srv",
            "/var is empty",
            "the users are made up",
        ],
    ),
    (
        "javascript",
        &[
            "/etc/shadow",
            "write /etc/passwd",
            "write /usr/bin/env",
            "set-uid",
            "become root",
            "a child is no more than we are",
        ],
    ),
];
/// Programs whose only demand is the opposite of a writable root: no file can be written, and no mode be changed.
/// `sandboxes/writable_root.rs` writes to `/dev`, `/proc` and `/sys`, and shows that such modes give nothing.
const NOT_WITH_A_WRITABLE_ROOT: &[&str] = &["write_outside", "set_id_bits"];

/// A kind of sandbox.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    request: fn() -> Value,
    otherwise: &'static [Checks],
    not_tried: &'static [&'static [&'static str]],
}

const KINDS: [Kind; 2] = [
    Kind {
        name: "disk_file",
        request: || json!({"disk_storage": "file"}),
        otherwise: &[ON_A_DISK_FILE],
        not_tried: &[NOT_ON_A_DISK_FILE],
    },
    Kind {
        name: "writable_root",
        request: || json!({"root": "writable", "profile": "debian"}),
        otherwise: &[ON_A_DISK_FILE, WITH_A_WRITABLE_ROOT],
        not_tried: &[NOT_ON_A_DISK_FILE, NOT_WITH_A_WRITABLE_ROOT],
    },
];

/// A server with sandboxes.
pub(crate) struct SandboxServer {
    server: Arc<Server>,
    _folder: tempfile::TempDir,
}

impl SandboxServer {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let packages = std::env::var_os("BELLJAR_TEST_PACKAGES");
        let packages = packages.map_or_else(|| beside("../../../target/test-packages"), PathBuf::from);
        let image = packages.join("root");
        let settings = format!("writable_root = true\n[profiles.debian]\nimage = {image:?}");
        Self { server: Arc::new(Server::configured(folder.path(), &settings)), _folder: folder }
    }

    /// Returns a trial for every program in every kind of sandbox that is possible here.
    pub(crate) fn trials(&self, programs: &[PathBuf]) -> Vec<Trial> {
        KINDS.iter().flat_map(|kind| self.trials_of(*kind, programs)).collect()
    }

    fn trials_of(&self, kind: Kind, programs: &[PathBuf]) -> Vec<Trial> {
        let opened = self.server.post("/v1/sandboxes", &(kind.request)());
        if opened.status != 201 {
            println!("skipped: {}: {}", kind.name, opened.text());
            return Vec::new();
        }
        let is_tried = |name: &str| !kind.not_tried.concat().contains(&name);
        let tried = programs.iter().filter(|program| is_tried(&name_of(program)));
        let trial = |program: &PathBuf| {
            let (server, program, name) = (Arc::clone(&self.server), program.clone(), name_of(program));
            Trial::test(format!("{}::{name}", kind.name), move || {
                let lists = kind.otherwise.concat();
                let known = lists.iter().filter(|(other, _)| *other == name);
                let known: Vec<&str> = known.flat_map(|(_, checks)| checks.iter().copied()).collect();
                let verdict =
                    held(&program, |arguments| run(&server, (kind.request)(), &program, &arguments));
                only_known(&known, verdict).map_err(Into::into)
            })
        };
        tried.map(trial).collect()
    }
}

/// Runs a program with the flags of its header in a sandbox of its own.
fn run(server: &Server, mut request: Value, program: &Path, arguments: &[String]) -> Answer {
    let flag = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).cloned()
    };
    let disk = flag("--disk").map_or(100 << 20, |disk| bytes(&disk)).max(bytes(LEAST_DISK));
    let mut limits = json!({"disk_bytes": disk});
    if let Some(memory) = flag("--memory") {
        limits["memory_bytes"] = bytes(&memory).into();
    }
    if let Some(processes) = flag("--processes") {
        limits["processes"] = processes.parse::<u64>().expect("a number").into();
    }
    request["limits"] = limits;
    request["policy"] = "off".into();
    let url = server.sandbox(&request);
    let seconds: u64 =
        flag("--timeout").map_or(30, |time| time.trim_end_matches('s').parse().expect("seconds"));
    let is_python = program.extension().is_some_and(|ending| ending == "py");
    let text = |path: &Path| Value::from(std::fs::read_to_string(path).expect("a program is text"));
    let helper = text(&program.with_file_name("probe.py"));
    let request = json!({
        "language": if is_python { "python" } else { "javascript" },
        "code": text(program),
        "files": [{"path": "probe.py", "content": helper}],
        "limits": {"timeout_ms": seconds * 1_000},
        "dependencies": {"detect": false},
    });
    let json = server.post(&format!("{url}/executions"), &request).json();
    server.delete(&url);
    Answer { code: None, json, stderr: String::new() }
}

/// Returns the bytes of a size such as `64M`.
fn bytes(size: &str) -> u64 {
    size.trim_end_matches('M').parse::<u64>().expect("megabytes") << 20
}
