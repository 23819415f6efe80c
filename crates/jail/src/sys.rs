//! System calls that no library wraps, each with the fact that makes it sound.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

use belljar_zygote::syscall::RawErrno;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::SealFlags;
use rustix::io::Errno;

/// Returns the result of a system call, or the errno of this thread.
pub(crate) fn check(result: libc::c_long) -> Result<libc::c_long, Errno> {
    if result < 0 {
        // SAFETY: `__errno_location` always points to this thread's errno.
        Err(Errno::from_raw_os_error(unsafe { *libc::__errno_location() }))
    } else {
        Ok(result)
    }
}

/// How often sealing is attempted.
const SEAL_ATTEMPTS: usize = 10;

/// Makes a memory file immutable.
///
/// The kernel refuses while something else holds one of its pages. Reclaim does so for moments, when memory is short.
pub(crate) fn seal(file: impl AsFd) -> Result<(), Errno> {
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    let mut sealed = Err(Errno::BUSY);
    for _ in 0..SEAL_ATTEMPTS {
        sealed = rustix::fs::fcntl_add_seals(&file, seals);
        if sealed != Err(Errno::BUSY) {
            break;
        }
    }
    sealed
}

/// Converts an errno received from another process. That process may be hostile, and rustix panics on numbers
/// outside the kernel's range.
pub(crate) fn errno_from_peer(number: i32) -> Errno {
    if (1..4096).contains(&number) { Errno::from_raw_os_error(number) } else { Errno::IO }
}

/// Converts the errno of a raw system call.
pub(crate) fn errno(raw: RawErrno) -> Errno {
    errno_from_peer(raw.0)
}

/// Returns whether there is something to read, or the other end is closed.
pub(crate) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut polled, Some(&now)) != Ok(0)
}

/// `libc` declares this flag with too narrow a type.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// The result of a clone, in each of the two processes.
pub(crate) enum CloneResult {
    /// This is the new process.
    Child,
    /// This is the old process, with the new one's pid and, if requested, its pidfd.
    Parent { pid: i32, pidfd: Option<OwnedFd> },
}

/// Clones this process into new namespaces and, on cgroup v2, directly into a cgroup.
///
/// The child continues with a copy of all memory, as after `fork`. The callers are single-threaded, so no
/// lock is held in that copy.
pub(crate) fn clone(flags: libc::c_int, cgroup: Option<BorrowedFd<'_>>) -> Result<CloneResult, Errno> {
    clone_with(flags, cgroup, libc::SIGCHLD)
}

fn clone_with(
    flags: libc::c_int,
    cgroup: Option<BorrowedFd<'_>>,
    exit_signal: libc::c_int,
) -> Result<CloneResult, Errno> {
    let mut pidfd: libc::c_int = -1;
    // SAFETY: an all-zero clone_args is valid: no flags, no stack, no pointers.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = flags as u64 | libc::CLONE_PIDFD as u64;
    args.pidfd = ptr::from_mut(&mut pidfd) as u64;
    args.exit_signal = exit_signal as u64;
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: `args` lives across the call and its only pointer is to `pidfd`. Without CLONE_VM and without a
    // stack the child runs on a copy of this stack, as fork's child does.
    let result = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) };
    match check(result)? {
        0 => Ok(CloneResult::Child),
        pid => {
            // SAFETY: the kernel just stored a new descriptor there, which has no other owner.
            let pidfd = (pidfd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(pidfd) });
            Ok(CloneResult::Parent { pid: pid as i32, pidfd })
        }
    }
}

/// Clones a sibling of this process, that is, a child of its parent. Otherwise like [`clone`].
pub(crate) fn clone_sibling(
    flags: libc::c_int,
    cgroup: Option<BorrowedFd<'_>>,
) -> Result<CloneResult, Errno> {
    clone_with(flags | libc::CLONE_PARENT, cgroup, 0)
}

/// Moves this process into new namespaces.
pub(crate) fn unshare(flags: libc::c_int) -> Result<(), Errno> {
    // SAFETY: the callers are single-threaded and pass neither CLONE_VM nor CLONE_FILES, so no shared memory
    // or descriptor table changes.
    check(unsafe { libc::unshare(flags) }.into()).map(drop)
}

/// Switches the effective user id. Capabilities are kept, and the process stays dumpable, so that its files
/// in `/proc` remain its own.
pub(crate) fn set_effective_uid(uid: u32) -> Result<(), Errno> {
    let same = libc::uid_t::MAX;
    // SAFETY: takes numbers only. The raw call, because the libc function changes the ids of every thread.
    check(unsafe { libc::syscall(libc::SYS_setresuid, same, uid, same) })?;
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable)
}

