//! Server-sent events.

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Serialize;
use tokio::time::sleep;

/// Interval of comments on an idle stream, so that proxies do not close it.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(10);

/// Returns whether a client accepts server-sent events.
pub(crate) fn accepts_events(headers: &HeaderMap) -> bool {
    accepts(headers, &["text/event-stream"])
}

/// Returns whether a client accepts one JSON object per line.
pub(crate) fn accepts_lines(headers: &HeaderMap) -> bool {
    accepts(headers, &["application/x-ndjson", "application/jsonl"])
}

fn accepts(headers: &HeaderMap, kinds: &[&str]) -> bool {
    let accepts = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accepts.split(',').any(|kind| kinds.contains(&kind.split(';').next().unwrap_or_default().trim()))
}

/// A source of server-sent events.
pub(crate) trait EventProducer: Send + 'static {
    /// Returns the next event, or `None` after the last. Cancel-safe.
    fn next(&mut self) -> impl Future<Output = Option<Bytes>> + Send;
}

/// Streams all events of a source, at the client's pace.
pub(crate) fn event_stream(producer: impl EventProducer) -> Response {
    let events = stream::unfold(producer, |mut producer| async {
        let event = tokio::select! {
            biased;
            event = producer.next() => event?,
            () = sleep(HEARTBEAT) => Bytes::from_static(b": still running\n\n"),
        };
        Some((Ok::<_, Infallible>(event), producer))
    });
    as_events(Body::from_stream(events))
}

/// Returns a response whose body is an event stream.
pub(crate) fn as_events(body: Body) -> Response {
    let head = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (head, body).into_response()
}

/// Formats an event. JSON contains no line breaks, so one `data` line suffices.
pub(crate) fn event(name: &str, json: &[u8]) -> Bytes {
    [b"event: ", name.as_bytes(), b"\ndata: ", json, b"\n\n"].concat().into()
}

/// Formats an event with a typed payload.
pub(crate) fn typed_event(name: &str, payload: &impl Serialize) -> Bytes {
    event(name, &serde_json::to_vec(payload).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_event_stream_type_requests_events() {
        let ask = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, text.parse().unwrap());
            accepts_events(&headers)
        };
        assert!(ask("text/event-stream") && ask("application/json, text/event-stream;q=0.9"));
        assert!(!ask("*/*") && !ask("application/json") && !ask("application/x-ndjson"));
    }
}
