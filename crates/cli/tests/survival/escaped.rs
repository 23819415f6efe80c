//! Cgroups are killed, and not only removed: a process that is in a sandbox's cgroup but otherwise outside
//! the sandbox, as if it had escaped, ends with the run, with the zygote, or with the next start after `kill
//! -9`.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::PATIENCE;
use crate::common::host::{Snapshot, children, groups_of, launcher, left_after, processes, sandboxed_with};
use crate::common::server::Server;

/// A process of the test in all cgroups of a sandbox.
struct Escaped {
    process: Child,
    groups: Vec<PathBuf>,
}

impl Escaped {
    /// Starts a process and moves it into the cgroups of another.
    fn beside(pid: u32) -> Self {
        let groups = groups_of(pid);
        assert!(!groups.is_empty(), "process {pid} is in no group of a launcher");
        let process = Command::new("sleep").arg("3600").spawn().unwrap();
        for group in &groups {
            std::fs::write(group.join("cgroup.procs"), process.id().to_string()).unwrap();
        }
        Self { process, groups }
    }

    fn is_alive(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }

    /// Waits until the process has been killed and its cgroups are gone.
    fn ends(mut self, when: &str) {
        eventually(&format!("{when}: the process in the group is killed"), || !self.is_alive());
        assert_eq!(self.process.wait().unwrap().signal(), Some(9), "{when}");
        let left = || self.groups.iter().filter(|group| group.exists()).collect::<Vec<_>>();
        eventually(&format!("{when}: the group is removed"), || left().is_empty());
    }
}

impl Drop for Escaped {
    fn drop(&mut self) {
        // A process that has already exited is fine. A frozen one dies only when it is thawed.
        let _killed = self.process.kill();
        for group in &self.groups {
            let _thawed = std::fs::write(group.join("freezer.state"), "THAWED");
        }
        let _waited = self.process.wait();
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "timed out waiting: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Finds a sandboxed process by a token on its command line.
fn find(word: &str) -> u32 {
    let mut found = None;
    eventually(&format!("'{word}' runs in a sandbox"), || {
        found = sandboxed_with(word);
        found.is_some()
    });
    found.unwrap()
}

/// Returns a token that identifies a process of this test.
fn token(number: u32) -> String {
    format!("36{number}0.{}", std::process::id())
}

fn start(server: &Server, path: &str, token: &str) -> String {
    let body = json!({"language": "bash", "code": format!("sleep {token}"), "wait": false,
        "limits": {"timeout_ms": 3_600_000}});
    let started = server.post(path, &body);
    assert_eq!(started.status, 202, "{}", started.text());
    started.json()["id"].as_str().unwrap().to_owned()
}

fn kill(signal: &str, pid: u32) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

fn run_python(server: &Server) {
    let ran = server.post("/v1/executions", &json!({"language": "python", "code": "0"}));
    assert_eq!(ran.status, 200, "{}", ran.text());
}

/// Runs Python until there is a zygote. Its forks are children of the launcher as well, but start later.
fn zygote(server: &Server) -> u32 {
    let launcher = launcher(server.child.id());
    let mut found = None;
    eventually("a zygote is started", || {
        run_python(server);
        let lines = processes();
        let is_zygote = |pid: &u32| lines.get(pid).is_some_and(|line| line.contains("/run/belljar/zygote"));
        found = children(launcher).into_iter().find(is_zygote);
        found.is_some_and(|pid| !groups_of(pid).is_empty())
    });
    found.unwrap()
}

pub(crate) fn escaped_process_ends_with_its_run() {
    let folder = tempfile::tempdir().unwrap();
    let before = Snapshot::take();
    let mut server = Server::new(folder.path());

    let run = start(&server, "/v1/executions", &token(1));
    let escaped = Escaped::beside(find(&token(1)));
    assert!(server.delete(&format!("/v1/executions/{run}")).status < 300);
    escaped.ends("at the end of a run");

    let sandbox = server.sandbox(&json!({}));
    start(&server, &format!("{sandbox}/executions"), &token(2));
    let escaped = Escaped::beside(find(&token(2)));
    assert!(server.delete(&sandbox).status < 300);
    escaped.ends("at the end of a sandbox");

    let zygote = zygote(&server);
    let mut escaped = Escaped::beside(zygote);
    kill("-KILL", zygote);
    // The cgroup remains until the zygote's last fork has ended, and some of them wait for a run.
    eventually("at the end of a zygote: the process in the group is killed", || {
        run_python(&server);
        !escaped.is_alive()
    });
    escaped.ends("at the end of a zygote");

    server.signal("-TERM");
    server.child.wait().unwrap();
    assert_eq!(left_after(&before, PATIENCE), Vec::<String>::new());
}

/// Kills server and launcher with SIGKILL, so that neither cleans up; one of the two sandboxes is frozen.
pub(crate) fn ends_with_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let before = Snapshot::take();
    let mut server = Server::new(folder.path());
    start(&server, "/v1/executions", &token(3));
    let sandbox = server.sandbox(&json!({}));
    start(&server, &format!("{sandbox}/executions"), &token(4));
    let mut escaped = [Escaped::beside(find(&token(3))), Escaped::beside(find(&token(4)))];
    let paused = server.post(&format!("{sandbox}/pause"), &json!({}));
    // If freezing is not possible, the cleanup has a running process to kill.
    assert!(paused.status == 200 || paused.status == 422, "{}", paused.text());

    // Stopped first, because a server starts another launcher when its own is gone.
    server.signal("-STOP");
    kill("-KILL", launcher(server.child.id()));
    server.signal("-KILL");
    server.child.wait().unwrap();
    assert!(escaped.iter_mut().all(Escaped::is_alive), "nothing but the next start ends them");

    let mut next = Server::new(folder.path());
    for one in escaped {
        one.ends("at the start after kill -9");
    }
    next.signal("-TERM");
    next.child.wait().unwrap();
    assert_eq!(left_after(&before, PATIENCE), Vec::<String>::new());
}
