//! The state of the host as seen from outside, to find what a run leaves behind.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::own_world::{has_temporary_folder, is_own_group};

/// Everything that runs of this binary could leave behind. Other runs on the same machine are distinguished
/// by their binary, and by the live launcher that a cgroup is named after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Processes of this binary, and sandboxed processes whose launcher is gone.
    pub(crate) processes: BTreeMap<u32, String>,
    /// cgroups whose launcher is gone, in any hierarchy.
    pub(crate) groups: BTreeSet<String>,
    /// Mount points of this mount namespace.
    pub(crate) mounts: Vec<String>,
    /// Entries of the folders that a launcher writes to.
    pub(crate) entries: BTreeSet<String>,
}

impl Snapshot {
    pub(crate) fn take() -> Self {
        let processes = processes().into_iter().filter(|(pid, _)| is_ours(*pid)).collect();
        let groups = groups().into_iter().filter(|path| is_own_group(path) && owner_is_gone(path)).collect();
        Self { processes, groups, mounts: mounts(), entries: entries() }
    }

    /// Returns what was added since `before`.
    pub(crate) fn added_since(&self, before: &Self) -> Vec<String> {
        let processes = self.processes.iter().filter(|(pid, _)| !before.processes.contains_key(pid));
        let mut added: Vec<String> = processes.map(|(pid, line)| format!("process {pid} {line}")).collect();
        added.extend(self.groups.difference(&before.groups).map(|path| format!("control group {path}")));
        let mounts = self.mounts.iter().filter(|mount| !before.mounts.contains(mount));
        added.extend(mounts.map(|mount| format!("mount {mount}")));
        added.extend(self.entries.difference(&before.entries).map(|path| format!("file {path}")));
        added
    }
}

/// Returns whether a process runs this binary, or is a sandboxed process without a launcher.
fn is_ours(pid: u32) -> bool {
    let binary = Path::new(env!("CARGO_BIN_EXE_belljar"));
    if fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|path| path == binary) {
        return true;
    }
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let ours = |line: &str| line.contains("/belljar-") && is_own_group(line) && owner_is_gone(line);
    in_sandbox_range(pid) && groups.lines().any(ours)
}

/// Returns whether the launcher in a name like `…/belljar-PID-START/…` is gone.
fn owner_is_gone(path: &str) -> bool {
    let name = path.rsplit_once("/belljar-").map_or("", |(_, name)| name);
    let pid: String = name.chars().take_while(char::is_ascii_digit).collect();
    !pid.is_empty() && !Path::new("/proc").join(pid).exists()
}

