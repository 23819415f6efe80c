//! Long-lived responses: event streams, WebSockets, batches and MCP streams. Each tenant has a limit and a
//! fair share.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::response::Response;
use belljar_store::TenantName;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use crate::error::Error;
use crate::fair_share::{FairShare, Tenure};
use crate::settings::Settings;
use crate::share_pool::{OtherTenants, ShareKind, SharePool, ShareReservation};

/// Slots for streams.
#[derive(Debug)]
pub(crate) struct Streams {
    slots: SharePool<TenantName>,
    max_per_tenant: u64,
}

/// The slot of one stream. Dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct StreamSlot {
    _hold: ShareReservation<TenantName>,
}

impl Streams {
    pub(crate) fn new(settings: &Settings, other_tenants: &OtherTenants) -> Self {
        let total = settings.streams.min(settings.connections / 2).max(2) as u64;
        let slots = SharePool::new(ShareKind::Streams, FairShare::with_reserve_within(total), other_tenants);
        Self { slots, max_per_tenant: settings.tenant_streams as u64 }
    }

    /// Takes a stream slot for a tenant.
    pub(crate) fn open(&self, tenant: &TenantName) -> Result<StreamSlot, Error> {
        let taken = self.slots.take_at_most(tenant, self.max_per_tenant, Tenure::Lasting);
        taken
            .map(|reservation| StreamSlot { _hold: reservation })
            .map_err(|refusal| self.slots.error(refusal))
    }

    pub(crate) fn share_refusals(&self) -> (&'static str, u64) {
        self.slots.share_refusals()
    }
}

impl StreamSlot {
    /// Keeps the slot until the response has been sent.
    pub(crate) fn hold_during(self, response: Response) -> Response {
        response.map(|body| Body::new(BodyWithSlot { body, _slot: self }))
    }
}

/// A response body that holds its stream slot.
struct BodyWithSlot {
    body: Body,
    _slot: StreamSlot,
}

impl HttpBody for BodyWithSlot {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
