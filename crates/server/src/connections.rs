//! Accounting of open connections. A connection without a known key counts for its client's address, any
//! other for its tenant.
//!
//! ```text
//! accepted ─▶ counts for the address ─▶ a key is known ─▶ counts for the tenant ─▶ closed
//!          └▶ the address is at its share: its oldest connection without a key is evicted
//!                                          └▶ the tenant is at its share: 429, and closed
//! ```
//!
//! Nothing here waits, so no client can block the accept loop.
//!
//! `belljar serve` allows at most half of the open files for connections; the rest is for sandboxes.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use belljar_store::TenantName;

use crate::error::Error;
use crate::fair_share::{FairShare, ShareRefusal, ShareTerms, Tenure};
use crate::revocation::ConnectionHandle;
use crate::share_pool::{OtherTenants, ShareKind};

/// The party that a connection counts for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum ConnectionHolder {
    Address(IpAddr),
    Tenant(TenantName),
}

/// All connections of one listener.
#[derive(Debug, Clone)]
pub(crate) struct Connections(Arc<ConnectionsInner>);

#[derive(Debug)]
struct ConnectionsInner {
    table: Mutex<ConnectionTable>,
    other_tenants: OtherTenants,
    refused_tenants: AtomicU64,
    refused_addresses: AtomicU64,
}

#[derive(Debug)]
struct ConnectionTable {
    shares: FairShare<ConnectionHolder>,
    /// Connections without a key, by address, oldest first.
    keyless: HashMap<IpAddr, BTreeMap<u64, Weak<ConnectionHandle>>>,
    /// The party that each open connection counts for.
    holders: HashMap<u64, ConnectionHolder>,
    next_number: u64,
}

/// The slot of one connection. Dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    shared: Arc<ConnectionsInner>,
    number: u64,
}

impl Connections {
    pub(crate) fn new(total: usize, other_tenants: &OtherTenants) -> Self {
        let table = ConnectionTable {
            shares: FairShare::with_reserve_within(total as u64),
            keyless: HashMap::new(),
            holders: HashMap::new(),
            next_number: 0,
        };
        Self(Arc::new(ConnectionsInner {
            table: Mutex::new(table),
            other_tenants: other_tenants.clone(),
            refused_tenants: AtomicU64::new(0),
            refused_addresses: AtomicU64::new(0),
        }))
    }

    /// Takes a slot for a new connection from an address, or returns `None` if none is free and none can be
    /// evicted.
    pub(crate) fn admit(
        &self,
        address: IpAddr,
        handle: &Arc<ConnectionHandle>,
    ) -> Option<Arc<ConnectionSlot>> {
        let (address, now) = (client_address(address), Instant::now());
        let (holder, terms) = (ConnectionHolder::Address(address), self.0.terms(Tenure::Brief));
        let mut table = self.0.lock();
        if let Err(refusal) = table.shares.take(&holder, 1, terms, now) {
            self.0.refused_addresses.fetch_add(1, Ordering::Relaxed);
            table.evict_oldest_keyless(address, refusal);
            table.shares.take(&holder, 1, terms, now).ok()?;
        }
        let number = table.next_number;
        table.next_number += 1;
        table.holders.insert(number, holder);
        table.keyless.entry(address).or_default().insert(number, Arc::downgrade(handle));
        Some(Arc::new(ConnectionSlot { shared: Arc::clone(&self.0), number }))
    }

    /// Returns how often a tenant or an address was refused because of its share.
    pub(crate) fn share_refusals(&self) -> [(&'static str, u64); 2] {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            (ShareKind::Connections.label(), count(&self.0.refused_tenants)),
            ("keyless_connections", count(&self.0.refused_addresses)),
        ]
    }
}

