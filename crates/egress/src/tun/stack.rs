//! TCP of one sandbox: smoltcp's stack between two queues of packets, and a stream for each connection.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use smoltcp::iface::{Config, Interface, PollIngressSingleResult, PollResult, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{RecvError, Socket, SocketBuffer, State};
use smoltcp::time::Instant as StackInstant;
use smoltcp::wire::{HardwareAddress, IpEndpoint, TcpSeqNumber};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use super::packet::Flow;
use super::queues::PacketQueues;
use super::reply;

/// Bytes buffered in each direction of a connection.
const BUFFER_BYTES: usize = 64 << 10;
/// Connections that wait for another one to end. Further ones are dropped; the sandbox's kernel tries again.
const MAX_WAITING: usize = 128;
/// Time allowed for the last bytes of a connection that the relay has finished.
const LINGER_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time without a turn.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// The stack of one sandbox.
#[derive(Debug)]
pub(super) struct Stack {
    state: Mutex<StackState>,
    changed: Notify,
}

struct StackState {
    interface: Interface,
    sockets: SocketSet<'static>,
    queues: PacketQueues,
    flows: HashMap<Flow, FlowState>,
    waiting: VecDeque<(Flow, FirstSegment)>,
    max_flows: usize,
    started: Instant,
}

impl std::fmt::Debug for StackState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StackState").field("flows", &self.flows).finish_non_exhaustive()
    }
}

/// The segment that opens a connection.
#[derive(Debug)]
struct FirstSegment {
    number: TcpSeqNumber,
    packet: Vec<u8>,
}

/// A connection.
#[derive(Debug)]
enum FlowState {
    /// The server is asked first.
    Pending(FirstSegment),
    /// The connection has a stream.
    Open(SocketHandle),
    /// Its stream is gone, and its last segments are still sent.
    Lingering(SocketHandle, Instant),
}

/// The result of a turn.
pub(super) struct Turn {
    /// Packets for the sandbox.
    pub(super) outgoing: Vec<Vec<u8>>,
    /// Connections to serve.
    pub(super) ready: Vec<PendingFlow>,
    /// How long nothing is due.
    pub(super) wait: Duration,
}

