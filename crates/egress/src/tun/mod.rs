//! The gate behind a TUN device: programs connect to any address, and the gate ends their connections here.
//!
//! ```text
//! sandbox's kernel ──packets──▶ serve(): reads a bounded number per turn        packet.rs
//!   TCP, first segment ──▶ flow.rs: checks rules, connects ──▶ stack.rs accepts, or answers with a reset
//!   TCP, the rest      ──▶ stack.rs: TCP of smoltcp ◀──▶ relay.rs ◀──▶ the connection to the server
//!   DNS over UDP       ──▶ dns_server.rs
//!   anything else      ──▶ answered with ICMP "unreachable"                     reply.rs
//! ```
//!
//! A connection is accepted only after the server has accepted it, so a program sees a refusal at once. All
//! packets come from the sandbox and are hostile: what is not a whole, plain packet from the sandbox's own
//! address is dropped before smoltcp sees it.

mod dns;
mod flow;
#[cfg(test)]
mod fuzz_tests;
mod names;
mod packet;
mod queues;
mod reply;
mod stack;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use belljar_engine::tun::MTU;
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::access::AccessControl;
use crate::egress::RETRY_DELAY;
use crate::refusals::EgressRefusal;
use flow::serve_flow;
pub(crate) use names::SyntheticNames;
use packet::{Flow, Packet};
use reply::Unreachable;
use stack::Stack;

const DNS_PORT: u16 = 53;
/// Packets read in one turn, after which other tasks have theirs.
const PACKETS_PER_TURN: usize = 64;
/// Packets read in one window. More wait in the device, which is full after 500 and then drops packets inside.
const PACKETS_PER_WINDOW: usize = 256;
const WINDOW: Duration = Duration::from_millis(10);

/// Serves a TUN device until dropped, which also ends every connection.
pub(crate) async fn serve(device: OwnedFd, access: &Arc<AccessControl>) {
    // Registering a valid descriptor fails only without memory. Dropping the device closes it: no network.
    #[expect(
        deprecated,
        reason = "its successor is unsafe; an `OwnedFd` always has the same open descriptor"
    )]
    let open = OpenDevice(AsyncFd::new(device).ok());
    let Some(device) = &open.0 else { return };
    let mut gate = TunGate {
        stack: Stack::new(access.limits.concurrent_connections),
        access: Arc::clone(access),
        serving: JoinSet::new(),
        buffer: vec![0; MTU.into()],
    };
    let mut pace = Pace { start: Instant::now(), packets: 0 };
    loop {
        let wait = gate.take_turn(device.get_ref());
        let read = tokio::select! {
            ready = device.readable() => match ready {
                Ok(mut ready) => {
                    let (packets, drained) = gate.read_packets(device.get_ref());
                    if drained {
                        ready.clear_ready();
                    }
                    packets
                }
                Err(_) => {
                    tokio::time::sleep(RETRY_DELAY).await;
                    0
                }
            },
            () = gate.stack.changed() => 0,
            () = tokio::time::sleep(wait) => 0,
        };
        pace.count(read).await;
    }
}

/// An open device. Closing it may wait for other changes of networks on this machine, so that happens on a thread
/// that may wait.
struct OpenDevice(Option<AsyncFd<OwnedFd>>);

impl Drop for OpenDevice {
    fn drop(&mut self) {
        let device = self.0.take().map(AsyncFd::into_inner);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            // Closing needs no answer.
            let _closing = runtime.spawn_blocking(move || drop(device));
        }
    }
}

/// Bounds the packets of one sandbox over time, so that a flood costs a small part of a thread.
struct Pace {
    start: Instant,
    packets: usize,
}

impl Pace {
    async fn count(&mut self, packets: usize) {
        if self.start.elapsed() >= WINDOW {
            *self = Self { start: Instant::now(), packets: 0 };
        }
        self.packets += packets;
        if self.packets >= PACKETS_PER_WINDOW {
            tokio::time::sleep_until(self.start + WINDOW).await;
        } else if packets > 0 {
            tokio::task::yield_now().await;
        }
    }
}

/// The gate of one device.
struct TunGate {
    stack: Arc<Stack>,
    access: Arc<AccessControl>,
    /// Connections and DNS queries that are being served.
    serving: JoinSet<()>,
    buffer: Vec<u8>,
}

impl TunGate {
    /// Processes what was received, and writes what is to be sent. Returns how long nothing is due.
    fn take_turn(&mut self, device: &OwnedFd) -> Duration {
        while self.serving.try_join_next().is_some() {}
        let turn = self.stack.take_turn();
        for packet in &turn.outgoing {
            // A packet that the sandbox's kernel does not take is lost, like on every network.
            let _written = rustix::io::write(device, packet);
        }
        for flow in turn.ready {
            self.serving.spawn(serve_flow(Arc::clone(&self.access), flow));
        }
        turn.wait
    }

    /// Reads packets. Returns how many, and whether the device has no more.
    fn read_packets(&mut self, device: &OwnedFd) -> (usize, bool) {
        for count in 0..PACKETS_PER_TURN {
            match rustix::io::read(device, &mut self.buffer[..]) {
                Ok(len) => self.receive(len),
                Err(Errno::INTR) => {}
                Err(_) => return (count, true),
            }
        }
        (PACKETS_PER_TURN, false)
    }

    fn receive(&mut self, len: usize) {
        let bytes = &self.buffer[..len];
        match packet::parse(bytes) {
            Some(Packet::Tcp { flow, first }) => self.stack.receive(flow, first, bytes),
            Some(Packet::Udp { flow, payload }) if flow.server.port() == DNS_PORT => {
                let query = payload.to_vec();
                self.answer_query(flow, query);
            }
            Some(Packet::Udp { flow, .. }) => {
                let target = self.access.target_at(flow.server.ip());
                self.access.record_refusal(EgressRefusal::Datagram(target, flow.server.port()));
                self.stack.send(reply::unreachable(bytes, Unreachable::Port));
            }
            Some(Packet::Other) => self.stack.send(reply::unreachable(bytes, Unreachable::Protocol)),
            None => {}
        }
    }

    fn answer_query(&mut self, flow: Flow, query: Vec<u8>) {
        if self.serving.len() < dns::MAX_TASKS {
            let (access, stack) = (Arc::clone(&self.access), Arc::clone(&self.stack));
            self.serving.spawn(dns::answer(access, stack, flow, query));
        }
    }
}
