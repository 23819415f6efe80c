//! The language-independent part of a warm interpreter: receives its filter, forks a child for each fork
//! request, and in each confined child waits for a task. There is a single thread, so plain statics suffice.

use core::cell::UnsafeCell;

use crate::child_setup;
use crate::clone_into_jail::{self, ForkSide, JailFork};
use crate::flags::{O_CLOEXEC, O_PATH};
use crate::install_filter::FilterProgram;
use crate::message::{
    EXIT_MAGIC, ForkReply, ForkRequest, LAUNCHER_FD, MAX_INSTRUCTIONS, MAX_PAGE_RANGES, NAMESPACES,
    NAMESPACES_LEN, OWN_SOCKET, PageRange, SetupStep, StatusMessage, bytes_of, kind, read_fork_request,
    read_page_ranges,
};
use crate::packet_socket;
use crate::payload::{CPath, INBOX_TARGET, Payload, WORKSPACE_TARGET};
use crate::syscall::{
    AT_FDCWD, EBADMSG, ESRCH, RawErrno, SysResult, close, number, prctl, safe_syscall, syscall, write_all,
};

const WORKSPACE: &[u8] = b"/workspace";
/// The file with the arguments in the inbox.
const ARGUMENTS: &[u8] = b"arguments.json";
const PR_SET_DUMPABLE: usize = 4;
const PR_GET_TID_ADDRESS: usize = 40;

/// A filter received from the launcher.
struct ReceivedFilter {
    instructions: [u64; MAX_INSTRUCTIONS],
    len: usize,
}

impl ReceivedFilter {
    const NONE: Self = Self { instructions: [0; MAX_INSTRUCTIONS], len: 0 };

    fn receive(&mut self) -> SysResult<()> {
        // SAFETY: the slice covers exactly the memory of `instructions`, for which any bytes are valid.
        let bytes = unsafe {
            core::slice::from_raw_parts_mut(
                self.instructions.as_mut_ptr().cast::<u8>(),
                size_of_val(&self.instructions),
            )
        };
        self.len = packet_socket::receive(LAUNCHER_FD, bytes)?.bytes / size_of::<u64>();
        Ok(())
    }

    fn program(&self) -> FilterProgram {
        FilterProgram { len: self.len as u16, instructions: self.instructions.as_ptr() as usize }
    }
}

struct ZygoteState {
    for_children: ReceivedFilter,
    page_ranges: [PageRange; MAX_PAGE_RANGES],
    page_ranges_len: usize,
    /// Address at which libc keeps its thread id; address and length of its robust futex list.
    tid: usize,
    robust: (usize, usize),
    /// Notification listener of a child's filter, until it is sent to the launcher.
    listener: Option<i32>,
    /// The pipe to which a child reports after its inspection. Other children use their socket.
    pipe: Option<i32>,
    /// Process id of the child. Processes that it forks have other ids.
    pid: usize,
    /// Whether a run is already waiting for this child.
    awaited: bool,
}

impl ZygoteState {
    /// Stores the page ranges that children will prefault.
    fn set_page_ranges(&mut self, packet: &[u8]) {
        self.page_ranges_len = 0;
        for (slot, range) in self.page_ranges.iter_mut().zip(read_page_ranges(packet)) {
            *slot = range;
            self.page_ranges_len += 1;
        }
    }

    /// Prefaults the memory that earlier children have used.
    fn prefault(&self) {
        const MADV_POPULATE_READ: usize = 22;
        const MADV_POPULATE_WRITE: usize = 23;
        for range in &self.page_ranges[..self.page_ranges_len] {
            let advice = if range.write != 0 { MADV_POPULATE_WRITE } else { MADV_POPULATE_READ };
            // Ranges that are not mapped, or are mapped differently here, are left alone.
            let _done = safe_syscall(number::MADVISE, &[range.start as usize, range.bytes as usize, advice]);
        }
    }
}

struct SingleThreaded(UnsafeCell<ZygoteState>);

// SAFETY: the interpreter calls this code from its only thread, while holding its own lock.
unsafe impl Sync for SingleThreaded {}

