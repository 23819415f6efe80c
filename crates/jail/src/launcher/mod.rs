//! The launcher: a single-threaded process that starts every jail and is the parent of all of them.
//!
//! When the process that started it exits for any reason, the control socket reaches end of file. The
//! launcher then kills every jail, removes their cgroups and exits. When the launcher itself is killed, the
//! kernel kills every jail.
//!
//! Nothing waits outside the event loop's `poll`, and everything in a turn has a bound that no tenant
//! controls: refused calls (`seccomp_notify`, `notify_budget`), pauses (`pause_queue`), events to the
//! provider (`event_outbox`), the guest binary (`guest_binary`), memory samples (`prefault`). `turns`
//! measures the longest turn. An ending is reported first; processes are reaped and cgroups removed
//! afterwards.

mod attach;
mod cold;
mod event_outbox;
mod guest_binary;
pub(crate) mod ids;
mod limits;
mod memory_pressure;
mod memory_share;
mod oom_score;
mod pause_queue;
mod pending_run;
mod process;
mod reaper;
mod recyclable;
mod run;
mod run_state;
mod runs;
mod sandbox_run;
mod sandboxes;
mod setup;
mod token_bucket;
mod turns;
mod warm;
mod watch;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::wire::{self, LauncherEvent, LauncherRequest};
use event_outbox::EventOutbox;
use runs::{EventSource, Runs};
use turns::{Handler, TurnClock};

/// `argv[0]` of a launcher process, which is how it recognizes itself. It gets no other argument and no
/// environment.
const NAME: &str = "belljar-launcher";
const CONTROL_FD: i32 = 3;

/// Runs the launcher and never returns, if this process was started as one.
///
/// Must be the first call in `main`: no thread may exist yet.
pub fn run_if_asked() {
    if std::env::args_os().next().is_some_and(|name| name == NAME) {
        // SAFETY: `start` placed the control socket at this descriptor, and nothing has touched it since
        // `execve`.
        let control = unsafe { OwnedFd::from_raw_fd(CONTROL_FD) };
        run_launcher(&control);
        crate::sys::exit_now(0);
    }
}

/// A running launcher process.
#[derive(Debug)]
pub struct Launcher {
    /// The non-blocking socket that carries requests to the launcher and events from it.
    pub control: OwnedFd,
    child: Child,
}

impl Launcher {
    /// Starts a launcher by re-executing this binary.
    ///
    /// # Errors
    /// Fails if the control socket cannot be created or the process cannot be spawned.
    pub fn start() -> std::io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        for end in [&ours, &theirs] {
            rustix::net::sockopt::set_socket_send_buffer_size(end, 4 * wire::MAX_PACKET_BYTES)?;
        }
        rustix::io::ioctl_fionbio(&ours, true)?;
        let mut command = Command::new("/proc/self/exe");
        // A process group of its own: Ctrl-C in the terminal is meant for the parent process, not for the
        // launcher.
        command
            .arg0(NAME)
            .process_group(0)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        #[cfg(feature = "faults")]
        command.envs(std::env::var(crate::fault::VARIABLE).ok().map(|fault| (crate::fault::VARIABLE, fault)));
        let number = theirs.as_raw_fd();
        // SAFETY: only async-signal-safe calls run between fork and exec: dup2, or fcntl if the descriptor
        // already has the right number.
        unsafe {
            command.pre_exec(move || {
                let result = if number == CONTROL_FD {
                    libc::fcntl(CONTROL_FD, libc::F_SETFD, 0)
                } else {
                    libc::dup2(number, CONTROL_FD)
                };
                if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
            });
        }
        let child = command.spawn()?;
        Ok(Self { control: ours, child })
    }

    /// Returns the control socket, and the child process to wait for after the socket has been closed.
    pub fn into_parts(self) -> (OwnedFd, Child) {
        (self.control, self.child)
    }
}

fn run_launcher(control: &OwnedFd) {
    crate::sys::reset_signals();
    // When memory runs out, the kernel kills jails first, which have scores of their own. Only root may lower
    // a score.
    let _lowered = std::fs::write("/proc/self/oom_score_adj", "-900");
    // The launcher holds several descriptors per run; programs get their own limit. If this one cannot be
    // raised, fewer runs fit.
    let _raised = crate::sys::set_rlimit(libc::RLIMIT_NOFILE, u64::MAX, u64::MAX);
    match setup::set_up() {
        Ok(context) => {
            let (missing, freezer_obstacle) = (context.missing.clone(), context.groups.freezer_obstacle());
            let mut runs = Runs::new(context);
            if wire::send(control.as_fd(), &LauncherEvent::Ready { missing, freezer_obstacle }, &[]).is_ok() {
                run_event_loop(control, &mut runs);
            }
            runs.kill_all();
        }
        Err(failed) => {
            let _sent = wire::send(control.as_fd(), &LauncherEvent::SetupFailed(failed), &[]);
        }
    }
}

