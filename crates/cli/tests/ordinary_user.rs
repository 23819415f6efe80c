//! The binary run by an ordinary user: what it still enforces, what it reports as missing, and what it leaves
//! behind.
//!
//! When root runs these tests, they switch to another user; an ordinary user runs them as itself.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot be prepared fails")]

mod common;
mod expect;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Answer, finish, host, is_root};
use expect::{Expect, skip};
use tempfile::TempDir;

/// A user with a home folder, and a copy of the binary that the user can access.
struct Person {
    uid: u32,
    home: TempDir,
}

impl Person {
    /// Each test has its own user, so that none counts another one's processes.
    fn new(uid: u32) -> Self {
        let person = Self { uid, home: tempfile::tempdir().unwrap() };
        fs::set_permissions(person.home.path(), Permissions::from_mode(0o755)).unwrap();
        // Copied by another process: a child that a parallel test forks meanwhile would keep the copy open
        // for writing.
        let copied =
            Command::new("cp").args([env!("CARGO_BIN_EXE_belljar"), &person.path("belljar")]).status();
        assert!(copied.unwrap().success());
        if is_root() {
            chown(person.home.path(), Some(uid), Some(uid)).unwrap();
        }
        person
    }

    fn path(&self, name: &str) -> String {
        self.home.path().join(name).display().to_string()
    }

    /// Returns a command for the binary, run by this user.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.path("belljar"));
        self.settle(&mut command);
        command.args(arguments);
        if is_root() {
            command.uid(self.uid).gid(self.uid);
        }
        command
    }

    /// Sets the user's environment. `PATH` excludes root's folders, which the user cannot read.
    fn settle(&self, command: &mut Command) {
        command.env_clear().env("HOME", self.home.path()).env("PATH", "/usr/bin:/bin").env("TMPDIR", "/tmp");
        command.env("XDG_CONFIG_HOME", "/nonexistent").current_dir(self.home.path()).stdin(Stdio::null());
    }

    fn run(&self, arguments: &[&str]) -> Answer {
        finish(self.command(&["run", "--json"]).args(arguments))
    }
}

impl Drop for Person {
    fn drop(&mut self) {
        if is_root() {
            // The launcher's state about ids is kept on purpose, but no user has this id after the test.
            let _removed = fs::remove_dir_all(format!("/tmp/belljar-{}", self.uid));
        }
    }
}

#[test]
fn a_run_is_isolated() {
    let person = Person::new(64_001);
    let code = "import os; print(os.getuid(), os.getpid() > 1, os.getcwd(), os.uname().nodename, sum(p.isdigit() for p in os.listdir('/proc')) < 5)";
    let answer = person.run(&["-c", code]);
    answer.printed("1000 True /workspace sandbox True\n");
    let floor =
        ["user_ns", "pid_ns", "mount_ns", "ipc_ns", "uts_ns", "net_ns", "read_only_root", "disk_quota"];
    let rights = ["no_capabilities", "no_new_privs", "rlimits", "seccomp"];
    for layer in floor.iter().chain(&rights) {
        assert!(answer.has_layer(layer), "{layer}: {answer:#?}");
    }
    person.run(&["--language", "bash", "-c", "echo x > /usr/x || cat /etc/shadow"]).failed_with("shadow");
}

/// Repeated runs are warm for ordinary users, with the same layers as cold ones, and usage is reported even
/// without cgroups.
#[test]
fn repeated_runs_are_warm() {
    let person = Person::new(64_011);
    let batch = person.path("batch");
    run_again(&batch, || person.command(&["run", "--batch", "batch", "--jobs", "1", "--quiet"]));
}

#[test]
fn repeated_runs_with_subordinate_ids_are_warm() {
    let person = Person::new(64_012);
    if !is_root() || !Path::new("/usr/bin/newuidmap").exists() {
        return skip("repeated_runs_with_subordinate_ids_are_warm", "no newuidmap, or no subordinate ids");
    }
    let batch = person.path("batch");
    let folder = tempfile::tempdir().unwrap();
    run_again(&batch, || {
        let mut command = with_subordinate_ids(&person, folder.path());
        command.args(["run", "--batch", &batch, "--jobs", "1", "--quiet"]);
        command
    });
}

