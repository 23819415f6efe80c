//! `Range: bytes=…`: a single range of a file. Any other range is ignored, as RFC 9110 requires.

use axum::http::{HeaderMap, header};

/// A requested range, before the length of the file is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ByteRange {
    /// From an offset to another, inclusive, or to the end.
    From(u64, Option<u64>),
    /// This many bytes at the end.
    Last(u64),
}

impl ByteRange {
    /// Parses the requested range. Multiple ranges and `If-Range` are not supported and yield `None`: the
    /// whole file.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let mut all = headers.get_all(header::RANGE).iter();
        match (all.next(), all.next()) {
            (Some(value), None) if !headers.contains_key(header::IF_RANGE) => {
                Self::parse(value.to_str().ok()?)
            }
            _ => None,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (unit, set) = text.split_once('=')?;
        let (first, last) = set.trim().split_once('-')?;
        if !unit.trim().eq_ignore_ascii_case("bytes") {
            return None;
        }
        match (first, last) {
            ("", last) => Some(Self::Last(number(last)?)),
            (first, "") => Some(Self::From(number(first)?, None)),
            (first, last) => {
                let (first, last) = (number(first)?, number(last)?);
                (first <= last).then_some(Self::From(first, Some(last)))
            }
        }
    }

    /// Returns the offset and length within a file of this size, or `None` if the range is outside of it.
    pub(crate) fn within(self, size: u64) -> Option<(u64, u64)> {
        let (first, end) = match self {
            Self::From(first, last) => (first, last.map_or(size, |last| last.saturating_add(1).min(size))),
            Self::Last(count) => (size.saturating_sub(count), size),
        };
        (first < end).then(|| (first, end - first))
    }
}

/// Parses a number. One that is too large counts as the largest.
fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_ranges_are_parsed() {
        let within = |text, size| ByteRange::parse(text).map(|range| range.within(size));
        assert_eq!(within("bytes=0-0", 10), Some(Some((0, 1))));
        assert_eq!(within("bytes=2-", 10), Some(Some((2, 8))));
        assert_eq!(within("Bytes=2-99", 10), Some(Some((2, 8))));
        assert_eq!(within("bytes=-3", 10), Some(Some((7, 3))));
        assert_eq!(within("bytes=-30", 10), Some(Some((0, 10))));
        assert_eq!(within("bytes=0-99999999999999999999999", 10), Some(Some((0, 10))));
        for none in ["bytes=10-", "bytes=-0", "bytes=18446744073709551615-"] {
            assert_eq!(within(none, 10), Some(None), "{none}");
        }
        assert_eq!(within("bytes=-1", 0), Some(None));
        for other in [
            "bytes=",
            "bytes=-",
            "bytes=1-0",
            "bytes=0-1,3-4",
            "bytes=+1-2",
            "lines=0-1",
            "bytes",
            "bytes=a-b",
        ] {
            assert_eq!(within(other, 10), None, "{other}");
        }
    }
}
