//! A private mount namespace and private cgroups for one test program, so that other Belljar processes on the
//! machine are invisible to it, and leftovers of its own launchers are not.
//!
//! Launchers create cgroups below the one that they are started in. On v1 hierarchies the test moves into a
//! child cgroup first; on v2, where processes and child cgroups exclude each other, the whole tree is
//! inspected.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const MARK: &str = "BELLJAR_TEST_OWN_MOUNTS";
/// Hierarchies that launchers use.
const CONTROLLERS: &[&str] = &["pids", "memory", "cpu", "cpuacct", "cpu,cpuacct", "freezer"];

/// Name of this test's cgroups, if it has any.
static NAME: OnceLock<String> = OnceLock::new();

/// cgroups that are removed when the test ends.
pub(crate) struct OwnWorld(Vec<PathBuf>);

/// Enters both. Restarts this program, so it must be called first in `main`.
pub(crate) fn enter() -> OwnWorld {
    if let (None, Ok(this)) = (std::env::var_os(MARK), std::env::current_exe()) {
        let mut again = Command::new("unshare");
        again.args(["--mount", "--propagation", "private", "--"]).arg(this);
        // The program keeps its process id, so it finds the folder again.
        let folder = temporary_folder();
        if fs::create_dir_all(&folder).is_ok() {
            again.env("TMPDIR", &folder);
        }
        // If this fails, mounts of other processes are visible as before.
        let _failed = again.args(std::env::args_os().skip(1)).env(MARK, "1").exec();
    }
    let name = format!("hermetic-{}", std::process::id());
    let groups = own_groups(&name);
    if !groups.is_empty() {
        NAME.get_or_init(|| name);
    }
    OwnWorld(groups)
}

/// The folder for temporary files of this program and of the servers that it starts.
fn temporary_folder() -> PathBuf {
    // An earlier `TMPDIR` is left alone: this must be the same path before and after the restart.
    Path::new("/tmp").join(format!("hermetic-{}", std::process::id()))
}

/// Returns whether this program has a folder for temporary files of its own.
pub(crate) fn has_temporary_folder() -> bool {
    std::env::temp_dir() == temporary_folder()
}

/// Returns whether a cgroup belongs to this test; always true if it has none of its own.
pub(crate) fn is_own_group(path: &str) -> bool {
    NAME.get().is_none_or(|name| path.contains(&format!("/{name}/")))
}

/// Enters all cgroups, or none.
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
        if has_temporary_folder() {
            let _removed = fs::remove_dir_all(temporary_folder());
        }
        for group in &self.0 {
            // A cgroup that was not created does not have to be removed.
            if let Some(parent) = group.parent() {
                let _left = fs::write(parent.join("cgroup.procs"), "0");
            }
            let _removed = fs::remove_dir(group);
        }
    }
}