/// Waits until everything added after `before` is gone. Returns what is left after `patience`.
pub(crate) fn left_after(before: &Snapshot, patience: Duration) -> Vec<String> {
    let end = Instant::now() + patience;
    loop {
        let added = Snapshot::take().added_since(before);
        if added.is_empty() || Instant::now() >= end {
            return added;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until no process has `token` on its command line. Returns those that are left after `patience`.
pub(crate) fn alive_with(token: &str, patience: Duration) -> Vec<String> {
    let end = Instant::now() + patience;
    loop {
        let alive: Vec<String> = processes().into_values().filter(|line| line.contains(token)).collect();
        if alive.is_empty() || Instant::now() >= end {
            return alive;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until no cgroup of this launcher is left. Returns those that are left after `patience`.
pub(crate) fn groups_left_of(launcher: u32, patience: Duration) -> Vec<String> {
    let (end, name) = (Instant::now() + patience, format!("/belljar-{launcher}-"));
    loop {
        let left: Vec<String> = groups().into_iter().filter(|path| path.contains(&name)).collect();
        if left.is_empty() || Instant::now() >= end {
            return left;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns every user-space process with its command line.
pub(crate) fn processes() -> BTreeMap<u32, String> {
    let pids = names("/proc").into_iter().filter_map(|name| name.parse::<u32>().ok());
    pids.filter_map(|pid| Some((pid, command_line(pid)?))).collect()
}

/// Returns a process's command line. Kernel threads and exiting processes have none; a zombie of ours keeps
/// its name.
fn command_line(pid: u32) -> Option<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    if !line.is_empty() {
        return Some(String::from_utf8_lossy(&line).replace('\0', " "));
    }
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let name = stat.get(stat.find('(')?..=stat.rfind(')')?)?.to_owned();
    (name.contains("belljar") || in_sandbox_range(pid)).then_some(name)
}

/// Returns whether a process has one of the user ids that only root's sandboxes use.
fn in_sandbox_range(pid: u32) -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(format!("/proc/{pid}")).is_ok_and(|found| (0x7000_0000..0x7001_0000).contains(&found.uid()))
}

/// Returns the processes that a thread of this process started.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let children =
        |task: &String| fs::read_to_string(format!("/proc/{pid}/task/{task}/children")).unwrap_or_default();
    let lists: Vec<String> = names(&format!("/proc/{pid}/task")).iter().map(children).collect();
    lists.join(" ").split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Returns the launcher of a server, which is its only child.
pub(crate) fn launcher(server: u32) -> u32 {
    let children = children(server);
    assert_eq!(children.len(), 1, "children of the server: {children:?}");
    children[0]
}

/// Returns the memory of a process and all its descendants: a page shared by n processes counts 1/n for each.
pub(crate) fn memory_below(root: u32) -> u64 {
    let read = |pid: u32, file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let parent = |pid: u32| read(pid, "stat").rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok();
    let below = |pid: &u32| std::iter::successors(Some(*pid), |pid| parent(*pid)).any(|pid| pid == root);
    let size = |pid: u32| {
        let table = read(pid, "smaps_rollup");
        let line = table.lines().find_map(|line| line.strip_prefix("Pss:"))?;
        line.trim().trim_end_matches(" kB").parse::<u64>().ok()
    };
    let pids = names("/proc").into_iter().filter_map(|name| name.parse::<u32>().ok());
    pids.filter(below).filter_map(size).sum::<u64>() << 10
}

/// Returns the cgroups that launchers created, in every hierarchy.
pub(crate) fn groups() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    gather_groups(Path::new("/sys/fs/cgroup"), 6, &mut found);
    found
}

fn gather_groups(folder: &Path, depth: u32, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        if entry.file_name().to_string_lossy().starts_with("belljar-") {
            found.insert(path.display().to_string());
        } else if depth > 0 {
            gather_groups(&path, depth - 1, found);
        }
    }
}

/// Returns the cgroups that a launcher created for a process, in every hierarchy.
pub(crate) fn groups_of(pid: u32) -> Vec<PathBuf> {
    let memberships = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let group = |line: &str| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let tree = Path::new("/sys/fs/cgroup").join(controllers);
        Some(tree.join(path.trim_start_matches('/'))).filter(|_| path.contains("/belljar-"))
    };
    memberships.lines().filter_map(group).filter(|group| group.is_dir()).collect()
}

/// Finds a sandboxed process by a word on its command line.
pub(crate) fn sandboxed_with(word: &str) -> Option<u32> {
    let matching = processes().into_iter().filter(|(_, line)| line.contains(word));
    matching.map(|(pid, _)| pid).find(|pid| !groups_of(*pid).is_empty())
}

/// Returns the mount points, without numbers that change by themselves.
pub(crate) fn mounts() -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().filter_map(|line| line.split(' ').nth(4)).map(str::to_owned).collect()
}

fn entries() -> BTreeSet<String> {
    // Temporary folders of other servers on this machine: those of ours are below a folder of our own.
    let foreign = |name: &str| {
        let random = name.strip_prefix("belljar-").unwrap_or_default();
        has_temporary_folder() && random.len() == 6 && random.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    let ours = |name: &String| name.contains("belljar") && !foreign(name);
    let temporary = std::env::temp_dir().display().to_string();
    let mut found: BTreeSet<String> = BTreeSet::new();
    for folder in [temporary.as_str(), "/tmp", "/run", "/dev/shm", "/var/tmp"] {
        found.extend(names(folder).into_iter().filter(ours).map(|name| format!("{folder}/{name}")));
    }
    if has_temporary_folder() {
        let all = names(&temporary).into_iter().filter(|name| name.contains("belljar"));
        found.extend(all.map(|name| format!("{temporary}/{name}")));
    }
    found.extend(names("/run/belljar").into_iter().map(|name| format!("/run/belljar/{name}")));
    found
}

fn names(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}