fn run_again(batch: &str, command: impl Fn() -> Command) {
    for (language, pause) in
        [("python", "import time; time.sleep(0.05)"), ("javascript", "setTimeout(() => {}, 50)")]
    {
        let line = serde_json::json!({"language": language, "code": pause});
        fs::write(batch, format!("{line}\n").repeat(40)).unwrap();
        let output = command().output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let results: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((results.len(), output.status.code()), (40, Some(0)), "{text}");
        let warm = results.iter().filter(|result| result["receipt"]["warm"] != false);
        let warm = warm.inspect(|result| {
            assert_eq!(result["receipt"]["isolation"], results[0]["receipt"]["isolation"], "{result}");
            assert!(result["usage"]["cpu_ms"].as_f64() > Some(0.0), "{result}");
            assert!(result["usage"]["peak_memory_bytes"].as_u64() > Some(0), "{result}");
        });
        assert!(warm.count() > 0, "{language}: {text}");
    }
}

/// Runs as root of a user namespace that maps to an ordinary user, as in a rootless container.
#[test]
fn root_of_a_user_namespace_works() {
    let person = Person::new(64_010);
    let mut command = Command::new("unshare");
    person.settle(&mut command);
    command.args(["--user", "--map-root-user", &person.path("belljar"), "run", "--json", "-c", "print(1)"]);
    if is_root() {
        command.uid(person.uid).gid(person.uid);
    }
    let answer = finish(&mut command);
    answer.printed("1\n");
    assert!(!answer.has_layer("separate_uid"), "{answer:#?}");
}

/// The sandbox user is never the host's root, even if there is no other user id.
#[test]
fn running_as_host_root_only_is_refused() {
    if !is_root() {
        return skip("running_as_host_root_only_is_refused", "only root can run this");
    }
    let mut command = Command::new("unshare");
    let binary = env!("CARGO_BIN_EXE_belljar");
    command.args(["--user", "--map-root-user", binary, "run", "--json", "-c", "print(1)"]);
    finish(&mut command).refused_with("allocate a user id other than root's: EPERM");
}

#[test]
fn missing_layers_are_reported_and_can_be_required() {
    let person = Person::new(64_002);
    let answer = person.run(&["-c", "1"]);
    let layers = ["cgroup.memory", "cgroup.cpu", "cgroup.pids", "separate_uid"];
    let missing: Vec<_> = layers.into_iter().filter(|layer| !answer.succeeded().has_layer(layer)).collect();
    if is_root() {
        assert_eq!(missing, layers, "this user has neither cgroups nor subordinate ids");
    }
    for layer in &missing {
        let refused = person.run(&["--require", layer, "-c", "open('ran', 'w')"]);
        refused.refused_with(layer);
        assert!(refused.error_message().contains("is not enforced here"), "{refused:#?}");
    }
    let plain = person.command(&["run", "-c", "1"]).output().unwrap();
    let said = String::from_utf8(plain.stderr).unwrap();
    assert_eq!(
        said.matches("not enforced on this machine").count(),
        usize::from(!missing.is_empty()),
        "{said}"
    );
}

#[test]
fn subordinate_ids_give_a_separate_user() {
    let person = Person::new(64_003);
    let print_map = ["-c", "print(open('/proc/self/uid_map').read().split())"];
    if !Path::new("/usr/bin/newuidmap").exists() {
        return skip("subordinate_ids_give_a_separate_user", "no newuidmap: apt-get install uidmap");
    }
    let folder = tempfile::tempdir().unwrap();
    let answer = if is_root() {
        finish(with_subordinate_ids(&person, folder.path()).args(["run", "--json"]).args(print_map))
    } else {
        person.run(&print_map)
    };
    if !is_root() && !answer.has_layer("separate_uid") {
        return skip("subordinate_ids_give_a_separate_user", "/etc/subuid has no ids for this user");
    }
    assert!(answer.succeeded().has_layer("separate_uid"), "{answer:#?}");
    if is_root() {
        let map: Vec<_> =
            answer.text("stdout").split('\'').filter_map(|word| word.parse::<u32>().ok()).collect();
        let mapped = map.chunks(3).find(|line| line[0] == 1000).expect("the program's id is mapped");
        assert!((700_000..765_536).contains(&mapped[1]), "{map:?}");
    }
}

