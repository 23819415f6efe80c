//! From a zygote into a new jail.
//!
//! A process cannot change its own pid namespace, only that of its future children, and not even that without a right
//! in its own user namespace, which a zygote does not have. So there is a process in between, which shares the
//! zygote's memory and descriptors and lives for a moment: it enters a plot, whose user namespace the zygote's
//! user owns, and so has every right in it and nowhere else. It makes the namespaces of the jail, has PID 1 set them up,
//! chooses PID 1's pid namespace, and forks. The copy of the zygote's memory is the child. The launcher is the
//! parent of all four.

use core::arch::naked_asm;
use core::cell::UnsafeCell;

use super::call::{Answer, Refused, call, close, number, plain};
use super::host::{self, Host};
use super::message::BirthStep;

const CLONE_VM: usize = 0x100;
const CLONE_FILES: usize = 0x400;
const CLONE_PIDFD: usize = 0x1000;
const CLONE_VFORK: usize = 0x4000;
const CLONE_PARENT: usize = 0x8000;
const CLONE_NEWNS: usize = 0x2_0000;
const CLONE_CHILD_CLEARTID: usize = 0x20_0000;
const CLONE_CHILD_SETTID: usize = 0x100_0000;
const CLONE_NEWUTS: usize = 0x400_0000;
const CLONE_NEWIPC: usize = 0x800_0000;
const CLONE_NEWUSER: usize = 0x1000_0000;
const CLONE_NEWPID: usize = 0x2000_0000;
const CLONE_NEWNET: usize = 0x4000_0000;
const CLONE_CLEAR_SIGHAND: usize = 0x1_0000_0000;
const BETWEEN: usize = CLONE_VM | CLONE_FILES | CLONE_PIDFD | CLONE_VFORK | CLONE_PARENT;
const INIT: usize =
    CLONE_VM | CLONE_FILES | CLONE_PARENT | CLONE_PIDFD | CLONE_NEWPID | CLONE_CLEAR_SIGHAND;

/// What the process in between works with, and what it leaves behind.
pub(crate) struct Hop<'a> {
    pub(crate) user: i32,
    pub(crate) network: i32,
    pub(crate) mounts: i32,
    pub(crate) host: Host<'a>,
    /// Where the library keeps the number of its thread.
    pub(crate) tid: usize,
    /// The processes, as descriptors of the zygote's: this one, PID 1 and the child.
    pub(crate) between: i32,
    pub(crate) init: i32,
    pub(crate) child: i32,
    pub(crate) failed: Option<(BirthStep, Refused)>,
}

/// Who comes back from a hop.
pub(crate) enum Side {
    Zygote,
    Child,
}

/// Hops.
pub(crate) fn hop(hop: &mut Hop<'_>) -> Answer<Side> {
    // SAFETY: the process in between uses the stack below this frame only, while this process stands still
    // (CLONE_VFORK), and writes nothing but `hop`; the child has a copy.
    match unsafe { between(hop, &raw mut hop.between) } {
        0 => Ok(Side::Child),
        refused if refused < 0 => Err(Refused(-refused as i32)),
        _ => Ok(Side::Zygote),
    }
}

