//! The guest: PID 1 of a sandbox. One thread, no rights, nothing to hide: a tenant that takes it over has gained
//! nothing that it did not have. Its end is the sandbox's end, and so is the end of its line.

mod archives;
mod channel;
mod descriptor;
mod dispatch;
mod files;
mod ports;
mod process;
mod reaper;
mod score;
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
use crate::line::{CHUNK, outbox, write_out};
use crate::protocol::{Frame, Hello, Kind, MAGIC, Settings, VERSION, decode, encode, read_frame};
use dispatch::Dispatch;
use process::Processes;
use reaper::Reaper;
use score::OomScore;

/// How a guest is told that it is one: its own name, in any folder. Its line is descriptor 3.
pub const NAME: &str = belljar_jail::session::GUEST;
/// Its argument where its line is what it reads and writes, as in a container to which its host is attached. The words after
/// it are the command by which it starts workers of its own, where it cannot start itself under another name.
pub const ON_STDIO: &str = "stdio";
/// Before that, where its network is to have a gate: the sockets go to whoever listens at [`GATE`].
pub const GATED: &str = "gated";
/// Where somebody waits for the sockets of a gate, inside a container.
pub const GATE: &str = "/.belljar/gate";

/// Runs the guest, or one of its workers, if this process was started as one, and then never comes back.
///
/// The first thing in `main`: no thread may exist yet, and nothing may be open.
pub fn run_if_asked() {
    let Some(name) = std::env::args_os().next() else { return };
    let status = match Path::new(&name).file_name().and_then(|name| name.to_str()) {
        Some(NAME) => run(),
        Some(archive::WORKER) => archive::work(),
        _ => return,
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "this is a main of its own, and everything in it has ended"
    )]
    std::process::exit(status.into())
}

/// What every request can reach.
#[derive(Debug)]
struct World {
    settings: Settings,
    processes: Processes,
    reaper: Reaper,
    score: OomScore,
    /// How a worker is started; empty where that is this very program.
    worker: Vec<OsString>,
}

impl World {
    /// This program once more, as a worker.
    fn worker(&self) -> Command {
        let Some((program, words)) = self.worker.split_first() else {
            let mut command = Command::new("/proc/self/exe");
            command.arg0(archive::WORKER);
            return command;
        };
        let mut command = Command::new(program);
        command.args(words);
        command
    }

    /// Starts a child: in the order of out-of-memory kills before this process, and reaped by nobody else.
    fn spawn(&self, command: &mut Command) -> std::io::Result<Spawned> {
        let child = self.score.while_raised(|| command.spawn())?;
        let pid = Pid::from_child(&child);
        Ok(Spawned { child, pid, status: self.reaper.expect(pid) })
    }
}

/// A child, and how it will have ended.
#[derive(Debug)]
struct Spawned {
    child: std::process::Child,
    pid: Pid,
    status: oneshot::Receiver<WaitStatus>,
}

/// Where the host is.
#[derive(Debug)]
enum Line {
    Socket(OwnedFd),
    Stdio,
}

impl Line {
    fn find() -> Option<Self> {
        match std::env::args_os().nth(1) {
            Some(word) if word == ON_STDIO => Some(Self::Stdio),
            Some(word) if word == GATED => match open_gate() {
                Ok(()) => Some(Self::Stdio),
                Err(error) => {
                    // Whoever made the container hears it.
                    let _told = writeln!(std::io::stderr(), "open the gate of its network: {error}");
                    None
                }
            },
            _ => belljar_jail::session::inherited_line().ok().map(Self::Socket),
        }
    }
}

/// Before anything of the tenant's is here. Who listens takes one caller.
fn open_gate() -> std::io::Result<()> {
    Ok(belljar_jail::gate::open(StdUnixStream::connect(GATE)?)?)
}

fn run() -> u8 {
    let Some(line) = Line::find() else { return 1 };
    belljar_jail::session::forget_fault_handlers();
    let score = OomScore::open(belljar_jail::session::inherited_score());
    if let Line::Stdio = line {
        belljar_jail::session::confine();
    }
    // Nothing of this process is readable for the tenant: not its memory, not its descriptors.
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

/// Serves until the line ends; `None` where the host broke the rules, or is not one.
async fn serve(line: Line, score: OomScore) -> Option<()> {
    match line {
        Line::Socket(line) => {
            let line = StdUnixStream::from(line);
            line.set_nonblocking(true).ok()?;
            let (reader, writer) = UnixStream::from_std(line).ok()?.into_split();
            talk(reader, writer, score).await
        }
        // Copies, which no program inherits: each has streams of its own in their place.
        Line::Stdio => {
            let reader = std::io::stdin().as_fd().try_clone_to_owned().ok()?;
            let writer = std::io::stdout().as_fd().try_clone_to_owned().ok()?;
            let reader = pipe::Receiver::from_owned_fd(reader).ok()?;
            let writer = pipe::Sender::from_owned_fd(writer).ok()?;
            talk(reader, writer, score).await
        }
    }
}

async fn talk(
    reader: impl AsyncRead + Unpin,
    writer: impl AsyncWrite + Unpin + 'static,
    score: OomScore,
) -> Option<()> {
    let mut reader = BufReader::with_capacity(CHUNK, reader);
    let settings = greet(&mut reader).await?;
    let (outbox, queue) = outbox();
    let hello = Hello { magic: MAGIC, version: VERSION, settings: settings.clone() };
    outbox.send(Frame { channel: 0, kind: Kind::Hello, body: encode(&hello) });
    tokio::task::spawn_local(write_out(writer, queue));
    let world = Rc::new(World {
        processes: Processes::new(&settings),
        reaper: Reaper::start().ok()?,
        score,
        settings,
        worker: std::env::args_os().skip_while(|word| word != ON_STDIO).skip(1).collect(),
    });
    // A file that grows beyond the limit is an error, and not the end of everybody. What is handled, and not ignored,
    // is as it should be again in programs.
    let _survived = signal(SignalKind::from_raw(Signal::XFSZ.as_raw())).ok()?;
    let dispatch = Dispatch::new(world, outbox);
    while let Some(frame) = read_frame(&mut reader).await.ok()? {
        dispatch.take(frame)?;
    }
    Some(())
}

async fn greet(line: &mut (impl AsyncRead + Unpin)) -> Option<Settings> {
    let frame = read_frame(line).await.ok()??;
    let hello: Hello = (frame.kind == Kind::Hello).then(|| decode(&frame.body))??;
    // A host of another version gets the answer nevertheless: it is the one that can say so to somebody.
    (hello.magic == MAGIC).then_some(hello.settings)
}