/// Makes this process die with its parent. Every change of ids clears this setting, so it must be repeated
/// then.
pub(crate) fn die_with_parent() -> Result<(), Errno> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
}

/// Keeps this process's capabilities across changes of the effective user id.
pub(crate) fn keep_capabilities_on_setuid() -> Result<(), Errno> {
    const SECBIT_NO_SETUID_FIXUP: libc::c_ulong = 4;
    // SAFETY: takes numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0) }.into()).map(drop)
}

/// Enters a namespace.
pub(crate) fn setns(namespace: BorrowedFd<'_>, kind: libc::c_int) -> Result<(), Errno> {
    // SAFETY: takes a descriptor and a number.
    check(unsafe { libc::setns(namespace.as_raw_fd(), kind) }.into()).map(drop)
}

/// Sets attributes of a mount, or of a whole tree of mounts.
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
    // SAFETY: the path is an empty C string, and `attributes` lives across the call with its correct size.
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

/// A list of C strings for `execve`.
pub(crate) struct CStringArray(Vec<std::ffi::CString>);

impl CStringArray {
    /// Converts strings. Fails with `EINVAL` if one of them contains NUL.
    pub(crate) fn new(texts: &[String]) -> Result<Self, Errno> {
        let strings = texts.iter().map(|text| std::ffi::CString::new(text.as_bytes()));
        strings.collect::<Result<_, _>>().map(Self).map_err(|_| Errno::INVAL)
    }

    /// Returns pointers to the strings, followed by null. They are valid as long as `self`.
    pub(crate) fn pointers(&self) -> Vec<*const libc::c_char> {
        self.0.iter().map(|word| word.as_ptr()).chain([ptr::null()]).collect()
    }
}

/// Executes a program. Returns only if that fails.
pub(crate) fn execve(program: &CStr, argv: &[*const libc::c_char], env: &[*const libc::c_char]) -> Errno {
    debug_assert!(argv.last().is_some_and(|p| p.is_null()) && env.last().is_some_and(|p| p.is_null()));
    // SAFETY: both arrays end in a null pointer, and their strings outlive the call.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    // SAFETY: as in `check`.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

/// Exits immediately, without running destructors or flushing buffers, which the other side of the clone
/// owns.
pub(crate) fn exit_now(status: i32) -> ! {
    // SAFETY: ends the process and touches no memory.
    unsafe { libc::_exit(status) }
}

/// Returns the CPU time used by this thread.
pub(crate) fn thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A reaped child.
pub(crate) struct ReapedChild {
    pub(crate) pid: i32,
    pub(crate) status: i32,
    pub(crate) cpu_micros: u64,
    pub(crate) peak_memory_bytes: u64,
}

/// Waits for a child and reaps it; `pid` -1 waits for any child.
pub(crate) fn wait_child(pid: i32) -> Result<ReapedChild, Errno> {
    let mut status = 0;
    // SAFETY: an all-zero rusage is a valid value of this plain struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to locals that live across the call.
    let pid = check(unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) }.into())? as i32;
    let micros = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    Ok(ReapedChild {
        pid,
        status,
        cpu_micros: micros(usage.ru_utime) + micros(usage.ru_stime),
        peak_memory_bytes: usage.ru_maxrss as u64 * 1_024,
    })
}

/// Waits for a child by its pidfd and reaps it. Returns its status in the encoding of `wait`.
pub(crate) fn wait_pidfd(pidfd: BorrowedFd<'_>) -> Result<i32, Errno> {
    let options = rustix::process::WaitIdOptions::EXITED;
    let ended = rustix::process::waitid(rustix::process::WaitId::PidFd(pidfd), options)?;
    let ended = ended.ok_or(Errno::CHILD)?;
    let exited = ended.exit_status().map(|status| (status & 0xff) << 8);
    Ok(exited.or(ended.terminating_signal()).unwrap_or(libc::SIGKILL))
}

/// Kills a process and reaps it; it may have exited already. Returns promptly: a killed child exits, and a
/// non-child yields ECHILD.
pub(crate) fn kill_and_reap(pidfd: BorrowedFd<'_>) -> Result<i32, Errno> {
    // Killing fails only if the process has already exited, which is the desired state.
    let _killed = rustix::process::pidfd_send_signal(pidfd, rustix::process::Signal::KILL);
    wait_pidfd(pidfd)
}

/// Returns the pid of a process in the pid namespace of the given `/proc`.
pub(crate) fn pid_in_procfs(proc: &OwnedFd, pidfd: &OwnedFd) -> Result<i32, Errno> {
    pid_from_fdinfo(proc, pidfd, "Pid:", |numbers| numbers.first().copied())
}

