//! The memory for request bodies: each tenant has a fair share of it.

use belljar_store::TenantName;

use crate::error::Error;
use crate::fair_share::{FairShare, Tenure};
use crate::share_pool::{OtherTenants, ShareKind, SharePool, ShareReservation};

/// The memory for arriving bodies and for the requests parsed from them. There are two pools because a body
/// lives for seconds, but a request for as long as it waits and runs: queued requests must not keep others
/// from sending.
#[derive(Debug)]
pub(crate) struct BodyMemory {
    arriving: SharePool<TenantName>,
    requests: SharePool<TenantName>,
}

impl BodyMemory {
    /// Creates two pools of `total` bytes each, in which a tenant's half holds at least the longest body.
    pub(crate) fn new(total: usize, max_body: usize, other_tenants: &OtherTenants) -> Self {
        let total = total.max(max_body.saturating_mul(3)) as u64;
        let pool = |kind| SharePool::new(kind, FairShare::with_reserve_within(total), other_tenants);
        Self { arriving: pool(ShareKind::Bodies), requests: pool(ShareKind::Requests) }
    }

    /// Returns an empty reservation for a body of a tenant.
    pub(crate) fn reserve(&self, tenant: &TenantName) -> BodyReservation {
        BodyReservation { arriving: self.arriving.empty_reservation(tenant), requests: self.requests.clone() }
    }

    pub(crate) fn share_refusals(&self) -> [(&'static str, u64); 2] {
        [self.arriving.share_refusals(), self.requests.share_refusals()]
    }
}

/// The memory reserved for a body while it arrives and is parsed.
#[derive(Debug)]
pub(crate) struct BodyReservation {
    arriving: ShareReservation<TenantName>,
    requests: SharePool<TenantName>,
}

/// The memory reserved for a request while it waits and runs.
#[derive(Debug)]
pub(crate) struct RequestReservation {
    _bytes: ShareReservation<TenantName>,
}

impl BodyReservation {
    /// Grows the reservation to this many bytes.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<(), Error> {
        self.arriving.grow_to(bytes as u64, Tenure::Brief)
    }

    /// Splits off the reservation of one line of a longer body.
    pub(crate) fn split(&mut self, bytes: usize) -> Self {
        Self { arriving: self.arriving.split(bytes as u64), requests: self.requests.clone() }
    }

    /// Returns the number of reserved bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.arriving.amount()
    }

    /// Moves the reservation from the arriving bodies to the requests.
    pub(crate) fn into_request(self) -> Result<RequestReservation, Error> {
        self.into_larger_request(0)
    }

    /// Moves the reservation from the arriving bodies to the requests, for a request that needs more memory than its
    /// body.
    pub(crate) fn into_larger_request(self, more: u64) -> Result<RequestReservation, Error> {
        let (tenant, bytes) = (self.arriving.party(), self.arriving.amount() + more);
        let taken = self.requests.take(tenant, bytes, None, Tenure::Lasting);
        Ok(RequestReservation { _bytes: taken.map_err(|no| self.requests.error(no))? })
    }
}