static STATE: SingleThreaded = SingleThreaded(UnsafeCell::new(ZygoteState {
    for_children: ReceivedFilter::NONE,
    page_ranges: [PageRange { start: 0, bytes: 0, write: 0 }; MAX_PAGE_RANGES],
    page_ranges_len: 0,
    tid: 0,
    robust: (0, 0),
    listener: None,
    pipe: None,
    pid: 0,
    awaited: false,
}));

fn state() -> &'static mut ZygoteState {
    // SAFETY: see `SingleThreaded`; no caller keeps the reference across another call of this module.
    unsafe { &mut *STATE.0.get() }
}

/// The task of a child.
pub struct ChildTask {
    /// Text for the script that runs the program.
    pub text: &'static [u8],
    /// The code: content of the file that the text names first.
    pub code: Option<&'static [u8]>,
    /// The arguments: the last file of the inbox, if any.
    pub arguments: Option<&'static [u8]>,
}

/// Starts the zygote: receives the filter that all children share.
pub fn start() -> SysResult<()> {
    let state = state();
    state.for_children.receive()?;
    let mut tid = 0_usize;
    // SAFETY: the kernel writes one address to `tid`.
    let result = unsafe { syscall(number::PRCTL, [PR_GET_TID_ADDRESS, &raw mut tid as usize, 0, 0, 0, 0]) };
    // SAFETY: the variable is a live local; the read is volatile because the kernel, not the compiler, wrote
    // it.
    state.tid = if result.is_ok() { unsafe { (&raw const tid).read_volatile() } } else { 0 };
    let mut robust = [0_usize; 2];
    let (head, len) = (&raw mut robust[0] as usize, &raw mut robust[1] as usize);
    // SAFETY: the kernel writes an address and a length to `robust`.
    if unsafe { syscall(number::GET_ROBUST_LIST, [0, head, len, 0, 0, 0]) }.is_ok() {
        // SAFETY: the variable is a live local; the read is volatile because the kernel, not the compiler,
        // wrote it.
        let robust = unsafe { (&raw const robust).read_volatile() };
        state.robust = (robust[0], robust[1]);
    }
    Ok(())
}

/// Sends a status message to the launcher during startup. After `IMPORTED`, waits for permission to continue.
pub fn send_status(kind: u32, text: &[u8]) -> SysResult<()> {
    let status = StatusMessage { kind, step: 0, errno: 0 };
    let text = &text[..text.len().min(1_024)];
    packet_socket::send(LAUNCHER_FD, bytes_of(&status), text, &[])?;
    if kind == crate::message::kind::IMPORTED {
        packet_socket::receive(LAUNCHER_FD, &mut [0; 8])?;
    }
    Ok(())
}

/// Serves fork requests. Returns in each child, with whether that child has nothing to prepare, and in the
/// zygote at its end, with the reason. The interpreter's `before` and `after` run around each fork, `after`
/// only in the zygote.
pub fn serve_forks(before: impl Fn(), after: impl Fn()) -> Result<bool, RawErrno> {
    // A child of another user must not access this memory until it owns its copy.
    prctl(PR_SET_DUMPABLE, 0)?;
    let mut packet = [0_u8; MAX_PAGE_RANGES * size_of::<PageRange>()];
    loop {
        let received = packet_socket::receive(LAUNCHER_FD, &mut packet)?;
        let state = state();
        if received.fds_len == 0 {
            state.set_page_ranges(&packet[..received.bytes]);
            continue;
        }
        let request = read_fork_request(&packet[..received.bytes], received.fds_len).ok_or(EBADMSG)?;
        before();
        let fds = &received.fds[..received.fds_len];
        let namespaces = &fds[NAMESPACES..NAMESPACES + NAMESPACES_LEN];
        let mut jail_fork = JailFork {
            namespaces,
            layers_left_out: request.layers_left_out,
            tid: state.tid,
            intermediate: -1,
            child: -1,
            failed: None,
        };
        match clone_into_jail::clone_into_jail(&mut jail_fork) {
            Ok(ForkSide::Child) => {
                confine_child(&request, fds)?;
                let awaited = request.awaited != 0;
                state.awaited = awaited;
                if !awaited {
                    state.prefault();
                }
                return Ok(awaited || state.page_ranges_len > 0);
            }
            Ok(ForkSide::Zygote) => send_fork_reply(&jail_fork)?,
            Err(errno) => {
                jail_fork.failed = Some((SetupStep::Namespaces, errno));
                send_fork_reply(&jail_fork)?;
            }
        }
        after();
        fds.iter().for_each(|fd| close(*fd));
    }
}

