//! PID 1 of a warm jail. It finishes the jail, opens the descriptors that its users need, drops all
//! privileges, and then only waits: the kernel reaps for it, and it exits when the launcher closes its
//! liveness pipe.
//!
//! It shares the builder's memory, which makes it almost free, and like the builder it is not dumpable. The
//! builder waits until it is done. Afterwards it uses no memory at all, not even its stack, which the next
//! PID 1 reuses.
//!
//! ```text
//! ids → /proc → masks → host name → disk → terminals → namespace descriptors → landlock rules → no privileges
//! ```

use core::arch::asm;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::flags::{CLONE_FILES, O_CLOEXEC, O_DIRECTORY, O_PATH, PR_SET_PDEATHSIG, SIGCHLD, SIGKILL};
use crate::install_filter::{self, FilterProgram};
use crate::message::{LandlockAccess, MAX_VISIBLE_PATHS, SetupStep, without};
use crate::syscall::{
    AT_FDCWD, EINVAL, RawErrno, SysResult, close, number, prctl, safe_syscall, syscall, syscall_at,
};
use crate::{mounts, privileges};

const FUTEX_WAIT_PRIVATE: usize = 128;
const FUTEX_WAKE_PRIVATE: usize = 129;

/// Input and output of a PID 1, in memory that it shares with the builder.
pub struct Pid1<'a> {
    /// User id of the program.
    pub uid: u32,
    /// User id of PID 1.
    pub init_uid: u32,
    /// Mount options of the disk.
    pub disk_options: &'a CStr,
    /// The Landlock rights of the program.
    pub landlock: &'a LandlockAccess,
    /// The filter of PID 1.
    pub filter: FilterProgram,
    /// Paths that stay visible, each preceded by `d` (directory) or `f` (file) and followed by NUL.
    pub visible_paths: &'a [u8],
    /// The pipe whose end makes PID 1 exit.
    pub liveness_pipe: i32,
    /// For tests: the layers to leave out.
    pub layers_left_out: u32,
    /// For tests: the number of the step that fails.
    pub failing_step: u32,
    /// Result: what it opened.
    pub opened: JailFds,
    /// Result: the step that failed, if one did.
    pub failed: Option<(SetupStep, RawErrno)>,
    /// How far it has come; starts at 0.
    pub stage: AtomicU32,
}

/// Descriptors that PID 1 opens in the table that it shares with the builder; -1 if not open.
#[derive(Debug, Clone, Copy)]
pub struct JailFds {
    /// The pid namespace.
    pub pid_namespace: i32,
    /// The mount namespace.
    pub mount_namespace: i32,
    /// The ipc namespace.
    pub ipc_namespace: i32,
    /// The uts namespace.
    pub uts_namespace: i32,
    /// The workspace, through which the launcher inspects the disk without resolving a path.
    pub disk: i32,
    /// The jail's own `/proc`.
    pub procfs: i32,
    /// The Landlock ruleset of the program.
    pub landlock_ruleset: i32,
}

impl JailFds {
    /// Nothing is open.
    pub const NONE: Self = Self {
        pid_namespace: -1,
        mount_namespace: -1,
        ipc_namespace: -1,
        uts_namespace: -1,
        disk: -1,
        procfs: -1,
        landlock_ruleset: -1,
    };
}

/// Stage at which PID 1 no longer uses its [`Pid1`] or its stack.
pub(crate) const DONE: u32 = 2;

/// Runs as PID 1; never returns.
pub(crate) extern "C" fn run_pid1(pid1: &mut Pid1<'_>) -> ! {
    if let Err(failed) = finish_setup(pid1) {
        pid1.failed = Some(failed);
        // After `unshare`, PID 1 has its own descriptor table, so closing 0 ends the wait below immediately.
        let _alone = safe_syscall(number::UNSHARE, &[CLONE_FILES]);
        close(0);
    }
    wake_builder_and_wait(&pid1.stage)
}

