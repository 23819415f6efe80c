//! Access control: decides whether a destination may be reached, and connects to it. The address that was
//! checked is the address that is connected to.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_engine::network::{HostRules, Target};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use crate::bounds::Bounds;
use crate::refusals::{Refusal, Refusals};
use crate::resolve::Resolve;

/// Concurrent lookups of one sandbox.
const LOOKUPS_AT_ONCE: usize = 8;
/// How many addresses of a host are tried.
const TRIED: usize = 4;

/// The rules, limits and counters that all connections of one sandbox share.
#[derive(Debug)]
pub(crate) struct Guard {
    pub(crate) rules: watch::Sender<HostRules>,
    pub(crate) bounds: Bounds,
    pub(crate) counts: Counts,
    resolver: Arc<dyn Resolve>,
    lookups: Semaphore,
    refusals: Mutex<Refusals>,
}

/// Counters of one sandbox's traffic.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) connections: AtomicU64,
    pub(crate) lookups: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
}

/// The reason why a connection was not made.
#[derive(Debug)]
pub(crate) enum Unreached {
    /// The rules do not allow it.
    Refused(String),
    /// The host could not be resolved, or does not answer.
    Failed(String),
}

impl Guard {
    pub(crate) fn new(rules: HostRules, bounds: Bounds, resolver: Arc<dyn Resolve>) -> Self {
        Self {
            rules: watch::Sender::new(rules),
            bounds,
            counts: Counts::default(),
            resolver,
            lookups: Semaphore::new(LOOKUPS_AT_ONCE),
            refusals: Mutex::default(),
        }
    }

    pub(crate) fn refusals(&self) -> MutexGuard<'_, Refusals> {
        // Each statement leaves the list consistent, so a panic elsewhere does not corrupt it.
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a refusal and returns its message.
    pub(crate) fn refuse(&self, refusal: Refusal) -> String {
        let message = refusal.message();
        self.refusals().note(refusal);
        message
    }

    /// Refuses a name without a public address. The addresses go to the operator's log only, once per name.
    fn refuse_private(&self, target: &Target, port: u16, found: &io::Result<Vec<IpAddr>>) -> String {
        let refusal = Refusal::NotPublic(target.clone(), port);
        let message = refusal.message();
        if self.refusals().note(refusal) {
            tracing::info!(host = %target, port, resolved = ?found, "egress: not a public address, refused");
        }
        message
    }

    /// Increments a counter. Returns whether the new value is within its limit.
    pub(crate) fn count(&self, counted: &AtomicU64, bound: u64, what: &'static str) -> bool {
        let within = counted.fetch_add(1, Ordering::Relaxed) < bound;
        if !within {
            self.refuse(Refusal::TooMany(what));
        }
        within
    }

    /// Connects to a host if the rules allow it. Returns the stream and the address.
    pub(crate) async fn reach(&self, target: &Target, port: u16) -> Result<(TcpStream, IpAddr), Unreached> {
        if !self.rules.borrow().allow(target, port) {
            return Err(Unreached::Refused(self.refuse(Refusal::Host(target.clone(), port))));
        }
        let proxy = self.rules.borrow().proxy_for(target);
        if let Some(proxy) = proxy {
            return self.reach_through(&proxy, target, port).await;
        }
        let failed = |error: &dyn std::fmt::Display| Unreached::Failed(format!("{target}:{port}: {error}"));
        let found = self.addresses(target).await;
        let rules = self.rules.borrow().clone();
        if let (true, Err(error)) = (rules.may_reach_private(), &found) {
            return Err(failed(error));
        }
        let allowed = |address: &&IpAddr| rules.allow_address(target, port, **address, is_own(**address));
        let addresses: Vec<IpAddr> = found.iter().flatten().filter(allowed).take(TRIED).copied().collect();
        if addresses.is_empty() {
            return Err(Unreached::Refused(self.refuse_private(target, port, &found)));
        }
        self.connect(&addresses, port).await.map_err(|error| failed(&error))
    }

    /// Connects to the first of these addresses that answers.
    pub(crate) async fn connect(&self, addresses: &[IpAddr], port: u16) -> io::Result<(TcpStream, IpAddr)> {
        let mut why = io::Error::other("no address");
        for address in addresses.iter().take(TRIED) {
            let connecting = TcpStream::connect(SocketAddr::new(*address, port));
            match timeout(self.bounds.connect_time, connecting).await {
                Ok(Ok(stream)) => return Ok((stream, *address)),
                Ok(Err(error)) => why = error,
                Err(_) => why = io::Error::other("connection timed out"),
            }
        }
        Err(why)
    }

    /// Returns all addresses of a host in canonical form, without duplicates. The caller has checked that it
    /// may be looked up.
    pub(crate) async fn addresses(&self, target: &Target) -> io::Result<Vec<IpAddr>> {
        let name = match target {
            Target::Address(address) => return Ok(vec![*address]),
            // Always loopback: no resolver needs to be asked, and none may answer otherwise.
            localhost if localhost.is_localhost() => {
                return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
            }
            Target::Name(name) => name.clone(),
        };
        let lookup = async {
            let _turn = self.lookups.acquire().await.map_err(io::Error::other)?;
            self.resolver.resolve(name).await
        };
        let found =
            timeout(self.bounds.connect_time, lookup).await.map_err(|_| io::ErrorKind::TimedOut)??;
        let mut addresses: Vec<IpAddr> = Vec::new();
        for address in found.into_iter().map(|address| address.to_canonical()) {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        Ok(addresses)
    }
}

/// Returns whether an address belongs to this machine, even if it is public: a service listening on it would
/// treat the connection as local. For its own address, the kernel selects the same address as the source.
/// Nothing is sent.
pub(crate) fn is_own(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let local = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    local.is_ok_and(|local| local.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_known_by_its_addresses() {
        assert!(is_own([127, 0, 0, 1].into()));
        assert!(!is_own([192, 0, 2, 1].into()));
    }
}
