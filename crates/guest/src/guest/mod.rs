//! The guest: PID 1 of a sandbox. It has one thread, no privileges and no secrets, so a tenant that takes it
//! over gains nothing. No process inside can kill it, because it is PID 1. When it or its connection ends,
//! the sandbox ends.
//!
//! It is this binary, executed as `belljar-guest` with a stream socket as descriptor 3. A launcher executes
//! it from a sealed memory file that can be executed but not read, so it is not dumpable from its first
//! instruction on, and its files in `/proc` are closed to others. In a container, which no launcher confines,
//! it confines itself before it sends its greeting.
//!
//! Its filter and its Landlock rules are those of its programs, which inherit them; it needs nothing else.

mod archives;
mod channel;
mod descriptor;
mod dispatch;
mod files;
mod oom_score;
mod ports;
mod process;
mod reaper;
mod terminal;
mod watches;

use std::ffi::OsString;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;

use rustix::process::{DumpableBehavior, Pid, Signal, WaitStatus};
use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::LocalSet;

use crate::archive;
use crate::flow_control::{CHUNK_BYTES, frame_queue, write_frames};
use crate::protocol::{
    FrameKind, GuestFrame, GuestSettings, Hello, MAGIC, VERSION, decode, encode, read_frame,
};
use dispatch::Dispatch;
use oom_score::OomScore;
use process::Processes;
use reaper::ChildReaper;

/// The guest's program name: a process started under it, in any folder, is a guest. Its connection is
/// descriptor 3.
pub const GUEST_NAME: &str = belljar_jail::guest_support::GUEST_NAME;
/// Argument of a guest whose connection is its stdin and stdout, as in a container that the host attaches to.
/// The words that follow are the command that starts its workers, if it cannot execute itself under another
/// name.
pub const STDIO_ARGUMENT: &str = "stdio";
/// Argument before [`STDIO_ARGUMENT`] if the sandbox's network has an egress gate: the sockets are sent to
/// the listener at [`GATE_SOCKET`].
pub const GATED_ARGUMENT: &str = "gated";
/// The Unix socket in a container to which the sockets of the egress gate are sent.
pub const GATE_SOCKET: &str = "/.belljar/gate";

/// Runs the guest or one of its workers if this process was started as one. In that case it never returns.
///
/// Must be called first in `main`, before any thread is started or any file is opened.
pub fn run_if_asked() {
    let Some(name) = std::env::args_os().next() else { return };
    let status = match Path::new(&name).file_name().and_then(|name| name.to_str()) {
        Some(GUEST_NAME) => run_guest(),
        Some(archive::ARCHIVE_WORKER_NAME) => archive::run_worker(),
        _ => return,
    };
    #[expect(clippy::disallowed_methods, reason = "this is a separate main, and all its tasks have ended")]
    std::process::exit(status.into())
}

/// The state that every request can access.
#[derive(Debug)]
struct GuestContext {
    settings: GuestSettings,
    processes: Processes,
    reaper: ChildReaper,
    score: OomScore,
    /// The command that starts a worker; empty to execute this program again.
    worker: Vec<OsString>,
}

impl GuestContext {
    /// Returns the command that starts a worker.
    fn worker(&self) -> Command {
        let Some((program, words)) = self.worker.split_first() else {
            let mut command = Command::new("/proc/self/exe");
            command.arg0(archive::ARCHIVE_WORKER_NAME);
            return command;
        };
        let mut command = Command::new(program);
        command.args(words);
        command
    }

    /// Starts a child. Its OOM score makes the kernel kill it before this process, and only the reaper waits
    /// for it.
    fn spawn(&self, command: &mut Command) -> std::io::Result<SpawnedChild> {
        let child = self.score.with_raised_score(|| command.spawn())?;
        let pid = Pid::from_child(&child);
        Ok(SpawnedChild { child, pid, status: self.reaper.expect(pid) })
    }
}

/// A child, and its future exit status.
#[derive(Debug)]
struct SpawnedChild {
    child: std::process::Child,
    pid: Pid,
    status: oneshot::Receiver<WaitStatus>,
}

/// The connection to the host.
#[derive(Debug)]
enum HostConnection {
    Socket(OwnedFd),
    Stdio,
}

