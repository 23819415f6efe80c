//! Incremental UTF-8.

/// Decodes UTF-8 incrementally. A character split between two chunks is held back until it is complete.
#[derive(Debug, Default)]
pub(crate) struct Utf8Decoder(Vec<u8>);

impl Utf8Decoder {
    pub(crate) fn decode(&mut self, bytes: &[u8]) -> String {
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
}
