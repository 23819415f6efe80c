//! The connection to the launcher: sends requests and delivers each event to the run that waits for it.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_engine::provider::{LongestTurns, MissingLayer, PoolMetrics, ProviderError};
use belljar_jail::spec::{self, Jail, JailRequest, JailResponse};
use belljar_jail::wire::{self, LauncherEvent, LauncherRequest};
use belljar_jail::{Step, StepFailed};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{oneshot, watch};

use super::mismatches::Mismatches;
use super::roots::NumberedRoot;

#[derive(Debug)]
struct LauncherSocket {
    /// Used for readiness; packets with descriptors are sent over it directly.
    control: UnixStream,
    /// Event receivers by run. `None` once the launcher is gone.
    receivers: Mutex<Option<HashMap<u64, oneshot::Sender<LauncherEvent>>>>,
    /// Whether every event sent before the launcher exited has been read.
    disconnected: watch::Sender<bool>,
    next: AtomicU64,
    /// Roots that were sent to the launcher.
    sent_roots: Mutex<HashSet<u64>>,
}

/// A connection to a launcher that has reported ready.
#[derive(Debug, Clone)]
pub(super) struct LauncherConnection(Arc<LauncherSocket>);

/// The launcher's report about its host.
#[derive(Debug)]
pub(super) struct HostSupport {
    /// Layers that this host cannot provide.
    pub(super) missing: Vec<MissingLayer>,
    /// Why sandboxes cannot be paused, if they cannot.
    pub(super) no_freezer: Option<String>,
}

/// A run that was requested. Dropping it early kills the run.
#[derive(Debug)]
pub(super) struct SubmittedRun {
    connection: LauncherConnection,
    run: u64,
    pub(super) notice: oneshot::Receiver<LauncherEvent>,
    finished: bool,
}

impl LauncherConnection {
    pub(super) async fn open(
        control: OwnedFd,
        mismatches: Arc<Mismatches>,
    ) -> Result<(Self, HostSupport), ProviderError> {
        let broken = |message: String| ProviderError::setup("start the launcher", message);
        let control = UnixStream::from_std(control.into()).map_err(|error| broken(error.to_string()))?;
        let socket = LauncherSocket {
            control,
            receivers: Mutex::new(Some(HashMap::new())),
            disconnected: watch::Sender::new(false),
            next: AtomicU64::new(1),
            sent_roots: Mutex::default(),
        };
        let mut buffer = Vec::new();
        let host = match socket.receive(&mut buffer).await {
            Ok(Some(LauncherEvent::Ready { missing, freezer_obstacle: no_freezer })) => {
                HostSupport { missing, no_freezer }
            }
            Ok(Some(LauncherEvent::SetupFailed(failed))) => {
                return Err(step_failure(&failed));
            }
            Ok(_) => return Err(broken("it exited at once".to_owned())),
            Err(errno) => return Err(broken(errno.to_string())),
        };
        let connection = Self(Arc::new(socket));
        tokio::spawn(deliver_events(Arc::clone(&connection.0), mismatches, buffer));
        Ok((connection, host))
    }