impl ConnectionsInner {
    fn terms(&self, tenure: Tenure) -> ShareTerms {
        ShareTerms { cap: None, tenure, has_other_tenants: self.other_tenants.exist() }
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionTable {
    /// Closes the oldest connection without a key: of this address if the address is at its share, otherwise
    /// of the address with the most such connections.
    fn evict_oldest_keyless(&mut self, address: IpAddr, refusal: ShareRefusal) {
        let crowded = match refusal {
            ShareRefusal::Share(_) | ShareRefusal::Cap(_) if self.keyless.contains_key(&address) => {
                Some(address)
            }
            _ => self.keyless.iter().max_by_key(|(_, theirs)| theirs.len()).map(|(address, _)| *address),
        };
        let Some(theirs) = crowded.and_then(|address| self.keyless.get(&address)) else { return };
        let oldest = theirs.first_key_value().map(|(number, handle)| (*number, handle.upgrade()));
        if let Some((number, handle)) = oldest {
            self.release(number);
            if let Some(handle) = handle {
                handle.close();
            }
        }
    }

    fn release(&mut self, number: u64) {
        let Some(holder) = self.holders.remove(&number) else { return };
        self.shares.give_back(&holder, 1);
        self.remove_keyless(&holder, number);
    }

    /// Removes a connection from the connections without a key.
    fn remove_keyless(&mut self, before: &ConnectionHolder, number: u64) {
        let ConnectionHolder::Address(address) = before else { return };
        if let Some(theirs) = self.keyless.get_mut(address) {
            theirs.remove(&number);
            if theirs.is_empty() {
                self.keyless.remove(address);
            }
        }
    }
}

impl ConnectionSlot {
    /// Counts the connection for a tenant from now on.
    pub(crate) fn assign_to_tenant(&self, tenant: &TenantName) -> Result<(), Error> {
        let terms = self.shared.terms(Tenure::Lasting);
        let mut table = self.shared.lock();
        let holder = ConnectionHolder::Tenant(tenant.clone());
        // An evicted connection has no holder any more and is about to end.
        let Some(before) = table.holders.get(&self.number).cloned().filter(|before| *before != holder) else {
            return Ok(());
        };
        match table.shares.transfer(&before, &holder, terms, Instant::now()) {
            Ok(()) => {
                table.remove_keyless(&before, self.number);
                table.holders.insert(self.number, holder);
                Ok(())
            }
            Err(ShareRefusal::Full) => Err(Error::Overloaded),
            Err(ShareRefusal::Cap(most) | ShareRefusal::Share(most)) => {
                self.shared.refused_tenants.fetch_add(1, Ordering::Relaxed);
                Err(Error::ShareTaken { kind: ShareKind::Connections, most })
            }
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.shared.lock().release(self.number);
    }
}

/// Maps an address to one client: an IPv4 address, or the /64 network of one IPv6 subscriber.
fn client_address(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections(total: usize) -> Connections {
        let other_tenants = OtherTenants::default();
        other_tenants.set(true);
        Connections::new(total, &other_tenants)
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_at_its_share_evicts_its_oldest_keyless_connection() {
        let (all, handle) = (connections(32), Arc::new(ConnectionHandle::default()));
        let other = all.admit(address("192.0.2.2"), &handle).unwrap();
        let first = Arc::new(ConnectionHandle::default());
        let mut slots = vec![all.admit(address("192.0.2.1"), &first).unwrap()];
        slots.extend((1..12).map(|_| all.admit(address("192.0.2.1"), &handle).unwrap()));
        assert!(!first.is_closed());
        slots.push(all.admit(address("192.0.2.1"), &handle).unwrap());
        assert!(first.is_closed());
        assert_eq!(all.0.lock().shares.used(), 13);
        drop((slots, other));
        let table = all.0.lock();
        assert!(table.shares.used() == 0 && table.keyless.is_empty() && table.holders.is_empty());
    }

    #[test]
    fn a_tenant_at_its_share_does_not_block_others() {
        let (all, handle) = (connections(32), Arc::new(ConnectionHandle::default()));
        let (mallory, bob): (TenantName, TenantName) = ("mallory".parse().unwrap(), "bob".parse().unwrap());
        let admit = || all.admit(address("192.0.2.1"), &handle).unwrap();
        let mut slots = Vec::new();
        for number in 0..32 {
            slots.push(admit());
            let counted = slots[number].assign_to_tenant(&mallory);
            assert_eq!(counted.is_ok(), number < 12, "{number}");
        }
        let bobs = admit();
        bobs.assign_to_tenant(&bob).unwrap();
        bobs.assign_to_tenant(&bob).unwrap();
        assert_eq!(all.share_refusals()[0], ("connections", 20));
        drop((slots, bobs));
        assert_eq!(all.0.lock().shares.used(), 0);
    }

    #[test]
    fn an_ipv6_subscriber_counts_as_one_address() {
        assert_eq!(client_address(address("2001:db8:1:2:3::4")), address("2001:db8:1:2::"));
        assert_eq!(client_address(address("::ffff:192.0.2.1")), address("192.0.2.1"));
    }
}
