//! What every warm interpreter does, whatever its language: learns its filter, has children when told to, and in each
//! child waits, confined, for what to run. One thread, so plain statics.

use core::cell::UnsafeCell;

use super::born;
use super::call::{Answer, BAD_MESSAGE, GONE, Refused, call, close, number, plain, prctl, write_all};
use super::hop::{self, Hop, Side};
use super::message::{
    Birth, BirthStep, Delivered, Habit, LEAVING, LINE, MAX_HABITS, MAX_INSTRUCTIONS, NAMESPACES, NAMESPACES_LEN,
    OWN_LINE, Word, bytes_of, kind, read_birth, read_habits,
};
use super::payload::{Name, Payload};
use super::seccomp::Program;
use super::socket;

const WORKSPACE: &[u8] = b"/workspace";
const WORKSPACE_PLACE: u32 = 0;
const INBOX_PLACE: u32 = 1;
const PR_SET_DUMPABLE: usize = 4;
const PR_GET_TID_ADDRESS: usize = 40;
const O_CLOEXEC: usize = 0o2_000_000;

/// A filter as it came.
struct Received {
    instructions: [u64; MAX_INSTRUCTIONS],
    len: usize,
}

impl Received {
    const NONE: Self = Self { instructions: [0; MAX_INSTRUCTIONS], len: 0 };

    fn receive(&mut self) -> Answer<()> {
        // SAFETY: instructions are plain memory of that many bytes.
        let bytes = unsafe {
            core::slice::from_raw_parts_mut(
                self.instructions.as_mut_ptr().cast::<u8>(),
                size_of_val(&self.instructions),
            )
        };
        self.len = socket::receive(LINE, bytes)?.bytes / size_of::<u64>();
        Ok(())
    }

    fn program(&self) -> Program {
        Program { len: self.len as u16, instructions: self.instructions.as_ptr() as usize }
    }
}

struct State {
    for_children: Received,
    habits: [Habit; MAX_HABITS],
    habits_len: usize,
    /// Where the library keeps the number of its thread, and its list of locks to let go.
    tid: usize,
    robust: (usize, usize),
    /// Of a child's filter, until it is sent to the launcher.
    listener: Option<i32>,
    /// Where a child that prepares says something: a pipe. Any other has its line for that.
    pipe: Option<i32>,
    /// Number of the child's process; what it forks has others.
    pid: usize,
    /// Whether a request waits for this child.
    awaited: bool,
}

impl State {
    /// Learns what its children do.
    fn learn(&mut self, packet: &[u8]) {
        self.habits_len = 0;
        for (place, habit) in self.habits.iter_mut().zip(read_habits(packet)) {
            *place = habit;
            self.habits_len += 1;
        }
    }

    /// Gets the memory ready that others have used.
    fn prepare(&self) {
        const MADV_POPULATE_READ: usize = 22;
        const MADV_POPULATE_WRITE: usize = 23;
        for habit in &self.habits[..self.habits_len] {
            let advice = if habit.write != 0 { MADV_POPULATE_WRITE } else { MADV_POPULATE_READ };
            // What is not there, or is something else here, is left as it is.
            let _done = plain(number::MADVISE, &[habit.start as usize, habit.bytes as usize, advice]);
        }
    }
}

struct Only(UnsafeCell<State>);

// SAFETY: an interpreter calls in here from its one thread only, and holds its own lock while it does.
unsafe impl Sync for Only {}

static STATE: Only = Only(UnsafeCell::new(State {
    for_children: Received::NONE,
    habits: [Habit { start: 0, bytes: 0, write: 0 }; MAX_HABITS],
    habits_len: 0,
    tid: 0,
    robust: (0, 0),
    listener: None,
    pipe: None,
    pid: 0,
    awaited: false,
}));

#[expect(clippy::mut_from_ref, reason = "see `Only`")]
fn state() -> &'static mut State {
    // SAFETY: see `Only`; nobody keeps the reference across another call into here.
    unsafe { &mut *STATE.0.get() }
}