/// Returns a command for a user with a name and subordinate ids. They are in a private copy of the user
/// database, in this folder, which only this command sees.
fn with_subordinate_ids(person: &Person, folder: &Path) -> Command {
    let uid = person.uid;
    let lines = [
        ("passwd", format!("jar:x:{uid}:{uid}::/:/bin/sh\n")),
        ("group", format!("jar:x:{uid}:\n")),
        ("subuid", "jar:700000:65536\n".to_owned()),
        ("subgid", "jar:700000:65536\n".to_owned()),
    ];
    let mut mounts = "set -e\n".to_owned();
    for (name, line) in lines {
        let (real, copy) = (format!("/etc/{name}"), folder.join(name));
        let old = fs::read_to_string(&real).unwrap_or_default();
        fs::write(&copy, line + &old).unwrap();
        fs::set_permissions(&copy, Permissions::from_mode(0o644)).unwrap();
        mounts += &format!("test -e {real} && mount --bind {} {real}\n", copy.display());
    }
    mounts += &format!("exec setpriv --reuid {uid} --regid {uid} --clear-groups \"$@\"\n");
    let mut command = Command::new("unshare");
    person.settle(&mut command);
    command.args(["--mount", "sh", "-c", &mounts, "sh", &person.path("belljar")]);
    command
}

#[test]
fn one_process_cannot_take_more_memory() {
    let person = Person::new(64_004);
    let answer = person.run(&["--memory", "100M", "-c", "block = bytearray(300 << 20)"]);
    if answer.has_layer("cgroup.memory") {
        assert_eq!(answer.text("limit"), "memory", "{answer:#?}");
    } else {
        answer.failed_with("MemoryError");
    }
    person.run(&["--memory", "100M", "-c", "block = bytearray(50 << 20); print('fine')"]).printed("fine\n");
}

#[test]
fn processes_are_counted() {
    let person = Person::new(64_005);
    let code = "
import os, time
made = 0
try:
    for _ in range(100):
        if os.fork() == 0: time.sleep(60); os._exit(0)
        made += 1
except BlockingIOError: print('refused', made)
";
    person.run(&["--processes", "20", "-c", code]).printed("refused 19\n");
}

#[test]
fn a_timeout_leaves_no_process() {
    let person = Person::new(64_006);
    let token = format!("sleep 98{}", std::process::id());
    let code = format!("setsid {token} & nohup {token} & {token}");
    let answer = person.run(&["--timeout", "500ms", "--language", "bash", "-c", &code]);
    assert_eq!((answer.status(), answer.code), ("timed_out", Some(124)), "{answer:#?}");
    assert_eq!(host::alive_with(&token, Duration::from_secs(60)), Vec::<String>::new());
    let mut left: Vec<_> =
        fs::read_dir(person.home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.retain(|name| name != ".cache");
    assert_eq!(left, ["belljar"]);
}

#[test]
fn a_workspace_folder_keeps_its_owner() {
    use std::os::unix::fs::MetadataExt;
    let person = Person::new(64_007);
    let work = person.path("work");
    fs::create_dir(&work).unwrap();
    let owner = fs::metadata(person.home.path()).unwrap().uid();
    chown(&work, Some(owner), Some(owner)).unwrap_or(());
    let workspace = ["--workspace", &work];
    person.run(&[&workspace[..], &["-c", "open('made', 'w').write('x')"]].concat()).succeeded();
    assert_eq!(fs::metadata(format!("{work}/made")).unwrap().uid(), owner);
    let names: Vec<_> = fs::read_dir(&work).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["made"]);
}

#[test]
fn doctor_reports_missing_layers_with_remedies() {
    let person = Person::new(64_008);
    let output = person.command(&["doctor", "--json"]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("doctor prints JSON");
    let layers = report["layers"].as_array().expect("it lists layers");
    let missing: Vec<_> = layers.iter().filter(|layer| layer["enforced"] == false).collect();
    assert!(!is_root() || missing.len() >= 4, "{report:#}");
    for layer in missing {
        assert!(layer["reason"].is_string() && layer["remedy"].is_string(), "{layer:#}");
    }
}
