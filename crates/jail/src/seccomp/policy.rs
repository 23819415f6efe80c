//! What tenant code may ask of the kernel: the one table.
//!
//! A call that is not here is EPERM. Each group says why it is what it is; the count of calls that reach the
//! kernel is tested and only goes down. Names that an architecture lacks are skipped there.

use std::collections::HashMap;

use super::checks::Check;

/// What happens to one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// The kernel performs it.
    Allow,
    /// The kernel performs it if its arguments pass.
    Check(Check),
    /// Not performed; the caller sees this errno, or success where it is 0.
    Errno(i32),
}

impl Rule {
    pub(super) fn reaches_kernel(&self) -> bool {
        !matches!(self, Rule::Errno(_))
    }
}

use Rule::{Allow, Errno};
const fn check(check: Check) -> Rule {
    Rule::Check(check)
}

/// The table by name.
pub(super) fn by_name() -> HashMap<&'static str, Rule> {
    POLICY.iter().flat_map(|(rule, names)| names.iter().map(|name| (*name, *rule))).collect()
}

/// `(rule, the calls it holds for)`.
#[rustfmt::skip]
pub(super) const POLICY: &[(Rule, &[&str])] = &[
    // ── Files ──────────────────────────────────────────────────────────────────────────────────────────
    // Bytes through descriptors. `splice` stays because Go's network copy does not survive without it.
    (Allow, &[
        "read", "write", "readv", "writev", "pread64", "pwrite64", "preadv", "pwritev", "preadv2", "pwritev2",
        "lseek", "close", "close_range", "dup", "dup2", "dup3", "fcntl", "flock", "pipe", "pipe2",
        "sendfile", "splice", "copy_file_range", "fsync", "fdatasync", "ftruncate", "fallocate", "fadvise64",
    ]),
    // Names and metadata. The mount namespace, landlock and file modes decide what they find.
    (Allow, &[
        "stat", "lstat", "fstat", "newfstatat", "statx", "statfs", "fstatfs", "access", "faccessat", "faccessat2",
        "getcwd", "chdir", "fchdir", "getdents64", "readlink", "readlinkat", "truncate", "umask",
        "mkdir", "mkdirat", "rmdir", "unlink", "unlinkat", "rename", "renameat", "renameat2",
        "link", "linkat", "symlink", "symlinkat", "utime", "utimes", "utimensat",
    ]),
    // tar and git set owners and attributes as a matter of course; without capabilities the kernel grants
    // only what an owner may do.
    (Allow, &[
        "chown", "fchown", "lchown", "fchownat",
        "getxattr", "lgetxattr", "fgetxattr", "listxattr", "llistxattr", "flistxattr",
        "setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr",
    ]),
    // No file may get a set-uid or set-gid bit: it would outlive the sandbox in a folder that was lent to it.
    (check(Check::Mode { argument: 1 }), &["chmod", "fchmod", "creat"]),
    (check(Check::Mode { argument: 2 }), &["fchmodat", "fchmodat2"]),
    (check(Check::Open { flags: 1, mode: 2 }), &["open"]),
    (check(Check::Open { flags: 2, mode: 3 }), &["openat"]),
    (check(Check::Node { mode: 1 }), &["mknod"]),
    (check(Check::Node { mode: 2 }), &["mknodat"]),
    // Writing back every file system of the host is a lever on the neighbours, and durability beyond `fsync`
    // means nothing in a sandbox. Both calls promise little enough that doing nothing keeps the promise.
    (Errno(0), &["sync", "syncfs"]),
    // Its mode sits in memory where a filter cannot look; libcs and runtimes fall back to `openat`.
    (Errno(libc::ENOSYS), &["openat2"]),
    // What a pipe says to a call it does not support; the page-sharing half of the pipe code is bug-rich.
    (Errno(libc::EINVAL), &["tee", "vmsplice"]),
    // Databases ask whether it is there and turn it off on ENOSYS; on EPERM they report a broken disk.
    (Errno(libc::ENOSYS), &["sync_file_range"]),

    // ── Memory ─────────────────────────────────────────────────────────────────────────────────────────
    // Locking is bounded by its rlimit and the cgroup. `get_mempolicy` only reads: NumPy and Java probe it.
    (Allow, &[
        "mmap", "munmap", "mprotect", "mremap", "brk", "msync", "madvise", "mincore",
        "mlock", "munlock", "mlockall", "munlockall", "memfd_create", "get_mempolicy", "membarrier",
    ]),
    // Optional even where the kernel has them: allocators and JITs go on without.
    (Errno(libc::ENOSYS), &[
        "mlock2", "pkey_alloc", "pkey_free", "pkey_mprotect", "memfd_secret", "map_shadow_stack", "mseal",
        "userfaultfd", "process_madvise", "process_mrelease", "set_mempolicy_home_node", "cachestat",
    ]),

    // ── Processes and threads ──────────────────────────────────────────────────────────────────────────
    (check(Check::Clone), &["clone"]),
    // Its flags sit in memory where a filter cannot look; every libc falls back to `clone`.
    (Errno(libc::ENOSYS), &["clone3"]),
    (Allow, &[
        "fork", "vfork", "execve", "exit", "exit_group", "wait4", "waitid", "restart_syscall",
        "getpid", "getppid", "gettid", "getpgrp", "getpgid", "setpgid", "getsid", "setsid",
        "set_tid_address", "set_robust_list", "rseq", "futex", "arch_prctl",
        "getrlimit", "setrlimit", "prlimit64", "getrusage", "times", "uname", "sysinfo", "getcpu",
    ]),
    (check(Check::Prctl), &["prctl"]),
    (check(Check::Personality), &["personality"]),
    // libcs emulate it over `/proc/self/fd`.
    (Errno(libc::ENOSYS), &["execveat"]),
    // Newer ways to do what is allowed above; runtimes probe and go on without.
    (Errno(libc::ENOSYS), &[
        "pidfd_open", "pidfd_getfd", "pidfd_send_signal", "futex_waitv", "futex_wake", "futex_wait", "futex_requeue",
    ]),
    // Scheduling: affinity and niceness only ever give away. Real-time classes would starve the host.
    (Allow, &[
        "sched_yield", "sched_getaffinity", "sched_setaffinity", "sched_getparam", "sched_getscheduler",
        "sched_get_priority_max", "sched_get_priority_min", "getpriority", "setpriority",
    ]),
    (check(Check::Scheduler), &["sched_setscheduler"]),

    // ── Identity ───────────────────────────────────────────────────────────────────────────────────────
    // Shells and daemons set the ids they already have; without capabilities there is no other to take.
    // `capset` can only drop. `setgroups` always needs a capability, so its EPERM here is the kernel's own.
    (Allow, &[
        "getuid", "geteuid", "getgid", "getegid", "getresuid", "getresgid", "getgroups",
        "setuid", "setgid", "setreuid", "setregid", "setresuid", "setresgid", "capget", "capset",
    ]),

    // ── Signals and time ───────────────────────────────────────────────────────────────────────────────
    // The pid namespace bounds whom a signal can reach.
    (Allow, &[
        "kill", "tkill", "tgkill", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigpending",
        "rt_sigtimedwait", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "rt_sigsuspend", "sigaltstack", "pause",
        "alarm", "getitimer", "setitimer", "nanosleep", "clock_nanosleep", "gettimeofday", "time",
        "clock_gettime", "clock_getres",
        "timer_create", "timer_settime", "timer_gettime", "timer_getoverrun", "timer_delete",
    ]),

    // ── Waiting for events ─────────────────────────────────────────────────────────────────────────────
    (Allow, &[
        "poll", "ppoll", "select", "pselect6", "eventfd2", "signalfd4",
        "epoll_create", "epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait", "epoll_pwait2",
        "timerfd_create", "timerfd_settime", "timerfd_gettime",
        "inotify_init", "inotify_init1", "inotify_add_watch", "inotify_rm_watch",
    ]),
    // Asynchronous I/O, old and new, has a record of kernel holes; event loops fall back to epoll and threads.
    (Errno(libc::ENOSYS), &[
        "io_setup", "io_destroy", "io_submit", "io_cancel", "io_getevents", "io_pgetevents",
        "io_uring_setup", "io_uring_enter", "io_uring_register",
    ]),

    // ── Sockets and IPC ────────────────────────────────────────────────────────────────────────────────
    // The family is decided when a socket is made; what it may reach is the network namespace's business.
    (check(Check::Socket), &["socket"]),
    (check(Check::SocketPair), &["socketpair"]),
    (Allow, &[
        "bind", "listen", "accept", "accept4", "connect", "shutdown", "getsockname", "getpeername",
        "getsockopt", "setsockopt", "sendto", "recvfrom", "sendmsg", "recvmsg", "sendmmsg", "recvmmsg",
    ]),
    // Terminals, a few file and interface queries; everything else a driver understands is out of reach.
    (check(Check::Ioctl), &["ioctl"]),
    // The ipc namespace holds these; R, PHP and PostgreSQL use them.
    (Allow, &["shmget", "shmat", "shmctl", "shmdt", "semget", "semop", "semtimedop", "semctl"]),
    // Message queues are hardly used, and are the usual way to shape a kernel heap.
    (Errno(libc::ENOSYS), &[
        "msgget", "msgsnd", "msgrcv", "msgctl",
        "mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive", "mq_notify", "mq_getsetattr",
    ]),

    // ── Not for tenants, but politely ──────────────────────────────────────────────────────────────────
    // Programs that would confine themselves, list mounts or read attributes in the newest way: an older
    // kernel's answer sends them on to the older way or on without.
    (Errno(libc::ENOSYS), &[
        "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self", "statmount", "listmount",
        "lsm_get_self_attr", "lsm_set_self_attr", "lsm_list_modules",
        "setxattrat", "getxattrat", "listxattrat", "removexattrat", "file_getattr", "file_setattr",
    ]),
    // All the rest is EPERM by default: ptrace and other processes' memory, keys, bpf, perf, namespaces, every
    // mount call, handles, fanotify, modules, kexec, clocks, swap, quotas, ports, NUMA placement, seccomp.
];
