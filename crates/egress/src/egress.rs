//! Egress of one sandbox, from the creation of its sockets until it is dropped.

use std::io;
use std::net::{TcpListener as StdTcpListener, UdpSocket as StdUdpSocket};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use belljar_engine::finding::Finding;
use belljar_engine::network::HostRules;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use crate::bounds::Bounds;
use crate::guard::Guard;
use crate::refusals::Mark;
use crate::resolve::Resolve;
use crate::{door, names};

/// Delay after a failed accept or receive, for example when this process has too many open files.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);

/// Listening sockets inside a sandbox.
#[derive(Debug)]
pub struct Doors {
    /// For HTTP and SOCKS5.
    pub proxy: StdTcpListener,
    /// For DNS over TCP.
    pub names: StdTcpListener,
    /// For DNS over UDP.
    pub datagrams: StdUdpSocket,
}

/// Traffic so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    /// Accepted connections.
    pub connections: u64,
    /// Bytes sent out of the sandbox.
    pub sent_bytes: u64,
    /// Bytes received by the sandbox.
    pub received_bytes: u64,
}

/// Egress of one sandbox. Dropping it closes all listeners and connections.
#[derive(Debug)]
pub struct Egress {
    guard: Arc<Guard>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Egress {
    /// Creates the egress without serving any sockets yet.
    pub fn new(rules: HostRules, bounds: Bounds, resolver: Arc<dyn Resolve>) -> Self {
        Self { guard: Arc::new(Guard::new(rules, bounds, resolver)), task: Mutex::default() }
    }

    /// Serves these sockets as soon as they exist, replacing the earlier ones.
    pub fn serve(&self, doors: impl Future<Output = io::Result<Doors>> + Send + 'static) {
        let guard = Arc::clone(&self.guard);
        let task = tokio::spawn(async move {
            // On failure, the code that creates the sockets reports the error.
            if let Ok(doors) = doors.await
                && let Ok(open) = Open::of(doors)
            {
                open.serve(guard).await;
            }
        });
        if let Some(before) = self.task().replace(task) {
            before.abort();
        }
    }

    fn task(&self) -> std::sync::MutexGuard<'_, Option<JoinHandle<()>>> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the rules. Ends open connections that the new rules do not allow.
    pub fn set_rules(&self, rules: HostRules) {
        self.guard.rules.send_replace(rules);
    }

    /// Returns the current rules.
    pub fn rules(&self) -> HostRules {
        self.guard.rules.borrow().clone()
    }

    /// Returns a finding for each refusal.
    pub fn findings(&self) -> Vec<Finding> {
        self.guard.refusals().findings()
    }

    /// Returns the current position, for [`Egress::findings_since`].
    pub fn mark(&self) -> Mark {
        self.guard.refusals().mark()
    }

    /// Returns a finding for each refusal since the mark.
    pub fn findings_since(&self, mark: &Mark) -> Vec<Finding> {
        self.guard.refusals().since(mark)
    }

    /// Returns the traffic so far.
    pub fn traffic(&self) -> Traffic {
        let counts = &self.guard.counts;
        Traffic {
            connections: counts.connections.load(Ordering::Relaxed).min(self.guard.bounds.connections),
            sent_bytes: counts.sent.load(Ordering::Relaxed),
            received_bytes: counts.received.load(Ordering::Relaxed),
        }
    }

    /// Stops serving, and waits until all sockets are closed.
    pub async fn close(&self) {
        let task = self.task().take();
        if let Some(task) = task {
            task.abort();
            // The result does not matter: the task was aborted or has finished.
            let _ended = task.await;
        }
    }
}

impl Drop for Egress {
    fn drop(&mut self) {
        if let Some(task) = self.task().take() {
            task.abort();
        }
    }
}

/// The sockets, registered with the event loop.
struct Open {
    proxy: TcpListener,
    names: TcpListener,
    datagrams: UdpSocket,
}

impl Open {
    fn of(doors: Doors) -> io::Result<Self> {
        doors.proxy.set_nonblocking(true)?;
        doors.names.set_nonblocking(true)?;
        doors.datagrams.set_nonblocking(true)?;
        Ok(Self {
            proxy: TcpListener::from_std(doors.proxy)?,
            names: TcpListener::from_std(doors.names)?,
            datagrams: UdpSocket::from_std(doors.datagrams)?,
        })
    }

    /// Serves until dropped, which also ends every open connection.
    async fn serve(self, guard: Arc<Guard>) {
        let seats = Arc::new(Semaphore::new(guard.bounds.connections_at_once));
        tokio::join!(
            accept(&self.proxy, &guard, &seats, door::attend),
            accept(&self.names, &guard, &seats, names::attend),
            names::datagrams(self.datagrams, &guard),
        );
    }
}

async fn accept<F: Future<Output = ()> + Send + 'static>(
    listener: &TcpListener,
    guard: &Arc<Guard>,
    seats: &Arc<Semaphore>,
    attend: fn(Arc<Guard>, TcpStream) -> F,
) {
    let mut served = JoinSet::new();
    loop {
        let Ok(seat) = Arc::clone(seats).acquire_owned().await else { return };
        while served.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((client, _)) => {
                let bounds = &guard.bounds;
                if guard.count(&guard.counts.connections, bounds.connections, "connections in total") {
                    let attended = attend(Arc::clone(guard), client);
                    served.spawn(async move {
                        attended.await;
                        drop(seat);
                    });
                }
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}