/// Performs the remaining setup steps, in order. No other process is in the jail until this is done.
fn finish_setup(pid1: &mut Pid1<'_>) -> Result<(), (SetupStep, RawErrno)> {
    let Pid1 { uid, init_uid, disk_options, landlock: access, filter, visible_paths, liveness_pipe, .. } =
        *pid1;
    let (left_out, fail) = (pid1.layers_left_out, pid1.failing_step);
    let is_left_out = |layer: u32| cfg!(feature = "faults") && left_out & layer != 0;
    let step = |step: SetupStep, perform: &mut dyn FnMut() -> SysResult<()>| {
        if cfg!(feature = "faults") && fail == step as u32 {
            return Err((step, RawErrno(28)));
        }
        perform().map_err(|why| (step, why))
    };
    step(SetupStep::Ids, &mut || {
        privileges::become_user((init_uid, init_uid), (init_uid, init_uid))?;
        // The death signal is cleared by every change of ids. If the launcher died before this call, the
        // liveness pipe is closed as well.
        prctl(PR_SET_PDEATHSIG, SIGKILL).map(drop)
    })?;
    step(SetupStep::Proc, &mut mounts::mount_proc)?;
    step(SetupStep::Masks, &mut mounts::mask_proc)?;
    step(SetupStep::Hostname, &mut || {
        let name = c"sandbox";
        // SAFETY: the kernel reads only `count_bytes` bytes of the name.
        unsafe { syscall(number::SETHOSTNAME, [name.as_ptr() as usize, name.count_bytes(), 0, 0, 0, 0]) }
            .map(drop)
    })?;
    step(SetupStep::Disk, &mut || mount_disk_dirs(disk_options, uid, visible_paths))?;
    step(SetupStep::Terminals, &mut mounts::mount_devpts)?;
    step(SetupStep::Namespaces, &mut || open_namespaces(&mut pid1.opened))?;
    if access.handled != 0 {
        step(SetupStep::Landlock, &mut || {
            pid1.opened.landlock_ruleset = create_ruleset(access)?;
            Ok(())
        })?;
    }
    step(SetupStep::Init, &mut || {
        // Orphans that PID 1 inherits are reaped by the kernel.
        ignore_signal(SIGCHLD)?;
        // From here on it has its own descriptor table, with only the liveness pipe in it.
        safe_syscall(number::UNSHARE, &[CLONE_FILES])?;
        safe_syscall(number::DUP3, &[liveness_pipe as usize, 0, O_CLOEXEC])?;
        safe_syscall(number::CLOSE_RANGE, &[1, u32::MAX as usize, 0])?;
        if !is_left_out(without::CAPABILITIES) {
            privileges::drop_capabilities()?;
        }
        privileges::set_no_new_privs()?;
        if is_left_out(without::SECCOMP) {
            Ok(())
        } else {
            install_filter::install_filter(&filter, 0).map(drop)
        }
    })
}

/// Opens the namespaces that a program enters, and the descriptors that show the jail from outside.
fn open_namespaces(opened: &mut JailFds) -> SysResult<()> {
    let open = |path: &CStr, flags: usize| {
        syscall_at(number::OPENAT, AT_FDCWD, path, &[flags | O_CLOEXEC]).map(|fd| fd as i32)
    };
    opened.pid_namespace = open(c"proc/self/ns/pid", 0)?;
    opened.mount_namespace = open(c"proc/self/ns/mnt", 0)?;
    opened.ipc_namespace = open(c"proc/self/ns/ipc", 0)?;
    opened.uts_namespace = open(c"proc/self/ns/uts", 0)?;
    opened.disk = open(c"workspace", O_PATH | O_DIRECTORY)?;
    opened.procfs = open(c"proc", O_DIRECTORY)?;
    Ok(())
}

/// Mounts the disk directories, which cover the zygote's own and its inbox, and keeps some paths visible.
fn mount_disk_dirs(options: &CStr, uid: u32, visible_paths: &[u8]) -> SysResult<()> {
    let mut detached = [None; MAX_VISIBLE_PATHS];
    let paths = || visible_paths.split_inclusive(|byte| *byte == 0).filter_map(|path| path.split_first());
    for (detached, (_, path)) in detached.iter_mut().zip(paths()) {
        let path = CStr::from_bytes_with_nul(path).map_err(|_| EINVAL)?;
        *detached = Some(mounts::detach_tree(path)?);
    }
    mounts::mount_disk(options)?;
    mounts::bind_disk_dirs((uid, uid), true)?;
    mounts::bind(c"sys", c"run/belljar")?;
    for (detached, (kind, path)) in detached.iter().flatten().zip(paths()) {
        mounts::attach_tree(*detached, &path[..path.len() - 1], *kind == b'd')?;
    }
    Ok(())
}

/// Creates the Landlock ruleset.
fn create_ruleset(access: &LandlockAccess) -> SysResult<i32> {
    const LANDLOCK_RULE_PATH_BENEATH: usize = 1;
    let rules = [
        (c"/", access.read),
        (c"/dev", access.devices),
        (c"/dev/shm", access.write),
        (c"/tmp", access.write),
        (c"/home/sandbox", access.write),
        (c"/workspace", access.write),
    ];
    // Handled file accesses, network accesses, scopes. An older kernel accepts fields that it does not know
    // if they are 0.
    let watched = [access.handled, 0, access.scoped];
    let size = size_of_val(&watched);
    // SAFETY: the kernel reads `size` bytes of `watched`.
    let ruleset =
        unsafe { syscall(number::LANDLOCK_CREATE_RULESET, [watched.as_ptr() as usize, size, 0, 0, 0, 0]) }?;
    for (path, access) in rules {
        let folder = syscall_at(number::OPENAT, AT_FDCWD, path, &[O_PATH | O_CLOEXEC])?;
        // Layout: the access rights, followed by the descriptor.
        let rule = [access, folder as u64];
        let arguments = [ruleset, LANDLOCK_RULE_PATH_BENEATH, rule.as_ptr() as usize, 0, 0, 0];
        // SAFETY: the kernel reads twelve bytes; the descriptor fits in the first four bytes of the second
        // word.
        let added = unsafe { syscall(number::LANDLOCK_ADD_RULE, arguments) };
        close(folder as i32);
        added?;
    }
    Ok(ruleset as i32)
}

