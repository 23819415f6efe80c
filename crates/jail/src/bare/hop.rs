//! From a zygote into somebody else's pid namespace.
//!
//! A process cannot change its own pid namespace, only that of its future children, and not even that without a right
//! in its own user namespace, which a zygote does not have. So there is a process in between, which shares the
//! zygote's memory and descriptors and lives for a moment: it enters the jail's user namespace, which the
//! zygote's user owns, has every right in that one, chooses the pid namespace, and forks. The copy of the zygote's memory is the
//! child. The launcher is the parent of all three.

use core::arch::naked_asm;

use super::call::{Refused, call, number, plain};

const CLONE_VM: usize = 0x100;
const CLONE_FILES: usize = 0x400;
const CLONE_PIDFD: usize = 0x1000;
const CLONE_VFORK: usize = 0x4000;
const CLONE_PARENT: usize = 0x8000;
const CLONE_CHILD_CLEARTID: usize = 0x20_0000;
const CLONE_CHILD_SETTID: usize = 0x100_0000;
const CLONE_NEWUSER: usize = 0x1000_0000;
const CLONE_NEWPID: usize = 0x2000_0000;
const BETWEEN: usize = CLONE_VM | CLONE_FILES | CLONE_VFORK | CLONE_PARENT;

/// What the process in between works with, and what it leaves behind.
#[repr(C)]
pub(crate) struct Hop {
    pub(crate) user: i32,
    pub(crate) pid: i32,
    /// Where the library keeps the number of its thread.
    pub(crate) tid: usize,
    /// The child, by the launcher's numbers.
    pub(crate) child: i32,
    /// The child, as a descriptor of the zygote's.
    pub(crate) pidfd: i32,
    pub(crate) errno: i32,
}

/// Who comes back from a hop.
pub(crate) enum Side {
    /// The zygote; the process in between is to be reaped.
    Zygote { between: i32 },
    Child,
}

/// Hops.
pub(crate) fn hop(hop: &mut Hop) -> Result<Side, Refused> {
    hop.pidfd = -1;
    hop.errno = 0;
    // SAFETY: the process in between uses the stack below this frame only, while this process stands still
    // (CLONE_VFORK), and writes nothing but `hop`; the child has a copy.
    match unsafe { between(hop) } {
        0 => Ok(Side::Child),
        refused if refused < 0 => Err(Refused(-refused as i32)),
        pid => Ok(Side::Zygote { between: pid as i32 }),
    }
}

/// Clones the process in between. Naked, because what comes back after a `CLONE_VM` must find its frame as it was: there is
/// nothing of ours below the stack pointer that the other could overwrite.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn between(hop: *mut Hop) -> isize {
    naked_asm!(
        "push rdi",
        "mov eax, {clone}",
        "mov edi, {flags}",
        "xor esi, esi",
        "xor edx, edx",
        "xor r10d, r10d",
        "xor r8d, r8d",
        "syscall",
        "test rax, rax",
        "jnz 2f",
        "mov rdi, [rsp]",
        "call {inside}",
        "2:",
        "pop rdi",
        "ret",
        clone = const number::CLONE,
        flags = const BETWEEN,
        inside = sym inside,
    )
}

/// As above.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn between(hop: *mut Hop) -> isize {
    naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "str x0, [sp, #16]",
        "mov x8, {clone}",
        "mov x0, {flags}",
        "mov x1, xzr",
        "mov x2, xzr",
        "mov x3, xzr",
        "mov x4, xzr",
        "svc 0",
        "cbnz x0, 2f",
        "ldr x0, [sp, #16]",
        "bl {inside}",
        "2:",
        "ldp x29, x30, [sp], #32",
        "ret",
        clone = const number::CLONE,
        flags = const BETWEEN,
        inside = sym inside,
    )
}

/// The life of the process in between; only the child comes back from here.
extern "C" fn inside(hop: &mut Hop) -> isize {
    match cross(hop) {
        Ok(0) => return 0,
        Ok(child) => hop.child = child as i32,
        Err(Refused(errno)) => hop.errno = errno,
    }
    loop {
        // Ends this process, and not the zygote with whom it shares everything.
        let _never = plain(number::EXIT, &[0]);
    }
}

fn cross(hop: &mut Hop) -> Result<usize, Refused> {
    plain(number::SETNS, &[hop.user as usize, CLONE_NEWUSER])?;
    plain(number::SETNS, &[hop.pid as usize, CLONE_NEWPID])?;
    let mut pidfd = -1_i32;
    let mut flags = CLONE_PARENT | CLONE_PIDFD;
    if hop.tid != 0 {
        flags |= CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID;
    }
    // flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls
    let arguments = [flags as u64, &raw mut pidfd as u64, hop.tid as u64, 0, 0, 0, 0, 0];
    // SAFETY: the kernel writes one descriptor to `pidfd`, and in the child its number to where the library keeps it;
    // without CLONE_VM the child has a copy of everything, this stack included.
    let child =
        unsafe { call(number::CLONE3, [arguments.as_ptr() as usize, size_of_val(&arguments), 0, 0, 0, 0]) }?;
    // SAFETY: the kernel changed it behind the compiler's back.
    hop.pidfd = unsafe { (&raw const pidfd).read_volatile() };
    Ok(child)
}
