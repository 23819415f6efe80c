//! Builds a warm jail: its namespaces and its PID 1, on a namespace set that earlier jails may have used.
//!
//! The builder must not leave its own namespaces. Therefore an intermediate process, which shares its memory
//! and descriptors, enters the namespace set, creates the namespaces of the jail and clones PID 1. It also
//! creates the cgroup namespace, whose root is the cgroup of its creator at that moment. PID 1 itself stays
//! out of the jail's cgroup, because when a cgroup runs out of memory the kernel also kills every process
//! that shares memory with one of its processes.
//!
//! It stays in the launcher's cgroup instead, where nothing of a run is counted: the process that it shares
//! memory with is the builder, which must never be killed for a run.

use core::arch::naked_asm;
use core::cell::UnsafeCell;
use core::ffi::CStr;

use crate::flags::{
    CLONE_FILES, CLONE_NEWCGROUP, CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER,
    CLONE_NEWUTS, CLONE_PARENT, CLONE_PIDFD, CLONE_VM, O_CLOEXEC, SIGCHLD,
};
use crate::message::{SetupStep, without};
use crate::pid1::{self, Pid1};
use crate::syscall::{RawErrno, SysResult, close, number, safe_syscall, syscall_at, write_all};
use crate::vfork;

const CLONE_CLEAR_SIGHAND: usize = 0x1_0000_0000;
/// Clone flags of PID 1. It is a child of the builder, like the intermediate process, which it outlives.
const PID1_FLAGS: usize =
    CLONE_VM | CLONE_FILES | CLONE_PARENT | CLONE_PIDFD | CLONE_NEWPID | CLONE_CLEAR_SIGHAND;

/// Input and output of the intermediate process.
pub struct JailParts<'a> {
    /// The user namespace of the namespace set.
    pub user: i32,
    /// The network namespace of the set.
    pub network: i32,
    /// The mount namespace of the set.
    pub mounts: i32,
    /// Cgroup join fds of the jail: a process joins by writing `0` to each.
    pub cgroup_join_fds: &'a [i32],
    /// The builder's own `/proc`.
    pub proc: i32,
    /// Instructions for PID 1, and its results.
    pub pid1: Pid1<'a>,
    /// Result: the pidfd of PID 1.
    pub pid1_pidfd: i32,
    /// Result: the cgroup namespace.
    pub cgroup_namespace: i32,
    /// Result: the step that failed, if one did.
    pub failed: Option<(SetupStep, RawErrno)>,
}

/// Builds a jail, and returns when PID 1 has finished its setup. The caller must be a single-threaded
/// process.
pub fn build(parts: &mut JailParts<'_>) -> Result<(), (SetupStep, RawErrno)> {
    let mut intermediate = -1;
    // SAFETY: `run_intermediate` ends the intermediate process and never returns.
    let cloned = unsafe {
        vfork::spawn_intermediate(
            run_intermediate,
            parts,
            &raw mut intermediate,
            vfork::VFORK_FLAGS | SIGCHLD,
        )
    };
    if cloned < 0 {
        return Err((SetupStep::Namespaces, RawErrno(-cloned as i32)));
    }
    close(intermediate);
    // PID 1 uses `parts` until it reports completion. If it does not report in time it may still use `parts`
    // at any moment, so the builder exits, which also ends every process in its pid namespace.
    if parts.pid1_pidfd >= 0 && pid1::await_stage(&parts.pid1.stage, pid1::DONE).is_err() {
        exit_builder();
    }
    match parts.failed.or(parts.pid1.failed) {
        Some(failed) => Err(failed),
        None => Ok(()),
    }
}

fn exit_builder() -> ! {
    loop {
        let _never = safe_syscall(number::EXIT_GROUP, &[1]);
    }
}

/// Body of the intermediate process.
extern "C" fn run_intermediate(parts: &mut JailParts<'_>) -> isize {
    parts.failed = enter_and_clone(parts).err();
    vfork::exit_intermediate()
}

fn enter_and_clone(parts: &mut JailParts<'_>) -> Result<(), (SetupStep, RawErrno)> {
    let failed = |step: SetupStep| move |why: RawErrno| (step, why);
    enter_namespaces(parts).map_err(failed(SetupStep::Namespaces))?;
    parts.pid1_pidfd = clone_pid1(&mut parts.pid1).map_err(failed(SetupStep::Namespaces))?;
    // Runs while PID 1 sets up the rest.
    parts
        .cgroup_join_fds
        .iter()
        .try_for_each(|group| write_all(*group, b"0"))
        .map_err(failed(SetupStep::JoinCgroup))?;
    let left_out = cfg!(feature = "faults") && parts.pid1.layers_left_out & without::CGROUP_NAMESPACE != 0;
    if !left_out {
        safe_syscall(number::UNSHARE, &[CLONE_NEWCGROUP]).map_err(failed(SetupStep::CgroupNamespace))?;
    }
    let opened = syscall_at(number::OPENAT, parts.proc as usize, CGROUP_NAMESPACE, &[O_CLOEXEC]);
    parts.cgroup_namespace = opened.map_err(failed(SetupStep::CgroupNamespace))? as i32;
    Ok(())
}

const CGROUP_NAMESPACE: &CStr = c"self/ns/cgroup";

/// Enters the namespace set, and creates the namespaces that PID 1 and the program share.
fn enter_namespaces(parts: &JailParts<'_>) -> SysResult<()> {
    let namespaces =
        [(parts.user, CLONE_NEWUSER), (parts.network, CLONE_NEWNET), (parts.mounts, CLONE_NEWNS)];
    for (namespace, kind) in namespaces {
        safe_syscall(number::SETNS, &[namespace as usize, kind])?;
    }
    safe_syscall(number::UNSHARE, &[CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS]).map(drop)
}

/// Clones PID 1, which starts running immediately.
fn clone_pid1(pid1: &mut Pid1<'_>) -> SysResult<i32> {
    let mut pidfd = -1_i32;
    let stack = STACK.0.get() as u64;
    // flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls
    let arguments = [PID1_FLAGS as u64, &raw mut pidfd as u64, 0, 0, 0, stack, size_of::<Stack>() as u64, 0];
    // SAFETY: the kernel writes one descriptor to `pidfd`. The new process has a stack that no other process
    // uses: the previous PID 1 stopped using it before the builder continued. For the same reason `pid1`
    // lives long enough.
    let pid = unsafe { clone3_pid1(arguments.as_ptr(), size_of_val(&arguments), pid1) };
    if pid < 0 {
        return Err(RawErrno(-pid as i32));
    }
    // SAFETY: `pidfd` is a live local; the read is volatile because the kernel, not the compiler, wrote it.
    Ok(unsafe { (&raw const pidfd).read_volatile() })
}

#[repr(C, align(16))]
struct Stack(UnsafeCell<[u8; 32 << 10]>);

// SAFETY: only one PID 1 at a time uses the stack, and no other code accesses it.
unsafe impl Sync for Stack {}

static STACK: Stack = Stack(UnsafeCell::new([0; 32 << 10]));

/// Calls `clone3` with a separate stack for the new process, which continues in [`pid1::run_pid1`].
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn clone3_pid1(arguments: *const u64, size: usize, pid1: *mut Pid1<'_>) -> isize {
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
        live = sym pid1::run_pid1,
    )
}

/// Calls `clone3`; see the x86-64 version.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn clone3_pid1(arguments: *const u64, size: usize, pid1: *mut Pid1<'_>) -> isize {
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
        live = sym pid1::run_pid1,
    )
}