    /// Requests a run.
    pub(super) async fn start(
        &self,
        root: &NumberedRoot,
        jail: Jail,
        fds: &[BorrowedFd<'_>],
    ) -> Result<SubmittedRun, ProviderError> {
        self.send_root(root).await?;
        let (run, notice) = self.0.register_run().ok_or_else(launcher_lost)?;
        let pending = SubmittedRun { connection: self.clone(), run, notice, finished: false };
        let request = LauncherRequest::Start { run, jail: Box::new(jail) };
        match self.0.send(&request, fds).await {
            Ok(()) => Ok(pending),
            Err(Errno::TOOBIG) => Err(ProviderError::Invalid {
                field: "command",
                message: "command, environment and mounts together are too long".to_owned(),
            }),
            Err(_) => Err(launcher_lost()),
        }
    }

    /// Sends a root to the launcher, unless it already has it.
    async fn send_root(&self, root: &NumberedRoot) -> Result<(), ProviderError> {
        if self.0.lock_sent_roots().contains(&root.number) {
            return Ok(());
        }
        let request = LauncherRequest::RegisterRoot { number: root.number, tree: root.tree.clone() };
        match self.0.send(&request, &[]).await {
            Ok(()) => {
                self.0.lock_sent_roots().insert(root.number);
                Ok(())
            }
            Err(Errno::TOOBIG) => Err(ProviderError::Invalid {
                field: "image",
                message: "too many top-level entries".to_owned(),
            }),
            Err(_) => Err(launcher_lost()),
        }
    }

    /// Configures warm pools and shared memory.
    pub(super) async fn configure(&self, settings: spec::LauncherSettings) -> Result<(), ProviderError> {
        self.0.send(&LauncherRequest::Configure(settings), &[]).await.map_err(|_| launcher_lost())
    }

    /// Returns the state of the warm pools and the longest turns of the launcher's loop, both empty if the
    /// launcher is gone.
    pub(super) async fn pools(&self) -> (Vec<PoolMetrics>, Vec<LongestTurns>) {
        let Some((run, notice)) = self.0.register_run() else { return Default::default() };
        let mut query = SubmittedRun { connection: self.clone(), run, notice, finished: true };
        if self.0.send(&LauncherRequest::Pools { run }, &[]).await.is_err() {
            return Default::default();
        }
        match (&mut query.notice).await {
            Ok(LauncherEvent::Pools { pools, turns, .. }) => (pools, turns),
            _ => Default::default(),
        }
    }

    /// Sends a query about a sandbox's jail.
    pub(super) async fn query(&self, of: u64, what: JailRequest) -> JailResponse {
        let Some((run, notice)) = self.0.register_run() else { return JailResponse::Gone };
        let mut query = SubmittedRun { connection: self.clone(), run, notice, finished: true };
        if self.0.send(&LauncherRequest::AskJail { run, jail: of, request: what }, &[]).await.is_err() {
            return JailResponse::Gone;
        }
        match (&mut query.notice).await {
            Ok(LauncherEvent::JailAnswered { response: answer, .. }) => answer,
            _ => JailResponse::Gone,
        }
    }

    /// Kills a run.
    pub(super) fn kill(&self, run: u64) {
        // Not retried if the socket is full: it holds hundreds of requests, and the deadline applies anyway.
        let _sent = wire::send(self.0.control.as_fd(), &LauncherRequest::Kill { run }, &[]);
    }

    /// Returns whether the launcher is gone.
    pub(super) fn is_lost(&self) -> bool {
        self.0.lock_receivers().is_none()
    }

    /// Disconnects. The launcher then ends all runs and exits.
    pub(super) fn close(&self) {
        // Fails if the launcher is gone already.
        let _closed = rustix::net::shutdown(&self.0.control, rustix::net::Shutdown::Both);
    }
}

pub(super) fn launcher_lost() -> ProviderError {
    ProviderError::lost("the launcher was killed; run it again")
}

/// Returns the error for a set-up step that failed in the launcher.
pub(super) fn step_failure(failure: &StepFailed) -> ProviderError {
    let hint = match failure.step {
        Step::Owners => "; its file system does not support that, use a folder on another one",
        _ if failure.errno == Errno::PERM.raw_os_error() => "; run 'belljar doctor' for remedies",
        _ => "",
    };
    ProviderError::setup(failure.subject(), format!("{}{hint}", failure.cause()))
}

impl SubmittedRun {
    pub(super) fn kill(&self) {
        self.connection.kill(self.run);
    }

    /// Returns the run's number.
    pub(super) fn number(&self) -> u64 {
        self.run
    }

