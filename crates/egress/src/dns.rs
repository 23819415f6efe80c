//! The subset of DNS (RFC 1035) that answers a single question. Name compression is not parsed: a question
//! never needs it.

use std::net::IpAddr;

use belljar_engine::network::TargetHost;

pub(crate) const NO_ERROR: u8 = 0;
pub(crate) const FORMAT_ERROR: u8 = 1;
pub(crate) const NAME_ERROR: u8 = 3;
pub(crate) const NOT_IMPLEMENTED: u8 = 4;
pub(crate) const REFUSED: u8 = 5;

const HEADER_BYTES: usize = 12;
const CLASS_INTERNET: u16 = 1;
/// TTL of an answer in seconds. Short, because the rules can change.
const TTL_SECONDS: u32 = 30;
/// At most this many addresses fit in the 512 bytes of a UDP answer, however long the name is.
const MAX_ANSWERS: usize = 8;

/// A parsed DNS question.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DnsQuestion<'a> {
    head: &'a [u8],
    /// The question section as received, echoed in the answer.
    question_section: &'a [u8],
    pub(crate) target: TargetHost,
    pub(crate) kind: RecordType,
}

/// The type of the requested records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordType {
    /// IPv4 addresses.
    A,
    /// IPv6 addresses.
    Aaaa,
    /// Anything else.
    Other,
}

impl RecordType {
    /// Returns whether records of this type hold addresses of this family.
    pub(crate) fn matches(self, address: IpAddr) -> bool {
        match self {
            Self::A => address.is_ipv4(),
            Self::Aaaa => address.is_ipv6(),
            Self::Other => false,
        }
    }
}

/// Parses a question. An error holds the answer to send, if one is due.
pub(crate) fn parse(message: &[u8]) -> Result<DnsQuestion<'_>, Option<Vec<u8>>> {
    let (head, rest) = message.split_at_checked(HEADER_BYTES).ok_or(None)?;
    if head[2] & 0x80 != 0 {
        // A response, although no query was sent: ignore it.
        return Err(None);
    }
    if head[2] & 0x78 != 0 {
        return Err(Some(reply(head, &[], NOT_IMPLEMENTED, &[])));
    }
    let malformed = || Some(reply(head, &[], FORMAT_ERROR, &[]));
    // Exactly one question and no answers. Additional records (EDNS) are ignored.
    if head[4..10] != [0, 1, 0, 0, 0, 0] {
        return Err(malformed());
    }
    let (name, len) = parse_name(rest).ok_or_else(malformed)?;
    let question = rest.get(..len + 4).ok_or_else(malformed)?;
    let number = |at: usize| u16::from_be_bytes([question[at], question[at + 1]]);
    let (Ok(TargetHost::Name(name)), CLASS_INTERNET) = (name.parse(), number(len + 2)) else {
        return Err(Some(reply(head, question, REFUSED, &[])));
    };
    let kind = match number(len) {
        1 => RecordType::A,
        28 => RecordType::Aaaa,
        _ => RecordType::Other,
    };
    Ok(DnsQuestion { head, question_section: question, target: TargetHost::Name(name), kind })
}

/// Returns a name and the number of bytes it occupies.
fn parse_name(bytes: &[u8]) -> Option<(String, usize)> {
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

impl DnsQuestion<'_> {
    pub(crate) fn answer(&self, code: u8, addresses: &[IpAddr]) -> Vec<u8> {
        reply(self.head, self.question_section, code, addresses)
    }
}

fn reply(head: &[u8], question: &[u8], code: u8, addresses: &[IpAddr]) -> Vec<u8> {
    let addresses = &addresses[..addresses.len().min(MAX_ANSWERS)];
    let mut reply = head[..2].to_vec();
    // A response; the recursion-desired flag is copied, and recursion is available.
    reply.extend([0x80 | head[2] & 0x01, 0x80 | code]);
    reply.extend([0, u8::from(!question.is_empty()), 0, addresses.len() as u8, 0, 0, 0, 0]);
    reply.extend(question);
    for address in addresses {
        let (kind, bytes) = match address {
            IpAddr::V4(address) => (1, address.octets().to_vec()),
            IpAddr::V6(address) => (28, address.octets().to_vec()),
        };
        // A compression pointer to the name in the question.
        reply.extend([0xc0, HEADER_BYTES as u8, 0, kind, 0, CLASS_INTERNET as u8]);
        reply.extend(TTL_SECONDS.to_be_bytes());
        reply.extend([0, bytes.len() as u8]);
        reply.extend(bytes);
    }
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_questions_are_refused() {
        let question = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x01a\x04test\0\0\x01\0\x01";
        let read = parse(question).unwrap();
        assert_eq!((read.target.to_string().as_str(), read.kind), ("a.test", RecordType::A));
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
    fn an_answer_fits_a_datagram_for_the_longest_name() {
        let label = [&[63][..], &[b'a'; 63]].concat();
        let name =
            [label.repeat(3), b"\x3aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa".to_vec()]
                .concat();
        let question = [b"\0\0\x01\0\0\x01\0\0\0\0\0\0".as_slice(), &name, b"\0\0\x1c\0\x01"].concat();
        let read = parse(&question).unwrap();
        assert!(read.answer(NO_ERROR, &[IpAddr::from([0_u16; 8]); 40]).len() <= 512);
    }
}
