//! PID 1 of a warm jail. It finishes the jail, opens what its users need, gives up everything, and from then on only is
//! there: the kernel reaps for it, and it ends when the launcher lets go of its leash.
//!
//! It shares the builder's memory, which is why it costs next to nothing, and like the builder it is not dumpable. The
//! builder waits until it is done. Afterwards it uses no memory at all, not even its stack: that is the next one's by then.

use core::arch::asm;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, Ordering};

use super::call::{Answer, HERE, INVALID, Refused, at, call, close, number, plain, prctl};
use super::message::{BirthStep, Guard, MAX_KEPT, without};
use super::seccomp::{self, Program};
use super::{mounts, rights};

const O_PATH: usize = 0o10_000_000;
const O_CLOEXEC: usize = 0o2_000_000;
const O_DIRECTORY: usize = if cfg!(target_arch = "aarch64") { 0o40_000 } else { 0o200_000 };
const PR_SET_PDEATHSIG: usize = 1;
const SIGKILL: usize = 9;
const SIGCHLD: usize = 17;
const CLONE_FILES: usize = 0x400;
const FUTEX_WAIT_PRIVATE: usize = 128;
const FUTEX_WAKE_PRIVATE: usize = 129;

/// What a PID 1 works with, and what it leaves behind, in memory that it shares with the builder.
pub(crate) struct Pid1<'a> {
    /// The user that the program will be, and the one that PID 1 becomes.
    pub(crate) uid: u32,
    pub(crate) init_uid: u32,
    /// How the disk is mounted.
    pub(crate) disk_options: &'a CStr,
    pub(crate) guard: &'a Guard,
    pub(crate) filter: Program,
    /// Paths that are to stay visible, each with `d` before it, or `f`, and a NUL behind it.
    pub(crate) kept: &'a [u8],
    pub(crate) leash: i32,
    /// For tests: layers to leave out, and a step to fail.
    pub(crate) without: u32,
    pub(crate) fail: u32,
    pub(crate) opened: Opened,
    pub(crate) failed: Option<(BirthStep, Refused)>,
    pub(crate) stage: AtomicU32,
}

/// Descriptors that PID 1 opens in the table that it shares with the builder; -1 where one is not there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opened {
    pub(crate) pid_namespace: i32,
    pub(crate) mount_namespace: i32,
    pub(crate) ipc_namespace: i32,
    pub(crate) uts_namespace: i32,
    /// The workspace, through which the launcher looks at the disk without a path in it.
    pub(crate) disk: i32,
    /// The jail's own `/proc`.
    pub(crate) proc: i32,
    /// The landlock rules of the program.
    pub(crate) rules: i32,
}

impl Opened {
    pub(crate) const NONE: Self = Self {
        pid_namespace: -1,
        mount_namespace: -1,
        ipc_namespace: -1,
        uts_namespace: -1,
        disk: -1,
        proc: -1,
        rules: -1,
    };
}

/// Nothing of [`Pid1`] is in use any more, nor is the stack.
pub(crate) const DONE: u32 = 2;

/// Runs as PID 1; never comes back.
pub(crate) extern "C" fn live(pid1: &mut Pid1<'_>) -> ! {
    if let Err(failed) = settle(pid1) {
        pid1.failed = Some(failed);
        // With a table of its own, nothing is at the number of the leash: the wait is over at once.
        let _alone = plain(number::UNSHARE, &[CLONE_FILES]);
        close(0);
    }
    wait(&pid1.stage)
}

/// The order is the documentation: nobody else is in the jail until this is over.
fn settle(pid1: &mut Pid1<'_>) -> Result<(), (BirthStep, Refused)> {
    let Pid1 { uid, init_uid, disk_options, guard, filter, kept, leash, .. } = *pid1;
    let (left_out, fail) = (pid1.without, pid1.fail);
    let is_left_out = |layer: u32| cfg!(feature = "faults") && left_out & layer != 0;
    let step = |step: BirthStep, perform: &mut dyn FnMut() -> Answer<()>| {
        if cfg!(feature = "faults") && fail == step as u32 {
            return Err((step, Refused(28)));
        }
        perform().map_err(|why| (step, why))
    };
    step(BirthStep::Ids, &mut || {
        rights::become_user((init_uid, init_uid), (init_uid, init_uid))?;
        // Lost at every change of ids. Whoever died before this has let go of the leash, too.
        prctl(PR_SET_PDEATHSIG, SIGKILL).map(drop)
    })?;
    step(BirthStep::Proc, &mut mounts::proc)?;
    step(BirthStep::Masks, &mut mounts::masks)?;
    step(BirthStep::Hostname, &mut || {
        let name = c"sandbox";
        // SAFETY: the kernel reads no further than the name goes.
        unsafe { call(number::SETHOSTNAME, [name.as_ptr() as usize, name.count_bytes(), 0, 0, 0, 0]) }
            .map(drop)
    })?;
    step(BirthStep::Disk, &mut || lay(disk_options, uid, kept))?;
    step(BirthStep::Terminals, &mut mounts::terminals)?;
    step(BirthStep::Namespaces, &mut || open_namespaces(&mut pid1.opened))?;
    if guard.handled != 0 {
        step(BirthStep::Landlock, &mut || {
            pid1.opened.rules = rules(guard)?;
            Ok(())
        })?;
    }
    step(BirthStep::Init, &mut || {
        // Children that it inherits leave nothing to wait for.
        ignore(SIGCHLD)?;
        // From here on what it has open is its own: the leash, and nothing else.
        plain(number::UNSHARE, &[CLONE_FILES])?;
        plain(number::DUP3, &[leash as usize, 0, O_CLOEXEC])?;
        plain(number::CLOSE_RANGE, &[1, u32::MAX as usize, 0])?;
        if !is_left_out(without::CAPABILITIES) {
            rights::drop_capabilities()?;
        }
        rights::forbid_new_privileges()?;
        if is_left_out(without::SECCOMP) { Ok(()) } else { seccomp::install(&filter, 0).map(drop) }
    })
}

