//! A mount namespace and control groups of a test's own, so that what other Belljars do on this machine is not seen here,
//! and what this test's launchers leave behind is.
//!
//! Launchers make their groups below the group that they are started in. On v1 hierarchies the test moves into a child
//! group first; on v2 processes and child groups do not mix, and the whole tree is looked at.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const MARK: &str = "BELLJAR_TEST_OWN_MOUNTS";
/// Hierarchies that launchers use.
const CONTROLLERS: &[&str] = &["pids", "memory", "cpu", "cpuacct", "cpu,cpuacct", "freezer"];

/// The name of this test's groups, where it has some.
static NAME: OnceLock<String> = OnceLock::new();

/// Groups that are removed when the test is over.
pub(crate) struct OwnWorld(Vec<PathBuf>);

/// Enters both. Starts this program anew, so it comes before anything else in `main`.
pub(crate) fn enter() -> OwnWorld {
    if let (None, Ok(this)) = (std::env::var_os(MARK), std::env::current_exe()) {
        let mut again = Command::new("unshare");
        again.args(["--mount", "--propagation", "private", "--"]).arg(this);
        // Where it cannot be done, mounts of others are seen as before.
        let _failed = again.args(std::env::args_os().skip(1)).env(MARK, "1").exec();
    }
    let name = format!("hermetic-{}", std::process::id());
    let groups = own_groups(&name);
    if !groups.is_empty() {
        NAME.get_or_init(|| name);
    }
    OwnWorld(groups)
}

/// Whether a group belongs to this test; everything does where it has no groups of its own.
pub(crate) fn is_own_group(path: &str) -> bool {
    NAME.get().is_none_or(|name| path.contains(&format!("/{name}/")))
}

/// Enters all groups, or none.
fn own_groups(name: &str) -> Vec<PathBuf> {
    let memberships = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut made = Vec::new();
    for line in memberships.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        if !CONTROLLERS.contains(&controllers) {
            continue;
        }
        let tree = Path::new("/sys/fs/cgroup").join(controllers);
        let group = tree.join(path.trim_start_matches('/')).join(name);
        let entered = fs::create_dir(&group).and_then(|()| fs::write(group.join("cgroup.procs"), "0"));
        made.push(group);
        if entered.is_err() {
            drop(OwnWorld(made));
            return Vec::new();
        }
    }
    made
}

impl Drop for OwnWorld {
    fn drop(&mut self) {
        for group in &self.0 {
            // A group that was never made is not there to be left.
            if let Some(parent) = group.parent() {
                let _left = fs::write(parent.join("cgroup.procs"), "0");
            }
            let _removed = fs::remove_dir(group);
        }
    }
}