/// Sends the result of a fork request to the launcher.
fn send_fork_reply(jail_fork: &JailFork<'_>) -> SysResult<()> {
    let (step, errno) = jail_fork.failed.map_or((0, 0), |(step, errno)| (step as u32, errno.0));
    let fds = [jail_fork.intermediate, jail_fork.child];
    // If a later descriptor exists, so do the earlier ones.
    let open_len = fds.iter().take_while(|fd| **fd >= 0).count();
    let sent = packet_socket::send(LAUNCHER_FD, bytes_of(&ForkReply { step, errno }), &[], &fds[..open_len]);
    fds.into_iter().filter(|fd| *fd >= 0).for_each(close);
    sent
}

/// Confines the child. Exits if that fails.
fn confine_child(request: &ForkRequest, fds: &[i32]) -> Result<(), RawErrno> {
    let state = state();
    restore_thread(state);
    match child_setup::confine(request, fds, &state.for_children.program()) {
        Ok(listener) => {
            state.listener = listener;
            state.pid = safe_syscall(number::GETPID, &[])?;
            Ok(())
        }
        Err(failed) => fail(fds[OWN_SOCKET], failed.step, failed.why, &[]),
    }
}

/// Restores what libc registered for its thread, which the clone does not preserve.
fn restore_thread(state: &ZygoteState) {
    if state.robust.0 != 0 {
        // If this fails, only robust locks that are shared with other processes are affected.
        let _set = safe_syscall(number::SET_ROBUST_LIST, &[state.robust.0, state.robust.1]);
    }
}

fn fail(fd: i32, step: SetupStep, errno: RawErrno, detail: &[u8]) -> ! {
    let status = StatusMessage { kind: kind::FAILED, step: step as u32, errno: errno.0 };
    // Fails only if the launcher is gone.
    let _sent = packet_socket::send(fd, bytes_of(&status), &detail[..detail.len().min(1_024)], &[]);
    exit_now(1)
}

/// Reports a step that failed after the child was confined, and exits.
fn fail_task(step: SetupStep, errno: RawErrno, detail: &[u8]) -> ! {
    let Some(pipe) = state().pipe else { fail(LAUNCHER_FD, step, errno, detail) };
    const HEAD: usize = size_of::<StatusMessage>();
    let status = StatusMessage { kind: kind::FAILED, step: step as u32, errno: errno.0 };
    let detail = &detail[..detail.len().min(1_024)];
    let mut packet = [0; HEAD + 1_024];
    packet[..HEAD].copy_from_slice(bytes_of(&status));
    packet[HEAD..HEAD + detail.len()].copy_from_slice(detail);
    // A single write, so that the launcher reads it at once. If the launcher is gone, no report is needed.
    let _sent = write_all(pipe, &packet[..HEAD + detail.len()]);
    exit_now(1)
}

fn exit_now(status: usize) -> ! {
    loop {
        let _never = safe_syscall(number::EXIT_GROUP, &[status, 0]);
    }
}

/// Reports that the child is confined, or ready for its task.
fn report_ready() -> SysResult<()> {
    let status = StatusMessage { kind: kind::READY, step: 0, errno: 0 };
    let listener = state().listener.take();
    let sent = match state().pipe {
        Some(pipe) => write_all(pipe, bytes_of(&status)),
        None => packet_socket::send(LAUNCHER_FD, bytes_of(&status), &[], listener.as_slice()),
    };
    listener.into_iter().for_each(close);
    sent
}

/// Reports that the child is confined, and waits until the launcher has inspected it. From then on the
/// launcher accepts only bytes, through a pipe that is attached to its answer.
pub fn await_inspection() -> SysResult<()> {
    report_ready()?;
    let received = packet_socket::receive(LAUNCHER_FD, &mut [0; 8])?;
    state().pipe = Some(*received.fds[..received.fds_len].first().ok_or(EBADMSG)?);
    Ok(())
}

