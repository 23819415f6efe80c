//! Escapes a program's output for a terminal: text, line ends, tabs and colors pass; every other control
//! character is shown instead of executed. Otherwise a program could move the cursor, rename the window, fill
//! the clipboard or type input on the user's behalf.

/// Longer than any sensible color sequence; longer sequences are shown as text.
const MAX_SEQUENCE: usize = 64;

/// Escapes one stream. An incomplete character or color sequence at the end of a chunk is kept for the next
/// one.
#[derive(Debug, Default)]
pub(crate) struct Escaper {
    /// Empty, or `ESC [ 0-9;:`…, or the first bytes of a character.
    pending: Vec<u8>,
    /// Whether a color was set and not reset.
    colored: bool,
}

impl Escaper {
    /// Returns the next bytes, escaped.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        for byte in bytes {
            match self.pending.first() {
                None => self.ground(*byte, &mut out),
                Some(0x1b) => self.sequence(*byte, &mut out),
                Some(_) => self.character(*byte, &mut out),
            }
        }
        out
    }

    /// Returns the rest of the stream, and resets its colors.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        self.show_pending(&mut out);
        if std::mem::take(&mut self.colored) {
            out.extend_from_slice(b"\x1b[0m");
        }
        out
    }

    fn ground(&mut self, byte: u8, out: &mut Vec<u8>) {
        match byte {
            b'\n' | b'\r' | b'\t' | 0x20..=0x7e => out.push(byte),
            0x1b | 0xc2..=0xf4 => self.pending.push(byte),
            _ => show(byte, out),
        }
    }

    fn sequence(&mut self, byte: u8, out: &mut Vec<u8>) {
        match (self.pending.len(), byte) {
            (1, b'[') => self.pending.push(byte),
            (2..MAX_SEQUENCE, b'0'..=b'9' | b';' | b':') => self.pending.push(byte),
            (2.., b'm') => {
                self.colored = !matches!(&self.pending[2..], b"" | b"0");
                out.append(&mut self.pending);
                out.push(byte);
            }
            _ => {
                self.show_pending(out);
                self.ground(byte, out);
            }
        }
    }

    fn character(&mut self, byte: u8, out: &mut Vec<u8>) {
        if !matches!(byte, 0x80..=0xbf) {
            self.show_pending(out);
            return self.ground(byte, out);
        }
        self.pending.push(byte);
        match std::str::from_utf8(&self.pending) {
            // Unicode has control characters above ASCII too (C1), and some terminals execute them.
            Ok(text) if text.chars().any(char::is_control) => {
                out.extend(text.escape_unicode().to_string().into_bytes());
                self.pending.clear();
            }
            Ok(_) => out.append(&mut self.pending),
            Err(error) if error.error_len().is_none() => {}
            Err(_) => self.show_pending(out),
        }
    }

    /// Shows the pending bytes, which turned out not to be a sequence or character that may pass.
    fn show_pending(&mut self, out: &mut Vec<u8>) {
        for byte in self.pending.drain(..) {
            match byte {
                0x20..=0x7e => out.push(byte),
                _ => show(byte, out),
            }
        }
    }
}

fn show(byte: u8, out: &mut Vec<u8>) {
    out.extend(format!("\\x{byte:02x}").into_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(chunks: &[&[u8]]) -> String {
        let mut escaper = Escaper::default();
        let mut out: Vec<u8> = chunks.iter().flat_map(|chunk| escaper.push(chunk)).collect();
        out.extend(escaper.finish());
        String::from_utf8(out).unwrap()
    }

    const CASES: &[(&[u8], &str)] = &[
        (b"plain\ttext\r\n", "plain\ttext\r\n"),
        ("caf\u{e9} \u{1f980}".as_bytes(), "caf\u{e9} \u{1f980}"),
        (b"\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m"),
        (b"\x1b[38:5:9mred\x1b[m", "\x1b[38:5:9mred\x1b[m"),
        (b"\x1b[2Jgone", "\\x1b[2Jgone"),
        (b"\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        (b"\x1b\x1b[1m\x1b[0m", "\\x1b\x1b[1m\x1b[0m"),
        (b"\x1b[\x1b[0m", "\\x1b[\x1b[0m"),
        (b"\x1b[?25l", "\\x1b[?25l"),
        (b"\x00\x08\x7f", "\\x00\\x08\\x7f"),
        ("\u{9b}2J".as_bytes(), "\\u{9b}2J"),
        (b"\xff\xc3(\xe2\x82", "\\xff\\xc3(\\xe2\\x82"),
        (b"\xe0\x80\x80", "\\xe0\\x80\\x80"),
        (b"\xf0\x9f\x1b[0m", "\\xf0\\x9f\x1b[0m"),
        (b"end\x1b[1", "end\\x1b[1"),
    ];

    #[test]
    fn only_text_and_colors_pass_at_any_chunk_boundary() {
        for (bytes, wanted) in CASES {
            assert_eq!(shown(&[bytes]), *wanted, "{bytes:?}");
            let single: Vec<_> = bytes.chunks(1).collect();
            assert_eq!(shown(&single), *wanted, "{bytes:?} byte by byte");
        }
    }

    #[test]
    fn a_color_is_reset_at_the_end() {
        assert_eq!(shown(&[b"\x1b[8mhidden"]), "\x1b[8mhidden\x1b[0m");
    }

    #[test]
    fn pending_bytes_are_bounded() {
        let mut escaper = Escaper::default();
        escaper.push(b"\x1b[");
        let out = escaper.push(&[b'1'; 10_000]);
        assert!(escaper.pending.is_empty() && out.len() > 9_000);
    }
}
