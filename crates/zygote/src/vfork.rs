//! Runs a short-lived intermediate process that shares this process's memory and descriptors, and suspends
//! this process while it lives.
//!
//! It can enter namespaces, which this process must not do, and fork from there.

use core::arch::naked_asm;

use crate::flags::{CLONE_FILES, CLONE_PIDFD, CLONE_VM};
use crate::syscall::{number, safe_syscall};

const CLONE_VFORK: usize = 0x4000;

/// Clone flags of the intermediate process, except those that choose its parent.
pub(crate) const VFORK_FLAGS: usize = CLONE_VM | CLONE_FILES | CLONE_PIDFD | CLONE_VFORK;

/// Entry point of the intermediate process. Only a full copy that it forks, which owns its memory, may return
/// from it.
pub(crate) type IntermediateFn<T> = extern "C" fn(&mut T) -> isize;

/// Clones the intermediate process, which runs `inside`. Returns its process id, a negative errno, or, in a
/// process that it has forked, the return value of `inside`.
///
/// # Safety
/// `inside` must end the intermediate process by calling [`exit_intermediate`]. `flags` must contain
/// [`VFORK_FLAGS`], and no flag that gives the new process its own memory.
pub(crate) unsafe fn spawn_intermediate<T>(
    inside: IntermediateFn<T>,
    argument: &mut T,
    pidfd: *mut i32,
    flags: usize,
) -> isize {
    // SAFETY: the intermediate process uses the stack only below this frame while this process is suspended
    // (CLONE_VFORK); a process that it forks has a copy.
    unsafe { clone_intermediate(inside as usize, core::ptr::from_mut(argument) as usize, pidfd, flags) }
}

/// Ends the intermediate process only, not the process with which it shares memory and descriptors.
pub(crate) fn exit_intermediate() -> ! {
    loop {
        let _never = safe_syscall(number::EXIT, &[0]);
    }
}

/// Calls `clone`. Naked because the process that returns after a `CLONE_VM` clone must find its frame
/// unchanged: this function stores nothing below the stack pointer that the other process could overwrite.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn clone_intermediate(
    inside: usize,
    argument: usize,
    pidfd: *mut i32,
    flags: usize,
) -> isize {
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

/// Calls `clone`; see the x86-64 version.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn clone_intermediate(
    inside: usize,
    argument: usize,
    pidfd: *mut i32,
    flags: usize,
) -> isize {
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