/// Reports that the child is ready, and waits for its task. Exits if no task will come.
pub fn await_task() -> ChildTask {
    let sent = report_ready();
    if state().awaited {
        // The launcher inspects this child meanwhile; otherwise its program would fault these pages in one by
        // one.
        state().prefault();
    }
    let mut workdir = [0; 4_096];
    let packet = sent.and_then(|()| packet_socket::receive(LAUNCHER_FD, &mut workdir));
    match packet {
        Ok(packet) => match start_task(&packet, &workdir[..packet.bytes]) {
            Ok(task) => task,
            Err((step, errno, detail)) => fail_task(step, errno, detail),
        },
        Err(ESRCH) => exit_now(0),
        Err(errno) => fail_task(SetupStep::Task, errno, &[]),
    }
}

type TaskError = (SetupStep, RawErrno, &'static [u8]);

/// Unpacks the files, then connects the streams. The socket to the launcher is closed last.
fn start_task(packet: &packet_socket::Packet, workdir: &[u8]) -> Result<ChildTask, TaskError> {
    let failed = |step: SetupStep| move |errno: RawErrno| (step, errno, &[][..]);
    let fds = &packet.fds[..packet.fds_len];
    let [payload, streams @ ..] = fds else { return Err((SetupStep::Task, EBADMSG, &[])) };
    let payload = Payload::map(*payload).map_err(failed(SetupStep::Task))?;
    let folder = open_dir(WORKSPACE).map_err(failed(SetupStep::Files))?;
    payload.unpack(WORKSPACE_TARGET, folder).map_err(|file| (SetupStep::Files, file.errno, file.path))?;
    change_dir(workdir).map_err(failed(SetupStep::Workdir))?;
    connect_streams(streams).map_err(failed(SetupStep::Stdio))?;
    fds.iter().chain([&folder]).chain(&state().pipe.take()).for_each(|fd| close(*fd));
    let mut inbox = payload.entries().filter(|entry| entry.target == INBOX_TARGET);
    let arguments = inbox.find(|entry| entry.path == ARGUMENTS).map(|entry| entry.content);
    Ok(ChildTask { text: payload.text, code: code_of(payload), arguments })
}

fn code_of(payload: Payload<'static>) -> Option<&'static [u8]> {
    let source = payload.text.split(|byte| *byte == 0).next()?;
    let path = source.strip_prefix(WORKSPACE)?.strip_prefix(b"/")?;
    let mut files = payload.entries().filter(|entry| entry.target == WORKSPACE_TARGET);
    files.find(|entry| entry.path == path).map(|entry| entry.content)
}

fn open_dir(path: &[u8]) -> SysResult<i32> {
    let name = CPath::new(path)?;
    // SAFETY: the path ends in NUL and lives across the call.
    unsafe { syscall(number::OPENAT, [AT_FDCWD, name.pointer(), O_PATH | O_CLOEXEC, 0, 0, 0]) }
        .map(|fd| fd as i32)
}

fn change_dir(path: &[u8]) -> SysResult<()> {
    let name = CPath::new(path)?;
    // SAFETY: the path ends in NUL and lives across the call.
    unsafe { syscall(number::CHDIR, [name.pointer(), 0, 0, 0, 0, 0]) }.map(drop)
}

/// Puts the standard streams at 0 to 2, and the result pipe at 3 if there is one.
fn connect_streams(streams: &[i32]) -> SysResult<()> {
    for (at, stream) in streams.iter().enumerate() {
        let flags = if at == LAUNCHER_FD as usize { O_CLOEXEC } else { 0 };
        safe_syscall(number::DUP3, &[*stream as usize, at, flags])?;
    }
    if streams.len() <= LAUNCHER_FD as usize {
        close(LAUNCHER_FD);
    }
    Ok(())
}

/// Returns whether a run is already waiting for this child.
pub fn is_awaited() -> bool {
    state().awaited
}

/// Returns the process id of the child in its own pid namespace.
pub fn pid() -> usize {
    state().pid
}

/// Exits, and announces it to the launcher before the process's memory is torn down.
pub fn announce_exit(status: usize) -> ! {
    if safe_syscall(number::GETPID, &[]) == Ok(state().pid) {
        // Returns only if there is no listener.
        let _refused = safe_syscall(number::EXIT_GROUP, &[status & 0xff, EXIT_MAGIC as usize]);
    }
    exit_now(status & 0xff)
}
