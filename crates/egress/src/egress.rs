//! Egress of one sandbox, from the creation of its sockets until it is dropped.

use std::io;
use std::net::{TcpListener as StdTcpListener, UdpSocket as StdUdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use belljar_engine::finding::Finding;
use belljar_engine::network::{GateKind, HostRules};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use crate::access::AccessControl;
use crate::limits::EgressLimits;
use crate::refusals::RefusalMark;
use crate::resolve::Resolve;
use crate::tun::{self, SyntheticNames};
use crate::{dns_server, proxy};

/// Delay after a failed accept or receive, for example when this process has too many open files.
pub(crate) const RETRY_DELAY: Duration = Duration::from_millis(50);

/// Where connections arrive from a sandbox.
#[derive(Debug)]
pub enum GateEntry {
    /// A listening socket for HTTP and SOCKS5.
    Proxy(StdTcpListener),
    /// A TUN device with the addresses of [`belljar_engine::tun`].
    Tun(OwnedFd),
}

/// Descriptors from inside a sandbox.
#[derive(Debug)]
pub struct EgressSockets {
    /// For connections.
    pub entry: GateEntry,
    /// For DNS over TCP.
    pub dns_tcp: StdTcpListener,
    /// For DNS over UDP.
    pub dns_udp: StdUdpSocket,
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
    access: Arc<AccessControl>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Egress {
    /// Creates the egress without serving any sockets yet.
    pub fn new(kind: GateKind, rules: HostRules, limits: EgressLimits, resolver: Arc<dyn Resolve>) -> Self {
        let names = (kind == GateKind::Tun).then(SyntheticNames::default);
        Self { access: Arc::new(AccessControl::new(rules, limits, resolver, names)), task: Mutex::default() }
    }

    /// Returns how programs reach the gate.
    pub fn kind(&self) -> GateKind {
        if self.access.names.is_some() { GateKind::Tun } else { GateKind::Proxy }
    }

    /// Serves these sockets as soon as they exist, replacing the earlier ones.
    pub fn serve(&self, sockets: impl Future<Output = io::Result<EgressSockets>> + Send + 'static) {
        let access = Arc::clone(&self.access);
        let task = tokio::spawn(async move {
            // On failure, the code that creates the sockets reports the error.
            if let Ok(sockets) = sockets.await
                && let Ok(open) = OpenEntries::from_std(sockets)
            {
                open.serve(access).await;
            }
        });
        if let Some(before) = self.lock_task().replace(task) {
            before.abort();
        }
    }

    fn lock_task(&self) -> std::sync::MutexGuard<'_, Option<JoinHandle<()>>> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the rules. Ends open connections that the new rules do not allow.
    pub fn set_rules(&self, rules: HostRules) {
        self.access.rules.send_replace(rules);
    }

    /// Returns the current rules.
    pub fn rules(&self) -> HostRules {
        self.access.rules.borrow().clone()
    }

    /// Returns a finding for each refusal.
    pub fn findings(&self) -> Vec<Finding> {
        self.access.refusals().findings()
    }

    /// Returns the current position, for [`Egress::findings_since`].
    pub fn mark(&self) -> RefusalMark {
        self.access.refusals().mark()
    }

    /// Returns a finding for each refusal since the mark.
    pub fn findings_since(&self, mark: &RefusalMark) -> Vec<Finding> {
        self.access.refusals().since(mark)
    }

    /// Returns the traffic so far.
    pub fn traffic(&self) -> Traffic {
        let counts = &self.access.counts;
        Traffic {
            connections: counts.connections.load(Ordering::Relaxed).min(self.access.limits.total_connections),
            sent_bytes: counts.sent.load(Ordering::Relaxed),
            received_bytes: counts.received.load(Ordering::Relaxed),
        }
    }

    /// Stops serving, and waits until all sockets are closed.
    pub async fn close(&self) {
        let task = self.lock_task().take();
        if let Some(task) = task {
            task.abort();
            // The result does not matter: the task was aborted or has finished.
            let _ended = task.await;
        }
    }
}

impl Drop for Egress {
    fn drop(&mut self) {
        if let Some(task) = self.lock_task().take() {
            task.abort();
        }
    }
}

/// The sockets, registered with the event loop.
struct OpenEntries {
    entry: OpenEntry,
    dns_tcp: TcpListener,
    dns_udp: UdpSocket,
}

enum OpenEntry {
    Proxy(TcpListener),
    Tun(OwnedFd),
}

impl OpenEntries {
    fn from_std(sockets: EgressSockets) -> io::Result<Self> {
        let entry = match sockets.entry {
            GateEntry::Proxy(listener) => {
                listener.set_nonblocking(true)?;
                OpenEntry::Proxy(TcpListener::from_std(listener)?)
            }
            GateEntry::Tun(device) => {
                rustix::io::ioctl_fionbio(&device, true)?;
                OpenEntry::Tun(device)
            }
        };
        sockets.dns_tcp.set_nonblocking(true)?;
        sockets.dns_udp.set_nonblocking(true)?;
        Ok(Self {
            entry,
            dns_tcp: TcpListener::from_std(sockets.dns_tcp)?,
            dns_udp: UdpSocket::from_std(sockets.dns_udp)?,
        })
    }

    /// Serves until dropped, which also ends every open connection.
    async fn serve(self, access: Arc<AccessControl>) {
        let permits = Arc::new(Semaphore::new(access.limits.concurrent_connections));
        let serve_entry = async {
            match self.entry {
                OpenEntry::Proxy(listener) => {
                    accept(&listener, &access, &permits, proxy::serve_connection).await;
                }
                OpenEntry::Tun(device) => tun::serve(device, &access).await,
            }
        };
        tokio::join!(
            serve_entry,
            accept(&self.dns_tcp, &access, &permits, dns_server::serve_tcp),
            dns_server::serve_udp(self.dns_udp, &access),
        );
    }
}

async fn accept<F: Future<Output = ()> + Send + 'static>(
    listener: &TcpListener,
    access: &Arc<AccessControl>,
    permits: &Arc<Semaphore>,
    serve: fn(Arc<AccessControl>, TcpStream) -> F,
) {
    let mut served = JoinSet::new();
    loop {
        let Ok(permit) = Arc::clone(permits).acquire_owned().await else { return };
        while served.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((client, _)) => {
                let limits = &access.limits;
                if access.try_count(
                    &access.counts.connections,
                    limits.total_connections,
                    "connections in total",
                ) {
                    let serving = serve(Arc::clone(access), client);
                    served.spawn(async move {
                        serving.await;
                        drop(permit);
                    });
                }
            }
            Err(_) => tokio::time::sleep(RETRY_DELAY).await,
        }
    }
}
