//! The few calls that no library gives, each with the fact that makes it sound.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

use rustix::io::Errno;

fn check(result: libc::c_long) -> Result<libc::c_long, Errno> {
    if result < 0 {
        // SAFETY: `__errno_location` always points at this thread's errno.
        Err(Errno::from_raw_os_error(unsafe { *libc::__errno_location() }))
    } else {
        Ok(result)
    }
}

/// The error of which another process told by its number. That process may be hostile, and rustix panics at a number that
/// the kernel does not have.
pub(crate) fn told_errno(number: i32) -> Errno {
    if (1..4096).contains(&number) { Errno::from_raw_os_error(number) } else { Errno::IO }
}

/// The one flag that `libc` gives with too narrow a type.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Which side of a clone this is.
pub(crate) enum Cloned {
    /// The new process.
    Child,
    /// The old one, with the new one's id and, where asked for, a descriptor of it.
    Parent { pid: i32, pidfd: Option<OwnedFd> },
}

/// Clones this process into new namespaces, and on cgroup v2 straight into a group.
///
/// The child goes on with a copy of all memory, like after `fork`; the callers are single-threaded, so no lock is
/// held by anyone in that copy.
pub(crate) fn clone(flags: libc::c_int, cgroup: Option<BorrowedFd<'_>>) -> Result<Cloned, Errno> {
    clone_with(flags, cgroup, libc::SIGCHLD)
}

fn clone_with(
    flags: libc::c_int,
    cgroup: Option<BorrowedFd<'_>>,
    exit_signal: libc::c_int,
) -> Result<Cloned, Errno> {
    let mut pidfd: libc::c_int = -1;
    // SAFETY: an all-zero clone_args is a valid one: no flags, no stack, no pointers.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = flags as u64 | libc::CLONE_PIDFD as u64;
    args.pidfd = ptr::from_mut(&mut pidfd) as u64;
    args.exit_signal = exit_signal as u64;
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: `args` lives across the call and its only pointer is to `pidfd`; without CLONE_VM and without a stack
    // the child runs on a copy of this stack, as fork's child does.
    let result = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) };
    match check(result)? {
        0 => Ok(Cloned::Child),
        pid => {
            // SAFETY: the kernel just stored a new descriptor there that nobody else owns.
            let pidfd = (pidfd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(pidfd) });
            Ok(Cloned::Parent { pid: pid as i32, pidfd })
        }
    }
}

/// Clones a sibling of this process: a child of its parent. Otherwise like [`clone`].
pub(crate) fn clone_sibling(flags: libc::c_int, cgroup: Option<BorrowedFd<'_>>) -> Result<Cloned, Errno> {
    clone_with(flags | libc::CLONE_PARENT, cgroup, 0)
}

/// Leaves namespaces behind and takes new ones.
pub(crate) fn unshare(flags: libc::c_int) -> Result<(), Errno> {
    // SAFETY: the callers are single-threaded and pass no CLONE_VM or CLONE_FILES, so no memory or descriptor that
    // others rely on changes.
    check(unsafe { libc::unshare(flags) }.into()).map(drop)
}

/// Does what follows as another user, with the same rights. What a process leaves behind in `/proc` stays its own.
pub(crate) fn act_as(uid: u32) -> Result<(), Errno> {
    let same = libc::uid_t::MAX;
    // SAFETY: takes numbers only. Not the library's function, which would change every thread.
    check(unsafe { libc::syscall(libc::SYS_setresuid, same, uid, same) })?;
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable)
}

/// Nothing of ours outlives the launcher. The setting is lost at every change of ids, so it is made anew then.
pub(crate) fn die_with_parent() -> Result<(), Errno> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
}

/// A change of the effective user leaves this process its rights.
pub(crate) fn keep_rights_as_another_user() -> Result<(), Errno> {
    const SECBIT_NO_SETUID_FIXUP: libc::c_ulong = 4;
    // SAFETY: takes numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0) }.into()).map(drop)
}

/// Enters a namespace.
pub(crate) fn setns(namespace: BorrowedFd<'_>, kind: libc::c_int) -> Result<(), Errno> {
    // SAFETY: takes a descriptor and a number.
    check(unsafe { libc::setns(namespace.as_raw_fd(), kind) }.into()).map(drop)
}

