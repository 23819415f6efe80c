//! System calls that a sandbox refuses, why, and what to do instead. `docs/findings.md` is generated from
//! this table.

/// System calls that are refused for the same reason.
#[derive(Debug)]
pub(super) struct Calls {
    pub(super) names: &'static [&'static str],
    pub(super) category: &'static str,
    pub(super) reason: &'static str,
    pub(super) instead: &'static str,
}

const NONE: &str = "no setting allows it";

pub(super) const CALLS: &[Calls] = &[
    Calls {
        names: &["unshare", "setns"],
        category: "process",
        reason: "sandboxes cannot create or enter namespaces",
        instead: "no setting allows it; run programs that sandbox themselves (browsers, bwrap) with that turned off, e.g. --no-sandbox",
    },
    Calls {
        names: &["clone"],
        category: "process",
        reason: "a new process must stay in its parent's namespaces and be its parent's child",
        instead: "no setting allows it; run programs that sandbox themselves with that turned off, e.g. --no-sandbox",
    },
    Calls {
        names: &["seccomp"],
        category: "process",
        reason: "the sandbox already has a filter, and programs cannot add another",
        instead: "no setting allows it; turn the program's own sandbox off, e.g. --no-sandbox",
    },
    Calls {
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
        instead: "mount it from outside: --mount SRC:DEST[:rw] or --workspace DIR",
    },
    Calls {
        names: &["chroot", "pivot_root"],
        category: "filesystem",
        reason: "sandboxes cannot change their root directory",
        instead: "run with another root: --image DIR",
    },
    Calls {
        names: &["ptrace", "process_vm_readv", "process_vm_writev", "kcmp"],
        category: "introspection",
        reason: "processes cannot inspect each other's memory",
        instead: "no setting allows it; use an in-process debugger, e.g. pdb",
    },
    Calls {
        names: &["bpf", "perf_event_open"],
        category: "introspection",
        reason: "kernel tracing reaches beyond the sandbox",
        instead: "no setting allows it; use an in-process profiler, e.g. cProfile",
    },
    Calls {
        names: &["keyctl", "add_key", "request_key"],
        category: "secrets",
        reason: "kernel keyrings belong to the host",
        instead: "no setting allows it; pass secrets with --env or --file",
    },
    Calls {
        names: &["socket"],
        category: "network",
        reason: "only TCP, UDP and UNIX sockets are allowed, no raw sockets",
        instead: "no setting allows raw sockets (as ping uses); connect over TCP or UDP, and allow outside hosts with --network",
    },
    Calls {
        names: &["setsockopt", "getsockopt"],
        category: "network",
        reason: "that socket option is not on the allow-list",
        instead: "no setting allows it; leave the option out, or turn off the feature that needs it",
    },
    Calls {
        names: &["chmod", "fchmod", "fchmodat", "creat", "open", "openat"],
        category: "filesystem",
        reason: "files cannot have a set-uid or set-gid bit",
        instead: "no setting allows it; use a mode without them, e.g. 0755",
    },
    Calls {
        names: &["mknod", "mknodat"],
        category: "filesystem",
        reason: "device files, and set-uid or set-gid bits, are not allowed",
        instead: "no setting allows it; the devices that programs need are already in /dev",
    },
    Calls {
        names: &["open_by_handle_at", "name_to_handle_at", "fanotify_init", "fanotify_mark"],
        category: "filesystem",
        reason: "it can reach files outside the sandbox",
        instead: "no setting allows it; open files by path and watch them with inotify",
    },
    Calls {
        names: &["sync"],
        category: "filesystem",
        reason: "it would flush every disk of the host",
        instead: "no setting allows it; flush single files with fsync",
    },
    Calls {
        names: &["ioctl"],
        category: "native",
        reason: "that ioctl request is not on the allow-list for terminals, files and sockets",
        instead: NONE,
    },
    Calls {
        names: &["vmsplice", "tee"],
        category: "native",
        reason: "pipes that share pages with memory have a history of kernel vulnerabilities",
        instead: "no setting allows it; use read and write, or splice",
    },
    Calls {
        names: &["personality", "modify_ldt"],
        category: "native",
        reason: "it would weaken memory protections of the process",
        instead: NONE,
    },
    Calls {
        names: &["setgroups", "setreuid", "setregid", "setfsuid", "setfsgid", "capset"],
        category: "process",
        reason: "the sandbox user has no privileges and cannot change its user or group",
        instead: "no setting allows it; run without sudo, su or a user change",
    },
    Calls {
        names: &["sched_setattr", "sched_setscheduler", "sched_setparam", "ioprio_set"],
        category: "resource",
        reason: "it would take CPU time from other processes",
        instead: "ask for more CPU time: --cpus (limits.cpus)",
    },
    Calls {
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
        instead: NONE,
    },
    Calls {
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
        instead: NONE,
    },
];

/// The advice for every call that the table does not list.
pub(super) const OTHERS: Calls =
    Calls { names: &[], category: "native", reason: "it is not on the sandbox's allow-list", instead: NONE };

/// Returns the advice for a system call.
pub(super) fn about(name: &str) -> &'static Calls {
    CALLS.iter().find(|calls| calls.names.contains(&name)).unwrap_or(&OTHERS)
}
