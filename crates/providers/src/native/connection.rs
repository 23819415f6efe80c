//! The connection to the launcher: sends requests and delivers each event to the run that waits for it.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_engine::provider::ProviderError;
use belljar_jail::spec::{self, Answer, Ask, Jail, MissingLayer, PoolState, Turns};
use belljar_jail::wire::{self, Notice, Order};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{oneshot, watch};

use super::image::NumberedRoot;
use super::mismatches::Mismatches;
use super::run::failure_of;

#[derive(Debug)]
struct Line {
    /// Used for readiness; packets with descriptors are sent over it directly.
    control: UnixStream,
    /// Event receivers by run. `None` once the launcher is gone.
    waiting: Mutex<Option<HashMap<u64, oneshot::Sender<Notice>>>>,
    /// Whether every event sent before the launcher exited has been read.
    over: watch::Sender<bool>,
    next: AtomicU64,
    /// Roots that were sent to the launcher.
    told: Mutex<HashSet<u64>>,
}

/// A connection to a launcher that has reported ready.
#[derive(Debug, Clone)]
pub(super) struct Connection(Arc<Line>);

/// The launcher's report about its host.
#[derive(Debug)]
pub(super) struct Host {
    /// Layers that this host cannot provide.
    pub(super) missing: Vec<MissingLayer>,
    /// Why sandboxes cannot be paused, if they cannot.
    pub(super) no_freezer: Option<String>,
}

/// A run that was requested. Dropping it early kills the run.
#[derive(Debug)]
pub(super) struct Ordered {
    line: Connection,
    run: u64,
    pub(super) notice: oneshot::Receiver<Notice>,
    over: bool,
}

impl Connection {
    pub(super) async fn open(
        control: OwnedFd,
        mismatches: Arc<Mismatches>,
    ) -> Result<(Self, Host), ProviderError> {
        let broken =
            |message: String| ProviderError::Setup { step: "start the launcher".to_owned(), cause: message };
        let control = UnixStream::from_std(control.into()).map_err(|error| broken(error.to_string()))?;
        let line = Line {
            control,
            waiting: Mutex::new(Some(HashMap::new())),
            over: watch::Sender::new(false),
            next: AtomicU64::new(1),
            told: Mutex::default(),
        };
        let mut buffer = Vec::new();
        let host = match line.receive(&mut buffer).await {
            Ok(Some(Notice::Ready { missing, no_freezer })) => Host { missing, no_freezer },
            Ok(Some(Notice::Broken(failed))) => {
                return Err(failure_of(&failed));
            }
            Ok(_) => return Err(broken("it exited at once".to_owned())),
            Err(errno) => return Err(broken(errno.to_string())),
        };
        let connection = Self(Arc::new(line));
        tokio::spawn(listen(Arc::clone(&connection.0), mismatches, buffer));
        Ok((connection, host))
    }

    /// Requests a run.
    pub(super) async fn start(
        &self,
        root: &NumberedRoot,
        jail: Jail,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Ordered, ProviderError> {
        self.tell_of(root).await?;
        let (run, notice) = self.0.expect().ok_or_else(lost)?;
        let ordered = Ordered { line: self.clone(), run, notice, over: false };
        let order = Order::Start { run, jail: Box::new(jail) };
        match self.0.send(&order, fds).await {
            Ok(()) => Ok(ordered),
            Err(Errno::TOOBIG) => Err(ProviderError::Invalid {
                field: "command",
                message: "command, environment and mounts together are too long".to_owned(),
            }),
            Err(_) => Err(lost()),
        }
    }

    /// Sends a root to the launcher, unless it already has it.
    async fn tell_of(&self, root: &NumberedRoot) -> Result<(), ProviderError> {
        if self.0.told().contains(&root.number) {
            return Ok(());
        }
        let order = Order::Root { number: root.number, tree: root.tree.clone() };
        match self.0.send(&order, &[]).await {
            Ok(()) => {
                self.0.told().insert(root.number);
                Ok(())
            }
            Err(Errno::TOOBIG) => Err(ProviderError::Invalid {
                field: "image",
                message: "too many top-level entries".to_owned(),
            }),
            Err(_) => Err(lost()),
        }
    }

    /// Configures warm pools and shared memory.
    pub(super) async fn configure(&self, settings: spec::Settings) -> Result<(), ProviderError> {
        self.0.send(&Order::Keep(settings), &[]).await.map_err(|_| lost())
    }

    /// Returns the state of the warm pools and the longest turns of the launcher's loop, both empty if the
    /// launcher is gone.
    pub(super) async fn pools(&self) -> (Vec<PoolState>, Vec<Turns>) {
        let Some((run, notice)) = self.0.expect() else { return Default::default() };
        let mut asked = Ordered { line: self.clone(), run, notice, over: true };
        if self.0.send(&Order::Pools { run }, &[]).await.is_err() {
            return Default::default();
        }
        match (&mut asked.notice).await {
            Ok(Notice::Pools { pools, turns, .. }) => (pools, turns),
            _ => Default::default(),
        }
    }

    /// Sends a query about a sandbox's jail.
    pub(super) async fn ask(&self, of: u64, what: Ask) -> Answer {
        let Some((run, notice)) = self.0.expect() else { return Answer::Gone };
        let mut asked = Ordered { line: self.clone(), run, notice, over: true };
        if self.0.send(&Order::Ask { run, of, what }, &[]).await.is_err() {
            return Answer::Gone;
        }
        match (&mut asked.notice).await {
            Ok(Notice::Answered { answer, .. }) => answer,
            _ => Answer::Gone,
        }
    }

    /// Kills a run.
    pub(super) fn kill(&self, run: u64) {
        // Not retried if the socket is full: it holds hundreds of requests, and the deadline applies anyway.
        let _sent = wire::send(self.0.control.as_fd(), &Order::Kill { run }, &[]);
    }

    /// Returns whether the launcher is gone.
    pub(super) fn is_lost(&self) -> bool {
        self.0.waiting().is_none()
    }

    /// Disconnects. The launcher then ends all runs and exits.
    pub(super) fn close(&self) {
        // Fails if the launcher is gone already.
        let _closed = rustix::net::shutdown(&self.0.control, rustix::net::Shutdown::Both);
    }
}

pub(super) fn lost() -> ProviderError {
    ProviderError::Lost { message: "the launcher was killed; run it again".to_owned() }
}

impl Ordered {
    pub(super) fn kill(&self) {
        self.line.kill(self.run);
    }