/// What a child was told to run.
pub(crate) struct Task {
    pub(crate) text: &'static [u8],
    /// The code: the content of the file that the text names first.
    #[allow(dead_code, reason = "Node.js reads it for itself")]
    pub(crate) code: Option<&'static [u8]>,
    /// The last file of the inbox: the arguments, where there are any.
    pub(crate) arguments: Option<&'static [u8]>,
}

/// The beginning: learns what will be the same for all children.
pub(crate) fn begin() -> Answer<()> {
    let state = state();
    state.for_children.receive()?;
    let mut tid = 0_usize;
    // SAFETY: the kernel writes one address there.
    let asked = unsafe { call(number::PRCTL, [PR_GET_TID_ADDRESS, &raw mut tid as usize, 0, 0, 0, 0]) };
    // SAFETY: the kernel changed it behind the compiler's back.
    state.tid = if asked.is_ok() { unsafe { (&raw const tid).read_volatile() } } else { 0 };
    let mut robust = [0_usize; 2];
    let (head, len) = (&raw mut robust[0] as usize, &raw mut robust[1] as usize);
    // SAFETY: the kernel writes an address and a length there.
    if unsafe { call(number::GET_ROBUST_LIST, [0, head, len, 0, 0, 0]) }.is_ok() {
        // SAFETY: the kernel changed it behind the compiler's back.
        let robust = unsafe { (&raw const robust).read_volatile() };
        state.robust = (robust[0], robust[1]);
    }
    Ok(())
}

/// Tells the launcher something about starting, and waits for its yes where it gives one.
pub(crate) fn say(kind: u32, text: &[u8]) -> Answer<()> {
    let word = Word { kind, step: 0, errno: 0 };
    let text = &text[..text.len().min(1_024)];
    socket::send(LINE, bytes_of(&word), text, &[])?;
    if kind == super::message::kind::IMPORTED {
        socket::receive(LINE, &mut [0; 8])?;
    }
    Ok(())
}

/// Has a child whenever the launcher says so; comes back in each child, with whether that has nothing to prepare, and in
/// the zygote at its end with the reason.
/// `before` and `after` are what the interpreter wants done around a fork, `after` in the zygote.
pub(crate) fn have_children(before: impl Fn(), after: impl Fn()) -> Result<bool, Refused> {
    // A child of another user has no business with this memory until it owns its copy.
    prctl(PR_SET_DUMPABLE, 0)?;
    let mut packet = [0_u8; MAX_HABITS * size_of::<Habit>()];
    loop {
        let received = socket::receive(LINE, &mut packet)?;
        let state = state();
        if received.fds_len == 0 {
            state.learn(&packet[..received.bytes]);
            continue;
        }
        let birth = read_birth(&packet[..received.bytes], received.fds_len).ok_or(BAD_MESSAGE)?;
        before();
        let fds = &received.fds[..received.fds_len];
        let namespaces = &fds[NAMESPACES..NAMESPACES + NAMESPACES_LEN];
        let mut hop = Hop { namespaces, without: birth.without, tid: state.tid, between: -1, child: -1, failed: None };
        match hop::hop(&mut hop) {
            Ok(Side::Child) => {
                be_born(&birth, fds)?;
                let awaited = birth.awaited != 0;
                state.awaited = awaited;
                if !awaited {
                    state.prepare();
                }
                return Ok(awaited || state.habits_len > 0);
            }
            Ok(Side::Zygote) => deliver(&hop)?,
            Err(why) => {
                hop.failed = Some((BirthStep::Namespaces, why));
                deliver(&hop)?;
            }
        }
        after();
        fds.iter().for_each(|fd| close(*fd));
    }
}

