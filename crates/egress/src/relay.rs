//! Relays and counts bytes in both directions until both sides finish, a limit or the idle timeout is
//! reached, or a rule change forbids the connection.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use belljar_engine::network::{HostRules, TargetHost};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::access::{AccessControl, is_host_address};
use crate::proxy_request::{ProxyProtocol, ProxyRequest};
use crate::refusals::EgressRefusal;
use crate::{http, socks};

const BUFFER_BYTES: usize = 16 << 10;

/// A connection between a client and a server.
pub(crate) struct ProxyConnection<'a> {
    pub(crate) access: &'a AccessControl,
    pub(crate) rules: watch::Receiver<HostRules>,
    /// The address the host resolved to.
    pub(crate) address: IpAddr,
    pub(crate) request: ProxyRequest,
}

/// A server, and what decides whether a connection to it may go on.
pub(crate) struct Destination<'a> {
    pub(crate) access: &'a AccessControl,
    pub(crate) rules: watch::Receiver<HostRules>,
    /// The address the host resolved to.
    pub(crate) address: IpAddr,
    pub(crate) target: &'a TargetHost,
    pub(crate) port: u16,
}

impl Destination<'_> {
    /// Relays until a rule forbids it or nothing has been transferred for too long.
    async fn relay_while_allowed<T>(mut self, idle_timer: &IdleTimer, relaying: impl Future<Output = T>) {
        let Self { access, address, target, port, .. } = self;
        let forbidden = async {
            let is_local = is_host_address(address);
            let allows = |rules: &HostRules| rules.allows_address(target, port, address, is_local);
            // The sender outlives every connection, so this cannot fail.
            let _now = self.rules.wait_for(|rules| !allows(rules)).await;
        };
        tokio::select! {
            _over = relaying => {}
            () = forbidden => {}
            () = idle_timer.wait_until_idle(access.limits.idle_timeout) => {}
        }
    }
}

/// The time of the last transfer.
struct IdleTimer(Mutex<Instant>);

impl IdleTimer {
    fn start() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    fn touch(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Waits until nothing has been transferred for this long.
    async fn wait_until_idle(&self, bound: Duration) {
        loop {
            let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner) + bound;
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }
}

/// Relays until either side or a rule ends the connection. Both streams are closed afterwards.
pub(crate) async fn relay(connection: ProxyConnection<'_>, mut client: TcpStream, mut server: TcpStream) {
    let ProxyConnection { access, rules, address, request } = connection;
    let destination = Destination { access, rules, address, target: &request.target, port: request.port };
    let idle_timer = IdleTimer::start();
    let relaying = async {
        match &request.protocol {
            ProxyProtocol::Http { head, body } => {
                let request = PlainRequest { head, body: *body, early: &request.early };
                request.relay(access, &idle_timer, client.split(), server.split()).await
            }
            protocol => {
                let connected = if *protocol == ProxyProtocol::Connect {
                    http::CONNECT_RESPONSE.to_vec()
                } else {
                    socks::build_reply(socks::SUCCEEDED)
                };
                client.write_all(&connected).await.ok()?;
                tunnel(access, &idle_timer, &request.early, client.split(), server.split()).await
            }
        }
    };
    destination.relay_while_allowed(&idle_timer, relaying).await;
}

/// Relays a connection that a program opened to the server itself. Both streams are closed afterwards.
pub(crate) async fn relay_stream(
    destination: Destination<'_>,
    client: impl AsyncRead + AsyncWrite,
    mut server: TcpStream,
) {
    // The sandbox's kernel has already decided which bytes to send together. Without this, the connection is only
    // slower.
    let _set = server.set_nodelay(true);
    let idle_timer = IdleTimer::start();
    let relaying = tunnel(destination.access, &idle_timer, &[], tokio::io::split(client), server.split());
    destination.relay_while_allowed(&idle_timer, relaying).await;
}

type StreamHalves<'a> = (ReadHalf<'a>, WriteHalf<'a>);

/// One plain HTTP request and its response.
struct PlainRequest<'a> {
    head: &'a [u8],
    body: u64,
    early: &'a [u8],
}

impl PlainRequest<'_> {
    async fn relay(
        &self,
        access: &AccessControl,
        idle_timer: &IdleTimer,
        client: StreamHalves<'_>,
        server: StreamHalves<'_>,
    ) -> Option<()> {
        let ((from_client, mut to_client), (mut from_server, mut to_server)) = (client, server);
        let outgoing = RelayDirection { access, idle_timer, counted: &access.counts.sent };
        let incoming = RelayDirection { access, idle_timer, counted: &access.counts.received };
        // Bytes after the body are not forwarded.
        let early = &self.early[..self.early.len().min(usize::try_from(self.body).unwrap_or(usize::MAX))];
        outgoing.write_counted(&mut to_server, self.head).await?;
        outgoing.write_counted(&mut to_server, early).await?;
        let mut rest = from_client.take(self.body - early.len() as u64);
        let send_body = async {
            outgoing.copy(&mut rest, &mut to_server).await?;
            // The response is still to come.
            std::future::pending::<Option<()>>().await
        };
        // The end of the response or a failure to forward the body ends the connection.
        tokio::select! {
            done = send_body => done,
            done = incoming.copy(&mut from_server, &mut to_client) => done,
        }
    }
}

/// Relays both directions; either side may finish before the other.
async fn tunnel(
    access: &AccessControl,
    idle_timer: &IdleTimer,
    early: &[u8],
    (mut from_client, mut to_client): (impl AsyncRead + Unpin, impl AsyncWrite + Unpin),
    (mut from_server, mut to_server): StreamHalves<'_>,
) -> Option<()> {
    let outgoing = RelayDirection { access, idle_timer, counted: &access.counts.sent };
    let incoming = RelayDirection { access, idle_timer, counted: &access.counts.received };
    outgoing.write_counted(&mut to_server, early).await?;
    let out = async {
        outgoing.copy(&mut from_client, &mut to_server).await?;
        to_server.shutdown().await.ok()
    };
    let back = async {
        incoming.copy(&mut from_server, &mut to_client).await?;
        to_client.shutdown().await.ok()
    };
    tokio::try_join!(or_broken(out), or_broken(back)).ok().map(drop)
}

async fn or_broken(relaying: impl Future<Output = Option<()>>) -> Result<(), ()> {
    relaying.await.ok_or(())
}

/// One direction of a connection.
struct RelayDirection<'a> {
    access: &'a AccessControl,
    idle_timer: &'a IdleTimer,
    counted: &'a AtomicU64,
}

impl RelayDirection<'_> {
    /// Copies until the end of the stream. Returns `None` on failure.
    async fn copy(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> Option<()> {
        let mut buffer = Vec::with_capacity(BUFFER_BYTES);
        loop {
            buffer.clear();
            if from.read_buf(&mut buffer).await.ok()? == 0 {
                return Some(());
            }
            self.write_counted(to, &buffer).await?;
        }
    }

    /// Writes and counts, up to the total byte limit.
    async fn write_counted(&self, to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Option<()> {
        let before = self.counted.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if before.saturating_add(bytes.len() as u64) > self.access.limits.bytes_per_direction {
            self.access.record_refusal(EgressRefusal::LimitReached("bytes"));
            return None;
        }
        self.idle_timer.touch();
        to.write_all(bytes).await.ok()?;
        self.idle_timer.touch();
        Some(())
    }
}