/// Sets attributes of a mount, or of a whole tree of them.
pub(crate) fn mount_setattr(
    mount: BorrowedFd<'_>,
    recursive: bool,
    set: u64,
    id_map: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let mut attributes = libc::mount_attr { attr_set: set, attr_clr: 0, propagation: 0, userns_fd: 0 };
    if let Some(id_map) = id_map {
        attributes.attr_set |= libc::MOUNT_ATTR_IDMAP;
        attributes.userns_fd = id_map.as_raw_fd() as u64;
    }
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is an empty C string and `attributes` lives across the call with its size given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    check(result).map(drop)
}

/// Strings as `execve` takes them.
pub(crate) struct Words(Vec<std::ffi::CString>);

impl Words {
    /// `EINVAL` where one of them holds a NUL.
    pub(crate) fn of(texts: &[String]) -> Result<Self, Errno> {
        let strings = texts.iter().map(|text| std::ffi::CString::new(text.as_bytes()));
        strings.collect::<Result<_, _>>().map(Self).map_err(|_| Errno::INVAL)
    }

    /// Valid as long as these words are; the last one is null.
    pub(crate) fn pointers(&self) -> Vec<*const libc::c_char> {
        self.0.iter().map(|word| word.as_ptr()).chain([ptr::null()]).collect()
    }
}

/// Executes a program; returns only when that failed.
pub(crate) fn execve(program: &CStr, argv: &[*const libc::c_char], env: &[*const libc::c_char]) -> Errno {
    debug_assert!(argv.last().is_some_and(|p| p.is_null()) && env.last().is_some_and(|p| p.is_null()));
    // SAFETY: both arrays end in a null pointer and their strings outlive the call.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    // SAFETY: as in `check`.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

/// Ends this process at once: no destructors, no buffers; the other side of a clone owns those.
pub(crate) fn exit_now(status: i32) -> ! {
    // SAFETY: ends the process and touches no memory.
    unsafe { libc::_exit(status) }
}

/// How much CPU time this thread has used.
pub(crate) fn thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A child that ended.
pub(crate) struct Reaped {
    pub(crate) pid: i32,
    pub(crate) status: i32,
    pub(crate) cpu_micros: u64,
    pub(crate) peak_memory_bytes: u64,
}

/// Waits for a child; `pid` -1 is any.
pub(crate) fn wait(pid: i32) -> Result<Reaped, Errno> {
    let mut status = 0;
    // SAFETY: an all-zero rusage is a valid value of that plain struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to locals that live across the call.
    let pid = check(unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) }.into())? as i32;
    let micros = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    Ok(Reaped {
        pid,
        status,
        cpu_micros: micros(usage.ru_utime) + micros(usage.ru_stime),
        peak_memory_bytes: usage.ru_maxrss as u64 * 1_024,
    })
}

/// Waits for a child that has ended; its status as `wait` gives it.
pub(crate) fn wait_for(pidfd: BorrowedFd<'_>) -> Result<i32, Errno> {
    let options = rustix::process::WaitIdOptions::EXITED;
    let ended = rustix::process::waitid(rustix::process::WaitId::PidFd(pidfd), options)?;
    let ended = ended.ok_or(Errno::CHILD)?;
    let exited = ended.exit_status().map(|status| (status & 0xff) << 8);
    Ok(exited.or(ended.terminating_signal()).unwrap_or(libc::SIGKILL))
}

/// Kills a process and waits for its end, which may have come already. Never long: whoever was killed ends, and for
/// whoever is nobody's child there is no waiting.
pub(crate) fn put_an_end_to(pidfd: BorrowedFd<'_>) -> Result<i32, Errno> {
    // Only a process that is gone already cannot be killed, and that is what is wanted.
    let _killed = rustix::process::pidfd_send_signal(pidfd, rustix::process::Signal::KILL);
    wait_for(pidfd)
}