/// Tells the launcher what came of it.
fn deliver(hop: &Hop<'_>) -> Answer<()> {
    let (step, errno) = hop.failed.map_or((0, 0), |(step, why)| (step as u32, why.0));
    let fds = [hop.between, hop.child];
    // The first ones are there when a later one is.
    let there = fds.iter().take_while(|fd| **fd >= 0).count();
    let sent = socket::send(LINE, bytes_of(&Delivered { step, errno }), &[], &fds[..there]);
    fds.into_iter().filter(|fd| *fd >= 0).for_each(close);
    sent
}

/// Confines the child; does not come back where that fails.
fn be_born(birth: &Birth, fds: &[i32]) -> Result<(), Refused> {
    let state = state();
    restore_thread(state);
    match born::enter(birth, fds, &state.for_children.program()) {
        Ok(listener) => {
            state.listener = listener;
            state.pid = plain(number::GETPID, &[])?;
            Ok(())
        }
        Err(failed) => fail(fds[OWN_LINE], failed.step, failed.why, &[]),
    }
}

/// What the library registered for its thread does not survive the hop.
fn restore_thread(state: &State) {
    if state.robust.0 != 0 {
        // Without it only locks that are shared with other processes, and never unlocked, behave differently.
        let _set = plain(number::SET_ROBUST_LIST, &[state.robust.0, state.robust.1]);
    }
}

fn fail(line: i32, step: BirthStep, why: Refused, detail: &[u8]) -> ! {
    let word = Word { kind: kind::FAILED, step: step as u32, errno: why.0 };
    // Where nobody listens any more, there is nobody to tell.
    let _told = socket::send(line, bytes_of(&word), &detail[..detail.len().min(1_024)], &[]);
    end(1)
}

/// Tells of a step that failed after the child was confined.
fn fail_task(step: BirthStep, why: Refused, detail: &[u8]) -> ! {
    let Some(pipe) = state().pipe else { fail(LINE, step, why, detail) };
    const HEAD: usize = size_of::<Word>();
    let word = Word { kind: kind::FAILED, step: step as u32, errno: why.0 };
    let detail = &detail[..detail.len().min(1_024)];
    let mut packet = [0; HEAD + 1_024];
    packet[..HEAD].copy_from_slice(bytes_of(&word));
    packet[HEAD..HEAD + detail.len()].copy_from_slice(detail);
    // In one write, so that it is read in one. A launcher that is gone needs no answer.
    let _told = write_all(pipe, &packet[..HEAD + detail.len()]);
    end(1)
}

fn end(status: usize) -> ! {
    loop {
        let _never = plain(number::EXIT_GROUP, &[status, 0]);
    }
}

/// Says that the child is confined, or ready.
fn say_ready() -> Answer<()> {
    let word = Word { kind: kind::READY, step: 0, errno: 0 };
    let listener = state().listener.take();
    let told = match state().pipe {
        Some(pipe) => write_all(pipe, bytes_of(&word)),
        None => socket::send(LINE, bytes_of(&word), &[], listener.as_slice()),
    };
    listener.into_iter().for_each(close);
    told
}

/// Says that the child is confined, and waits until the launcher has seen that it is. The launcher takes nothing but bytes from
/// then on, by a pipe that comes along.
#[allow(dead_code, reason = "only Python imports ahead of time")]
pub(crate) fn await_inspection() -> Answer<()> {
    say_ready()?;
    let received = socket::receive(LINE, &mut [0; 8])?;
    state().pipe = Some(*received.fds[..received.fds_len].first().ok_or(BAD_MESSAGE)?);
    Ok(())
}

/// Says that the child is ready, and waits for what to run; what is not to be told any more ends quietly.
pub(crate) fn await_task() -> Task {
    let told = say_ready();
    if state().awaited {
        // Meanwhile the launcher has this child inspected; its program would touch these pages one by one.
        state().prepare();
    }
    let mut workdir = [0; 4_096];
    let order = told.and_then(|()| socket::receive(LINE, &mut workdir));
    match order {
        Ok(order) => match begin_task(&order, &workdir[..order.bytes]) {
            Ok(task) => task,
            Err((step, why, detail)) => fail_task(step, why, detail),
        },
        Err(GONE) => end(0),
        Err(why) => fail_task(BirthStep::Order, why, &[]),
    }
}

