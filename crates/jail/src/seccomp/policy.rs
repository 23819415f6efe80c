//! The system calls that tenant code may make: the only table.
//!
//! Calls that are not listed are EPERM. Each group gives its reason. A test limits the number of calls that
//! reach the kernel, and the limit only goes down. Names that an architecture lacks are skipped there.

use std::collections::HashMap;

use super::checks::Check;

/// The rule for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyscallRule {
    /// The kernel performs it.
    Allow,
    /// The kernel performs it if its arguments pass the check.
    Check(Check),
    /// Not performed; the caller gets this errno, or success if it is 0.
    Errno(i32),
}

impl SyscallRule {
    /// Returns whether it denies anything with EPERM, which is a notification if there is a listener.
    pub(super) fn notifies(&self) -> bool {
        match self {
            SyscallRule::Allow => false,
            SyscallRule::Check(check) => check.tree().notifies(),
            SyscallRule::Errno(errno) => *errno == libc::EPERM,
        }
    }

    pub(super) fn reaches_kernel(&self) -> bool {
        !matches!(self, SyscallRule::Errno(_))
    }
}

use SyscallRule::{Allow, Errno};
const fn check(check: Check) -> SyscallRule {
    SyscallRule::Check(check)
}

/// Returns the table as a map by name.
pub(super) fn by_name() -> HashMap<&'static str, SyscallRule> {
    POLICY.iter().flat_map(|(rule, names)| names.iter().map(|name| (*name, *rule))).collect()
}

/// Calls that a zygote makes beyond those of a program, to fork a child into an existing jail. It creates no
/// namespace and mounts nothing: it enters namespaces passed to it, with one flag word for each clone, and
/// its child drops all privileges there.
pub(super) const ZYGOTE_RULES: &[(&str, SyscallRule)] = &[
    ("capset", Allow),
    ("clone", check(Check::ZygoteClone)),
    ("landlock_restrict_self", Allow),
    ("prctl", check(Check::ZygotePrctl)),
    ("seccomp", check(Check::ZygoteSeccomp)),
    ("setgroups", Allow),
    ("setns", check(Check::ZygoteSetns)),
];

/// Calls that programs make as the root user of a writable root beyond those of other programs. dpkg gives set-uid
/// bits to files, which are effective nowhere: such a root has no writable mount of the host, its disk is `nosuid` and
/// seen by nobody else, and `no_new_privs` is set. apt, su and useradd set groups. useradd asks for the audit system
/// and does without it if the kernel has none.
pub(super) const ROOT_RULES: &[(&str, SyscallRule)] = &[
    ("chmod", Allow),
    ("fchmod", Allow),
    ("fchmodat", Allow),
    ("setgroups", Allow),
    ("socket", check(Check::RootSocket)),
];

/// All calls of a PID 1 that only waits for its end.
pub(super) const WARM_INIT_CALLS: &[&str] =
    &["close", "exit_group", "futex", "ppoll", "restart_syscall", "sendmsg"];

/// All calls needed to read files and write them to a pipe.
pub(super) const COLLECTOR_CALLS: &[&str] = &[
    "brk",
    "close",
    "exit_group",
    "fcntl",
    "fstat",
    "futex",
    "getdents64",
    "lseek",
    "madvise",
    "mmap",
    "mprotect",
    "mremap",
    "munmap",
    "newfstatat",
    "openat",
    "read",
    "restart_syscall",
    "statx",
    "write",
];

