//! Inspects a zygote's child from outside before any tenant code runs in it, so that the receipt states what
//! was observed and not what the child claims.
//!
//! The jail's own `/proc` shows its processes: PID 1, which is ours, and the child, which is always process
//! 2. Properties that cannot be observed from outside are inherited: the zygote's Landlock domain and its
//! filter existed before its first instruction, and a child can only restrict them further.

use std::os::fd::{AsFd, OwnedFd};

use belljar_zygote::message::NAMESPACES_LEN;
use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::sys;

/// Expected properties of a child.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ExpectedChild {
    /// Number of the child.
    pub(crate) number: u64,
    /// User id on the host.
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Whether it must have no supplementary groups; false if they could not be dropped.
    pub(crate) has_no_groups: bool,
    /// Each resource with the maximum of its hard limit.
    pub(crate) rlimits: Vec<(u64, u64)>,
    /// Suffix of the path of each of its cgroups.
    pub(crate) cgroup_suffixes: Vec<String>,
    pub(crate) has_no_new_privs: bool,
    pub(crate) has_no_capabilities: bool,
    /// Number of its seccomp filters.
    pub(crate) filters_len: u32,
}

/// Process id of the child in its jail; PID 1 is ours.
const CHILD_PID: &str = "2";
/// Names in `/proc/PID/ns`, in the order in which a child enters the namespaces.
const NAMESPACES: [&str; NAMESPACES_LEN] = ["user", "net", "mnt", "ipc", "uts", "cgroup", "pid"];
/// Exceeds the size of all files read here, in bytes.
const MAX_TEXT_BYTES: usize = 8 << 10;

/// Moves a child into cgroups that it cannot join itself, and compares its properties with the expected ones.
/// Returns the first mismatch.
pub(crate) fn inspect(host_proc: &OwnedFd, expected: &ExpectedChild, fds: &[OwnedFd]) -> Result<(), String> {
    let [proc, rest @ ..] = fds else { return Err("no /proc was passed".to_owned()) };
    let (namespaces, rest) = rest.split_at_checked(NAMESPACES_LEN).ok_or("no namespaces were passed")?;
    let (child, groups) = rest.split_first().ok_or("no child was passed")?;
    // Checked first: the process inspected below is process 2 of the jail, and the launcher waits for this
    // one; they must be the same.
    check_child(host_proc, child, &namespaces[NAMESPACES_LEN - 1])?;
    for group in groups {
        join_cgroup(host_proc, child, group)
            .map_err(|errno| format!("it cannot be moved into its cgroup: {errno}"))?;
    }
    check_no_other_processes(proc)?;
    check_namespaces(proc, namespaces)?;
    check_status(&read(proc, "status")?, expected)?;
    check_limits(&read(proc, "limits")?, &expected.rlimits)?;
    check_cgroups(&read(proc, "cgroup")?, &expected.cgroup_suffixes)
}

/// Checks that the process named by the zygote is process 2 of the jail's pid namespace.
fn check_child(host_proc: &OwnedFd, child: &OwnedFd, namespace: &OwnedFd) -> Result<(), String> {
    let seen = || -> Result<bool, Errno> {
        let path = format!("{}/ns/pid", sys::pid_in_procfs(host_proc, child)?);
        let theirs = rustix::fs::statat(host_proc, path, AtFlags::empty())?;
        let built = rustix::fs::fstat(namespace)?;
        let is_inside = (theirs.st_dev, theirs.st_ino) == (built.st_dev, built.st_ino);
        // Checked last: if the process has exited and its pid was reused, its pidfd no longer has a pid.
        Ok(is_inside && sys::innermost_pid(host_proc, child)?.to_string() == CHILD_PID)
    };
    match seen() {
        Ok(true) => Ok(()),
        Ok(false) => Err("the process named by the zygote is not the one in its jail".to_owned()),
        Err(errno) => Err(format!("the process named by the zygote cannot be inspected: {errno}")),
    }
}

/// Writes the child's pid, as seen by this process, to a cgroup file.
fn join_cgroup(host_proc: &OwnedFd, child: &OwnedFd, group: &OwnedFd) -> Result<(), Errno> {
    let pid = sys::pid_from_parent_namespace(host_proc, child)?;
    rustix::io::write(group, pid.to_string().as_bytes()).map(drop)
}

/// Checks that PID 1 and the child are the only processes in the jail.
fn check_no_other_processes(proc: &OwnedFd) -> Result<(), String> {
    let entries = Dir::read_from(proc).map_err(|errno| format!("its jail cannot be listed: {errno}"))?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
    let others = names
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()) && name != "1" && name != CHILD_PID);
    match others.count() {
        0 => Ok(()),
        count => Err(format!("{count} other processes are in its jail")),
    }
}

