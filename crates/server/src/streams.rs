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
use crate::pool::{Hold, Pool, Rivals, ShareKind};
use crate::settings::Settings;

/// Slots for streams.
#[derive(Debug)]
pub(crate) struct Streams {
    places: Pool<TenantName>,
    most_of_one: u64,
}

/// The slot of one stream. Dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct StreamPlace {
    _hold: Hold<TenantName>,
}

impl Streams {
    pub(crate) fn new(settings: &Settings, rivals: &Rivals) -> Self {
        let total = settings.streams.min(settings.connections / 2).max(2) as u64;
        let places = Pool::new(ShareKind::Streams, FairShare::with_reserve_within(total), rivals);
        Self { places, most_of_one: settings.tenant_streams as u64 }
    }

    /// Takes a stream slot for a tenant.
    pub(crate) fn open(&self, tenant: &TenantName) -> Result<StreamPlace, Error> {
        let taken = self.places.take_at_most(tenant, self.most_of_one, Tenure::Lasting);
        taken.map(|hold| StreamPlace { _hold: hold }).map_err(|refusal| self.places.error(refusal))
    }

    pub(crate) fn refused(&self) -> (&'static str, u64) {
        self.places.refused()
    }
}

impl StreamPlace {
    /// Keeps the slot until the response has been sent.
    pub(crate) fn within(self, response: Response) -> Response {
        response.map(|body| Body::new(Placed { body, _place: self }))
    }
}

/// A response body that holds its stream slot.
struct Placed {
    body: Body,
    _place: StreamPlace,
}

impl HttpBody for Placed {
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
