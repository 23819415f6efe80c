//! System calls that a sandbox refuses, why, and what to do instead. `docs/findings.md` is generated from
//! this table.

/// System calls that are refused for the same reason.
#[derive(Debug)]
pub(super) struct SyscallAdvice {
    pub(super) names: &'static [&'static str],
    pub(super) category: &'static str,
    pub(super) reason: &'static str,
    pub(super) suggestion: &'static str,
}

const NO_ALTERNATIVE: &str = "no setting allows it";

pub(super) const SYSCALL_ADVICE: &[SyscallAdvice] = &[
    SyscallAdvice {
        names: &["unshare", "setns"],
        category: "process",
        reason: "sandboxes cannot create or enter namespaces",
        suggestion: "no setting allows it; run programs that sandbox themselves (browsers, bwrap) with that turned off, e.g. --no-sandbox",
    },
    SyscallAdvice {
        names: &["clone"],
        category: "process",
        reason: "a new process must stay in its parent's namespaces and be its parent's child",
        suggestion: "no setting allows it; run programs that sandbox themselves with that turned off, e.g. --no-sandbox",
    },
    SyscallAdvice {
        names: &["seccomp"],
        category: "process",
        reason: "the sandbox already has a filter, and programs cannot add another",
        suggestion: "no setting allows it; turn the program's own sandbox off, e.g. --no-sandbox",
    },
    SyscallAdvice {
        names: &[
            "mount",
            "umount2",
            "mount_setattr",
            "move_mount",
            "open_tree",
            "open_tree_attr",
            "fsopen",
            "fsconfig",
            "fsmount",
            "fspick",
        ],
        category: "filesystem",
        reason: "sandboxes cannot mount or unmount file systems",
        suggestion: "mount it from outside: --mount SRC:DEST[:rw] or --workspace DIR",
    },
    SyscallAdvice {
        names: &["chroot", "pivot_root"],
        category: "filesystem",
        reason: "sandboxes cannot change their root directory",
        suggestion: "run with another root: --image DIR",
    },
    SyscallAdvice {
        names: &["ptrace", "process_vm_readv", "process_vm_writev", "kcmp"],
        category: "introspection",
        reason: "processes cannot inspect each other's memory",
        suggestion: "no setting allows it; use an in-process debugger, e.g. pdb",
    },
    SyscallAdvice {
        names: &["bpf", "perf_event_open"],
        category: "introspection",
        reason: "kernel tracing reaches beyond the sandbox",
        suggestion: "no setting allows it; use an in-process profiler, e.g. cProfile",
    },
    SyscallAdvice {
        names: &["keyctl", "add_key", "request_key"],
        category: "secrets",
        reason: "kernel keyrings belong to the host",
        suggestion: "no setting allows it; pass secrets with --env or --file",
    },
    SyscallAdvice {
        names: &["socket"],
        category: "network",
        reason: "only TCP, UDP and UNIX sockets are allowed, no raw sockets",
        suggestion: "no setting allows raw sockets (as ping uses); connect over TCP or UDP, and allow outside hosts with --network",
    },
    SyscallAdvice {
        names: &["setsockopt", "getsockopt"],
        category: "network",
        reason: "that socket option is not on the allow-list",
        suggestion: "no setting allows it; leave the option out, or turn off the feature that needs it",
    },
    SyscallAdvice {
        names: &["chmod", "fchmod", "fchmodat", "creat", "open", "openat"],
        category: "filesystem",
        reason: "files cannot have a set-uid or set-gid bit",
        suggestion: "no setting allows it; use a mode without them, e.g. 0755",
    },
    SyscallAdvice {
        names: &["mknod", "mknodat"],
        category: "filesystem",
        reason: "device files, and set-uid or set-gid bits, are not allowed",
        suggestion: "no setting allows it; the devices that programs need are already in /dev",
    },
    SyscallAdvice {
        names: &["open_by_handle_at", "name_to_handle_at", "fanotify_init", "fanotify_mark"],
        category: "filesystem",
        reason: "it can reach files outside the sandbox",
        suggestion: "no setting allows it; open files by path and watch them with inotify",
    },
    SyscallAdvice {
        names: &["sync"],
        category: "filesystem",
        reason: "it would flush every disk of the host",
        suggestion: "no setting allows it; flush single files with fsync",
    },
    SyscallAdvice {
        names: &["ioctl"],
        category: "native",
        reason: "that ioctl request is not on the allow-list for terminals, files and sockets",
        suggestion: NO_ALTERNATIVE,
    },
    SyscallAdvice {
        names: &["vmsplice", "tee"],
        category: "native",
        reason: "pipes that share pages with memory have a history of kernel vulnerabilities",
        suggestion: "no setting allows it; use read and write, or splice",
    },
    SyscallAdvice {
        names: &["personality", "modify_ldt"],
        category: "native",
        reason: "it would weaken memory protections of the process",
        suggestion: NO_ALTERNATIVE,
    },
    SyscallAdvice {
        names: &["setgroups", "setreuid", "setregid", "setfsuid", "setfsgid", "capset"],
        category: "process",
        reason: "the sandbox user has no privileges and cannot change its user or group",
        suggestion: "no setting allows it; run without sudo, su or a user change",
    },
    SyscallAdvice {
        names: &["sched_setattr", "sched_setscheduler", "sched_setparam", "ioprio_set"],
        category: "resource",
        reason: "it would take CPU time from other processes",
        suggestion: "ask for more CPU time: --cpus (limits.cpus)",
    },
    SyscallAdvice {
        names: &[
            "reboot",
            "kexec_load",
            "kexec_file_load",
            "swapon",
            "swapoff",
            "init_module",
            "finit_module",
            "delete_module",
            "acct",
            "quotactl",
            "quotactl_fd",
            "syslog",
            "iopl",
            "ioperm",
            "vhangup",
        ],
        category: "native",
        reason: "it administers the host",
        suggestion: NO_ALTERNATIVE,
    },
    SyscallAdvice {
        names: &[
            "settimeofday",
            "clock_settime",
            "adjtimex",
            "clock_adjtime",
            "sethostname",
            "setdomainname",
        ],
        category: "native",
        reason: "clocks and host names belong to the host",
        suggestion: NO_ALTERNATIVE,
    },
];

/// The advice for every call that the table does not list.
pub(super) const OTHER_SYSCALLS: SyscallAdvice = SyscallAdvice {
    names: &[],
    category: "native",
    reason: "it is not on the sandbox's allow-list",
    suggestion: NO_ALTERNATIVE,
};

/// Returns the advice for a system call.
pub(super) fn advice_for(name: &str) -> &'static SyscallAdvice {
    SYSCALL_ADVICE.iter().find(|calls| calls.names.contains(&name)).unwrap_or(&OTHER_SYSCALLS)
}
