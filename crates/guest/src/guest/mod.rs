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

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;

use rustix::process::{DumpableBehavior, Pid, Signal, WaitStatus};
use tokio::io::BufReader;
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
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
}

impl World {
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

fn run() -> u8 {
    let Ok(line) = belljar_jail::session::inherited_line() else { return 1 };
    belljar_jail::session::forget_fault_handlers();
    let score = OomScore::open(belljar_jail::session::inherited_score());
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
async fn serve(line: OwnedFd, score: OomScore) -> Option<()> {
    let line = StdUnixStream::from(line);
    line.set_nonblocking(true).ok()?;
    let (reader, writer) = UnixStream::from_std(line).ok()?.into_split();
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

async fn greet(line: &mut BufReader<OwnedReadHalf>) -> Option<Settings> {
    let frame = read_frame(line).await.ok()??;
    let hello: Hello = (frame.kind == Kind::Hello).then(|| decode(&frame.body))??;
    // A host of another version gets the answer nevertheless: it is the one that can say so to somebody.
    (hello.magic == MAGIC).then_some(hello.settings)
}