/// Returns the pid by which this process knows a process in a direct child of its own pid namespace.
pub(crate) fn pid_from_parent_namespace(proc: &OwnedFd, pidfd: &OwnedFd) -> Result<i32, Errno> {
    pid_from_fdinfo(proc, pidfd, "NSpid:", |numbers| numbers.iter().rev().nth(1).copied())
}

/// Returns the pid of a process in its own, innermost pid namespace.
pub(crate) fn innermost_pid(proc: &OwnedFd, pidfd: &OwnedFd) -> Result<i32, Errno> {
    pid_from_fdinfo(proc, pidfd, "NSpid:", |numbers| numbers.last().copied())
}

fn pid_from_fdinfo(
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
    // A process that has exited has no pid.
    choose(&numbers).filter(|pid| *pid > 0).ok_or(Errno::SRCH)
}

/// Creates a pair of connected packet sockets, over which descriptors can be sent.
pub(crate) fn packet_socketpair() -> Result<(OwnedFd, OwnedFd), Errno> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Lets the kernel reap children automatically.
pub(crate) fn auto_reap_children() {
    // SAFETY: installs no handler.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Returns the pid of a zombie child, if there is one, without reaping it.
pub(crate) fn peek_zombie() -> Option<i32> {
    // SAFETY: an all-zero siginfo is a valid value of this plain struct.
    let mut found: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `found` lives across the call.
    check(unsafe { libc::waitid(libc::P_ALL, 0, &raw mut found, options) }.into()).ok()?;
    // SAFETY: the kernel filled in this part of the struct, for a zombie as well as for no child.
    Some(unsafe { found.si_pid() }).filter(|pid| *pid != 0)
}

/// A system call reported by a notification listener; its caller is blocked until it is answered.
pub(crate) struct SyscallNotification {
    pub(crate) id: u64,
    pub(crate) pid: i32,
    pub(crate) number: i32,
    pub(crate) arguments: [u64; 6],
}

/// Receives the next notification. Blocks until one arrives.
pub(crate) fn receive_notification(listener: BorrowedFd<'_>) -> Result<SyscallNotification, Errno> {
    // SAFETY: an all-zero notification is a valid value of this plain struct, and the one that the kernel
    // requires.
    let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one notification to `call`.
    check(unsafe { libc::ioctl(listener.as_raw_fd(), SECCOMP_IOCTL_NOTIF_RECV, &raw mut call) }.into())?;
    let libc::seccomp_data { nr: number, args: arguments, .. } = call.data;
    Ok(SyscallNotification { id: call.id, pid: call.pid as i32, number, arguments })
}

/// Returns whether a call is still blocked. If so, information read about its pid in the meantime belongs to
/// its caller.
pub(crate) fn is_notification_valid(listener: BorrowedFd<'_>, id: u64) -> bool {
    // SAFETY: the kernel reads one number from `id`.
    unsafe { libc::ioctl(listener.as_raw_fd(), SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const id) == 0 }
}

/// Lets a blocked call continue. Only safe for exit calls, to which arguments changed in the meantime make no
/// difference.
pub(crate) fn continue_call(listener: BorrowedFd<'_>, id: u64) {
    let flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    answer_call(listener, &libc::seccomp_notif_resp { id, val: 0, error: 0, flags });
}

/// Makes a blocked call fail as if the filter had refused it.
pub(crate) fn fail_call(listener: BorrowedFd<'_>, id: u64, errno: Errno) {
    answer_call(listener, &libc::seccomp_notif_resp { id, val: 0, error: -errno.raw_os_error(), flags: 0 });
}

fn answer_call(listener: BorrowedFd<'_>, answer: &libc::seccomp_notif_resp) {
    // SAFETY: the kernel reads one answer. The call fails only if the caller has exited, which needs no
    // answer.
    let _answered =
        unsafe { libc::ioctl(listener.as_raw_fd(), SECCOMP_IOCTL_NOTIF_SEND, std::ptr::from_ref(answer)) };
}

const SECCOMP_IOCTL_NOTIF_RECV: libc::c_ulong = 0xc050_2100;
const SECCOMP_IOCTL_NOTIF_SEND: libc::c_ulong = 0xc018_2101;
/// The original request number, which every kernel accepts.
const SECCOMP_IOCTL_NOTIF_ID_VALID: libc::c_ulong = 0x8008_2102;
const SECCOMP_USER_NOTIF_FLAG_CONTINUE: u32 = 1;

/// Sets a resource limit, capped at the current hard limit.
pub(crate) fn set_rlimit(resource: libc::__rlimit_resource_t, soft: u64, hard: u64) -> Result<(), Errno> {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `now` lives across the call.
    check(unsafe { libc::getrlimit(resource, &raw mut now) }.into())?;
    let hard = hard.min(now.rlim_max);
    let wanted = libc::rlimit { rlim_cur: soft.min(hard), rlim_max: hard };
    // SAFETY: `wanted` lives across the call.
    check(unsafe { libc::setrlimit(resource, &raw const wanted) }.into()).map(drop)
}

/// Takes an exclusive lock on one byte of a file, for as long as the descriptor is open.
pub(crate) fn lock_byte(file: BorrowedFd<'_>, offset: u64) -> Result<(), Errno> {
    set_byte_lock(file, offset, libc::F_WRLCK)
}

/// Releases the lock on one byte.
pub(crate) fn unlock_byte(file: BorrowedFd<'_>, offset: u64) {
    // Fails only for a descriptor that holds no locks.
    let _unlocked = set_byte_lock(file, offset, libc::F_UNLCK);
}

fn set_byte_lock(file: BorrowedFd<'_>, offset: u64, kind: libc::c_int) -> Result<(), Errno> {
    // SAFETY: an all-zero flock is a valid value of this plain struct.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = offset as libc::off_t;
    lock.l_len = 1;
    // SAFETY: `lock` lives across the call.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) }.into()).map(drop)
}

/// Brings up loopback in the current network namespace.
pub(crate) fn loopback_up() -> Result<(), Errno> {
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    // SAFETY: an all-zero ifreq is a valid value of this plain struct.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the kernel reads an ifreq for this request, which is what it gets.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) }.into()).map(drop)
}

/// Resets every signal to its default action and unblocks all, except that SIGPIPE is ignored so that a
/// broken pipe is an error. `execve` preserves ignored and blocked signals, so programs inherit this state.
pub(crate) fn reset_signals() {
    for signal in 1..=64 {
        // SAFETY: installs no handler; for signals that cannot be changed the call fails.
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

/// Restores the default action of SIGPIPE, which ends the program.
pub(crate) fn reset_sigpipe() {
    // SAFETY: installs no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Puts `/dev/null`, which the launcher has at 0 to 2, at 3 as well, in place of the launcher's control
/// socket.
pub(crate) fn reserve_standard_fds() -> Result<(), Errno> {
    // SAFETY: takes numbers only; the socket's owner is in the launcher, and this copy of the process never
    // drops it.
    check(unsafe { libc::dup2(0, 3) }.into()).map(drop)
}

/// Closes all descriptors from `first` to `last`. Their owners are gone or never dropped, because the process
/// ends by [`exit_now`].
pub(crate) fn close_range(first: i32, last: i32) -> Result<(), Errno> {
    if first > last {
        return Ok(());
    }
    // SAFETY: takes numbers only; see above for the owners of these descriptors.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }).map(drop)
}

/// Kills every process of this pid namespace except PID 1, as far as this user is permitted to.
pub(crate) fn kill_all_others() {
    // SAFETY: takes numbers only.
    let _killed = unsafe { libc::kill(-1, libc::SIGKILL) };
}

const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4c82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4c0a;
#[cfg(test)]
const LOOP_GET_STATUS64: libc::c_ulong = 0x4c05;
const LO_FLAGS_AUTOCLEAR: u64 = 4;
const LO_FLAGS_DIRECT_IO: u64 = 16;

/// Returns the number of a loop device that is not in use.
pub(crate) fn free_loop_device(control: BorrowedFd<'_>) -> Result<i32, Errno> {
    // SAFETY: takes no argument.
    check(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) }.into()).map(|number| number as i32)
}

/// Attaches a file to a loop device. The device detaches it at its last use, and reads and writes it past the page
/// cache, where the file system on the device is cached already.
pub(crate) fn configure_loop_device(
    device: BorrowedFd<'_>,
    file: i32,
    block_bytes: u32,
) -> Result<(), Errno> {
    // Layout of `loop_config`: file and block size, 29 words of `loop_info64`, reserved words. The flags are the upper
    // half of the seventh word of `loop_info64`; both architectures are little-endian.
    let mut config = [0_u64; 38];
    config[0] = u64::from(file as u32) | u64::from(block_bytes) << 32;
    config[7] = (LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO) << 32;
    // SAFETY: the kernel reads 304 bytes from `config`.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, config.as_ptr()) }.into()).map(drop)
}

/// Returns device and inode of the file that a loop device uses.
#[cfg(test)]
pub(crate) fn loop_device_file(device: BorrowedFd<'_>) -> Result<(u64, u64), Errno> {
    // `loop_info64` begins with these two.
    let mut info = [0_u64; 29];
    // SAFETY: the kernel writes 232 bytes to `info`.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, info.as_mut_ptr()) }.into())?;
    Ok((info[0], info[1]))
}