/// The number of a process as `/proc` has it.
pub(crate) fn pid_of(proc: &OwnedFd, pidfd: &OwnedFd) -> Result<i32, Errno> {
    pids_of(proc, pidfd, "Pid:", |numbers| numbers.first().copied())
}

/// The number of a process that is in a child namespace of this process's pid namespace, as this process would use it.
pub(crate) fn pid_here(proc: &OwnedFd, pidfd: &OwnedFd) -> Result<i32, Errno> {
    pids_of(proc, pidfd, "NSpid:", |numbers| numbers.iter().rev().nth(1).copied())
}

/// The number of a process in its own pid namespace.
pub(crate) fn pid_inside(proc: &OwnedFd, pidfd: &OwnedFd) -> Result<i32, Errno> {
    pids_of(proc, pidfd, "NSpid:", |numbers| numbers.last().copied())
}

fn pids_of(
    proc: &OwnedFd,
    pidfd: &OwnedFd,
    field: &str,
    choose: impl Fn(&[i32]) -> Option<i32>,
) -> Result<i32, Errno> {
    let path = format!("self/fdinfo/{}", pidfd.as_raw_fd());
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let file = rustix::fs::openat(proc, path, flags, rustix::fs::Mode::empty())?;
    let mut text = [0; 512];
    let len = rustix::io::read(&file, &mut text)?;
    let text = std::str::from_utf8(&text[..len]).map_err(|_| Errno::ILSEQ)?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
    let numbers: Vec<i32> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    // One that is gone already has none.
    choose(&numbers).filter(|pid| *pid > 0).ok_or(Errno::SRCH)
}