/// `(rule, the calls it applies to)`.
#[rustfmt::skip]
pub(super) const POLICY: &[(SyscallRule, &[&str])] = &[
    // ── Files ──────────────────────────────────────────────────────────────────────────────────────────
    // Reading and writing through descriptors. `splice` stays because Go's network copy fails without it.
    (Allow, &[
        "read", "write", "readv", "writev", "pread64", "pwrite64", "preadv", "pwritev",
        "lseek", "close", "close_range", "dup", "dup2", "dup3", "fcntl", "flock", "pipe", "pipe2",
        "sendfile", "splice", "fsync", "fdatasync", "ftruncate", "fallocate", "fadvise64",
    ]),
    // Names and metadata. The mount namespace, Landlock and file modes decide what they can access.
    (Allow, &[
        "stat", "lstat", "fstat", "newfstatat", "statx", "statfs", "fstatfs", "access", "faccessat",
        "getcwd", "chdir", "fchdir", "getdents64", "readlink", "readlinkat", "truncate", "umask",
        "mkdir", "mkdirat", "rmdir", "unlink", "unlinkat", "rename", "renameat",
        "link", "linkat", "symlink", "symlinkat", "utimensat",
    ]),
    // tar and git set owners routinely; the kernel permits only what an owner may do.
    (Allow, &["chown", "fchown", "lchown", "fchownat"]),
    // Extended attributes can be read, which `ls` and every copy does, but not written: the workspace behaves
    // like a file system without them. Python's copy functions accept EOPNOTSUPP but not ENOSYS, and only
    // ever set by path.
    (Allow, &["getxattr", "lgetxattr", "listxattr", "llistxattr"]),
    (Errno(libc::EOPNOTSUPP), &["setxattr"]),
    (Errno(libc::ENOSYS), &[
        "fgetxattr", "flistxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr",
    ]),
    // No file may get a set-uid or set-gid bit, and none may be a device: in a mounted host directory it
    // would outlive the sandbox.
    (check(Check::Mode { argument: 1 }), &["chmod", "fchmod", "creat"]),
    (check(Check::Mode { argument: 2 }), &["fchmodat"]),
    (check(Check::Open { flags: 1, mode: 2 }), &["open"]),
    (check(Check::Open { flags: 2, mode: 3 }), &["openat"]),
    (check(Check::Rename), &["renameat2"]),
    (check(Check::Node { mode: 1 }), &["mknod"]),
    (check(Check::Node { mode: 2 }), &["mknodat"]),
    // Newer variants of calls above, from which libcs, Go, Rust and Node.js fall back when they are missing.
    // The mode of `openat2` is in memory, where a filter cannot see it. `sync_file_range` and `syncfs` would
    // affect other tenants' disks, as would `sync`, which cannot report its EPERM and simply does nothing.
    (Errno(libc::ENOSYS), &[
        "openat2", "faccessat2", "fchmodat2", "preadv2", "pwritev2", "copy_file_range",
        "sync_file_range", "syncfs",
    ]),

    // ── Memory ─────────────────────────────────────────────────────────────────────────────────────────
    // Locking is bounded by its rlimit and the cgroup.
    (Allow, &[
        "mmap", "munmap", "mprotect", "mremap", "brk", "msync", "madvise", "mlock", "munlock", "memfd_create",
    ]),
    // Optional even where the kernel has them: allocators, JITs and unwinders work without. `mincore` would
    // reveal the state of the page cache that all tenants share.
    (Errno(libc::ENOSYS), &[
        "mincore", "mlock2", "membarrier", "pkey_alloc", "pkey_free", "pkey_mprotect", "memfd_secret",
        "map_shadow_stack", "mseal", "userfaultfd", "process_madvise", "process_mrelease", "cachestat",
    ]),
    // ENOSYS tells libnuma that there is no NUMA to manage; after EPERM it would keep trying.
    (Errno(libc::ENOSYS), &[
        "get_mempolicy", "set_mempolicy", "set_mempolicy_home_node", "mbind", "migrate_pages", "move_pages",
    ]),

    // ── Processes and threads ──────────────────────────────────────────────────────────────────────────
    (check(Check::Clone), &["clone"]),
    // Its flags are in memory where a filter cannot see them; every libc falls back to `clone`.
    (Errno(libc::ENOSYS), &["clone3"]),
    (Allow, &[
        "fork", "vfork", "execve", "exit", "exit_group", "wait4", "waitid", "restart_syscall",
        "getpid", "getppid", "gettid", "getpgrp", "getpgid", "setpgid", "getsid", "setsid",
        "set_tid_address", "set_robust_list", "rseq", "futex", "arch_prctl",
        "prlimit64", "getrusage", "times", "uname", "sysinfo", "getcpu", "getrandom",
    ]),
    (check(Check::Prctl), &["prctl"]),
    (check(Check::Personality), &["personality"]),
    // Alternatives to calls allowed above (libcs emulate `execveat` through `/proc/self/fd` and have long
    // used `prlimit64` for both limits); runtimes probe for the newer ones and work without.
    (Errno(libc::ENOSYS), &[
        "execveat", "getrlimit", "setrlimit",
        "pidfd_open", "pidfd_getfd", "pidfd_send_signal",
        "futex_waitv", "futex_wake", "futex_wait", "futex_requeue",
    ]),
    // Scheduling: affinity and niceness can only yield CPU time. Real-time classes would starve the host.
    (Allow, &[
        "sched_yield", "sched_getaffinity", "sched_setaffinity", "sched_getparam", "sched_getscheduler",
        "sched_get_priority_max", "sched_get_priority_min", "getpriority", "setpriority",
    ]),
    (check(Check::Scheduler), &["sched_setscheduler"]),

    // ── Identity ───────────────────────────────────────────────────────────────────────────────────────
    // BusyBox sets the ids it already has before every applet; without capabilities no others can be set.
    // `setgroups` always needs a capability, so the default EPERM is the kernel's own answer.
    (Allow, &[
        "getuid", "geteuid", "getgid", "getegid", "getresuid", "getresgid", "getgroups",
        "setuid", "setgid", "setresuid", "setresgid", "capget",
    ]),

    // ── Signals and time ───────────────────────────────────────────────────────────────────────────────
    // The pid namespace limits which processes a signal can reach.
    (Allow, &[
        "kill", "tkill", "tgkill", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigpending",
        "rt_sigtimedwait", "rt_sigsuspend", "sigaltstack", "pause",
        "alarm", "getitimer", "setitimer", "nanosleep", "clock_nanosleep", "gettimeofday",
        "clock_gettime", "clock_getres", "timer_create", "timer_settime", "timer_delete",
    ]),

    // ── Waiting for events ─────────────────────────────────────────────────────────────────────────────
    (Allow, &[
        "poll", "ppoll", "select", "pselect6", "eventfd2", "signalfd4",
        "epoll_create", "epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait",
        "timerfd_create", "timerfd_settime",
        "inotify_init", "inotify_init1", "inotify_add_watch", "inotify_rm_watch",
    ]),
    // Rarely needed: event loops fall back to `epoll_wait` and `recvmsg`, the setters of timers return the
    // remaining time, and signals that carry a value are rare.
    (Errno(libc::ENOSYS), &[
        "epoll_pwait2", "recvmmsg", "timerfd_gettime", "timer_gettime", "timer_getoverrun",
        "rt_sigqueueinfo", "rt_tgsigqueueinfo",
    ]),
    // Asynchronous I/O, old and new, has a record of kernel vulnerabilities; event loops have epoll and
    // threads.
    (Errno(libc::ENOSYS), &[
        "io_setup", "io_destroy", "io_submit", "io_cancel", "io_getevents", "io_pgetevents",
        "io_uring_setup", "io_uring_enter", "io_uring_register",
    ]),

    // ── Sockets and IPC ────────────────────────────────────────────────────────────────────────────────
    // The family is fixed when a socket is created; what it can reach is up to the network namespace.
    (check(Check::Socket), &["socket"]),
    (check(Check::SocketPair), &["socketpair"]),
    (Allow, &[
        "bind", "listen", "accept", "accept4", "connect", "shutdown", "getsockname", "getpeername",
        "sendto", "recvfrom", "sendmsg", "recvmsg", "sendmmsg",
    ]),
    // Most options are not needed by programs, and some have a record of kernel vulnerabilities.
    (check(Check::SetOption), &["setsockopt"]),
    (check(Check::GetOption), &["getsockopt"]),
    // Terminals, and a few file and interface queries; all other driver requests are denied.
    (check(Check::Ioctl), &["ioctl"]),
    // The ipc namespace isolates these; PHP and PostgreSQL use them, none with a timeout.
    (Allow, &["shmget", "shmat", "shmctl", "shmdt", "semget", "semop", "semctl"]),
    (Errno(libc::ENOSYS), &["semtimedop"]),
    // Message queues are rarely used, and are the usual way to shape a kernel heap.
    (Errno(libc::ENOSYS), &[
        "msgget", "msgsnd", "msgrcv", "msgctl",
        "mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive", "mq_notify", "mq_getsetattr",
    ]),

    // ── Denied with ENOSYS instead of EPERM ────────────────────────────────────────────────────────────
    // For programs that confine themselves, list mounts or read attributes in the newest way: an older
    // kernel's answer makes them use the older way or continue without.
    (Errno(libc::ENOSYS), &[
        "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self", "statmount", "listmount",
        "lsm_get_self_attr", "lsm_set_self_attr", "lsm_list_modules",
        "setxattrat", "getxattrat", "listxattrat", "removexattrat", "file_getattr", "file_setattr",
    ]),
    // Everything else is EPERM by default: ptrace and other processes' memory, keys, bpf, perf, namespaces,
    // all mount calls, handles, fanotify, modules, kexec, clocks, swap, quotas, ports, seccomp, the
    // page-sharing pipe calls (tee, vmsplice), and calls that libcs replaced long ago (getdents, eventfd,
    // utime, time).
];
