//! A short-lived process that shares this one's memory and descriptors, and stops this one for as long as it lives.
//!
//! It can enter namespaces, which this process must not, and fork from there.

use core::arch::naked_asm;

use super::call::{number, plain};

const CLONE_VM: usize = 0x100;
const CLONE_FILES: usize = 0x400;
pub(crate) const CLONE_PIDFD: usize = 0x1000;
const CLONE_VFORK: usize = 0x4000;
pub(crate) const CLONE_PARENT: usize = 0x8000;

/// The flags of the process in between, beside those that say who its parent is.
pub(crate) const BETWEEN: usize = CLONE_VM | CLONE_FILES | CLONE_PIDFD | CLONE_VFORK;

/// Runs in the process in between. Only a full copy that it forks, and that owns its memory, may return from here.
pub(crate) type Inside<T> = extern "C" fn(&mut T) -> isize;

/// Clones the process in between, which runs `inside`. Returns its process id, a negative errno, or, in a process that it
/// has forked, what `inside` returned.
///
/// # Safety
/// `inside` must end the process in between by [`end_between`]. `flags` must contain [`BETWEEN`], and nothing that gives the
/// new process other memory.
pub(crate) unsafe fn run_between<T>(
    inside: Inside<T>,
    argument: &mut T,
    pidfd: *mut i32,
    flags: usize,
) -> isize {
    // SAFETY: the process in between uses the stack below this frame only, while this process stands still
    // (CLONE_VFORK); a process that it forks has a copy.
    unsafe { clone_between(inside as usize, core::ptr::from_mut(argument) as usize, pidfd, flags) }
}

/// Ends the process in between, and not the one with whom it shares everything.
pub(crate) fn end_between() -> ! {
    loop {
        let _never = plain(number::EXIT, &[0]);
    }
}

/// Naked, because what comes back after a `CLONE_VM` must find its frame as it was: there is nothing of ours below the
/// stack pointer that the other could overwrite.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn clone_between(inside: usize, argument: usize, pidfd: *mut i32, flags: usize) -> isize {
    naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "mov rdi, rcx",
        "mov eax, {clone}",
        "xor esi, esi",
        "xor r10d, r10d",
        "xor r8d, r8d",
        "syscall",
        "test rax, rax",
        "jnz 2f",
        "mov rdi, [rsp + 8]",
        "call [rsp + 16]",
        "2:",
        "add rsp, 24",
        "ret",
        clone = const number::CLONE,
    )
}

/// As above.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn clone_between(inside: usize, argument: usize, pidfd: *mut i32, flags: usize) -> isize {
    naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "mov x0, x3",
        "mov x8, {clone}",
        "mov x1, xzr",
        "mov x3, xzr",
        "mov x4, xzr",
        "svc 0",
        "cbnz x0, 2f",
        "ldp x9, x0, [sp, #16]",
        "blr x9",
        "2:",
        "ldp x29, x30, [sp], #32",
        "ret",
        clone = const number::CLONE,
    )
}
