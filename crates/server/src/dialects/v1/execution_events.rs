//! The events of an execution: output while it runs, then its result.
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

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::response::Response;
use belljar_engine::provider::Stream;
use serde::Serialize;
use tokio::sync::watch;

use crate::executions::live_executions::{CancelOnDrop, ExecutionResult, LiveExecution, ReadPosition};
use crate::http::events::{EventProducer, as_events, event, event_stream, typed_event};
use crate::http::problem::error_json;
use crate::http::utf8::Utf8Decoder;

/// Payload of the event `progress`.
#[derive(Serialize)]
struct ProgressEvent {
    message: String,
}

/// Payload of the event `output`.
#[derive(Serialize)]
struct ExecutionOutput {
    stream: &'static str,
    text: String,
}

/// Streams the events of an execution. With a [`CancelOnDrop`], the execution is canceled when the client
/// disconnects.
pub(crate) fn execution_stream(
    running: Arc<LiveExecution>,
    cancel_on_drop: Option<CancelOnDrop>,
) -> Response {
    let (position, texts) = (ReadPosition::default(), Default::default());
    let mut progress = running.progress.subscribe();
    progress.mark_changed();
    event_stream(ExecutionEvents {
        running,
        _cancel_on_drop: cancel_on_drop,
        position,
        texts,
        progress,
        last: None,
        over: false,
    })
}

/// Returns the result of an ended execution as a single event.
pub(crate) fn result_stream(json: &Bytes) -> Response {
    as_events(Body::from(event("result", json)))
}

struct ExecutionEvents {
    running: Arc<LiveExecution>,
    _cancel_on_drop: Option<CancelOnDrop>,
    position: ReadPosition,
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
            while let Some((stream, bytes)) = transcript.next(&mut self.position) {
                if let Some(event) = self.show(stream, &bytes) {
                    return Some(event);
                }
            }
            if let Some(done) = self.last.take() {
                return Some(self.end(done));
            }
            tokio::select! {
                biased;
                () = transcript.wait_beyond(&self.position) => {}
                Ok(()) = self.progress.changed() => {
                    let message = self.progress.borrow_and_update().clone();
                    if !message.is_empty() {
                        return Some(typed_event("progress", &ProgressEvent { message }));
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
        (!text.is_empty()).then(|| typed_event("output", &ExecutionOutput { stream: name, text }))
    }

    fn end(&mut self, done: ExecutionResult) -> Bytes {
        self.over = true;
        match done {
            Ok(json) => event("result", &json),
            Err(error) => event("error", error_json(&error).as_bytes()),
        }
    }
}
