//! What a jail is made of, for providers that have somebody else make their boxes: the same numbers in others' words.

use std::ffi::CStr;

use crate::bare::mounts::{MASKED_FILES, MASKED_FOLDERS};
use crate::inside;
use crate::spec::Limits;

/// What is not shown of `/proc`.
pub fn masked_paths() -> impl Iterator<Item = String> {
    let all = MASKED_FILES.iter().chain(MASKED_FOLDERS.iter());
    all.map(|path: &&CStr| format!("/{}", path.to_string_lossy()))
}

/// The options of a tmpfs that is as large as this, inodes included.
#[must_use]
pub fn disk_size(bytes: u64) -> String {
    inside::disk_size(bytes)
}

/// A resource limit by name, soft and hard.
pub type NamedLimit = (&'static str, u64, u64);

/// What every process is held to, where a group counts them and `processes_of_ours` beside them.
#[must_use]
pub fn resource_limits(limits: &Limits, processes_of_ours: u64) -> Vec<NamedLimit> {
    let limits = inside::resource_limits(limits, processes_of_ours, false);
    limits.iter().filter_map(|limit| Some((name(limit.resource)?, limit.soft, limit.hard))).collect()
}

fn name(resource: u64) -> Option<&'static str> {
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
    fn no_limit_is_without_a_name() {
        let limits = Limits {
            timeout: None,
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