impl HostConnection {
    fn find() -> Option<Self> {
        match std::env::args_os().nth(1) {
            Some(argument) if argument == STDIO_ARGUMENT => Some(Self::Stdio),
            Some(argument) if argument == GATED_ARGUMENT => match open_gate() {
                Ok(()) => Some(Self::Stdio),
                Err(error) => {
                    // The creator of the container reads stderr.
                    let _written = writeln!(std::io::stderr(), "open the egress gate: {error}");
                    None
                }
            },
            _ => belljar_jail::guest_support::inherited_socket().ok().map(Self::Socket),
        }
    }
}

/// Sends the gate's sockets to their listener, which accepts one connection. Runs before any tenant code.
fn open_gate() -> std::io::Result<()> {
    Ok(belljar_jail::proxy_sockets::create_and_send(StdUnixStream::connect(GATE_SOCKET)?)?)
}

fn run_guest() -> u8 {
    let Some(line) = HostConnection::find() else { return 1 };
    belljar_jail::guest_support::reset_fault_handlers();
    let score = OomScore::open(belljar_jail::guest_support::inherited_oom_score());
    if let HostConnection::Stdio = line {
        belljar_jail::guest_support::confine_self();
    }
    // Makes this process's memory and descriptors unreadable for the tenant.
    let _kept = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    if rustix::process::getpid() != Pid::INIT {
        let _adopting = rustix::process::set_child_subreaper(Some(Pid::INIT));
    }
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return 1 };
    match LocalSet::new().block_on(&runtime, serve(line, score)) {
        Some(()) => 0,
        None => 1,
    }
}

/// Serves until the connection ends; returns `None` if the host violates the protocol.
async fn serve(line: HostConnection, score: OomScore) -> Option<()> {
    match line {
        HostConnection::Socket(line) => {
            let line = StdUnixStream::from(line);
            line.set_nonblocking(true).ok()?;
            let (reader, writer) = UnixStream::from_std(line).ok()?.into_split();
            serve_streams(reader, writer, score).await
        }
        // Close-on-exec copies, so that programs do not inherit them. Each program has its own stdio.
        HostConnection::Stdio => {
            let reader = std::io::stdin().as_fd().try_clone_to_owned().ok()?;
            let writer = std::io::stdout().as_fd().try_clone_to_owned().ok()?;
            let reader = pipe::Receiver::from_owned_fd(reader).ok()?;
            let writer = pipe::Sender::from_owned_fd(writer).ok()?;
            serve_streams(reader, writer, score).await
        }
    }
}

async fn serve_streams(
    reader: impl AsyncRead + Unpin,
    writer: impl AsyncWrite + Unpin + 'static,
    score: OomScore,
) -> Option<()> {
    let mut reader = BufReader::with_capacity(CHUNK_BYTES, reader);
    let settings = greet(&mut reader).await?;
    let (outbox, queue) = frame_queue();
    let hello = Hello { magic: MAGIC, version: VERSION, settings: settings.clone() };
    outbox.send(GuestFrame { channel: 0, kind: FrameKind::Hello, body: encode(&hello) });
    tokio::task::spawn_local(write_frames(writer, queue));
    let world = Rc::new(GuestContext {
        processes: Processes::new(&settings),
        reaper: ChildReaper::start().ok()?,
        score,
        settings,
        worker: std::env::args_os().skip_while(|argument| argument != STDIO_ARGUMENT).skip(1).collect(),
    });
    // A write beyond the file size limit should return an error, not kill the guest. The signal is handled,
    // not ignored, because a handled signal is reset to its default in programs.
    let _survived = signal(SignalKind::from_raw(Signal::XFSZ.as_raw())).ok()?;
    let dispatch = Dispatch::new(world, outbox);
    while let Some(frame) = read_frame(&mut reader).await.ok()? {
        dispatch.handle_frame(frame)?;
    }
    Some(())
}

async fn greet(line: &mut (impl AsyncRead + Unpin)) -> Option<GuestSettings> {
    let frame = read_frame(line).await.ok()??;
    let hello: Hello = (frame.kind == FrameKind::Hello).then(|| decode(&frame.body))??;
    // A host with another version still gets a hello: it is the side that can report the mismatch.
    (hello.magic == MAGIC).then_some(hello.settings)
}
