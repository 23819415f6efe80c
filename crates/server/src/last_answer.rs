//! The answer to a request whose key becomes invalid while it is served: its client learns why the connection ends.
//!
//! ```text
//! request ─▶ handler ─────▶ event stream ─────▶ end          (everything else is cut off: files, terminals, ports)
//!              │ key invalid      │ key invalid
//!              ▼                  ▼
//!             401          event `error`, the last one
//! ```

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::task::Poll;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};

use crate::error::Error;
use crate::http::events::event;
use crate::http::problem::{PassThrough, error_json, http_status};
use crate::revocation::ConnectionHandle;

/// Awaits the answer to a request, or returns an error in its place once the connection must end.
pub(crate) async fn answer(
    handle: Arc<ConnectionHandle>,
    response: impl Future<Output = Result<Response, Infallible>>,
) -> Result<Response, Infallible> {
    handle.set_can_answer(true);
    let response = tokio::select! {
        biased;
        () = handle.closed() => return Ok(refusal()),
        response = response => response?,
    };
    let kind = response.headers().get(header::CONTENT_TYPE);
    let has_events = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    if !has_events || response.extensions().get::<PassThrough>().is_some() {
        handle.set_can_answer(false);
        return Ok(response);
    }
    Ok(response.map(|events| with_last_event(events, handle)))
}

fn refusal() -> Response {
    let error = Error::KeyNoLongerValid;
    let head = [(header::CONTENT_TYPE, "application/json"), (header::CONNECTION, "close")]
        .map(|(name, value)| (name, HeaderValue::from_static(value)));
    (http_status(error.code()), head, error_json(&error)).into_response()
}

/// Ends events with an error once the connection must end.
fn with_last_event(events: Body, handle: Arc<ConnectionHandle>) -> Body {
    let mut events = events.into_data_stream();
    let mut is_over = false;
    Body::from_stream(stream::poll_fn(move |context| {
        if is_over {
            handle.set_answered();
            return Poll::Ready(None);
        }
        if handle.poll_closed(context) {
            is_over = true;
            let error = error_json(&Error::KeyNoLongerValid);
            return Poll::Ready(Some(Ok::<Bytes, axum::Error>(event("error", error.as_bytes()))));
        }
        let next = events.poll_next_unpin(context);
        if matches!(next, Poll::Ready(None)) {
            handle.set_can_answer(false);
        }
        next
    }))
}
