//! System calls that a sandbox refuses, why, and what to do instead. `docs/findings.md` is made from this table.

/// Calls that are refused for one reason.
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
        reason: "sandboxes cannot make namespaces or enter others",
        instead: "no setting allows it; a program that sandboxes itself (browsers, bwrap) runs with that turned off, as with --no-sandbox",
    },
    Calls {
        names: &["clone"],
        category: "process",
        reason: "a new process stays in its parent's namespaces, and is nobody else's child",
        instead: "no setting allows it; a program that sandboxes itself runs with that turned off, as with --no-sandbox",
    },
    Calls {
        names: &["seccomp"],
        category: "process",
        reason: "the sandbox has a filter already, and no program adds another",
        instead: "no setting allows it; turn the program's own sandbox off, as with --no-sandbox",
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
        reason: "sandboxes cannot change what is mounted",
        instead: "have it mounted from outside: --mount SRC:DEST[:rw] or --workspace DIR",
    },
    Calls {
        names: &["chroot", "pivot_root"],
        category: "filesystem",
        reason: "sandboxes cannot change their root",
        instead: "run in another root: --image DIR",
    },
    Calls {
        names: &["ptrace", "process_vm_readv", "process_vm_writev", "kcmp"],
        category: "introspection",
        reason: "no process may look into another",
        instead: "no setting allows it; debuggers that work within the process, such as pdb, do",
    },
    Calls {
        names: &["bpf", "perf_event_open"],
        category: "introspection",
        reason: "kernel tracing sees more than the sandbox",
        instead: "no setting allows it; profilers that work within the process, such as cProfile, do",
    },
    Calls {
        names: &["keyctl", "add_key", "request_key"],
        category: "secrets",
        reason: "the kernel's keys belong to the host",
        instead: "no setting allows it; pass secrets with --env or --file",
    },
    Calls {
        names: &["socket"],
        category: "network",
        reason: "sockets are TCP, UDP or UNIX, and none is raw",
        instead: "no setting allows raw sockets, ping's for one; connect over TCP or UDP, with --network where it is outside",
    },
    Calls {
        names: &["setsockopt", "getsockopt"],
        category: "network",
        reason: "that socket option is not among those that programs commonly use",
        instead: "no setting allows it; leave the option out, or turn off the feature that needs it",
    },
    Calls {
        names: &["chmod", "fchmod", "fchmodat", "creat", "open", "openat"],
        category: "filesystem",
        reason: "no file may get a set-uid or set-gid bit",
        instead: "no setting allows it; use a mode without them, 0755 for one",
    },
    Calls {
        names: &["mknod", "mknodat"],
        category: "filesystem",
        reason: "no file may be a device, or get a set-uid or set-gid bit",
        instead: "no setting allows it; the devices that programs need are in /dev",
    },
    Calls {
        names: &["open_by_handle_at", "name_to_handle_at", "fanotify_init", "fanotify_mark"],
        category: "filesystem",
        reason: "it reaches files past what the sandbox shows",
        instead: "no setting allows it; open files by path, and watch them with inotify",
    },
    Calls {
        names: &["sync"],
        category: "filesystem",
        reason: "it would write out everybody's disks",
        instead: "no setting allows it; fsync writes out one file",
    },
    Calls {
        names: &["ioctl"],
        category: "native",
        reason: "that request is not among the few that sandboxes may make of terminals, files and sockets",
        instead: NONE,
    },
    Calls {
        names: &["vmsplice", "tee"],
        category: "native",
        reason: "pipes that share pages with memory have a record of holes",
        instead: "no setting allows it; read and write, or splice, do the same",
    },
    Calls {
        names: &["personality", "modify_ldt"],
        category: "native",
        reason: "it would take protections from the process's memory",
        instead: NONE,
    },
    Calls {
        names: &["setgroups", "setreuid", "setregid", "setfsuid", "setfsgid", "capset"],
        category: "process",
        reason: "the sandbox user has no rights, and cannot become another",
        instead: "no setting allows it; run it without sudo, su or a change of user",
    },
    Calls {
        names: &["sched_setattr", "sched_setscheduler", "sched_setparam", "ioprio_set"],
        category: "resource",
        reason: "it would take time from others",
        instead: "ask for more processor time: --cpus (limits.cpus)",
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
        reason: "it administers the machine",
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
        reason: "clocks and names belong to the machine",
        instead: NONE,
    },
];

/// What holds for every other call.
pub(super) const OTHERS: Calls = Calls {
    names: &[],
    category: "native",
    reason: "it is not among the calls that sandboxes may make",
    instead: NONE,
};

/// What is known of a call.
pub(super) fn about(name: &str) -> &'static Calls {
    CALLS.iter().find(|calls| calls.names.contains(&name)).unwrap_or(&OTHERS)
}