fn ignore_signal(signal: usize) -> SysResult<()> {
    const SIG_IGN: usize = 1;
    // handler, flags, restorer, mask: four words on both architectures, in different order.
    let action = [SIG_IGN, 0, 0, 0];
    // SAFETY: the kernel reads four words; no handler is installed.
    unsafe { syscall(number::RT_SIGACTION, [signal, action.as_ptr() as usize, 0, size_of::<u64>(), 0, 0]) }
        .map(drop)
}

/// A `pollfd` that detects when the other end of the liveness pipe is closed.
#[repr(C)]
struct RawPollFd {
    fd: i32,
    events: i16,
    found: i16,
}

/// Shared by all PID 1s: they poll the same descriptor number, and nothing reads the result.
static mut POLL_FD: RawPollFd = RawPollFd { fd: 0, events: 0, found: 0 };

/// Wakes the builder, and exits when the liveness pipe is closed. It relies on no memory from the first
/// instruction to the last: as soon as the builder continues, this stack may belong to another process.
#[cfg(target_arch = "x86_64")]
fn wake_builder_and_wait(stage: &AtomicU32) -> ! {
    // SAFETY: nothing is left to drop; the kernel never writes to `stage`, only to `POLL_FD`.
    unsafe {
        asm!(
            "mov dword ptr [rdi], {done}",
            "mov eax, {futex}",
            "syscall",
            "2:",
            "mov eax, {ppoll}",
            "mov rdi, r12",
            "mov esi, 1",
            "xor edx, edx",
            "xor r10d, r10d",
            "xor r8d, r8d",
            "syscall",
            "cmp rax, {interrupted}",
            "je 2b",
            "mov eax, {exit}",
            "xor edi, edi",
            "syscall",
            "ud2",
            done = const DONE,
            futex = const number::FUTEX,
            ppoll = const number::PPOLL,
            exit = const number::EXIT_GROUP,
            interrupted = const -4,
            in("rdi") stage.as_ptr(),
            in("rsi") FUTEX_WAKE_PRIVATE,
            in("rdx") 1,
            in("r10") 0,
            in("r8") 0,
            in("r9") 0,
            in("r12") &raw mut POLL_FD,
            options(noreturn)
        )
    }
}

/// Wakes the builder and waits; see the x86-64 version.
#[cfg(target_arch = "aarch64")]
fn wake_builder_and_wait(stage: &AtomicU32) -> ! {
    // SAFETY: as in the x86-64 version.
    unsafe {
        asm!(
            "mov w9, {done}",
            "stlr w9, [x0]",
            "mov x8, {futex}",
            "svc 0",
            "2:",
            "mov x8, {ppoll}",
            "mov x0, x12",
            "mov x1, 1",
            "mov x2, xzr",
            "mov x3, xzr",
            "mov x4, xzr",
            "svc 0",
            "cmn x0, 4",
            "b.eq 2b",
            "mov x8, {exit}",
            "mov x0, xzr",
            "svc 0",
            "brk 1",
            done = const DONE,
            futex = const number::FUTEX,
            ppoll = const number::PPOLL,
            exit = const number::EXIT_GROUP,
            in("x0") stage.as_ptr(),
            in("x1") FUTEX_WAKE_PRIVATE,
            in("x2") 1,
            in("x3") 0,
            in("x4") 0,
            in("x5") 0,
            in("x12") &raw mut POLL_FD,
            options(noreturn)
        )
    }
}

/// Waits until PID 1 reaches a stage. Fails with `ETIMEDOUT` if it makes no progress.
pub(crate) fn await_stage(stage: &AtomicU32, wanted: u32) -> SysResult<()> {
    const TIMED_OUT: RawErrno = RawErrno(110);
    // Longer than jail setup takes on any working machine, in seconds.
    let timeout = [10_u64, 0];
    loop {
        let reached = stage.load(Ordering::Acquire);
        if reached >= wanted {
            return Ok(());
        }
        let address = stage.as_ptr() as usize;
        let arguments = [address, FUTEX_WAIT_PRIVATE, reached as usize, timeout.as_ptr() as usize, 0, 0];
        // SAFETY: the futex word and the timeout live across the call.
        if unsafe { syscall(number::FUTEX, arguments) } == Err(TIMED_OUT) {
            return Err(TIMED_OUT);
        }
    }
}
