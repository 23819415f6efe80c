//! PID 1 of a child's jail. It sets the place up, opens what the child will need, gives up everything, and from then on
//! only is there: the kernel reaps for it, and it ends when the launcher lets go of its leash.
//!
//! It shares the zygote's memory, which is why it costs next to nothing, and like the zygote it is not dumpable. The child
//! comes into being while it sets up, and waits for it; so does the zygote before it has the next one. Afterwards it uses no memory at
//! all, not even its stack: that is the next one's by then.

use core::arch::asm;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, Ordering};

use super::born::{self, Program};
use super::call::{Answer, HERE, INVALID, Refused, at, call, close, number, plain, prctl};
use super::message::{Birth, BirthStep, Guard, MAX_KEPT, Word, bytes_of, kind, without};
use super::{mounts, rights, socket};

const O_PATH: usize = 0o10_000_000;
const O_CLOEXEC: usize = 0o2_000_000;
const PR_SET_PDEATHSIG: usize = 1;
const SIGKILL: usize = 9;
const SIGCHLD: usize = 17;
const CLONE_FILES: usize = 0x400;
const FUTEX_WAIT_PRIVATE: usize = 128;
const FUTEX_WAKE_PRIVATE: usize = 129;

/// What it works with, and what it leaves behind, in memory that it shares with the process in between.
pub(crate) struct Host<'a> {
    pub(crate) birth: &'a Birth,
    pub(crate) guard: &'a Guard,
    pub(crate) filter: Program,
    /// Paths that are to stay visible, each with `d` before it, or `f`, and a NUL behind it.
    pub(crate) kept: &'a [u8],
    pub(crate) leash: i32,
    /// Where the child waits for the place to be finished, and for the rules of the second guard on files.
    pub(crate) place: i32,
    /// The pid namespace, as a descriptor that it shares.
    pub(crate) pids: i32,
    pub(crate) failed: Option<(BirthStep, Refused)>,
    pub(crate) stage: AtomicU32,
}

/// The pid namespace can be entered, or there is none because something failed.
pub(crate) const ENTERED: u32 = 1;
/// Nothing of this is in use any more, nor is the stack.
pub(crate) const DONE: u32 = 2;

/// Runs as PID 1; never comes back.
pub(crate) extern "C" fn live(host: &mut Host<'_>) -> ! {
    if let Err((step, why)) = settle(host) {
        host.failed = Some((step, why));
        let word = Word { kind: kind::FAILED, step: step as u32, errno: why.0 };
        // Where there is no child yet, the process in between tells of it.
        let _told = socket::send(host.place, bytes_of(&word), &[], &[]);
        // With a table of its own, nothing is at the number of the leash: the wait is over at once.
        let _alone = plain(number::UNSHARE, &[CLONE_FILES]);
        close(0);
    }
    wait(&host.stage)
}

fn settle(host: &mut Host<'_>) -> Result<(), (BirthStep, Refused)> {
    let Host { birth, guard, filter, kept, leash, place, .. } = *host;
    let left_out = |layer: u32| cfg!(feature = "faults") && birth.without & layer != 0;
    let step = |step: BirthStep, perform: &mut dyn FnMut() -> Answer<()>| {
        if cfg!(feature = "faults") && birth.fail == step as u32 {
            return Err((step, Refused(28)));
        }
        perform().map_err(|why| (step, why))
    };
    step(BirthStep::Ids, &mut || {
        rights::become_user((birth.init_uid, birth.init_uid), (birth.init_uid, birth.init_uid))?;
        // Lost at every change of ids. Whoever died before this has let go of the leash, too.
        prctl(PR_SET_PDEATHSIG, SIGKILL).map(drop)
    })?;
    step(BirthStep::Proc, &mut mounts::proc)?;
    step(BirthStep::Namespaces, &mut || {
        host.pids = at(number::OPENAT, HERE, c"proc/self/ns/pid", &[O_CLOEXEC])? as i32;
        Ok(())
    })?;
    // From here on the child comes into being beside it.
    reach(&host.stage, ENTERED);
    step(BirthStep::Masks, &mut mounts::masks)?;
    step(BirthStep::Hostname, &mut || {
        let name = c"sandbox";
        // SAFETY: the kernel reads no further than the name goes.
        unsafe { call(number::SETHOSTNAME, [name.as_ptr() as usize, name.count_bytes(), 0, 0, 0, 0]) }.map(drop)
    })?;
    step(BirthStep::Disk, &mut || lay(birth, kept))?;
    step(BirthStep::Terminals, &mut mounts::terminals)?;
    step(BirthStep::Init, &mut || {
        // Children that it inherits leave nothing to wait for.
        ignore(SIGCHLD)?;
        // From here on what it opens is its own, and not the zygote's as well.
        plain(number::UNSHARE, &[CLONE_FILES])?;
        for (number, fd) in [leash, place].into_iter().enumerate() {
            plain(number::DUP3, &[fd as usize, number, O_CLOEXEC])?;
        }
        plain(number::CLOSE_RANGE, &[2, u32::MAX as usize, 0]).map(drop)
    })?;
    host.place = 1;
    let mut ruleset = None;
    if guard.handled != 0 {
        step(BirthStep::Landlock, &mut || {
            ruleset = Some(rules(guard)?);
            Ok(())
        })?;
    }
    step(BirthStep::Init, &mut || {
        if !left_out(without::CAPABILITIES) {
            rights::drop_capabilities()?;
        }
        rights::forbid_new_privileges()?;
        if left_out(without::SECCOMP) { Ok(()) } else { born::install(&filter, 0).map(drop) }
    })?;
    // The place is finished, and nobody in it has any right: the child may go on.
    let ready = Word { kind: kind::READY, step: 0, errno: 0 };
    let told = socket::send(host.place, bytes_of(&ready), &[], ruleset.as_slice());
    [host.place].into_iter().chain(ruleset).for_each(close);
    told.map_err(|why| (BirthStep::Init, why))
}

/// The disk, in the places of which the old ones go out of sight, and the inbox of the zygote with them.
fn lay(birth: &Birth, kept: &[u8]) -> Answer<()> {
    let options = CStr::from_bytes_until_nul(&birth.disk).map_err(|_| INVALID)?;
    let mut held = [None; MAX_KEPT];
    let paths = || kept.split_inclusive(|byte| *byte == 0).filter_map(|path| path.split_first());
    for (held, (_, path)) in held.iter_mut().zip(paths()) {
        let path = CStr::from_bytes_with_nul(path).map_err(|_| INVALID)?;
        *held = Some(mounts::hold(path)?);
    }
    mounts::disk(options)?;
    mounts::places((birth.uid, birth.uid), true)?;
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
    unsafe { call(number::RT_SIGACTION, [signal, action.as_ptr() as usize, 0, size_of::<u64>(), 0, 0]) }.map(drop)
}

/// Says how far it is.
fn reach(stage: &AtomicU32, reached: u32) {
    stage.store(reached, Ordering::Release);
    // SAFETY: the kernel looks only at who waits there.
    let _woken = unsafe { call(number::FUTEX, [stage.as_ptr() as usize, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0]) };
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

/// Lets the zygote go on, and ends when the leash is let go of. From the first instruction to the last
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
    // Longer than the launcher has patience.
    let patience = [1_u64, 0];
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