/// Opens what a program enters, and what shows the jail from outside.
fn open_namespaces(opened: &mut Opened) -> Answer<()> {
    let open =
        |path: &CStr, flags: usize| at(number::OPENAT, HERE, path, &[flags | O_CLOEXEC]).map(|fd| fd as i32);
    opened.pid_namespace = open(c"proc/self/ns/pid", 0)?;
    opened.mount_namespace = open(c"proc/self/ns/mnt", 0)?;
    opened.ipc_namespace = open(c"proc/self/ns/ipc", 0)?;
    opened.uts_namespace = open(c"proc/self/ns/uts", 0)?;
    opened.disk = open(c"workspace", O_PATH | O_DIRECTORY)?;
    opened.proc = open(c"proc", O_DIRECTORY)?;
    Ok(())
}

/// The disk, in the places of which the old ones go out of sight, and the inbox of the zygote with them.
fn lay(options: &CStr, uid: u32, kept: &[u8]) -> Answer<()> {
    let mut held = [None; MAX_KEPT];
    let paths = || kept.split_inclusive(|byte| *byte == 0).filter_map(|path| path.split_first());
    for (held, (_, path)) in held.iter_mut().zip(paths()) {
        let path = CStr::from_bytes_with_nul(path).map_err(|_| INVALID)?;
        *held = Some(mounts::hold(path)?);
    }
    mounts::disk(options)?;
    mounts::places((uid, uid), true)?;
    mounts::bind(c"sys", c"run/belljar")?;
    for (held, (kind, path)) in held.iter().flatten().zip(paths()) {
        mounts::put_back(*held, &path[..path.len() - 1], *kind == b'd')?;
    }
    Ok(())
}

/// The rules of the second guard on files.
fn rules(guard: &Guard) -> Answer<i32> {
    const LANDLOCK_RULE_PATH_BENEATH: usize = 1;
    let places = [
        (c"/", guard.read),
        (c"/dev", guard.devices),
        (c"/dev/shm", guard.write),
        (c"/tmp", guard.write),
        (c"/home/sandbox", guard.write),
        (c"/workspace", guard.write),
    ];
    // Files, network, scope; a kernel that knows less takes what it does not know for as long as it is zero.
    let watched = [guard.handled, 0, guard.scoped];
    let size = size_of_val(&watched);
    // SAFETY: the kernel reads that many bytes.
    let ruleset =
        unsafe { call(number::LANDLOCK_CREATE_RULESET, [watched.as_ptr() as usize, size, 0, 0, 0, 0]) }?;
    for (path, access) in places {
        let folder = at(number::OPENAT, HERE, path, &[O_PATH | O_CLOEXEC])?;
        // The rights, and a descriptor right behind them.
        let rule = [access, folder as u64];
        let arguments = [ruleset, LANDLOCK_RULE_PATH_BENEATH, rule.as_ptr() as usize, 0, 0, 0];
        // SAFETY: the kernel reads twelve bytes; a descriptor fits the first four of the second word.
        let added = unsafe { call(number::LANDLOCK_ADD_RULE, arguments) };
        close(folder as i32);
        added?;
    }
    Ok(ruleset as i32)
}

fn ignore(signal: usize) -> Answer<()> {
    const SIG_IGN: usize = 1;
    // handler, flags, restorer, mask: the same words on both processors, if not in the same order.
    let action = [SIG_IGN, 0, 0, 0];
    // SAFETY: the kernel reads four words there; no handler is installed.
    unsafe { call(number::RT_SIGACTION, [signal, action.as_ptr() as usize, 0, size_of::<u64>(), 0, 0]) }
        .map(drop)
}

/// What it polls: only whether the other end of its leash is gone.
#[repr(C)]
struct Polled {
    fd: i32,
    events: i16,
    found: i16,
}

/// All of them poll the same, and nobody reads what was found.
static mut POLLED: Polled = Polled { fd: 0, events: 0, found: 0 };

/// Lets the builder go on, and ends when the leash is let go of. From the first instruction to the last
/// there is no memory that it relies on: the moment the other one goes on, this stack may be somebody else's.
#[cfg(target_arch = "x86_64")]
fn wait(stage: &AtomicU32) -> ! {
    // SAFETY: nothing is left to be dropped; the kernel writes to `stage` never, and to `POLLED` only.
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
            in("r12") &raw mut POLLED,
            options(noreturn)
        )
    }
}

/// As above.
#[cfg(target_arch = "aarch64")]
fn wait(stage: &AtomicU32) -> ! {
    // SAFETY: as above.
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
            in("x12") &raw mut POLLED,
            options(noreturn)
        )
    }
}

/// Waits until it is that far, unless it is not heard of at all.
pub(crate) fn await_stage(stage: &AtomicU32, wanted: u32) -> Answer<()> {
    const TIMED_OUT: Refused = Refused(110);
    // Longer than a jail takes on any machine that still works.
    let patience = [10_u64, 0];
    loop {
        let reached = stage.load(Ordering::Acquire);
        if reached >= wanted {
            return Ok(());
        }
        let word = stage.as_ptr() as usize;
        let arguments = [word, FUTEX_WAIT_PRIVATE, reached as usize, patience.as_ptr() as usize, 0, 0];
        // SAFETY: the word and the time live across the call.
        if unsafe { call(number::FUTEX, arguments) } == Err(TIMED_OUT) {
            return Err(TIMED_OUT);
        }
    }
}