    /// Returns the run's number.
    pub(super) fn number(&self) -> u64 {
        self.run
    }

    /// Marks the run as finished, so that dropping this does not kill it.
    pub(super) fn over(&mut self) {
        self.over = true;
    }
}

impl Drop for Ordered {
    fn drop(&mut self) {
        if !self.over {
            self.kill();
        }
        if let Some(waiting) = self.line.0.waiting().as_mut() {
            waiting.remove(&self.run);
        }
    }
}

impl Line {
    fn waiting(&self) -> MutexGuard<'_, Option<HashMap<u64, oneshot::Sender<Notice>>>> {
        // Each statement leaves the map consistent, so a panic elsewhere does not corrupt it.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn told(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates a run number and a receiver for its event. Returns `None` if the launcher is gone.
    fn expect(&self) -> Option<(u64, oneshot::Receiver<Notice>)> {
        let run = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, notice) = oneshot::channel();
        self.waiting().as_mut()?.insert(run, sender);
        Some((run, notice))
    }

    async fn send(&self, order: &Order, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        loop {
            self.control.writable().await.map_err(|_| Errno::IO)?;
            let sent =
                self.control.try_io(Interest::WRITABLE, || Ok(wire::send(self.control.as_fd(), order, fds)?));
            match sent.map_err(|error| errno(&error)) {
                Err(Errno::AGAIN) => {}
                Err(gone @ (Errno::PIPE | Errno::CONNRESET)) => {
                    // Wait until the listener has seen the disconnect, or an immediate retry would use the
                    // same connection.
                    let mut over = self.over.subscribe();
                    // `self` holds the sender, so this cannot fail.
                    drop(over.wait_for(|over| *over).await);
                    return Err(gone);
                }
                done => return done,
            }
        }
    }

    async fn receive(&self, buffer: &mut Vec<u8>) -> Result<Option<Notice>, Errno> {
        loop {
            self.control.readable().await.map_err(|_| Errno::IO)?;
            let received = self
                .control
                .try_io(Interest::READABLE, || Ok(wire::receive::<Notice>(self.control.as_fd(), buffer)?));
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
async fn listen(line: Arc<Line>, mismatches: Arc<Mismatches>, mut buffer: Vec<u8>) {
    while let Ok(Some(notice)) = line.receive(&mut buffer).await {
        if let Notice::Mismatch(mismatch) = notice {
            mismatches.push(mismatch);
            continue;
        }
        let (Notice::Ended { run, .. }
        | Notice::Failed { run, .. }
        | Notice::Pools { run, .. }
        | Notice::Answered { run, .. }) = notice
        else {
            continue;
        };
        let waiting = line.waiting().as_mut().and_then(|waiting| waiting.remove(&run));
        if let Some(sender) = waiting {
            // Fails if the run was dropped, which also killed it.
            let _told = sender.send(notice);
        }
    }
    *line.waiting() = None;
    line.over.send_replace(true);
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;

    /// A failed send implies that the launcher is known to be gone, even if the listener has not read the end
    /// of stream yet.
    #[tokio::test]
    async fn a_launcher_that_takes_nothing_is_known_to_be_gone() {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        wire::send(theirs.as_fd(), &Notice::Ready { missing: Vec::new(), no_freezer: None }, &[]).unwrap();
        let (connection, _) = Connection::open(ours, Arc::default()).await.unwrap();
        drop(theirs);
        assert!(matches!(connection.ask(1, Ask::Stats).await, Answer::Gone));
        assert!(connection.is_lost());
    }
}