/// Checks that the child is in exactly the namespaces that were created for it.
fn check_namespaces(proc: &OwnedFd, namespaces: &[OwnedFd]) -> Result<(), String> {
    for (name, built) in NAMESPACES.iter().zip(namespaces) {
        let identity = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
        let seen = rustix::fs::statat(proc, format!("{CHILD_PID}/ns/{name}"), AtFlags::empty()).map(identity);
        let built = rustix::fs::fstat(built).map(identity);
        if seen.is_err() || seen != built {
            return Err(format!("it is not in the {name} namespace that was created for it"));
        }
    }
    Ok(())
}

fn check_status(status: &str, expected: &ExpectedChild) -> Result<(), String> {
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map_or("", str::trim)
    };
    let all_are = |name: &str, id: u32| {
        let mut ids = field(name).split_whitespace().peekable();
        ids.peek().is_some() && ids.all(|word| word.parse() == Ok(id))
    };
    let no_capability = |set: &str| field(set).bytes().all(|byte| byte == b'0') && !field(set).is_empty();
    let sets = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
    let filters = field("Seccomp_filters").parse();
    let checks = [
        (all_are("Uid", expected.uid), "its user id is not the sandbox's"),
        (all_are("Gid", expected.gid), "its group id is not the sandbox's"),
        (!expected.has_no_groups || field("Groups").is_empty(), "it has supplementary groups"),
        (field("Threads") == "1", "it has more than one thread"),
        (!expected.has_no_new_privs || field("NoNewPrivs") == "1", "it can gain privileges"),
        (!expected.has_no_capabilities || sets.iter().all(|set| no_capability(set)), "it has capabilities"),
        // Kernels before 5.9 do not report this number.
        (
            filters.is_err() || filters == Ok(expected.filters_len),
            "it does not have the expected number of filters",
        ),
        (expected.filters_len == 0 || field("Seccomp") == "2", "it has no filter"),
    ];
    match checks.iter().find(|(holds, _)| !holds) {
        Some((_, mismatch)) => Err((*mismatch).to_owned()),
        None => Ok(()),
    }
}

/// Names of resources in `/proc/PID/limits`.
const RESOURCES: &[(libc::__rlimit_resource_t, &str)] = &[
    (libc::RLIMIT_CORE, "Max core file size"),
    (libc::RLIMIT_NOFILE, "Max open files"),
    (libc::RLIMIT_FSIZE, "Max file size"),
    (libc::RLIMIT_NPROC, "Max processes"),
    (libc::RLIMIT_MEMLOCK, "Max locked memory"),
    (libc::RLIMIT_STACK, "Max stack size"),
    (libc::RLIMIT_SIGPENDING, "Max pending signals"),
    (libc::RLIMIT_MSGQUEUE, "Max msgqueue size"),
    (libc::RLIMIT_NICE, "Max nice priority"),
    (libc::RLIMIT_RTPRIO, "Max realtime priority"),
    (libc::RLIMIT_DATA, "Max data size"),
];

fn check_limits(limits: &str, expected: &[(u64, u64)]) -> Result<(), String> {
    for (resource, most) in expected {
        let name = RESOURCES.iter().find(|(known, _)| u64::from(*known) == *resource).map(|(_, name)| *name);
        let name = name.ok_or_else(|| format!("resource {resource} has no name"))?;
        let line = limits.lines().find_map(|line| line.strip_prefix(name));
        let hard =
            line.and_then(|line| line.split_whitespace().nth(1)).and_then(|hard| hard.parse::<u64>().ok());
        if hard.is_none_or(|hard| hard > *most) {
            return Err(format!("its limit \"{name}\" is higher than {most}"));
        }
    }
    Ok(())
}

fn check_cgroups(cgroup: &str, expected: &[String]) -> Result<(), String> {
    let mut seen: Vec<&str> = cgroup.lines().collect();
    for path in expected {
        match seen.iter().position(|line| line.ends_with(path.as_str())) {
            Some(at) => seen.swap_remove(at),
            None => return Err("it is not in its cgroup".to_owned()),
        };
    }
    Ok(())
}

fn read(proc: &OwnedFd, file: &str) -> Result<String, String> {
    let read = || -> Result<String, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(proc, format!("{CHILD_PID}/{file}"), flags, Mode::empty())?;
        let mut text = vec![0; MAX_TEXT_BYTES];
        let mut len = 0;
        while len < text.len() {
            match rustix::io::read(file.as_fd(), &mut text[len..])? {
                0 => break,
                more => len += more,
            }
        }
        text.truncate(len);
        String::from_utf8(text).map_err(|_| Errno::ILSEQ)
    };
    read().map_err(|errno| format!("its {file} cannot be read: {errno}"))
}

#[cfg(test)]
#[path = "inspect_tests.rs"]
mod tests;