/// A line between two processes: packets, with descriptors beside them.
pub(crate) fn line() -> Result<(OwnedFd, OwnedFd), Errno> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Has ended children leave nothing to wait for.
pub(crate) fn ignore_children() {
    // SAFETY: installs no handler.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// A child that has ended and was not waited for, if there is one; it still is to be waited for.
pub(crate) fn dead_child() -> Option<i32> {
    // SAFETY: an all-zero siginfo is a valid value of that plain struct.
    let mut found: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `found` lives across the call.
    check(unsafe { libc::waitid(libc::P_ALL, 0, &raw mut found, options) }.into()).ok()?;
    // SAFETY: for an ended child, and for none, this part of the struct is what the kernel filled in.
    Some(unsafe { found.si_pid() }).filter(|pid| *pid != 0)
}

/// A system call that a filter told of, and that waits.
pub(crate) struct HeldCall {
    pub(crate) id: u64,
    pub(crate) pid: i32,
    pub(crate) number: i32,
    pub(crate) arguments: [u64; 6],
}

/// Hears the next call that a filter tells of; where there is none this may wait for ever.
pub(crate) fn hear_call(listener: BorrowedFd<'_>) -> Result<HeldCall, Errno> {
    // SAFETY: an all-zero notification is a valid value of that plain struct, and the one that the kernel wants.
    let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one notification there.
    check(unsafe { libc::ioctl(listener.as_raw_fd(), SECCOMP_IOCTL_NOTIF_RECV, &raw mut call) }.into())?;
    let libc::seccomp_data { nr: number, args: arguments, .. } = call.data;
    Ok(HeldCall { id: call.id, pid: call.pid as i32, number, arguments })
}

/// Whether a call is still held: what was learnt of its caller meanwhile was the caller's.
pub(crate) fn is_held(listener: BorrowedFd<'_>, id: u64) -> bool {
    // SAFETY: the kernel reads one number there.
    unsafe { libc::ioctl(listener.as_raw_fd(), SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const id) == 0 }
}

/// Lets a held call go on. Only for an end, to which arguments that changed meanwhile make no difference.
pub(crate) fn let_pass(listener: BorrowedFd<'_>, id: u64) {
    let flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    answer_call(listener, &libc::seccomp_notif_resp { id, val: 0, error: 0, flags });
}

/// Has a held call fail, as if the filter had refused it.
pub(crate) fn refuse(listener: BorrowedFd<'_>, id: u64, errno: Errno) {
    answer_call(listener, &libc::seccomp_notif_resp { id, val: 0, error: -errno.raw_os_error(), flags: 0 });
}

fn answer_call(listener: BorrowedFd<'_>, answer: &libc::seccomp_notif_resp) {
    // SAFETY: the kernel reads one answer there. Where the caller is gone meanwhile there is nobody to answer.
    let _answered =
        unsafe { libc::ioctl(listener.as_raw_fd(), SECCOMP_IOCTL_NOTIF_SEND, std::ptr::from_ref(answer)) };
}

const SECCOMP_IOCTL_NOTIF_RECV: libc::c_ulong = 0xc050_2100;
const SECCOMP_IOCTL_NOTIF_SEND: libc::c_ulong = 0xc018_2101;
/// The number that it first had, which every kernel knows.
const SECCOMP_IOCTL_NOTIF_ID_VALID: libc::c_ulong = 0x8008_2102;
const SECCOMP_USER_NOTIF_FLAG_CONTINUE: u32 = 1;

/// Sets one resource limit, never above what this process may have.
pub(crate) fn limit(resource: libc::__rlimit_resource_t, soft: u64, hard: u64) -> Result<(), Errno> {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `now` lives across the call.
    check(unsafe { libc::getrlimit(resource, &raw mut now) }.into())?;
    let hard = hard.min(now.rlim_max);
    let wanted = libc::rlimit { rlim_cur: soft.min(hard), rlim_max: hard };
    // SAFETY: `wanted` lives across the call.
    check(unsafe { libc::setrlimit(resource, &raw const wanted) }.into()).map(drop)
}

/// Takes an exclusive lock on one byte of a file, for as long as the descriptor lives.
pub(crate) fn lock_byte(file: BorrowedFd<'_>, offset: u64) -> Result<(), Errno> {
    // SAFETY: an all-zero flock is a valid value of that plain struct.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = offset as libc::off_t;
    lock.l_len = 1;
    // SAFETY: `lock` lives across the call.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) }.into()).map(drop)
}

/// Gives the byte back.
pub(crate) fn unlock_byte(file: BorrowedFd<'_>, offset: u64) {
    // SAFETY: an all-zero flock is a valid value of that plain struct.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_UNLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = offset as libc::off_t;
    lock.l_len = 1;
    // SAFETY: `lock` lives across the call.
    let _unlocked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
}

/// Brings loopback up in the present network namespace.
pub(crate) fn loopback_up() -> Result<(), Errno> {
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    // SAFETY: an all-zero ifreq is a valid value of that plain struct.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the kernel reads an ifreq for this request, and that is what it gets.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) }.into()).map(drop)
}

/// Resets every signal to its default and unblocks all, whatever this process was started with; only a broken pipe
/// stays an error and not an end. `execve` keeps what is ignored or blocked, so this is what programs start with.
pub(crate) fn default_signals() {
    for signal in 1..=64 {
        // SAFETY: installs no handler; for signals that cannot be changed the call merely fails.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: `sigemptyset` initializes the set before `sigprocmask` reads it; ignoring installs no handler.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        let mut none = std::mem::MaybeUninit::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
    }
}

/// Makes a broken pipe end a program again.
pub(crate) fn default_pipe_signal() {
    // SAFETY: installs no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Puts `/dev/null`, which the launcher has as 0 to 2, at 3 as well, where its control socket was.
pub(crate) fn occupy_standard_numbers() -> Result<(), Errno> {
    // SAFETY: takes numbers only; the socket's owner is in the launcher, of which this is a copy that never drops it.
    check(unsafe { libc::dup2(0, 3) }.into()).map(drop)
}

/// Closes all descriptors from `first` to `last`; owners of these numbers are gone or never drop them, because the
/// process ends by [`exit_now`].
pub(crate) fn close_range(first: i32, last: i32) -> Result<(), Errno> {
    if first > last {
        return Ok(());
    }
    // SAFETY: takes numbers only; see above for who else holds these descriptors.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }).map(drop)
}

/// Kills every process of this pid namespace but PID 1, as far as this user may.
pub(crate) fn kill_all_others() {
    // SAFETY: takes numbers only.
    let _killed = unsafe { libc::kill(-1, libc::SIGKILL) };
}
