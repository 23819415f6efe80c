//! Holds back the start of a line for a moment, so that a viewer gets whole lines: programs often write a line break
//! separately from the text before it.

use std::time::Duration;

use tokio::time::Instant;

/// How long the start of a line waits for its end.
const MAX_WAIT: Duration = Duration::from_millis(20);
/// A longer start of a line does not wait.
const MAX_HELD_BYTES: usize = 4 << 10;

/// The start of a line of one output stream.
#[derive(Debug, Default)]
pub(super) struct PartialLine {
    bytes: Vec<u8>,
    due: Option<Instant>,
}

impl PartialLine {
    /// Adds output, and returns what a viewer gets now.
    pub(super) fn push(&mut self, output: &[u8]) -> Vec<u8> {
        self.bytes.extend_from_slice(output);
        let lines = self.bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if self.bytes.len() - lines > MAX_HELD_BYTES {
            return self.take();
        }
        let rest = self.bytes.split_off(lines);
        let lines = std::mem::replace(&mut self.bytes, rest);
        // More of the same line does not prolong the wait.
        self.due = match self.due {
            _ if self.bytes.is_empty() => None,
            Some(due) if lines.is_empty() => Some(due),
            _ => Some(Instant::now() + MAX_WAIT),
        };
        lines
    }

    /// Takes what is held back.
    pub(super) fn take(&mut self) -> Vec<u8> {
        self.due = None;
        std::mem::take(&mut self.bytes)
    }

    /// Waits until what is held back should wait no longer; forever if there is nothing.
    pub(super) async fn wait_until_due(&self) {
        match self.due {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_pass_and_their_starts_wait() {
        let mut partial = PartialLine::default();
        assert_eq!(partial.push(b"one\ntw"), b"one\n");
        let due = partial.due;
        assert_eq!(partial.push(b"o"), b"");
        assert!(due.is_some() && partial.due == due, "more of a line must not prolong the wait");
        assert_eq!(partial.push(b"\n"), b"two\n");
        assert!(partial.due.is_none());
        assert_eq!((partial.push(b"three"), partial.take()), (Vec::new(), b"three".to_vec()));
        assert!(partial.due.is_none() && partial.take().is_empty());
    }

    #[test]
    fn a_long_line_does_not_wait() {
        let mut partial = PartialLine::default();
        let long = vec![b'x'; MAX_HELD_BYTES + 1];
        assert_eq!(partial.push(&long), long);
        assert!(partial.due.is_none());
    }
}
