//! The packets between the device and the stack of a sandbox.

use std::collections::VecDeque;

use belljar_engine::tun::MTU;
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

/// Packets to send. Further ones wait in their connections, or are dropped.
const MAX_OUTGOING: usize = 128;
/// Received packets that are not processed yet. Further ones are dropped.
const MAX_INCOMING: usize = 128;

/// The packets between the device and the stack.
#[derive(Default)]
pub(super) struct PacketQueues {
    pub(super) incoming: VecDeque<Vec<u8>>,
    pub(super) outgoing: Vec<Vec<u8>>,
}

impl PacketQueues {
    /// Queues a packet from the sandbox.
    pub(super) fn queue_received(&mut self, packet: &[u8]) {
        if self.incoming.len() < MAX_INCOMING {
            self.incoming.push_back(packet.to_vec());
        }
    }

    /// Queues a packet of the gate itself.
    pub(super) fn queue_reply(&mut self, packet: Vec<u8>) {
        if self.has_room() {
            self.outgoing.push(packet);
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.outgoing.len() < MAX_OUTGOING
    }
}

impl Device for PacketQueues {
    type RxToken<'a> = Received;
    type TxToken<'a> = Outgoing<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Received, Outgoing<'_>)> {
        // Each received packet has at most one answer, so the answers are bounded, too.
        self.incoming.pop_front().map(|packet| (Received(packet), Outgoing(&mut self.outgoing)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Outgoing<'_>> {
        self.has_room().then_some(Outgoing(&mut self.outgoing))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = usize::from(MTU);
        // Packets do not leave this machine, so nothing can damage them on their way here.
        capabilities.checksum.ipv4 = Checksum::Tx;
        capabilities.checksum.tcp = Checksum::Tx;
        capabilities
    }
}

/// A packet that the stack processes.
pub(super) struct Received(Vec<u8>);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, process: F) -> R {
        process(&self.0)
    }
}

/// Room for a packet of the stack.
pub(super) struct Outgoing<'a>(&'a mut Vec<Vec<u8>>);

impl TxToken for Outgoing<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        let mut packet = vec![0; len];
        let result = fill(&mut packet);
        self.0.push(packet);
        result
    }
}
