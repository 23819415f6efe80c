//! Starts processes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use rustix::process::{Signal, WaitStatus};
use tokio::sync::{Mutex, Notify, oneshot};
use tokio::task::spawn_local;

use super::collect::{OutputSource, read_output};
use super::input::Input;
use super::ring::{OUTPUT_CHUNK_BYTES, OutputRing};
use super::{GuestProcess, viewer};
use crate::guest::channel::ChannelSender;
use crate::guest::descriptor::Descriptor;
use crate::guest::files::WorkDir;
use crate::guest::{GuestContext, SpawnedChild, terminal};
use crate::output_pipe::OutputPipe;
use crate::protocol::{
    AttachOptions, CommandEnding, CommandLine, Failure, FailureKind, GuestReply, StartCommand, StdinMode,
    Stream,
};

/// Minimum size of the output ring: it must hold two chunks.
const MIN_KEEP_BYTES: u32 = 2 * OUTPUT_CHUNK_BYTES as u32 + (2 << 10);
/// Maximum length of a command line in lists, in bytes.
const MAX_COMMAND_DISPLAY_BYTES: usize = 200;

/// Our ends of a process's stdio.
struct StdioEnds {
    terminal: Option<Rc<Descriptor>>,
    input: Option<Input>,
    outputs: Vec<(Stream, OutputSource)>,
}

/// Starts a process, and attaches to it if requested.
pub(in crate::guest) async fn start(
    world: &Rc<GuestContext>,
    start: StartCommand,
    attach: Option<AttachOptions>,
    sender: &ChannelSender,
) -> Result<GuestReply, Failure> {
    let process = spawn(world, &start)?;
    let started = GuestReply::Started(process.id);
    let Some(attach) = attach else { return Ok(started) };
    sender.answer(&started);
    viewer::view(&process, attach, sender).await
}

fn spawn(world: &GuestContext, start: &StartCommand) -> Result<Rc<GuestProcess>, Failure> {
    let kept_bytes = u64::from(start.keep_bytes);
    if start.keep_bytes < MIN_KEEP_BYTES || kept_bytes > world.settings.kept_bytes {
        let range = format!("must be from {MIN_KEEP_BYTES} to {} bytes", world.settings.kept_bytes);
        return Err(Failure::new(FailureKind::Invalid, "keep_bytes", range));
    }
    world.processes.make_room(kept_bytes)?;
    let (mut command, name) = command(world, start)?;
    let of_io = |error: std::io::Error| Failure::from_io(&error, name.as_str());
    let terminal = connect(&mut command, start).map_err(of_io)?;
    let SpawnedChild { mut child, pid, status } = world.spawn(&mut command).map_err(of_io)?;
    // The command holds copies of the program's ends, which would keep its output from ending.
    drop(command);
    let ends = ends(terminal, &mut child).map_err(|error| {
        let _gone = rustix::process::kill_process_group(pid, Signal::KILL);
        of_io(error)
    })?;
    let process = Rc::new(GuestProcess {
        id: world.processes.next_id(),
        pid,
        command: display_command(&start.command),
        terminal: ends.terminal,
        input: Mutex::new(ends.input),
        ring: RefCell::new(OutputRing::new(start.keep_bytes as usize)),
        unread_streams: Cell::new(ends.outputs.len()),
        held_streams: Cell::new(0),
        ending: Cell::new(None),
        is_end_shown: Cell::new(false),
        changed: Notify::new(),
        viewers: Cell::new(0),
        viewer_offsets: RefCell::new(BTreeMap::new()),
        tasks: RefCell::default(),
    });
    let timeout = start.timeout_ms.map(Duration::from_millis);
    spawn_local(await_end(Rc::clone(&process), status, timeout));
    for (stream, source) in ends.outputs {
        let task = spawn_local(read_output(Rc::clone(&process), source, stream));
        process.tasks.borrow_mut().push(task.abort_handle());
    }
    world.processes.add(Rc::clone(&process));
    Ok(process)
}

/// Connects a command to pipes or to a new terminal. Returns our end of the terminal.
fn connect(command: &mut Command, start: &StartCommand) -> std::io::Result<Option<OwnedFd>> {
    let Some(size) = start.terminal else {
        let stdin = if start.stdin == StdinMode::Open { Stdio::piped() } else { Stdio::null() };
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        return Ok(None);
    };
    let (ours, theirs) = terminal::open(size)?;
    command.stdin(theirs.try_clone()?).stdout(theirs.try_clone()?).stderr(theirs);
    Ok(Some(ours))
}

