//! The subset of DNS (RFC 1035) that answers a single question. Name compression is not parsed: a question
//! never needs it.

use std::net::IpAddr;

use belljar_engine::network::Target;

pub(crate) const OK: u8 = 0;
pub(crate) const MALFORMED: u8 = 1;
pub(crate) const NO_SUCH_NAME: u8 = 3;
pub(crate) const NOT_DONE: u8 = 4;
pub(crate) const REFUSED: u8 = 5;

const HEAD: usize = 12;
const INTERNET: u16 = 1;
/// TTL of an answer in seconds. Short, because the rules can change.
const KEPT: u32 = 30;
/// At most this many addresses fit in the 512 bytes of a UDP answer, however long the name is.
const MAX_ANSWERS: usize = 8;

/// A parsed DNS question.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Question<'a> {
    head: &'a [u8],
    /// The question section as received, echoed in the answer.
    asked: &'a [u8],
    pub(crate) target: Target,
    pub(crate) kind: Kind,
}

/// The type of the requested records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// IPv4 addresses.
    A,
    /// IPv6 addresses.
    Aaaa,
    /// Anything else.
    Other,
}

impl Kind {
    /// Returns whether records of this type hold addresses of this family.
    pub(crate) fn is(self, address: IpAddr) -> bool {
        match self {
            Self::A => address.is_ipv4(),
            Self::Aaaa => address.is_ipv6(),
            Self::Other => false,
        }
    }
}

/// Parses a question. An error holds the answer to send, if one is due.
pub(crate) fn parse(message: &[u8]) -> Result<Question<'_>, Option<Vec<u8>>> {
    let (head, rest) = message.split_at_checked(HEAD).ok_or(None)?;
    if head[2] & 0x80 != 0 {
        // A response, although no query was sent: ignore it.
        return Err(None);
    }
    if head[2] & 0x78 != 0 {
        return Err(Some(reply(head, &[], NOT_DONE, &[])));
    }
    let malformed = || Some(reply(head, &[], MALFORMED, &[]));
    // Exactly one question and no answers. Additional records (EDNS) are ignored.
    if head[4..10] != [0, 1, 0, 0, 0, 0] {
        return Err(malformed());
    }
    let (name, len) = name(rest).ok_or_else(malformed)?;
    let asked = rest.get(..len + 4).ok_or_else(malformed)?;
    let number = |at: usize| u16::from_be_bytes([asked[at], asked[at + 1]]);
    let (Ok(Target::Name(name)), INTERNET) = (name.parse(), number(len + 2)) else {
        return Err(Some(reply(head, asked, REFUSED, &[])));
    };
    let kind = match number(len) {
        1 => Kind::A,
        28 => Kind::Aaaa,
        _ => Kind::Other,
    };
    Ok(Question { head, asked, target: Target::Name(name), kind })
}

/// Returns a name and the number of bytes it occupies.
fn name(bytes: &[u8]) -> Option<(String, usize)> {
    let mut labels = Vec::new();
    let mut at = 0;
    loop {
        let len = usize::from(*bytes.get(at)?);
        at += 1;
        match len {
            0 => break,
            1..=63 => labels.push(std::str::from_utf8(bytes.get(at..at + len)?).ok()?),
            _ => return None,
        }
        at += len;
        if at > 254 {
            return None;
        }
    }
    // A dot inside a label would make the joined name ambiguous.
    if labels.iter().any(|label| label.contains('.')) { None } else { Some((labels.join("."), at)) }
}

impl Question<'_> {
    pub(crate) fn answer(&self, code: u8, addresses: &[IpAddr]) -> Vec<u8> {
        reply(self.head, self.asked, code, addresses)
    }
}

fn reply(head: &[u8], asked: &[u8], code: u8, addresses: &[IpAddr]) -> Vec<u8> {
    let addresses = &addresses[..addresses.len().min(MAX_ANSWERS)];
    let mut reply = head[..2].to_vec();
    // A response; the recursion-desired flag is copied, and recursion is available.
    reply.extend([0x80 | head[2] & 0x01, 0x80 | code]);
    reply.extend([0, u8::from(!asked.is_empty()), 0, addresses.len() as u8, 0, 0, 0, 0]);
    reply.extend(asked);
    for address in addresses {
        let (kind, bytes) = match address {
            IpAddr::V4(address) => (1, address.octets().to_vec()),
            IpAddr::V6(address) => (28, address.octets().to_vec()),
        };
        // A compression pointer to the name in the question.
        reply.extend([0xc0, HEAD as u8, 0, kind, 0, INTERNET as u8]);
        reply.extend(KEPT.to_be_bytes());
        reply.extend([0, bytes.len() as u8]);
        reply.extend(bytes);
    }
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_is_answered_or_dropped_and_never_believed() {
        let question = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x01a\x04test\0\0\x01\0\x01";
        let read = parse(question).unwrap();
        assert_eq!((read.target.to_string().as_str(), read.kind), ("a.test", Kind::A));
        for cut in 0..question.len() {
            assert!(parse(&question[..cut]).is_err(), "{cut}");
        }
        let mut response = *question;
        response[2] |= 0x80;
        assert_eq!(parse(&response), Err(None));
        for at in 0..question.len() {
            for value in 0..=255 {
                let mut changed = *question;
                changed[at] = value;
                let _any = parse(&changed);
            }
        }
        let pointer = b"\0\0\x01\0\0\x01\0\0\0\0\0\0\xc0\x0c\0\x01\0\x01";
        assert!(parse(pointer).is_err());
        let dotted = b"\0\0\x01\0\0\x01\0\0\0\0\0\0\x06a.test\0\0\x01\0\x01";
        assert!(parse(dotted).is_err());
        let endless = [b"\0\0\x01\0\0\x01\0\0\0\0\0\0".as_slice(), &b"\x01a".repeat(400)].concat();
        assert!(parse(&endless).is_err());
    }

    #[test]
    fn an_answer_fits_a_datagram_whatever_the_name() {
        let label = [&[63][..], &[b'a'; 63]].concat();
        let name =
            [label.repeat(3), b"\x3aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa".to_vec()]
                .concat();
        let question = [b"\0\0\x01\0\0\x01\0\0\0\0\0\0".as_slice(), &name, b"\0\0\x1c\0\x01"].concat();
        let read = parse(&question).unwrap();
        assert!(read.answer(OK, &[IpAddr::from([0_u16; 8]); 40]).len() <= 512);
    }
}
