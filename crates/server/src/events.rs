//! Server-sent events: output while an execution runs, then its result.
//!
//! ```text
//! event: progress          (while packages are installed)
//! data: {"message":"…"}
//!
//! event: output
//! data: {"stream":"stdout","text":"…"}
//!
//! event: result            (or error, with the error object)
//! data: {…the result object…}
//! ```
//!
//! A viewer only has a position in the transcript, so one that does not read costs nothing.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use belljar_engine::provider::Stream;
use futures_util::stream;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::error::{Error, Problem};
use crate::live_executions::{CancelOnDrop, ExecutionResult, LiveExecution, ReadPosition};

/// Interval of comments on an idle stream, so that proxies do not close it.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(10);

/// Returns whether a client accepts server-sent events.
pub(crate) fn accepts_events(headers: &HeaderMap) -> bool {
    let accepts = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accepts.split(',').any(|kind| kind.split(';').next().unwrap_or_default().trim() == "text/event-stream")
}

/// A source of server-sent events.
pub(crate) trait EventProducer: Send + 'static {
    /// Returns the next event, or `None` after the last. Cancel-safe.
    fn next(&mut self) -> impl Future<Output = Option<Bytes>> + Send;
}

/// Streams all events of a source, at the client's pace.
pub(crate) fn event_stream(teller: impl EventProducer) -> Response {
    let events = stream::unfold(teller, |mut teller| async {
        let event = tokio::select! {
            biased;
            event = teller.next() => event?,
            () = sleep(HEARTBEAT) => Bytes::from_static(b": still running\n\n"),
        };
        Some((Ok::<_, Infallible>(event), teller))
    });
    as_events(Body::from_stream(events))
}

/// Streams the events of an execution. With a [`CancelOnDrop`], the execution is canceled when the client
/// disconnects.
pub(crate) fn execution_stream(running: Arc<LiveExecution>, leash: Option<CancelOnDrop>) -> Response {
    let (place, texts) = (ReadPosition::default(), Default::default());
    let mut progress = running.progress.subscribe();
    progress.mark_changed();
    event_stream(ExecutionEvents { running, _leash: leash, place, texts, progress, last: None, over: false })
}

/// Returns the result of an ended execution as a single event.
pub(crate) fn result_stream(json: &Bytes) -> Response {
    as_events(Body::from(event("result", json)))
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

struct ExecutionEvents {
    running: Arc<LiveExecution>,
    _leash: Option<CancelOnDrop>,
    place: ReadPosition,
    texts: [Utf8Decoder; 2],
    progress: watch::Receiver<String>,
    last: Option<ExecutionResult>,
    over: bool,
}

impl EventProducer for ExecutionEvents {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.over {
                return None;
            }
            let running = Arc::clone(&self.running);
            let Some(transcript) = &running.transcript else { return Some(self.end(running.done().await)) };
            while let Some((stream, bytes)) = transcript.next(&mut self.place) {
                if let Some(event) = self.show(stream, &bytes) {
                    return Some(event);
                }
            }
            if let Some(done) = self.last.take() {
                return Some(self.end(done));
            }
            tokio::select! {
                biased;
                () = transcript.wait_beyond(&self.place) => {}
                Ok(()) = self.progress.changed() => {
                    let message = self.progress.borrow_and_update().clone();
                    if !message.is_empty() {
                        return Some(event("progress", json!({"message": message}).to_string().as_bytes()));
                    }
                }
                // All output was written before the outcome is known, so one more pass reads it completely.
                done = running.done() => self.last = Some(done),
            }
        }
    }
}

impl ExecutionEvents {
    fn show(&mut self, stream: Stream, bytes: &[u8]) -> Option<Bytes> {
        let (text, name) = match stream {
            Stream::Stdout => (&mut self.texts[0], "stdout"),
            Stream::Stderr => (&mut self.texts[1], "stderr"),
        };
        let text = text.decode(bytes);
        let object = json!({"stream": name, "text": text}).to_string();
        (!text.is_empty()).then(|| event("output", object.as_bytes()))
    }

    fn end(&mut self, done: ExecutionResult) -> Bytes {
        self.over = true;
        match done {
            Ok(json) => event("result", &json),
            Err(error) => event("error", error_json(&error).as_bytes()),
        }
    }
}

/// Returns the error object for a response that has already started.
pub(crate) fn error_json(error: &Error) -> String {
    serde_json::to_string(&Problem { error: error.to_reason(None) }).unwrap_or_default()
}

/// Formats an event. JSON contains no line breaks, so one `data` line suffices.
pub(crate) fn event(name: &str, json: &[u8]) -> Bytes {
    [b"event: ", name.as_bytes(), b"\ndata: ", json, b"\n\n"].concat().into()
}

/// Decodes UTF-8 incrementally. A character split between two chunks is held back until it is complete.
#[derive(Debug, Default)]
struct Utf8Decoder(Vec<u8>);

impl Utf8Decoder {
    fn decode(&mut self, bytes: &[u8]) -> String {
        self.0.extend_from_slice(bytes);
        let whole = self.0.len() - incomplete_suffix_len(&self.0);
        let rest = self.0.split_off(whole);
        let text = String::from_utf8_lossy(&self.0).into_owned();
        self.0 = rest;
        text
    }
}

/// Returns the number of bytes at the end that are an incomplete character.
pub(crate) fn incomplete_suffix_len(bytes: &[u8]) -> usize {
    let tail = &bytes[bytes.len().saturating_sub(3)..];
    (1..=tail.len())
        .rev()
        .find(|count| {
            let end = &tail[tail.len() - count..];
            matches!(std::str::from_utf8(end), Err(error) if error.valid_up_to() == 0 && error.error_len().is_none())
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_characters_stay_whole() {
        let all = "aé€😀z".as_bytes();
        for cut in 0..=all.len() {
            let mut text = Utf8Decoder::default();
            assert_eq!(text.decode(&all[..cut]) + &text.decode(&all[cut..]), "aé€😀z", "{cut}");
        }
        let mut text = Utf8Decoder::default();
        assert_eq!(text.decode(b"\xff\xffa"), "\u{fffd}\u{fffd}a");
        assert_eq!(text.decode(b"\xe2\x82"), "");
        assert_eq!(text.decode(b"x"), "\u{fffd}x");
    }

    #[test]
    fn only_the_event_stream_type_requests_events() {
        let ask = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, text.parse().unwrap());
            accepts_events(&headers)
        };
        assert!(ask("text/event-stream") && ask("application/json, text/event-stream;q=0.9"));
        assert!(!ask("*/*") && !ask("application/json"));
    }
}
