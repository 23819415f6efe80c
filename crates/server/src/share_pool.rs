//! Pools of units shared by all tenants: a [`FairShare`] behind a lock, with guards that return their units
//! when dropped.

use std::hash::Hash;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::error::Error;
use crate::fair_share::{FairShare, ShareRefusal, ShareTerms, Tenure};

/// Whether the server has more than one enabled tenant. Shared by all fair shares.
#[derive(Debug, Clone, Default)]
pub(crate) struct OtherTenants(Arc<AtomicBool>);

impl OtherTenants {
    pub(crate) fn set(&self, exist: bool) {
        self.0.store(exist, Ordering::Relaxed);
    }

    pub(crate) fn exist(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The resource of a pool. The labels are values of a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareKind {
    /// Connections of a tenant.
    Connections,
    /// Long-lived responses: event streams, WebSockets, batches, MCP streams.
    Streams,
    /// Bytes of arriving bodies.
    Bodies,
    /// Bytes of queued and running requests.
    Requests,
    /// Live sandboxes.
    Sandboxes,
    /// Entries in the run queue.
    Queue,
}

impl ShareKind {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Streams => "streams",
            Self::Bodies => "bodies",
            Self::Requests => "requests",
            Self::Sandboxes => "sandboxes",
            Self::Queue => "queue",
        }
    }

    /// Returns the name of the units for messages.
    pub(crate) fn noun(self) -> &'static str {
        match self {
            Self::Connections => "the connections",
            Self::Streams => "the streams (event streams, WebSockets, batches)",
            Self::Bodies => "the bytes for request bodies",
            Self::Requests => "the bytes for queued and running requests",
            Self::Sandboxes => "the sandboxes",
            Self::Queue => "the queue entries",
        }
    }

    /// Returns advice for a caller that is at its share.
    pub(crate) fn advice(self) -> &'static str {
        match self {
            Self::Connections => {
                "close some, or ask an administrator to raise 'connections' in [server] of belljar.toml"
            }
            Self::Streams => {
                "close some, or ask an administrator to raise 'streams' or 'tenant_streams' in [server] of belljar.toml"
            }
            Self::Bodies => "send fewer large bodies at one time",
            Self::Requests => "wait until some have ended, or send less input with each",
            Self::Sandboxes => {
                "close one, or ask an administrator for a quota: belljar tenant quotas TENANT --sandboxes N"
            }
            Self::Queue => "try again when some have ended",
        }
    }
}

#[derive(Debug)]
struct PoolInner<P> {
    kind: ShareKind,
    shares: Mutex<FairShare<P>>,
    other_tenants: OtherTenants,
    refused: AtomicU64,
}

/// Units of one resource, shared by all parties.
#[derive(Debug)]
pub(crate) struct SharePool<P: Eq + Hash + Clone>(Arc<PoolInner<P>>);

impl<P: Eq + Hash + Clone> Clone for SharePool<P> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Units held by a party. Dropping it returns them.
#[derive(Debug)]
pub(crate) struct ShareReservation<P: Eq + Hash + Clone> {
    pool: SharePool<P>,
    party: P,
    amount: u64,
}

impl<P: Eq + Hash + Clone> SharePool<P> {
    pub(crate) fn new(kind: ShareKind, shares: FairShare<P>, other_tenants: &OtherTenants) -> Self {
        let (shares, other_tenants) = (Mutex::new(shares), other_tenants.clone());
        Self(Arc::new(PoolInner { kind, shares, other_tenants, refused: AtomicU64::new(0) }))
    }

    /// Returns a reservation that holds nothing yet.
    pub(crate) fn empty_reservation(&self, party: &P) -> ShareReservation<P> {
        ShareReservation { pool: self.clone(), party: party.clone(), amount: 0 }
    }

    /// Takes units for a party.
    pub(crate) fn take(
        &self,
        party: &P,
        amount: u64,
        cap: Option<u64>,
        tenure: Tenure,
    ) -> Result<ShareReservation<P>, ShareRefusal> {
        let terms = ShareTerms { cap, tenure, has_other_tenants: self.0.other_tenants.exist() };
        let taken = self.lock().take(party, amount, terms, Instant::now());
        self.count_refusal(party, amount, taken)
    }