/// Returns the command and its name for errors.
fn command(world: &GuestContext, start: &StartCommand) -> Result<(Command, String), Failure> {
    let (name, arguments): (&str, Vec<&str>) = match &start.command {
        CommandLine::Shell(line) => ("/bin/sh", vec!["-c", line]),
        CommandLine::Program(argv) => match argv.split_first() {
            Some((name, rest)) if !name.is_empty() => (name, rest.iter().map(String::as_str).collect()),
            _ => return Err(Failure::new(FailureKind::Invalid, "command", "empty command")),
        },
    };
    let invalid = start.env.iter().find(|(name, _)| name.is_empty() || name.contains('='));
    if let Some((name, _)) = invalid {
        return Err(Failure::new(FailureKind::Invalid, format!("env {name}"), "invalid variable name"));
    }
    let base = WorkDir::new(&world.settings.workdir);
    let workdir = base.resolve(start.workdir.clone().unwrap_or_default())?;
    // Otherwise a missing folder would be reported as a missing program.
    if !workdir.path().is_dir() {
        let kind = if workdir.path().exists() { FailureKind::NotADirectory } else { FailureKind::NotFound };
        return Err(Failure::new(kind, workdir.given(), "no such work folder"));
    }
    let mut command = Command::new(OsStr::new(name));
    command.args(arguments).env_clear().envs(start.env.iter().map(|(name, value)| (name, value)));
    command.current_dir(workdir.path());
    belljar_jail::guest_support::start_in_own_session(&mut command, start.terminal.is_some());
    Ok((command, name.to_owned()))
}

fn ends(terminal: Option<OwnedFd>, child: &mut std::process::Child) -> std::io::Result<StdioEnds> {
    if let Some(terminal) = terminal {
        let terminal = Rc::new(Descriptor::new(terminal)?);
        return Ok(StdioEnds {
            input: Some(Input::Terminal(Rc::clone(&terminal))),
            outputs: vec![(Stream::Stdout, OutputSource::Terminal(Rc::clone(&terminal)))],
            terminal: Some(terminal),
        });
    }
    let input = child.stdin.take().map(|stdin| Descriptor::new(stdin.into())).transpose()?;
    let mut outputs = Vec::new();
    for (stream, end) in [
        (Stream::Stdout, child.stdout.take().map(OwnedFd::from)),
        (Stream::Stderr, child.stderr.take().map(OwnedFd::from)),
    ] {
        if let Some(end) = end {
            outputs.push((stream, OutputSource::Pipe(OutputPipe::new(end)?)));
        }
    }
    Ok(StdioEnds { terminal: None, input: input.map(Input::Pipe), outputs })
}

async fn await_end(
    process: Rc<GuestProcess>,
    mut status: oneshot::Receiver<WaitStatus>,
    timeout: Option<Duration>,
) {
    let mut timed_out = false;
    let first = match timeout {
        Some(timeout) => tokio::time::timeout(timeout, &mut status).await.ok(),
        None => Some((&mut status).await),
    };
    let status = match first {
        Some(status) => status,
        None => {
            timed_out = process.signal(Signal::KILL).is_ok();
            status.await
        }
    };
    // The reaper lives as long as this process, so a status always arrives.
    process.set_ending(
        status.map_or(CommandEnding::Signalled(Signal::KILL.as_raw()), |status| ending(status, timed_out)),
    );
}

fn ending(status: WaitStatus, timed_out: bool) -> CommandEnding {
    match status.terminating_signal() {
        Some(signal) if timed_out && signal == Signal::KILL.as_raw() => CommandEnding::TimedOut,
        Some(signal) => CommandEnding::Signalled(signal),
        None => CommandEnding::Exited(status.exit_status().unwrap_or_default().to_le_bytes()[0]),
    }
}

fn display_command(command: &CommandLine) -> String {
    let mut text = match command {
        CommandLine::Program(argv) => argv.join(" "),
        CommandLine::Shell(line) => line.clone(),
    };
    text.truncate(text.floor_char_boundary(MAX_COMMAND_DISPLAY_BYTES));
    text
}
