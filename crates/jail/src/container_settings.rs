//! Settings of a jail for container providers: masked paths, disk size and resource limits, in their formats.

use std::ffi::CStr;

use belljar_zygote::mounts::{MASKED_DIRS, MASKED_FILES};

use crate::inside;
use crate::spec::JailLimits;

/// Returns the masked paths of `/proc`.
pub fn masked_paths() -> impl Iterator<Item = String> {
    let all = MASKED_FILES.iter().chain(MASKED_DIRS.iter());
    all.map(|path: &&CStr| format!("/{}", path.to_string_lossy()))
}

/// Returns the options of a tmpfs of this size, including its number of inodes.
#[must_use]
pub fn tmpfs_options(bytes: u64) -> String {
    inside::tmpfs_options(bytes)
}

/// A resource limit: name, soft and hard limit.
pub type NamedLimit = (&'static str, u64, u64);

/// Returns the resource limits of every process, for a sandbox whose processes are also counted by a cgroup
/// and include `processes_of_ours` that belong to us.
#[must_use]
pub fn resource_limits(limits: &JailLimits, processes_of_ours: u64) -> Vec<NamedLimit> {
    let limits = inside::resource_limits(limits, processes_of_ours, false);
    limits.iter().filter_map(|limit| Some((rlimit_name(limit.resource)?, limit.soft, limit.hard))).collect()
}

fn rlimit_name(resource: u64) -> Option<&'static str> {
    let names = [
        (libc::RLIMIT_CORE, "core"),
        (libc::RLIMIT_NOFILE, "nofile"),
        (libc::RLIMIT_FSIZE, "fsize"),
        (libc::RLIMIT_NPROC, "nproc"),
        (libc::RLIMIT_MEMLOCK, "memlock"),
        (libc::RLIMIT_STACK, "stack"),
        (libc::RLIMIT_SIGPENDING, "sigpending"),
        (libc::RLIMIT_MSGQUEUE, "msgqueue"),
        (libc::RLIMIT_NICE, "nice"),
        (libc::RLIMIT_RTPRIO, "rtprio"),
    ];
    names.iter().find(|(number, _)| u64::from(*number) == resource).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_resource_limit_has_a_name() {
        let limits = JailLimits {
            memory_bytes: 1 << 20,
            cpu_millis: 1_000,
            processes: 4,
            disk_bytes: 1 << 20,
            open_files: 64,
        };
        let all = inside::resource_limits(&limits, 1, false).len();
        assert_eq!(resource_limits(&limits, 1).len(), all);
        assert!(resource_limits(&limits, 1).contains(&("nproc", 5, 5)));
        assert!(masked_paths().any(|path| path == "/proc/kallsyms"));
    }
}