type TaskFailed = (BirthStep, Refused, &'static [u8]);

/// Files first, then the streams; the line to the launcher is closed last.
fn begin_task(order: &socket::Received, workdir: &[u8]) -> Result<Task, TaskFailed> {
    let failed = |step: BirthStep| move |why: Refused| (step, why, &[][..]);
    let fds = &order.fds[..order.fds_len];
    let [payload, streams @ ..] = fds else { return Err((BirthStep::Order, BAD_MESSAGE, &[])) };
    let payload = Payload::map(*payload).map_err(failed(BirthStep::Order))?;
    let folder = open_folder(WORKSPACE).map_err(failed(BirthStep::Files))?;
    payload.unpack(WORKSPACE_PLACE, folder).map_err(|file| (BirthStep::Files, file.why, file.path))?;
    change_folder(workdir).map_err(failed(BirthStep::Workdir))?;
    connect(streams).map_err(failed(BirthStep::Stdio))?;
    fds.iter().chain([&folder]).chain(&state().pipe.take()).for_each(|fd| close(*fd));
    let inbox = payload.entries().filter(|entry| entry.place == INBOX_PLACE);
    let arguments = inbox.last().map(|entry| entry.content);
    Ok(Task { text: payload.text, code: code_of(payload), arguments })
}

fn code_of(payload: Payload<'static>) -> Option<&'static [u8]> {
    let source = payload.text.split(|byte| *byte == 0).next()?;
    let path = source.strip_prefix(WORKSPACE)?.strip_prefix(b"/")?;
    let mut files = payload.entries().filter(|entry| entry.place == WORKSPACE_PLACE);
    files.find(|entry| entry.path == path).map(|entry| entry.content)
}

fn open_folder(path: &[u8]) -> Answer<i32> {
    const AT_FDCWD: usize = -100_isize as usize;
    const O_PATH: usize = 0o10_000_000;
    let name = Name::of(path)?;
    // SAFETY: the name ends in a NUL and lives across the call.
    unsafe { call(number::OPENAT, [AT_FDCWD, name.pointer(), O_PATH | O_CLOEXEC, 0, 0, 0]) }.map(|fd| fd as i32)
}

fn change_folder(path: &[u8]) -> Answer<()> {
    let name = Name::of(path)?;
    // SAFETY: the name ends in a NUL and lives across the call.
    unsafe { call(number::CHDIR, [name.pointer(), 0, 0, 0, 0, 0]) }.map(drop)
}

/// Standard streams at 0 to 2, and a result at 3, or nothing there.
fn connect(streams: &[i32]) -> Answer<()> {
    for (at, stream) in streams.iter().enumerate() {
        let flags = if at == LINE as usize { O_CLOEXEC } else { 0 };
        plain(number::DUP3, &[*stream as usize, at, flags])?;
    }
    if streams.len() <= LINE as usize {
        close(LINE);
    }
    Ok(())
}

/// Whether a request waits for this child.
#[allow(dead_code, reason = "only Python imports ahead of time")]
pub(crate) fn is_awaited() -> bool {
    state().awaited
}

/// The number of the child's process, inside.
#[allow(dead_code, reason = "Python asks for itself")]
pub(crate) fn pid() -> usize {
    state().pid
}

/// Ends the process, and lets the launcher know before its memory is torn down.
pub(crate) fn leave(status: usize) -> ! {
    if plain(number::GETPID, &[]) == Ok(state().pid) {
        // Comes back only where nobody listens.
        let _refused = plain(number::EXIT_GROUP, &[status & 0xff, LEAVING as usize]);
    }
    end(status & 0xff)
}
