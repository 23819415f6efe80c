//! Access control: decides whether a destination may be reached, and connects to it. The address that was
//! checked is the address that is connected to.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_engine::network::{HostRules, TargetHost};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use crate::limits::EgressLimits;
use crate::refusals::{EgressRefusal, RefusalLog};
use crate::resolve::Resolve;
use crate::tun::SyntheticNames;

/// Concurrent lookups of one sandbox.
const MAX_CONCURRENT_LOOKUPS: usize = 8;
/// How many addresses of a host are tried.
const MAX_ADDRESSES_TRIED: usize = 4;

/// The rules, limits and counters that all connections of one sandbox share.
#[derive(Debug)]
pub(crate) struct AccessControl {
    pub(crate) rules: watch::Sender<HostRules>,
    pub(crate) limits: EgressLimits,
    pub(crate) counts: TrafficCounters,
    /// Addresses that stand for names, if programs connect by themselves.
    pub(crate) names: Option<SyntheticNames>,
    resolver: Arc<dyn Resolve>,
    lookups: Semaphore,
    refusals: Mutex<RefusalLog>,
}

/// Counters of one sandbox's traffic.
#[derive(Debug, Default)]
pub(crate) struct TrafficCounters {
    pub(crate) connections: AtomicU64,
    pub(crate) lookups: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
}

/// The reason why a connection was not made.
#[derive(Debug)]
pub(crate) enum ConnectError {
    /// The rules do not allow it.
    Refused(String),
    /// The host could not be resolved, or does not answer.
    Failed(String),
}

impl AccessControl {
    pub(crate) fn new(
        rules: HostRules,
        limits: EgressLimits,
        resolver: Arc<dyn Resolve>,
        names: Option<SyntheticNames>,
    ) -> Self {
        Self {
            rules: watch::Sender::new(rules),
            limits,
            counts: TrafficCounters::default(),
            names,
            resolver,
            lookups: Semaphore::new(MAX_CONCURRENT_LOOKUPS),
            refusals: Mutex::default(),
        }
    }

    pub(crate) fn refusals(&self) -> MutexGuard<'_, RefusalLog> {
        // Each statement leaves the list consistent, so a panic elsewhere does not corrupt it.
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a refusal and returns its message.
    pub(crate) fn record_refusal(&self, refusal: EgressRefusal) -> String {
        let message = refusal.message();
        self.refusals().note(refusal);
        message
    }

    /// Returns the host that an address stands for: a name, or the address itself.
    pub(crate) fn target_at(&self, address: IpAddr) -> TargetHost {
        let name = self.names.as_ref().and_then(|names| names.name_at(address));
        name.map_or_else(|| TargetHost::from_address(address), TargetHost::Name)
    }

    /// Refuses to look up a name without a public address, like a connection to it.
    pub(crate) fn record_private_lookup(&self, target: &TargetHost, found: &io::Result<Vec<IpAddr>>) {
        if self.refusals().note(EgressRefusal::NoPublicAddress(target.clone())) {
            tracing::info!(host = %target, resolved = ?found, "egress: not a public address, not answered");
        }
    }

    /// Refuses a host without a public address. The addresses go to the operator's log only, once per host.
    fn record_private_refusal(
        &self,
        target: &TargetHost,
        port: u16,
        found: &io::Result<Vec<IpAddr>>,
    ) -> String {
        let is_internet = self.rules.borrow().is_internet();
        let refusal = if is_internet { EgressRefusal::NotInternet } else { EgressRefusal::NotPublic };
        let refusal = refusal(target.clone(), port);
        let message = refusal.message();
        if self.refusals().note(refusal) {
            tracing::info!(host = %target, port, resolved = ?found, "egress: not a public address, refused");
        }
        message
    }

    /// Increments a counter. Returns whether the new value is within its limit.
    pub(crate) fn try_count(&self, counted: &AtomicU64, bound: u64, what: &'static str) -> bool {
        let within = counted.fetch_add(1, Ordering::Relaxed) < bound;
        if !within {
            self.record_refusal(EgressRefusal::LimitReached(what));
        }
        within
    }

    /// Connects to a host if the rules allow it. Returns the stream and the address.
    pub(crate) async fn connect_if_allowed(
        &self,
        target: &TargetHost,
        port: u16,
    ) -> Result<(TcpStream, IpAddr), ConnectError> {
        let rules = self.rules.borrow().clone();
        if !rules.allows(target, port) {
            let refusal = if rules.is_internet() { EgressRefusal::NotInternet } else { EgressRefusal::Host };
            return Err(ConnectError::Refused(self.record_refusal(refusal(target.clone(), port))));
        }
        let proxy = rules.proxy_for(target);
        if let Some(proxy) = proxy {
            return self.connect_through_proxy(&proxy, target, port).await;
        }
        let failed =
            |error: &dyn std::fmt::Display| ConnectError::Failed(format!("{target}:{port}: {error}"));
        let found = self.resolve(target).await;
        let rules = self.rules.borrow().clone();
        if let (true, Err(error)) = (rules.may_reach_private(), &found) {
            return Err(failed(error));
        }
        let allowed =
            |address: &&IpAddr| rules.allows_address(target, port, **address, is_host_address(**address));
        let addresses: Vec<IpAddr> =
            found.iter().flatten().filter(allowed).take(MAX_ADDRESSES_TRIED).copied().collect();
        if addresses.is_empty() {
            return Err(ConnectError::Refused(self.record_private_refusal(target, port, &found)));
        }
        self.connect(&addresses, port).await.map_err(|error| failed(&error))
    }

    /// Connects to the first of these addresses that answers.
    pub(crate) async fn connect(&self, addresses: &[IpAddr], port: u16) -> io::Result<(TcpStream, IpAddr)> {
        let mut why = io::Error::other("no address");
        for address in addresses.iter().take(MAX_ADDRESSES_TRIED) {
            let connecting = TcpStream::connect(SocketAddr::new(*address, port));
            match timeout(self.limits.connect_timeout, connecting).await {
                Ok(Ok(stream)) => return Ok((stream, *address)),
                Ok(Err(error)) => why = error,
                Err(_) => why = io::Error::other("connection timed out"),
            }
        }
        Err(why)
    }

    /// Returns all addresses of a host in canonical form, without duplicates. The caller has checked that it
    /// may be looked up.
    pub(crate) async fn resolve(&self, target: &TargetHost) -> io::Result<Vec<IpAddr>> {
        let name = match target {
            TargetHost::Address(address) => return Ok(vec![*address]),
            // Always loopback: no resolver needs to be asked, and none may answer otherwise.
            localhost if localhost.is_localhost() => {
                return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
            }
            TargetHost::Name(name) => name.clone(),
        };
        let lookup = async {
            let _turn = self.lookups.acquire().await.map_err(io::Error::other)?;
            self.resolver.resolve(name).await
        };
        let found =
            timeout(self.limits.connect_timeout, lookup).await.map_err(|_| io::ErrorKind::TimedOut)??;
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
pub(crate) fn is_host_address(address: IpAddr) -> bool {
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
    fn addresses_of_this_machine_are_recognized() {
        assert!(is_host_address([127, 0, 0, 1].into()));
        assert!(!is_host_address([192, 0, 2, 1].into()));
    }
}
