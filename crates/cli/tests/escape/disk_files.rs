//! The escape programs in sandboxes of a server whose disks are in files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use libtest_mimic::Trial;
use serde_json::{Value, json};

use super::programs::{held, name_of, only_known};
use crate::common::Answer;
use crate::common::server::Server;

/// Smallest disk in a file.
const LEAST_DISK: &str = "16M";
/// Checks that differ. All but the first differ in every sandbox that stays open.
const OTHERWISE: &[(&str, &[&str])] = &[
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
const NOT_TRIED: &[&str] = &["memory_in_files", "memory_across_processes", "disk_bytes"];

/// A server whose sandboxes have disks in files.
pub(crate) struct DiskServer {
    server: Arc<Server>,
    _folder: tempfile::TempDir,
}

impl DiskServer {
    /// Returns `None` where no disk can be in a file.
    pub(crate) fn start() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let server = Server::new(folder.path());
        let opened = server.post("/v1/sandboxes", &json!({"disk_storage": "file"}));
        if opened.status != 201 {
            println!("skipped: programs on disks in files: {}", opened.text());
            return None;
        }
        Some(Self { server: Arc::new(server), _folder: folder })
    }

    /// Returns a trial for every program.
    pub(crate) fn trials(&self, programs: Vec<PathBuf>) -> Vec<Trial> {
        let tried = programs.into_iter().filter(|program| !NOT_TRIED.contains(&name_of(program).as_str()));
        let trial = |program: PathBuf| {
            let (server, name) = (Arc::clone(&self.server), name_of(&program));
            Trial::test(format!("disk_file::{name}"), move || {
                let known =
                    OTHERWISE.iter().find(|(other, _)| *other == name).map_or(&[][..], |(_, checks)| *checks);
                let verdict = held(&program, |arguments| run(&server, &program, &arguments));
                only_known(known, verdict).map_err(Into::into)
            })
        };
        tried.map(trial).collect()
    }
}

/// Runs a program with the flags of its header in a sandbox of its own.
fn run(server: &Server, program: &Path, arguments: &[String]) -> Answer {
    let flag = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).cloned()
    };
    let disk = flag("--disk").unwrap_or_else(|| "100M".to_owned());
    let disk = if bytes(&disk) < bytes(LEAST_DISK) { LEAST_DISK.to_owned() } else { disk };
    let mut limits = json!({"disk_bytes": bytes(&disk)});
    if let Some(memory) = flag("--memory") {
        limits["memory_bytes"] = bytes(&memory).into();
    }
    if let Some(processes) = flag("--processes") {
        limits["processes"] = processes.parse::<u64>().expect("a number").into();
    }
    let url = server.sandbox(&json!({"disk_storage": "file", "limits": limits, "policy": "off"}));
    let seconds: u64 =
        flag("--timeout").map_or(30, |time| time.trim_end_matches('s').parse().expect("seconds"));
    let language =
        if program.extension().is_some_and(|ending| ending == "py") { "python" } else { "javascript" };
    let text = |path: &Path| Value::from(std::fs::read_to_string(path).expect("a program is text"));
    let helper = program.with_file_name("probe.py");
    let request = json!({
        "language": language, "code": text(program), "files": [{"path": "probe.py", "content": text(&helper)}],
        "limits": {"timeout_ms": seconds * 1_000}, "dependencies": {"detect": false},
    });
    let ran = server.post(&format!("{url}/executions"), &request);
    let json = ran.json();
    server.delete(&url);
    Answer { code: None, json, stderr: String::new() }
}

/// Returns the bytes of a size such as `64M`.
fn bytes(size: &str) -> u64 {
    size.trim_end_matches('M').parse::<u64>().expect("megabytes") << 20
}