    /// Takes one unit for a party that holds fewer than `most`, within its share.
    pub(crate) fn take_at_most(
        &self,
        party: &P,
        most: u64,
        tenure: Tenure,
    ) -> Result<ShareReservation<P>, ShareRefusal> {
        let terms = ShareTerms { cap: None, tenure, has_other_tenants: self.0.other_tenants.exist() };
        let mut shares = self.lock();
        let taken = match shares.held(party) {
            held if held >= most => Err(ShareRefusal::Cap(most)),
            _ => shares.take(party, 1, terms, Instant::now()),
        };
        drop(shares);
        self.count_refusal(party, 1, taken)
    }

    fn count_refusal(
        &self,
        party: &P,
        amount: u64,
        taken: Result<(), ShareRefusal>,
    ) -> Result<ShareReservation<P>, ShareRefusal> {
        if let Err(ShareRefusal::Share(_) | ShareRefusal::Cap(_)) = taken {
            self.0.refused.fetch_add(1, Ordering::Relaxed);
        }
        taken.map(|()| ShareReservation { pool: self.clone(), party: party.clone(), amount })
    }

    /// Returns the error for a refusal.
    pub(crate) fn error(&self, refusal: ShareRefusal) -> Error {
        match refusal {
            ShareRefusal::Cap(most) | ShareRefusal::Share(most) => {
                Error::ShareTaken { kind: self.0.kind, most }
            }
            ShareRefusal::Full => Error::Overloaded,
        }
    }

    /// Returns the metric label, and how often a party was refused because of its share.
    pub(crate) fn share_refusals(&self) -> (&'static str, u64) {
        (self.0.kind.label(), self.0.refused.load(Ordering::Relaxed))
    }

    /// Returns the number of units that a party holds.
    pub(crate) fn held(&self, party: &P) -> u64 {
        self.lock().held(party)
    }

    fn lock(&self) -> MutexGuard<'_, FairShare<P>> {
        self.0.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn used(&self) -> u64 {
        self.lock().used()
    }
}

impl<P: Eq + Hash + Clone> ShareReservation<P> {
    pub(crate) fn amount(&self) -> u64 {
        self.amount
    }

    pub(crate) fn party(&self) -> &P {
        &self.party
    }

    /// Takes more units, so that this reservation holds at least `amount`.
    pub(crate) fn grow_to(&mut self, amount: u64, tenure: Tenure) -> Result<(), Error> {
        let Some(more) = amount.checked_sub(self.amount).filter(|more| *more > 0) else { return Ok(()) };
        let mut taken = self.pool.take(&self.party, more, None, tenure).map_err(|no| self.pool.error(no))?;
        // Move the units into this reservation.
        self.amount += std::mem::take(&mut taken.amount);
        Ok(())
    }

    /// Splits off `amount` units, or all of them if it holds fewer.
    pub(crate) fn split(&mut self, amount: u64) -> Self {
        let amount = amount.min(self.amount);
        self.amount -= amount;
        Self { pool: self.pool.clone(), party: self.party.clone(), amount }
    }
}

impl<P: Eq + Hash + Clone> Drop for ShareReservation<P> {
    fn drop(&mut self) {
        if self.amount > 0 {
            self.pool.lock().give_back(&self.party, self.amount);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_return_their_units() {
        let pool =
            SharePool::new(ShareKind::Bodies, FairShare::with_reserve_within(100), &OtherTenants::default());
        let mut reservation = pool.empty_reservation(&1);
        reservation.grow_to(30, Tenure::Brief).unwrap();
        reservation.grow_to(20, Tenure::Brief).unwrap();
        let part = reservation.split(10);
        assert_eq!((reservation.amount(), part.amount(), pool.used()), (20, 10, 30));
        assert!(matches!(reservation.grow_to(70, Tenure::Brief), Err(Error::ShareTaken { most: 75, .. })));
        drop(part);
        assert_eq!(pool.used(), 20);
        reservation.grow_to(75, Tenure::Brief).unwrap();
        drop(reservation);
        assert_eq!((pool.used(), pool.share_refusals()), (0, ("bodies", 1)));
    }
}
