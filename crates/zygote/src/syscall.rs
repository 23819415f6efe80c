//! Raw system calls.

use core::arch::asm;
use core::ffi::CStr;

/// An errno returned by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawErrno(pub i32);

/// The result of a system call.
pub type SysResult<T> = Result<T, RawErrno>;

/// `EINTR`, the only errno that is handled by retrying.
pub(crate) const EINTR: RawErrno = RawErrno(4);
pub(crate) const EEXIST: RawErrno = RawErrno(17);
pub(crate) const EINVAL: RawErrno = RawErrno(22);
pub(crate) const EROFS: RawErrno = RawErrno(30);
pub(crate) const EPERM: RawErrno = RawErrno(1);
pub(crate) const ESRCH: RawErrno = RawErrno(3);
/// `AT_FDCWD`: relative paths start at the current directory; absolute paths ignore it.
pub(crate) const AT_FDCWD: usize = -100_isize as usize;
pub(crate) const ENOENT: RawErrno = RawErrno(2);
pub(crate) const EBADMSG: RawErrno = RawErrno(74);

macro_rules! numbers {
    ($($name:ident $x86_64:literal $aarch64:literal),+ $(,)?) => {
        /// System call numbers.
        #[expect(missing_docs, reason = "the names are the kernel's")]
        pub mod number {
            $(
                #[cfg(target_arch = "x86_64")]
                pub const $name: usize = $x86_64;
                #[cfg(target_arch = "aarch64")]
                pub const $name: usize = $aarch64;
            )+
        }
    };
}

numbers! {
    WRITE 1 64, CLOSE 3 57, LSEEK 8 62, MMAP 9 222, MUNMAP 11 215, CHDIR 80 49, MADVISE 28 233,
    SENDMSG 46 211, RECVMSG 47 212, CLONE 56 220, EXIT 60 93, EXIT_GROUP 231 94, UMASK 95 166,
    SETSID 112 157, SETGROUPS 116 159, SETRESUID 117 147, SETRESGID 119 149, CAPSET 126 91,
    PRCTL 157 167, SET_ROBUST_LIST 273 99, GET_ROBUST_LIST 274 100, OPENAT 257 56, MKDIRAT 258 34,
    FCHMOD 91 52, UNSHARE 272 97, DUP3 292 24, PRLIMIT 302 261, SETNS 308 268, SECCOMP 317 277,
    CLONE3 435 435, CLOSE_RANGE 436 436, RSEQ 334 293, GETPID 39 172,
    LANDLOCK_CREATE_RULESET 444 444, LANDLOCK_ADD_RULE 445 445, LANDLOCK_RESTRICT_SELF 446 446,
    FCNTL 72 25, EVENTFD 290 19, MOUNT 165 40, OPEN_TREE 428 428, MOVE_MOUNT 429 429,
    SETHOSTNAME 170 161, FCHMODAT 268 53, FCHOWNAT 260 54, FSTATFS 138 44, RT_SIGACTION 13 134,
    PPOLL 271 73, FUTEX 202 98, SOCKETPAIR 53 199, KILL 62 129,
}

/// Makes a system call.
///
/// # Safety
/// Same as for the system call: pointers must be valid for what the kernel does with them.
pub(crate) unsafe fn syscall(number: usize, arguments: [usize; 6]) -> SysResult<usize> {
    let [a, b, c, d, e, f] = arguments;
    let answer: isize;
    // SAFETY: the kernel preserves all registers except those listed; the caller guarantees valid arguments.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a as isize => answer,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack)
        );
    }
    if answer < 0 { Err(RawErrno(-answer as i32)) } else { Ok(answer as usize) }
}

/// Makes a system call whose arguments are all numbers.
pub fn safe_syscall(number: usize, arguments: &[usize]) -> SysResult<usize> {
    let mut all = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    // SAFETY: no argument is a pointer.
    unsafe { syscall(number, all) }
}

/// Makes a system call whose first two arguments are a directory descriptor and a path relative to it.
pub(crate) fn syscall_at(number: usize, from: usize, path: &CStr, more: &[usize]) -> SysResult<usize> {
    let mut all = [from, path.as_ptr() as usize, 0, 0, 0, 0];
    all[2..2 + more.len()].copy_from_slice(more);
    // SAFETY: the path ends in NUL and lives across the call; the caller passes only numbers in `more`.
    unsafe { syscall(number, all) }
}

/// Calls `prctl`.
pub(crate) fn prctl(option: usize, value: usize) -> SysResult<usize> {
    safe_syscall(number::PRCTL, &[option, value])
}

/// Writes all bytes, retrying after partial writes and interrupts.
pub fn write_all(fd: i32, mut bytes: &[u8]) -> SysResult<()> {
    while !bytes.is_empty() {
        // SAFETY: the kernel reads only within the slice.
        match unsafe { syscall(number::WRITE, [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) }
        {
            Ok(written) => bytes = &bytes[written..],
            Err(EINTR) => {}
            Err(refused) => return Err(refused),
        }
    }
    Ok(())
}

/// Closes a descriptor.
pub fn close(fd: i32) {
    // Closing fails only if the number is not an open descriptor, which is the desired state anyway.
    let _closed = safe_syscall(number::CLOSE, &[fd as usize]);
}
