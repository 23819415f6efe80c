//! Frames of the Connect protocol as sent by E2B's daemon: one byte of flags, a length, JSON.

use serde_json::Value;

/// The flag of a stream's last frame.
const END_FLAG: u8 = 2;
const HEADER_BYTES: usize = 5;
/// More than any frame needs: output arrives in chunks of about ten kilobytes.
const MAX_FRAME_BYTES: usize = 8 << 20;

/// A frame of a stream.
#[derive(Debug, PartialEq)]
pub(super) enum ConnectFrame {
    /// A message.
    Message(Value),
    /// The end of the stream, with its error if there is one.
    End(Option<Value>),
}

/// Encodes a message as a frame.
pub(super) fn encode_frame(message: &Value) -> Vec<u8> {
    let text = message.to_string();
    let mut frame = vec![0];
    frame.extend((text.len() as u32).to_be_bytes());
    frame.extend(text.as_bytes());
    frame
}

/// A decoder that splits incoming bytes into frames.
#[derive(Debug, Default)]
pub(super) struct FrameDecoder(Vec<u8>);

impl FrameDecoder {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Returns the next complete frame.
    pub(super) fn next(&mut self) -> Result<Option<ConnectFrame>, String> {
        let Some((header, rest)) = self.0.split_at_checked(HEADER_BYTES) else { return Ok(None) };
        let (flags, length) = (header[0], u32::from_be_bytes([header[1], header[2], header[3], header[4]]));
        let length = length as usize;
        if length > MAX_FRAME_BYTES || flags & !END_FLAG != 0 {
            return Err(format!("unexpected frame of {length} bytes with flags {flags}"));
        }
        let Some(text) = rest.get(..length) else { return Ok(None) };
        let message = serde_json::from_slice(text).map_err(|error| format!("a frame is not JSON: {error}"));
        let message: Value = message?;
        self.0.drain(..HEADER_BYTES + length);
        Ok(Some(match flags {
            END_FLAG => ConnectFrame::End(message.get("error").cloned()),
            _ => ConnectFrame::Message(message),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn frames_are_decoded_from_any_chunks() {
        let mut bytes = encode_frame(&json!({"a": 1}));
        let mut end = encode_frame(&json!({"error": {"code": "not_found"}}));
        end[0] = END_FLAG;
        bytes.extend(end);
        let (mut frames, mut seen) = (FrameDecoder::default(), Vec::new());
        for byte in bytes {
            frames.push(&[byte]);
            seen.extend(frames.next().unwrap());
        }
        assert_eq!(
            seen,
            [ConnectFrame::Message(json!({"a": 1})), ConnectFrame::End(Some(json!({"code": "not_found"})))]
        );
    }

    #[test]
    fn a_frame_that_is_too_long_or_compressed_is_refused() {
        for header in [[0, 0xff, 0, 0, 0], [1, 0, 0, 0, 2]] {
            let mut frames = FrameDecoder::default();
            frames.push(&header);
            assert!(frames.next().is_err());
        }
    }
}
