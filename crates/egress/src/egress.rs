//! One sandbox's way out, from when its sockets are there until it is dropped.

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

/// After a failed accept or read, as where this process has too many open files.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);

/// Listening sockets of a sandbox.
#[derive(Debug)]
pub struct Doors {
    /// For HTTP and SOCKS5.
    pub proxy: StdTcpListener,
    /// For DNS over TCP.
    pub names: StdTcpListener,
    /// For DNS over UDP.
    pub datagrams: StdUdpSocket,
}

/// What went through so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    /// Connections that were accepted.
    pub connections: u64,
    /// Bytes to the world.
    pub sent_bytes: u64,
    /// Bytes from the world.
    pub received_bytes: u64,
}

/// A way out. Dropped, it is closed, with everything that goes through it.
#[derive(Debug)]
pub struct Egress {
    guard: Arc<Guard>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Egress {
    /// One that is not open yet.
    pub fn new(rules: HostRules, bounds: Bounds, resolver: Arc<dyn Resolve>) -> Self {
        Self { guard: Arc::new(Guard::new(rules, bounds, resolver)), task: Mutex::default() }
    }

    /// Serves these sockets from now on, as soon as they are there.
    pub fn serve(&self, doors: impl Future<Output = io::Result<Doors>> + Send + 'static) {
        let guard = Arc::clone(&self.guard);
        let task = tokio::spawn(async move {
            // Where there are none, whoever was to make them says why.
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

    /// Has other rules hold. What goes through and is not allowed by them is ended.
    pub fn set_rules(&self, rules: HostRules) {
        self.guard.rules.send_replace(rules);
    }

    /// The rules.
    pub fn rules(&self) -> HostRules {
        self.guard.rules.borrow().clone()
    }

    /// What was refused.
    pub fn findings(&self) -> Vec<Finding> {
        self.guard.refusals().findings()
    }

    /// This moment, for [`Egress::findings_since`].
    pub fn mark(&self) -> Mark {
        self.guard.refusals().mark()
    }

    /// What was refused since then.
    pub fn findings_since(&self, mark: &Mark) -> Vec<Finding> {
        self.guard.refusals().since(mark)
    }

    /// What went through.
    pub fn traffic(&self) -> Traffic {
        let counts = &self.guard.counts;
        Traffic {
            connections: counts.connections.load(Ordering::Relaxed).min(self.guard.bounds.connections),
            sent_bytes: counts.sent.load(Ordering::Relaxed),
            received_bytes: counts.received.load(Ordering::Relaxed),
        }
    }

    /// Ends it, and waits until nothing of it is open any more.
    pub async fn close(&self) {
        let task = self.task().take();
        if let Some(task) = task {
            task.abort();
            // It was aborted, or had nothing to do.
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

/// The same sockets, watched by the event loop.
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

    /// Goes on until it is dropped, and everybody who is served with it.
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
                if guard.count(&guard.counts.connections, bounds.connections, "connections in all") {
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