/// Runs the event loop: requests, reports, exits and deadlines; spare jails are set up when it is idle.
///
/// Only `poll` blocks, and no tenant controls how much work a turn of the loop does.
fn run_event_loop(control: &OwnedFd, runs: &mut Runs) {
    let mut buffer = Vec::new();
    let mut outbox = EventOutbox::new(control);
    let mut clock = TurnClock::new();
    loop {
        let idle_work = runs.has_idle_work();
        let wait = if idle_work {
            Some(runs.idle_delay().min(runs.next_deadline().unwrap_or(Duration::MAX)))
        } else {
            runs.next_deadline()
        };
        let watched = runs.watched();
        let ready = poll(&outbox, &watched, wait);
        clock.begin();
        let Ok((request_ready, mut ready)) = ready else { return };
        let quiet = !request_ready && ready.is_empty();
        runs.begin_turn(&mut ready);
        outbox.send();
        if request_ready {
            match wire::receive::<LauncherRequest>(control.as_fd(), &mut buffer) {
                Ok(Some((request, fds))) => handle_request(&mut outbox, &clock, runs, request, fds),
                Ok(None) | Err(Errno::CONNRESET) => return,
                Err(_) => {}
            }
            clock.lap(Handler::Order);
        }
        for event in ready.into_iter().flat_map(|watched| runs.handle(watched)) {
            outbox.push(event);
        }
        clock.lap(Handler::Event);
        if runs.any_to_kill() {
            // The receiver of the answer may be waiting for this processor.
            rustix::thread::sched_yield();
            runs.kill_answered();
            clock.lap(Handler::Ending);
        }
        let now = Instant::now();
        runs.update_memory_shares(now);
        for event in runs.handle_deadlines(now).into_iter().chain(runs.proceed_pausing(now)) {
            outbox.push(event);
        }
        clock.lap(Handler::Deadline);
        if idle_work && quiet {
            for event in runs.do_idle_work() {
                outbox.push(event);
            }
            clock.lap(Handler::Idle);
        }
        runs.sweep();
        clock.lap(Handler::Sweep);
        clock.end();
    }
}

fn handle_request(
    outbox: &mut EventOutbox<'_>,
    clock: &TurnClock,
    runs: &mut Runs,
    request: LauncherRequest,
    fds: Vec<OwnedFd>,
) {
    match request {
        LauncherRequest::Configure(settings) => runs.apply_settings(settings),
        LauncherRequest::RegisterRoot { number, tree } => runs.add_root(number, tree),
        LauncherRequest::Pools { run } => {
            outbox.push(LauncherEvent::Pools { run, pools: runs.pools(), turns: clock.longest() });
        }
        LauncherRequest::Start { run, jail } => {
            for event in runs.start(run, jail, fds) {
                outbox.push(event);
            }
        }
        LauncherRequest::AskJail { run, jail, request } => {
            if let Some(response) = runs.answer(run, jail, request) {
                outbox.push(LauncherEvent::JailAnswered { run, response });
            }
        }
        LauncherRequest::Kill { run } => {
            if let Some(event) = runs.kill(run) {
                outbox.push(event);
            }
        }
    }
}

/// Waits for events. Returns whether the control socket is ready, and which of the other sources are.
fn poll(
    outbox: &EventOutbox<'_>,
    watched: &[(BorrowedFd<'_>, EventSource)],
    wait: Option<Duration>,
) -> Result<(bool, Vec<EventSource>), Errno> {
    let out = if outbox.has_pending() { PollFlags::OUT } else { PollFlags::empty() };
    let mut polled = vec![PollFd::from_borrowed_fd(outbox.control(), PollFlags::IN | out)];
    polled.extend(watched.iter().map(|(fd, _)| PollFd::from_borrowed_fd(*fd, PollFlags::IN)));
    let timeout = wait.map(|wait| rustix::time::Timespec {
        tv_sec: wait.as_secs() as i64,
        tv_nsec: wait.subsec_nanos().into(),
    });
    match rustix::event::poll(&mut polled, timeout.as_ref()) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok((false, Vec::new())),
        Err(errno) => return Err(errno),
    }
    let ready = polled[1..].iter().zip(watched).filter(|(fd, _)| !fd.revents().is_empty());
    let request_ready = !polled[0].revents().difference(PollFlags::OUT).is_empty();
    Ok((request_ready, ready.map(|(_, (_, watched))| *watched).collect()))
}
