//! Packets from the sandbox. Only whole, plain packets from the sandbox's own addresses are read.

use std::net::{IpAddr, SocketAddr};

use belljar_engine::tun::{ADDRESS_V4, ADDRESS_V6};
use smoltcp::wire::{IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket, TcpSeqNumber, UdpPacket};

pub(super) const IPV4_HEADER_BYTES: usize = 20;
pub(super) const IPV6_HEADER_BYTES: usize = 40;

/// The two ends of a connection, or of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Flow {
    /// The program's end.
    pub(super) client: SocketAddr,
    /// Where the program connects to.
    pub(super) server: SocketAddr,
}

/// A packet from the sandbox.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Packet<'a> {
    /// A TCP segment, with its number if it opens a connection.
    Tcp { flow: Flow, first: Option<TcpSeqNumber> },
    /// A UDP datagram.
    Udp { flow: Flow, payload: &'a [u8] },
    /// Another protocol, which is refused.
    Other,
}

/// Parses a packet. Returns `None` for what is dropped without an answer: malformed packets, fragments, IP
/// options and extension headers, spoofed senders, ICMP, and destinations that are no single host.
pub(super) fn parse(bytes: &[u8]) -> Option<Packet<'_>> {
    let (client, server, protocol, payload) = match bytes.first()? >> 4 {
        4 => parse_v4(bytes)?,
        6 => parse_v6(bytes)?,
        _ => return None,
    };
    if client != IpAddr::V4(ADDRESS_V4) && client != IpAddr::V6(ADDRESS_V6) || !is_single_host(server) {
        return None;
    }
    let flow = |from, to| {
        let flow = Flow { client: SocketAddr::new(client, from), server: SocketAddr::new(server, to) };
        (from != 0 && to != 0).then_some(flow)
    };
    match protocol {
        IpProtocol::Tcp => {
            let segment = TcpPacket::new_checked(payload).ok()?;
            let is_first = segment.syn() && !segment.ack() && !segment.rst() && !segment.fin();
            let first = is_first.then(|| segment.seq_number());
            Some(Packet::Tcp { flow: flow(segment.src_port(), segment.dst_port())?, first })
        }
        IpProtocol::Udp => {
            let datagram = UdpPacket::new_checked(payload).ok()?;
            Some(Packet::Udp {
                flow: flow(datagram.src_port(), datagram.dst_port())?,
                payload: datagram.payload(),
            })
        }
        // An answer to an ICMP error could be answered by another one.
        IpProtocol::Icmp | IpProtocol::Icmpv6 | IpProtocol::Igmp => None,
        _ => Some(Packet::Other),
    }
}

type Parts<'a> = (IpAddr, IpAddr, IpProtocol, &'a [u8]);

fn parse_v4(bytes: &[u8]) -> Option<Parts<'_>> {
    let packet = Ipv4Packet::new_checked(bytes).ok()?;
    let is_plain = usize::from(packet.header_len()) == IPV4_HEADER_BYTES
        && usize::from(packet.total_len()) == bytes.len()
        && !packet.more_frags()
        && packet.frag_offset() == 0;
    let payload = &bytes[IPV4_HEADER_BYTES..];
    is_plain.then(|| (packet.src_addr().into(), packet.dst_addr().into(), packet.next_header(), payload))
}

fn parse_v6(bytes: &[u8]) -> Option<Parts<'_>> {
    let packet = Ipv6Packet::new_checked(bytes).ok()?;
    let payload = &bytes[IPV6_HEADER_BYTES..];
    let is_extension = matches!(
        packet.next_header(),
        IpProtocol::HopByHop
            | IpProtocol::Ipv6Route
            | IpProtocol::Ipv6Frag
            | IpProtocol::Ipv6NoNxt
            | IpProtocol::Ipv6Opts
    );
    (packet.total_len() == bytes.len() && !is_extension)
        .then(|| (packet.src_addr().into(), packet.dst_addr().into(), packet.next_header(), payload))
}

/// Returns whether an address may be one host's. Whether it may be reached is for the rules to decide.
fn is_single_host(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(four) if four.is_broadcast());
    !address.is_unspecified() && !address.is_multicast() && !address.is_loopback() && !is_broadcast
}
