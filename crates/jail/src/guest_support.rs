//! Kernel operations for a guest, which may not use `unsafe`: the socket it was started with, and children in
//! their own sessions.

use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, FdFlags};

use crate::inside::landlock_here;
use crate::seccomp::{FilterFor, SeccompFilter};

/// Program name (`argv[0]`) that makes a process run as a guest.
pub const GUEST_NAME: &str = "belljar-guest";
/// Descriptor number of the guest's socket.
pub const GUEST_SOCKET_FD: i32 = 3;

static TAKEN: AtomicBool = AtomicBool::new(false);

/// Returns the socket that this process inherited as descriptor [`GUEST_SOCKET_FD`]. It and all higher inherited
/// descriptors are closed on `execve`.
///
/// Must be called once, first in `main`: a descriptor opened later may get this number.
///
/// # Errors
/// `EBADF` if there is no such descriptor, or this was called before.
pub fn inherited_socket() -> Result<OwnedFd, Errno> {
    if TAKEN.swap(true, Ordering::AcqRel) {
        return Err(Errno::BADF);
    }
    // SAFETY: takes numbers only.
    if unsafe { libc::fcntl(GUEST_SOCKET_FD, libc::F_GETFD) } < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the descriptor is open and was inherited across `execve`, so nothing in this process owns it,
    // and the swap above admits only one caller.
    let line = unsafe { OwnedFd::from_raw_fd(GUEST_SOCKET_FD) };
    // SAFETY: takes numbers only, and closes nothing before `execve`.
    let marked =
        unsafe { libc::syscall(libc::SYS_close_range, GUEST_SOCKET_FD, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if marked != 0 {
        // An old kernel: mark at least the socket.
        rustix::io::fcntl_setfd(&line, FdFlags::CLOEXEC)?;
    }
    Ok(line)
}

/// Returns the inherited descriptor of this process's `oom_score_adj`, opened for writing for jails in which
/// it cannot open the file itself. The first argument is its number.
///
/// Must be called once, before anything else is opened.
pub fn inherited_oom_score() -> Option<OwnedFd> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let number: i32 = std::env::args().nth(1)?.parse().ok()?;
    // SAFETY: takes numbers only.
    let open = unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0;
    if number <= GUEST_SOCKET_FD || !open || TAKEN.swap(true, Ordering::AcqRel) {
        return None;
    }
    // SAFETY: the descriptor is open and was inherited across `execve` under the number in the argument, so
    // nothing in this process owns it, and the swap above admits only one caller.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Confines a guest that was not started by a launcher, as far as an unprivileged process can: Landlock
/// rules, if the kernel supports them, and the filter. A container runtime told to install the filter may
/// skip it, as gVisor does, and one that installs it may still permit the calls made here.
///
/// Must be called before a second thread is started.
pub fn confine_self() {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let _without = landlock_here(&mounts);
    let _without = rustix::thread::set_no_new_privs(true);
    let _without = SeccompFilter::for_this_machine(FilterFor::Init).install();
}

/// Removes the standard library's stack overflow handlers. Any process inside can send these signals, and two
/// at once overflow the small signal stack, which would kill PID 1. Without a handler, PID 1 ignores them.
pub fn reset_fault_handlers() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: installs no handler.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Starts a command in its own session and process group, with default signal actions. With `terminal`, its
/// standard input becomes its controlling terminal.
pub fn start_in_own_session(command: &mut Command, terminal: bool) {
    // SAFETY: between fork and exec only system calls with numeric arguments are made, and no memory is
    // touched.
    unsafe {
        command.pre_exec(move || {
            // Signals that this process ignores must not stay ignored in the program.
            for signal in 1..=64 {
                libc::signal(signal, libc::SIG_DFL);
            }
            let led = libc::setsid() >= 0 && (!terminal || libc::ioctl(0, libc::TIOCSCTTY, 0) >= 0);
            if led { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        });
    }
}
