//! Packets that the gate itself sends into the sandbox: resets, ICMP errors and datagrams.

use std::net::IpAddr;

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    Icmpv4DstUnreachable, Icmpv4Message, Icmpv4Packet, Icmpv6DstUnreachable, Icmpv6Message, Icmpv6Packet,
    IpProtocol, Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr, TCP_HEADER_LEN, TcpPacket, TcpSeqNumber,
    UdpPacket, UdpRepr,
};

use super::packet::{Flow, IPV4_HEADER_BYTES, IPV6_HEADER_BYTES};

const ICMP_HEADER_BYTES: usize = 8;
const UDP_HEADER_BYTES: usize = 8;
const HOP_LIMIT: u8 = 64;
/// How much of a refused packet is returned to its sender.
const MAX_QUOTED_BYTES: usize = 128;

/// What a destination does not have.
#[derive(Debug, Clone, Copy)]
pub(super) enum Unreachable {
    /// The port, which a program sees as "connection refused".
    Port,
    /// The protocol.
    Protocol,
}

/// Returns the answer to a parsed packet that is refused.
pub(super) fn unreachable(packet: &[u8], what: Unreachable) -> Vec<u8> {
    let quoted = &packet[..packet.len().min(MAX_QUOTED_BYTES)];
    let len = ICMP_HEADER_BYTES + quoted.len();
    if packet[0] >> 4 == 4 {
        let refused = Ipv4Packet::new_unchecked(packet);
        let ends = (refused.dst_addr().into(), refused.src_addr().into());
        let mut reply = ip_packet(ends, IpProtocol::Icmp, len);
        let mut icmp = Icmpv4Packet::new_unchecked(&mut reply[IPV4_HEADER_BYTES..]);
        icmp.set_msg_type(Icmpv4Message::DstUnreachable);
        icmp.set_msg_code(u8::from(match what {
            Unreachable::Port => Icmpv4DstUnreachable::PortUnreachable,
            Unreachable::Protocol => Icmpv4DstUnreachable::ProtoUnreachable,
        }));
        icmp.data_mut().copy_from_slice(quoted);
        icmp.fill_checksum();
        reply
    } else {
        let refused = Ipv6Packet::new_unchecked(packet);
        let (from, to) = (refused.dst_addr(), refused.src_addr());
        let mut reply = ip_packet((from.into(), to.into()), IpProtocol::Icmpv6, len);
        let mut icmp = Icmpv6Packet::new_unchecked(&mut reply[IPV6_HEADER_BYTES..]);
        icmp.set_msg_type(Icmpv6Message::DstUnreachable);
        icmp.set_msg_code(u8::from(match what {
            Unreachable::Port => Icmpv6DstUnreachable::PortUnreachable,
            Unreachable::Protocol => Icmpv6DstUnreachable::AdminProhibit,
        }));
        icmp.payload_mut().copy_from_slice(quoted);
        icmp.fill_checksum(&from, &to);
        reply
    }
}

/// Returns the answer that refuses a connection, to the number of its first segment.
pub(super) fn reset(flow: &Flow, first_number: TcpSeqNumber) -> Vec<u8> {
    let (from, to) = (flow.server.ip(), flow.client.ip());
    let mut reply = ip_packet((from, to), IpProtocol::Tcp, TCP_HEADER_LEN);
    let header = reply.len() - TCP_HEADER_LEN;
    let mut segment = TcpPacket::new_unchecked(&mut reply[header..]);
    segment.set_src_port(flow.server.port());
    segment.set_dst_port(flow.client.port());
    segment.set_ack_number(first_number + 1);
    segment.set_header_len(TCP_HEADER_LEN as u8);
    segment.set_rst(true);
    segment.set_ack(true);
    segment.fill_checksum(&from.into(), &to.into());
    reply
}

/// Returns a datagram to the client of a flow.
pub(super) fn datagram(flow: &Flow, payload: &[u8]) -> Vec<u8> {
    let (from, to) = (flow.server.ip(), flow.client.ip());
    let mut reply = ip_packet((from, to), IpProtocol::Udp, UDP_HEADER_BYTES + payload.len());
    let header = reply.len() - UDP_HEADER_BYTES - payload.len();
    let udp = UdpRepr { src_port: flow.server.port(), dst_port: flow.client.port() };
    udp.emit(
        &mut UdpPacket::new_unchecked(&mut reply[header..]),
        &from.into(),
        &to.into(),
        payload.len(),
        |bytes| bytes.copy_from_slice(payload),
        &ChecksumCapabilities::default(),
    );
    reply
}

/// Returns a packet with an IP header and an empty payload. Both ends have the same family.
fn ip_packet((from, to): (IpAddr, IpAddr), next_header: IpProtocol, payload_len: usize) -> Vec<u8> {
    match (from, to) {
        (IpAddr::V4(src_addr), IpAddr::V4(dst_addr)) => {
            let header = Ipv4Repr { src_addr, dst_addr, next_header, payload_len, hop_limit: HOP_LIMIT };
            let mut packet = vec![0; IPV4_HEADER_BYTES + payload_len];
            header.emit(&mut Ipv4Packet::new_unchecked(&mut packet[..]), &ChecksumCapabilities::default());
            packet
        }
        (from, to) => {
            let six = |address| match address {
                IpAddr::V4(four) => four.to_ipv6_mapped(),
                IpAddr::V6(six) => six,
            };
            let (src_addr, dst_addr) = (six(from), six(to));
            let header = Ipv6Repr { src_addr, dst_addr, next_header, payload_len, hop_limit: HOP_LIMIT };
            let mut packet = vec![0; IPV6_HEADER_BYTES + payload_len];
            header.emit(&mut Ipv6Packet::new_unchecked(&mut packet[..]));
            packet
        }
    }
}
