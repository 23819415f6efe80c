//! Fuzz targets for packets from a sandbox: any packets, and any order of segments and uses of the streams,
//! leave the stack within its bounds. `cargo test` runs each for one second, the group `fuzz` of `./test --all`
//! for five minutes.

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use belljar_engine::tun::{ADDRESS_V4, ADDRESS_V6};
use bolero::{TypeGenerator, check};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{TcpPacket, TcpSeqNumber};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::packet::{self, Flow, Packet};
use super::reply::{self, Unreachable};
use super::stack::{FlowStream, PendingFlow, Stack};
use super::*;

const MAX_FLOWS: usize = 4;

fn test_time() -> Duration {
    let full = std::env::var("BELLJAR_TEST_SIZE").is_ok_and(|size| size == "full");
    Duration::from_secs(if full { 300 } else { 1 })
}

/// What a program and its gate may do.
#[derive(Debug, Clone, TypeGenerator)]
enum Action {
    Raw(Vec<u8>),
    Segment {
        port: u8,
        flags: u8,
        sequence: u16,
        acknowledges: u16,
        window: u16,
        options: Vec<u8>,
        payload: u16,
    },
    Accept(u8),
    Refuse(u8),
    Read(u8),
    Write(u8, u16),
    Finish(u8),
    Drop(u8),
    Turn,
}

/// Builds a segment of one of a few connections, with a valid header around any flags, numbers and options.
fn segment(action: &Action) -> Option<Vec<u8>> {
    let Action::Segment { port, flags, sequence, acknowledges, window, options, payload } = action else {
        return None;
    };
    let options_len = options.len().min(40) / 4 * 4;
    let len = 20 + options_len + usize::from(*payload % 2_048);
    let mut bytes = vec![0; 20 + len];
    let header = smoltcp::wire::Ipv4Repr {
        src_addr: ADDRESS_V4,
        dst_addr: [203, 0, 113, port % 2].into(),
        next_header: smoltcp::wire::IpProtocol::Tcp,
        payload_len: len,
        hop_limit: 64,
    };
    header.emit(
        &mut smoltcp::wire::Ipv4Packet::new_unchecked(&mut bytes[..]),
        &ChecksumCapabilities::default(),
    );
    let mut tcp = TcpPacket::new_unchecked(&mut bytes[20..]);
    tcp.set_src_port(1 + u16::from(port % 8));
    tcp.set_dst_port(80);
    tcp.set_seq_number(TcpSeqNumber(i32::from(*sequence)));
    tcp.set_ack_number(TcpSeqNumber(i32::from(*acknowledges)));
    tcp.set_window_len(*window);
    tcp.set_header_len((20 + options_len) as u8);
    bytes[20 + 13] = *flags;
    bytes[40..40 + options_len].copy_from_slice(&options[..options_len]);
    Some(bytes)
}

#[derive(Default)]
struct Gate {
    pending: Vec<PendingFlow>,
    streams: Vec<FlowStream>,
}

impl Gate {
    fn act(&mut self, stack: &Arc<Stack>, action: &Action) {
        let mut context = Context::from_waker(Waker::noop());
        let at = |index: u8, len: usize| (len > 0).then(|| usize::from(index) % len.max(1));
        match action {
            Action::Raw(bytes) => receive(stack, bytes),
            Action::Segment { .. } => segment(action).iter().for_each(|bytes| receive(stack, bytes)),
            Action::Turn => {
                let turn = stack.take_turn();
                assert!(turn.outgoing.len() <= 512, "{}", turn.outgoing.len());
                self.pending.extend(turn.ready);
            }
            Action::Accept(index) => {
                if let Some(index) = at(*index, self.pending.len()) {
                    self.streams.extend(self.pending.remove(index).accept());
                }
            }
            Action::Refuse(index) => {
                drop(at(*index, self.pending.len()).map(|index| self.pending.remove(index)))
            }
            Action::Drop(index) => {
                drop(at(*index, self.streams.len()).map(|index| self.streams.remove(index)))
            }
            Action::Read(index) => {
                let Some(index) = at(*index, self.streams.len()) else { return };
                let mut buffer = [0; 4_096];
                let mut buffer = ReadBuf::new(&mut buffer);
                let _read = std::pin::pin!(&mut self.streams[index]).poll_read(&mut context, &mut buffer);
            }
            Action::Write(index, len) => {
                let Some(index) = at(*index, self.streams.len()) else { return };
                let bytes = vec![7; usize::from(*len)];
                let written = std::pin::pin!(&mut self.streams[index]).poll_write(&mut context, &bytes);
                assert!(!matches!(written, Poll::Ready(Ok(0))) || bytes.is_empty());
            }
            Action::Finish(index) => {
                let Some(index) = at(*index, self.streams.len()) else { return };
                let _done = std::pin::pin!(&mut self.streams[index]).poll_shutdown(&mut context);
            }
        }
        assert!(self.pending.len() + self.streams.len() <= MAX_FLOWS);
    }
}

