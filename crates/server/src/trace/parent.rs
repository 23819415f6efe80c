//! The `traceparent` header of W3C Trace Context: `00-<trace>-<span>-<flags>`, in lowercase hexadecimal
//! digits.

use axum::http::HeaderMap;

/// A position in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TraceContext {
    pub(crate) trace: [u8; 16],
    pub(crate) span: [u8; 8],
    /// Whether the caller's sampled flag is set.
    pub(crate) recorded: bool,
}

impl TraceContext {
    /// Creates a span below the caller's span, or in a new trace.
    pub(super) fn from_headers(headers: &HeaderMap) -> (Self, Option<[u8; 8]>) {
        // Duplicate headers are invalid.
        let mut given = headers.get_all("traceparent").iter();
        let named = given.next().filter(|_| given.next().is_none());
        Self::child_of(named.and_then(|value| parse(value.to_str().ok()?)))
    }

    pub(crate) fn child_of(parent: Option<Self>) -> (Self, Option<[u8; 8]>) {
        match parent {
            Some(parent) => (Self { span: random(), ..parent }, Some(parent.span)),
            None => (Self { trace: random(), span: random(), recorded: true }, None),
        }
    }
}

fn parse(text: &str) -> Option<TraceContext> {
    let mut parts = text.split('-');
    let [version, trace, span, flags] = [parts.next()?, parts.next()?, parts.next()?, parts.next()?];
    let [version] = bytes::<1>(version)?;
    // A later version may have more fields; version 255 is invalid.
    if version == 0xff || version == 0 && parts.next().is_some() {
        return None;
    }
    let (trace, span, [flags]) = (bytes(trace)?, bytes(span)?, bytes::<1>(flags)?);
    (trace != [0; 16] && span != [0; 8]).then_some(TraceContext { trace, span, recorded: flags & 1 == 1 })
}

fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit =
        |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f').then(|| char::from(byte).to_digit(16))?;
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).ok()?;
    }
    Some(bytes)
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // Without random bytes ids may collide, but requests are still served.
    if getrandom::fill(&mut bytes).is_err() {
        bytes[0] = 1;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn only_well_formed_traceparents_are_continued() {
        let context = parse(GOOD).unwrap();
        assert_eq!((context.trace[0], context.span[7], context.recorded), (0x0a, 0x31, true));
        assert!(!parse(&GOOD.replace("-01", "-00")).unwrap().recorded);
        assert!(parse(&format!("01{}-later", &GOOD[2..])).is_some());
        for bad in [
            "",
            "00",
            &GOOD.to_uppercase(),
            &format!("{GOOD}-more"),
            &format!("ff{}", &GOOD[2..]),
            &GOOD.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            &GOOD.replace("b7ad6b7169203331", &"0".repeat(16)),
            &GOOD.replace("b7ad6b7169203331", "b7ad6b716920333"),
            &GOOD.replace("b7ad", "é7a"),
            &GOOD.replace("b7ad", "+7ad"),
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn child_spans_share_the_trace() {
        let parent = parse(GOOD).unwrap();
        let (child, above) = TraceContext::child_of(Some(parent));
        assert_eq!((child.trace, above), (parent.trace, Some(parent.span)));
        assert_ne!(child.span, parent.span);
        let mut headers = HeaderMap::new();
        headers.append("traceparent", GOOD.parse().unwrap());
        assert_eq!(TraceContext::from_headers(&headers).1, Some(parent.span));
        headers.append("traceparent", GOOD.parse().unwrap());
        assert_eq!(TraceContext::from_headers(&headers).1, None);
    }
}