impl Stack {
    pub(super) fn new(max_flows: usize) -> Arc<Self> {
        let mut queues = PacketQueues::default();
        let mut config = Config::new(HardwareAddress::Ip);
        // Sequence numbers differ between sandboxes.
        config.random_seed = RandomState::new().hash_one(0);
        let mut interface = Interface::new(config, &mut queues, StackInstant::ZERO);
        interface.set_any_ip(true);
        let state = StackState {
            interface,
            sockets: SocketSet::new(Vec::new()),
            queues,
            flows: HashMap::new(),
            waiting: VecDeque::new(),
            max_flows,
            started: Instant::now(),
        };
        Arc::new(Self { state: Mutex::new(state), changed: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, StackState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a stream or an answer needs a turn.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Queues a packet of the gate itself.
    pub(super) fn send(&self, packet: Vec<u8>) {
        self.lock().queues.queue_reply(packet);
        self.changed.notify_one();
    }

    /// Takes a TCP segment from the sandbox.
    pub(super) fn receive(&self, flow: Flow, first: Option<TcpSeqNumber>, packet: &[u8]) {
        let mut state = self.lock();
        let is_known = state.flows.contains_key(&flow);
        match first {
            // The same segment again, or a port that is used again too early: the sandbox's kernel repeats it.
            Some(_) if is_known || state.waiting.iter().any(|(waiting, _)| *waiting == flow) => {}
            Some(number) if state.waiting.len() < MAX_WAITING => {
                state.waiting.push_back((flow, FirstSegment { number, packet: packet.to_vec() }));
            }
            // The stack answers a segment of no connection with a reset.
            Some(_) => {}
            None => state.queues.queue_received(packet),
        }
    }

    /// Processes received packets and whatever is due.
    pub(super) fn take_turn(self: &Arc<Self>) -> Turn {
        let mut state = self.lock();
        state.process();
        let now = state.now();
        state.remove_ended();
        let mut ready = Vec::new();
        while state.flows.len() < state.max_flows
            && let Some((flow, first)) = state.waiting.pop_front()
        {
            state.flows.insert(flow, FlowState::Pending(first));
            ready.push(PendingFlow { stack: Arc::clone(self), flow, is_over: false });
        }
        let StackState { interface, sockets, queues, .. } = &mut *state;
        let outgoing = std::mem::take(&mut queues.outgoing);
        let due = interface.poll_delay(now, sockets).map_or(MAX_WAIT, |delay| delay.into());
        Turn { outgoing, ready, wait: due.min(MAX_WAIT) }
    }
}

impl StackState {
    fn now(&self) -> StackInstant {
        StackInstant::from_micros(i64::try_from(self.started.elapsed().as_micros()).unwrap_or(i64::MAX))
    }

    /// Processes the received packets, and sends as long as there is room.
    fn process(&mut self) {
        let now = self.now();
        let Self { interface, sockets, queues, .. } = self;
        interface.poll_maintenance(now);
        while interface.poll_ingress_single(now, queues, sockets) != PollIngressSingleResult::None {}
        while queues.has_room() && interface.poll_egress(now, queues, sockets) != PollResult::None {}
    }

    fn remove_ended(&mut self) {
        let Self { sockets, flows, .. } = self;
        flows.retain(|_, state| {
            let FlowState::Lingering(handle, since) = *state else { return true };
            let socket = sockets.get_mut::<Socket<'_>>(handle);
            let is_over = match socket.state() {
                State::TimeWait | State::Listen => true,
                // A reset that has not been sent yet still has its destination.
                State::Closed => socket.remote_endpoint().is_none(),
                _ => false,
            };
            if is_over {
                sockets.remove(handle);
            } else if since.elapsed() >= LINGER_TIMEOUT {
                socket.abort();
            }
            !is_over
        });
    }

    /// Accepts a connection with its first segment. Returns `None` if it is not a valid one.
    fn accept(&mut self, flow: &Flow, first: FirstSegment) -> Option<SocketHandle> {
        // A connection that was reset during its handshake listens again, and must not get this one.
        for state in self.flows.values() {
            if let FlowState::Open(handle) | FlowState::Lingering(handle, _) = state {
                let socket = self.sockets.get_mut::<Socket<'_>>(*handle);
                if socket.is_listening() {
                    socket.abort();
                }
            }
        }
        let buffer = || SocketBuffer::new(vec![0; BUFFER_BYTES]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        socket.listen(IpEndpoint::from(flow.server)).ok()?;
        let handle = self.sockets.add(socket);
        let others = std::mem::replace(&mut self.queues.incoming, VecDeque::from([first.packet]));
        self.process();
        self.queues.incoming = others;
        let is_accepted = self.sockets.get::<Socket<'_>>(handle).state() == State::SynReceived;
        if !is_accepted {
            self.sockets.remove(handle);
        }
        is_accepted.then_some(handle)
    }
}

/// A connection that a program opens, before it is decided about. Dropping it refuses the connection.
pub(super) struct PendingFlow {
    stack: Arc<Stack>,
    flow: Flow,
    is_over: bool,
}

impl PendingFlow {
    pub(super) fn flow(&self) -> &Flow {
        &self.flow
    }

    /// Accepts the connection.
    pub(super) fn accept(mut self) -> Option<FlowStream> {
        let mut state = self.stack.lock();
        let Some(FlowState::Pending(first)) = state.flows.remove(&self.flow) else { return None };
        self.is_over = true;
        let handle = state.accept(&self.flow, first)?;
        state.flows.insert(self.flow, FlowState::Open(handle));
        drop(state);
        self.stack.changed.notify_one();
        Some(FlowStream { stack: Arc::clone(&self.stack), flow: self.flow, handle })
    }
}

impl Drop for PendingFlow {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut state = self.stack.lock();
        if let Some(FlowState::Pending(first)) = state.flows.remove(&self.flow) {
            state.queues.queue_reply(reply::reset(&self.flow, first.number));
        }
        drop(state);
        self.stack.changed.notify_one();
    }
}

/// The program's side of an accepted connection. Dropping it resets the connection, unless both sides have
/// finished.
pub(super) struct FlowStream {
    stack: Arc<Stack>,
    flow: Flow,
    handle: SocketHandle,
}

impl FlowStream {
    /// Uses the socket, and lets the stack send what that caused.
    fn with_socket<T>(&self, use_socket: impl FnOnce(&mut Socket<'static>) -> Poll<T>) -> Poll<T> {
        let result = use_socket(self.stack.lock().sockets.get_mut(self.handle));
        if result.is_ready() {
            self.stack.changed.notify_one();
        }
        result
    }
}

impl AsyncRead for FlowStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.with_socket(|socket| {
            if socket.state() == State::SynReceived {
                socket.register_recv_waker(cx.waker());
                return Poll::Pending;
            }
            match socket.recv_slice(buffer.initialize_unfilled()) {
                Ok(0) => {
                    socket.register_recv_waker(cx.waker());
                    Poll::Pending
                }
                Ok(len) => {
                    buffer.advance(len);
                    Poll::Ready(Ok(()))
                }
                Err(RecvError::Finished) => Poll::Ready(Ok(())),
                Err(RecvError::InvalidState) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            }
        })
    }
}

impl AsyncWrite for FlowStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.with_socket(|socket| {
            if !socket.may_send() && socket.state() != State::SynReceived {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            match socket.send_slice(bytes) {
                Ok(len) if len > 0 => Poll::Ready(Ok(len)),
                _ => {
                    socket.register_send_waker(cx.waker());
                    Poll::Pending
                }
            }
        })
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with_socket(|socket| {
            socket.close();
            Poll::Ready(Ok(()))
        })
    }
}

impl Drop for FlowStream {
    fn drop(&mut self) {
        let mut state = self.stack.lock();
        let socket = state.sockets.get_mut::<Socket<'_>>(self.handle);
        if !matches!(socket.state(), State::LastAck | State::Closing | State::TimeWait | State::Closed) {
            socket.abort();
        }
        state.flows.insert(self.flow, FlowState::Lingering(self.handle, Instant::now()));
        drop(state);
        self.stack.changed.notify_one();
    }
}