fn receive(stack: &Arc<Stack>, bytes: &[u8]) {
    match packet::parse(bytes) {
        Some(Packet::Tcp { flow, first }) => stack.receive(flow, first, bytes),
        Some(Packet::Udp { flow, payload }) => stack.send(reply::datagram(&flow, payload)),
        Some(Packet::Other) => stack.send(reply::unreachable(bytes, Unreachable::Protocol)),
        None => {}
    }
}

#[test]
fn fuzz_packets() {
    check!().with_test_time(test_time()).with_type::<Vec<u8>>().for_each(|bytes| {
        for version in [0x45, 0x60] {
            let mut packet = bytes.clone();
            // Most packets get past the first checks.
            if let Some(first) = packet.first_mut() {
                *first = version;
            }
            if version == 0x45 && packet.len() >= 20 {
                let len = packet.len() as u16;
                packet[2..4].copy_from_slice(&len.to_be_bytes());
                packet[12..16].copy_from_slice(&ADDRESS_V4.octets());
            } else if packet.len() >= 40 {
                let len = packet.len() as u16 - 40;
                packet[4..6].copy_from_slice(&len.to_be_bytes());
                packet[8..24].copy_from_slice(&ADDRESS_V6.octets());
            }
            if packet::parse(&packet).is_some() {
                for what in [Unreachable::Port, Unreachable::Protocol] {
                    assert!(reply::unreachable(&packet, what).len() <= 40 + 8 + 128);
                }
            }
        }
    });
}

#[test]
fn fuzz_segments() {
    check!().with_test_time(test_time()).with_type::<Vec<Action>>().for_each(|actions| {
        let stack = Stack::new(MAX_FLOWS);
        let mut gate = Gate::default();
        for action in actions {
            gate.act(&stack, action);
            gate.act(&stack, &Action::Turn);
        }
    });
}

#[test]
fn only_whole_packets_from_the_sandbox_are_read() {
    let first = Action::Segment {
        port: 1,
        flags: 2,
        sequence: 7,
        acknowledges: 0,
        window: 1_000,
        options: Vec::new(),
        payload: 0,
    };
    let bytes = segment(&first).unwrap();
    let flow = Flow { client: (ADDRESS_V4, 2).into(), server: ([203, 0, 113, 1], 80).into() };
    assert_eq!(packet::parse(&bytes), Some(Packet::Tcp { flow, first: Some(TcpSeqNumber(7)) }));
    for len in 0..bytes.len() {
        assert_eq!(packet::parse(&bytes[..len]), None, "{len} bytes");
    }
    let changed = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        bytes
    };
    let more_bytes = [bytes.as_slice(), &[0]].concat();
    let (fragment, options, spoofed, to_all) =
        (changed(6, 0x20), changed(0, 0x46), changed(12, 10), changed(16, 224));
    for dropped in [more_bytes, fragment, options, spoofed, to_all, changed(9, 1), changed(20 + 12, 0x10)] {
        assert_eq!(packet::parse(&dropped), None, "{dropped:?}");
    }
    assert_eq!(packet::parse(&changed(9, 132)), Some(Packet::Other));
}

#[test]
fn a_flood_of_connections_is_bounded_and_answered() {
    let first = Action::Segment {
        port: 1,
        flags: 2,
        sequence: 7,
        acknowledges: 0,
        window: 1_000,
        options: Vec::new(),
        payload: 0,
    };
    let mut bytes = segment(&first).unwrap();
    let stack = Stack::new(MAX_FLOWS);
    for port in 1..10_000_u16 {
        bytes[20..22].copy_from_slice(&port.to_be_bytes());
        // The second one is the same connection.
        receive(&stack, &bytes);
        receive(&stack, &bytes);
    }
    let (mut served, mut resets) = (0, 0);
    loop {
        let turn = stack.take_turn();
        resets += turn.outgoing.len();
        if turn.ready.is_empty() {
            break;
        }
        assert!(turn.ready.len() <= MAX_FLOWS);
        // Refused, each with a reset.
        served += turn.ready.len();
    }
    assert_eq!((served, resets), (128, 128));
}
