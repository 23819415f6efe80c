//! Reads server-sent events, and the output bytes in them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_engine::provider::Stream;
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Incoming;
use serde_json::Value;

use crate::error::CliError;

/// Maximum length of an event: the longest result, with some margin.
const MAX_EVENT_BYTES: usize = 256 << 20;

/// A stream of server-sent events.
pub(super) struct EventStream {
    body: Incoming,
    ready: Vec<u8>,
    /// Length of the buffer's prefix that contains no end of an event.
    searched: usize,
}

impl EventStream {
    pub(super) fn new(response: Response<Incoming>) -> Self {
        Self { body: response.into_body(), ready: Vec::new(), searched: 0 }
    }

    /// Returns the next event with its data as text, or an error at the end of the stream.
    pub(super) async fn next_text_required(&mut self) -> Result<(String, String), CliError> {
        self.next_text().await?.ok_or_else(|| response_error("the connection closed early"))
    }

    /// Returns the next event, or `None` at the end of the stream.
    pub(super) async fn next(&mut self) -> Result<Option<(String, Value)>, CliError> {
        let parse = |(name, data): (String, String)| (name, serde_json::from_str(&data).unwrap_or_default());
        Ok(self.next_text().await?.map(parse))
    }

    /// Returns the next event with its data as text, or `None` at the end of the stream.
    pub(super) async fn next_text(&mut self) -> Result<Option<(String, String)>, CliError> {
        loop {
            let from = self.searched.saturating_sub(1);
            if let Some(end) = self.ready[from..].windows(2).position(|two| two == b"\n\n") {
                let event: Vec<u8> = self.ready.drain(..from + end + 2).collect();
                self.searched = 0;
                return Ok(Some(parse(&String::from_utf8_lossy(&event))));
            }
            self.searched = self.ready.len();
            if self.ready.len() > MAX_EVENT_BYTES {
                return Err(response_error("an event is too long"));
            }
            let Some(frame) = self.body.frame().await else { return Ok(None) };
            let frame = frame.map_err(|error| response_error(&error.to_string()))?;
            self.ready.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
        }
    }
}

fn response_error(why: &str) -> CliError {
    CliError::host(format!("cannot read the server's response: {why}"))
}

/// Returns the name and the data of an event.
fn parse(event: &str) -> (String, String) {
    let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    (field("event: ").to_owned(), field("data: ").to_owned())
}

/// Returns the stream of an `output` event.
pub(super) fn stream_of(output: &Value) -> Stream {
    if output["stream"] == "stderr" { Stream::Stderr } else { Stream::Stdout }
}

/// Returns the bytes of an `output` event. Bytes that are not UTF-8 are in its `base64` field.
pub(super) fn bytes_of(output: &Value) -> Vec<u8> {
    let encoded = output["base64"].as_str().and_then(|text| STANDARD.decode(text).ok());
    encoded.unwrap_or_else(|| output["text"].as_str().unwrap_or_default().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_event_is_a_name_and_an_object() {
        assert_eq!(
            parse("event: output\ndata: {\"a\":1}\n\n"),
            ("output".to_owned(), "{\"a\":1}".to_owned())
        );
        assert_eq!(parse(": still here\n\n"), (String::new(), String::new()));
    }

    #[test]
    fn output_bytes_are_decoded() {
        let event = json!({"stream": "stderr", "text": "\u{fffd}", "base64": "/w=="});
        assert_eq!((stream_of(&event), bytes_of(&event)), (Stream::Stderr, vec![0xff]));
        assert_eq!(bytes_of(&json!({"text": "é"})), "é".as_bytes());
    }
}
