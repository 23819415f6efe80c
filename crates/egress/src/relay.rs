//! Relays and counts bytes in both directions until both sides finish, a limit or the idle timeout is
//! reached, or a rule change forbids the connection.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use belljar_engine::network::HostRules;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::access::{AccessControl, is_host_address};
use crate::proxy::{ProxyProtocol, ProxyRequest};
use crate::refusals::EgressRefusal;
use crate::{http, socks};

const BUFFER_BYTES: usize = 16 << 10;

/// A connection between a client and a server.
pub(crate) struct ProxyConnection<'a> {
    pub(crate) guard: &'a AccessControl,
    pub(crate) rules: watch::Receiver<HostRules>,
    /// The address the host resolved to.
    pub(crate) address: IpAddr,
    pub(crate) wanted: ProxyRequest,
}

/// The time of the last transfer.
struct IdleTimer(Mutex<Instant>);

impl IdleTimer {
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
pub(crate) async fn relay(flow: ProxyConnection<'_>, mut client: TcpStream, mut server: TcpStream) {
    let ProxyConnection { guard, mut rules, address, wanted } = flow;
    let pulse = IdleTimer(Mutex::new(Instant::now()));
    let passing = async {
        match &wanted.protocol {
            ProxyProtocol::Http { head, body } => {
                let request = PlainRequest { head, body: *body, early: &wanted.early };
                request.relay(guard, &pulse, client.split(), server.split()).await
            }
            how => {
                let connected = if *how == ProxyProtocol::Connect {
                    http::CONNECT_RESPONSE.to_vec()
                } else {
                    socks::build_reply(socks::SUCCEEDED)
                };
                client.write_all(&connected).await.ok()?;
                tunnel(guard, &pulse, &wanted.early, client.split(), server.split()).await
            }
        }
    };
    let forbidden = async {
        let near = is_host_address(address);
        let allows = |rules: &HostRules| rules.allows_address(&wanted.target, wanted.port, address, near);
        // The sender outlives every connection, so this cannot fail.
        let _now = rules.wait_for(|rules| !allows(rules)).await;
    };
    tokio::select! {
        _over = passing => {}
        () = forbidden => {}
        () = pulse.wait_until_idle(guard.bounds.idle_timeout) => {}
    }
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
        guard: &AccessControl,
        pulse: &IdleTimer,
        client: StreamHalves<'_>,
        server: StreamHalves<'_>,
    ) -> Option<()> {
        let ((from_client, mut to_client), (mut from_server, mut to_server)) = (client, server);
        let way_out = RelayDirection { guard, pulse, counted: &guard.counts.sent };
        let way_in = RelayDirection { guard, pulse, counted: &guard.counts.received };
        // Bytes after the body are not forwarded.
        let early = &self.early[..self.early.len().min(usize::try_from(self.body).unwrap_or(usize::MAX))];
        way_out.write_counted(&mut to_server, self.head).await?;
        way_out.write_counted(&mut to_server, early).await?;
        let mut rest = from_client.take(self.body - early.len() as u64);
        let asking = async {
            way_out.copy(&mut rest, &mut to_server).await?;
            // The response is still to come.
            std::future::pending::<Option<()>>().await
        };
        // The end of the response or a failure to forward the body ends the connection.
        tokio::select! {
            done = asking => done,
            done = way_in.copy(&mut from_server, &mut to_client) => done,
        }
    }
}

/// Relays both directions; either side may finish before the other.
async fn tunnel(
    guard: &AccessControl,
    pulse: &IdleTimer,
    early: &[u8],
    (mut from_client, mut to_client): StreamHalves<'_>,
    (mut from_server, mut to_server): StreamHalves<'_>,
) -> Option<()> {
    let way_out = RelayDirection { guard, pulse, counted: &guard.counts.sent };
    let way_in = RelayDirection { guard, pulse, counted: &guard.counts.received };
    way_out.write_counted(&mut to_server, early).await?;
    let out = async {
        way_out.copy(&mut from_client, &mut to_server).await?;
        to_server.shutdown().await.ok()
    };
    let back = async {
        way_in.copy(&mut from_server, &mut to_client).await?;
        to_client.shutdown().await.ok()
    };
    tokio::try_join!(or_broken(out), or_broken(back)).ok().map(drop)
}

async fn or_broken(passing: impl Future<Output = Option<()>>) -> Result<(), ()> {
    passing.await.ok_or(())
}

/// One direction of a connection.
struct RelayDirection<'a> {
    guard: &'a AccessControl,
    pulse: &'a IdleTimer,
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
        if before.saturating_add(bytes.len() as u64) > self.guard.bounds.bytes_per_direction {
            self.guard.record_refusal(EgressRefusal::LimitReached("bytes"));
            return None;
        }
        self.pulse.touch();
        to.write_all(bytes).await.ok()?;
        self.pulse.touch();
        Some(())
    }
}
