//! What a guest, which may use no `unsafe`, needs of the kernel: the line it was started with, and children in
//! sessions of their own.

use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, FdFlags};

use crate::inside::landlock_here;
use crate::seccomp::{Filter, Wearer};

/// How a guest is told that it is one: its own name.
pub const GUEST: &str = "belljar-guest";
/// Where a guest finds its line.
pub const LINE: i32 = 3;

static TAKEN: AtomicBool = AtomicBool::new(false);

/// The line that this process was started with, as descriptor [`LINE`]; no program that it executes gets it, nor
/// anything else that this process may have inherited beside it.
///
/// To be called as the first thing in `main`, and once: what is opened later may have that number.
///
/// # Errors
/// `EBADF` where there is none, or it was taken before.
pub fn inherited_line() -> Result<OwnedFd, Errno> {
    if TAKEN.swap(true, Ordering::AcqRel) {
        return Err(Errno::BADF);
    }
    // SAFETY: takes numbers only.
    if unsafe { libc::fcntl(LINE, libc::F_GETFD) } < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the descriptor is open, it came by `execve`, so nothing in this process owns it, and the swap above
    // lets nobody else get here.
    let line = unsafe { OwnedFd::from_raw_fd(LINE) };
    // SAFETY: takes numbers only, and closes nothing before `execve`.
    let marked = unsafe { libc::syscall(libc::SYS_close_range, LINE, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if marked != 0 {
        // An old kernel; the line itself at least.
        rustix::io::fcntl_setfd(&line, FdFlags::CLOEXEC)?;
    }
    Ok(line)
}

/// Its own place in the order of out-of-memory kills, opened for writing where the jail does not let it open that itself: its
/// first argument is the number.
///
/// To be called before anything else is opened, and once.
pub fn inherited_score() -> Option<OwnedFd> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let number: i32 = std::env::args().nth(1)?.parse().ok()?;
    // SAFETY: takes numbers only.
    let open = unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0;
    if number <= LINE || !open || TAKEN.swap(true, Ordering::AcqRel) {
        return None;
    }
    // SAFETY: the descriptor is open, it came by `execve` under the number that the one who did that has named, so
    // nothing in this process owns it, and the swap above lets nobody else get here.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Does for a guest that somebody else than a launcher has started what is in its power, before it starts anything itself: the
/// rules about files, where the kernel has them, and the filter. A runtime may have been told of that and leave it
/// away, as gVisor does; and one that does not may let through what this takes.
///
/// To be called before there is a second thread.
pub fn confine() {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let _without = landlock_here(&mounts);
    let _without = rustix::thread::set_no_new_privs(true);
    let _without = Filter::for_this_machine(Wearer::Program).install();
}

/// Forgets the handlers by which the standard library tells of a stack that overflowed. Anybody inside can send those
/// signals, and two at once take more than the small stack that they are handled on: that would be the end of a PID 1, whom
/// a signal without a handler does nothing.
pub fn forget_fault_handlers() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: installs no handler.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Lets a command lead a session of its own, and a process group with it, with every signal as it is by default. `terminal` makes what it reads from its
/// controlling terminal.
pub fn own_session(command: &mut Command, terminal: bool) {
    // SAFETY: between fork and exec only system calls are made that take numbers, and no memory is touched.
    unsafe {
        command.pre_exec(move || {
            // What this process ignores, or was started with, is not the program's.
            for signal in 1..=64 {
                libc::signal(signal, libc::SIG_DFL);
            }
            let led = libc::setsid() >= 0 && (!terminal || libc::ioctl(0, libc::TIOCSCTTY, 0) >= 0);
            if led { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        });
    }
}