/// Clones the process in between. Naked, because what comes back after a `CLONE_VM` must find its frame as it was: there is
/// nothing of ours below the stack pointer that the other could overwrite.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn between(hop: *mut Hop<'_>, pidfd: *mut i32) -> isize {
    naked_asm!(
        "push rdi",
        "mov rdx, rsi",
        "mov eax, {clone}",
        "mov edi, {flags}",
        "xor esi, esi",
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
unsafe extern "C" fn between(hop: *mut Hop<'_>, pidfd: *mut i32) -> isize {
    naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "str x0, [sp, #16]",
        "mov x2, x1",
        "mov x8, {clone}",
        "mov x0, {flags}",
        "mov x1, xzr",
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
extern "C" fn inside(hop: &mut Hop<'_>) -> isize {
    match cross(hop) {
        Ok(Side::Child) => return 0,
        Ok(Side::Zygote) => {}
        Err(failed) => hop.failed = Some(failed),
    }
    loop {
        // Ends this process, and not the zygote with whom it shares everything.
        let _never = plain(number::EXIT, &[0]);
    }
}

fn cross(hop: &mut Hop<'_>) -> Result<Side, (BirthStep, Refused)> {
    let namespaces = |why| (BirthStep::Namespaces, why);
    enter(hop).map_err(namespaces)?;
    hop.init = found(&mut hop.host).map_err(namespaces)?;
    host::await_stage(&hop.host.stage, host::ENTERED).map_err(|why| (BirthStep::Init, why))?;
    if let Some(failed) = hop.host.failed {
        return Err(failed);
    }
    plain(number::SETNS, &[hop.host.pids as usize, CLONE_NEWPID]).map_err(namespaces)?;
    close(hop.host.pids);
    fork(hop).map_err(|why| (BirthStep::Fork, why))
}

/// What PID 1 and the child will have in common.
fn enter(hop: &Hop<'_>) -> Answer<()> {
    for (fd, kind) in [(hop.user, CLONE_NEWUSER), (hop.network, CLONE_NEWNET), (hop.mounts, CLONE_NEWNS)] {
        plain(number::SETNS, &[fd as usize, kind])?;
    }
    plain(number::UNSHARE, &[CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS]).map(drop)
}

/// Has PID 1 begin.
fn found(host: &mut Host<'_>) -> Answer<i32> {
    let mut pidfd = -1_i32;
    let stack = STACK.0.get() as u64;
    // flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls
    let arguments = [INIT as u64, &raw mut pidfd as u64, 0, 0, 0, stack, size_of::<Stack>() as u64, 0];
    // SAFETY: the kernel writes one descriptor to `pidfd`. The new process has a stack that is nobody else's by now: the one
    // before it has left it before the zygote went on. `host` outlives its need for it for the same reason.
    let pid = unsafe { begin(arguments.as_ptr(), size_of_val(&arguments), host) };
    if pid < 0 {
        return Err(Refused(-pid as i32));
    }
    // SAFETY: the kernel changed it behind the compiler's back.
    Ok(unsafe { (&raw const pidfd).read_volatile() })
}

#[repr(C, align(16))]
struct Stack(UnsafeCell<[u8; 32 << 10]>);

// SAFETY: one PID 1 at a time uses it, and nobody looks into it.
unsafe impl Sync for Stack {}

static STACK: Stack = Stack(UnsafeCell::new([0; 32 << 10]));

/// `clone3` with a stack of its own for the new process, which goes on in [`host::live`].
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn begin(arguments: *const u64, size: usize, host: *mut Host<'_>) -> isize {
    naked_asm!(
        "mov r8, rdx",
        "mov eax, {clone3}",
        "syscall",
        "test rax, rax",
        "jnz 2f",
        "xor ebp, ebp",
        "mov rdi, r8",
        "call {live}",
        "ud2",
        "2:",
        "ret",
        clone3 = const number::CLONE3,
        live = sym host::live,
    )
}

/// As above.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn begin(arguments: *const u64, size: usize, host: *mut Host<'_>) -> isize {
    naked_asm!(
        "mov x8, {clone3}",
        "svc 0",
        "cbnz x0, 2f",
        "mov x29, xzr",
        "mov x0, x2",
        "bl {live}",
        "brk 1",
        "2:",
        "ret",
        clone3 = const number::CLONE3,
        live = sym host::live,
    )
}

/// Has the child.
fn fork(hop: &mut Hop<'_>) -> Answer<Side> {
    let mut pidfd = -1_i32;
    let mut flags = CLONE_PARENT | CLONE_PIDFD;
    if hop.tid != 0 {
        flags |= CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID;
    }
    let arguments = [flags as u64, &raw mut pidfd as u64, hop.tid as u64, 0, 0, 0, 0, 0];
    // SAFETY: the kernel writes one descriptor to `pidfd`, and in the child its number to where the library keeps it;
    // without CLONE_VM the child has a copy of everything, this stack included.
    let child =
        unsafe { call(number::CLONE3, [arguments.as_ptr() as usize, size_of_val(&arguments), 0, 0, 0, 0]) }?;
    if child == 0 {
        return Ok(Side::Child);
    }
    // SAFETY: the kernel changed it behind the compiler's back.
    hop.child = unsafe { (&raw const pidfd).read_volatile() };
    Ok(Side::Zygote)
}