    /// Marks the run as finished, so that dropping this does not kill it.
    pub(super) fn mark_finished(&mut self) {
        self.finished = true;
    }
}

impl Drop for SubmittedRun {
    fn drop(&mut self) {
        if !self.finished {
            self.kill();
        }
        if let Some(waiting) = self.connection.0.lock_receivers().as_mut() {
            waiting.remove(&self.run);
        }
    }
}

impl LauncherSocket {
    fn lock_receivers(&self) -> MutexGuard<'_, Option<HashMap<u64, oneshot::Sender<LauncherEvent>>>> {
        // Each statement leaves the map consistent, so a panic elsewhere does not corrupt it.
        self.receivers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_sent_roots(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.sent_roots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates a run number and a receiver for its event. Returns `None` if the launcher is gone.
    fn register_run(&self) -> Option<(u64, oneshot::Receiver<LauncherEvent>)> {
        let run = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, notice) = oneshot::channel();
        self.lock_receivers().as_mut()?.insert(run, sender);
        Some((run, notice))
    }

    async fn send(&self, request: &LauncherRequest, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        loop {
            self.control.writable().await.map_err(|_| Errno::IO)?;
            let sent = self
                .control
                .try_io(Interest::WRITABLE, || Ok(wire::send(self.control.as_fd(), request, fds)?));
            match sent.map_err(|error| errno(&error)) {
                Err(Errno::AGAIN) => {}
                Err(gone @ (Errno::PIPE | Errno::CONNRESET)) => {
                    // Wait until the listener has seen the disconnect, or an immediate retry would use the
                    // same connection.
                    let mut over = self.disconnected.subscribe();
                    // `self` holds the sender, so this cannot fail.
                    drop(over.wait_for(|over| *over).await);
                    return Err(gone);
                }
                done => return done,
            }
        }
    }

    async fn receive(&self, buffer: &mut Vec<u8>) -> Result<Option<LauncherEvent>, Errno> {
        loop {
            self.control.readable().await.map_err(|_| Errno::IO)?;
            let received = self.control.try_io(Interest::READABLE, || {
                Ok(wire::receive::<LauncherEvent>(self.control.as_fd(), buffer)?)
            });
            match received.map_err(|error| errno(&error)) {
                Err(Errno::AGAIN) => {}
                done => return done.map(|message| message.map(|(notice, _)| notice)),
            }
        }
    }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::AGAIN)
}

/// Delivers events until the launcher is gone, and then drops all waiting receivers.
async fn deliver_events(socket: Arc<LauncherSocket>, mismatches: Arc<Mismatches>, mut buffer: Vec<u8>) {
    while let Ok(Some(notice)) = socket.receive(&mut buffer).await {
        if let LauncherEvent::Mismatch(mismatch) = notice {
            mismatches.push(mismatch);
            continue;
        }
        let (LauncherEvent::Ended { run, .. }
        | LauncherEvent::Failed { run, .. }
        | LauncherEvent::Pools { run, .. }
        | LauncherEvent::JailAnswered { run, .. }) = notice
        else {
            continue;
        };
        let waiting = socket.lock_receivers().as_mut().and_then(|waiting| waiting.remove(&run));
        if let Some(sender) = waiting {
            // Fails if the run was dropped, which also killed it.
            let _told = sender.send(notice);
        }
    }
    *socket.lock_receivers() = None;
    socket.disconnected.send_replace(true);
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;

    /// A failed send implies that the launcher is known to be gone, even if the listener has not read the end
    /// of stream yet.
    #[tokio::test]
    async fn a_failed_send_marks_the_launcher_as_gone() {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        wire::send(
            theirs.as_fd(),
            &LauncherEvent::Ready { missing: Vec::new(), freezer_obstacle: None },
            &[],
        )
        .unwrap();
        let (connection, _) = LauncherConnection::open(ours, Arc::default()).await.unwrap();
        drop(theirs);
        assert!(matches!(connection.query(1, JailRequest::Stats).await, JailResponse::Gone));
        assert!(connection.is_lost());
    }
}
