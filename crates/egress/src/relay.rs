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

use crate::door::{How, Wanted};
use crate::guard::{Guard, is_own};
use crate::refusals::Refusal;
use crate::{http, socks};

const BUFFER: usize = 16 << 10;

/// A connection between a client and a server.
pub(crate) struct Flow<'a> {
    pub(crate) guard: &'a Guard,
    pub(crate) rules: watch::Receiver<HostRules>,
    /// The address the host resolved to.
    pub(crate) address: IpAddr,
    pub(crate) wanted: Wanted,
}

/// The time of the last transfer.
struct Pulse(Mutex<Instant>);

impl Pulse {
    fn beat(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Waits until nothing has been transferred for this long.
    async fn stops(&self, bound: Duration) {
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
pub(crate) async fn relay(flow: Flow<'_>, mut client: TcpStream, mut server: TcpStream) {
    let Flow { guard, mut rules, address, wanted } = flow;
    let pulse = Pulse(Mutex::new(Instant::now()));
    let passing = async {
        match &wanted.how {
            How::Request { head, body } => {
                let request = Request { head, body: *body, early: &wanted.early };
                request.pass(guard, &pulse, client.split(), server.split()).await
            }
            how => {
                let connected = if *how == How::Connect {
                    http::CONNECTED.to_vec()
                } else {
                    socks::reply(socks::CONNECTED)
                };
                client.write_all(&connected).await.ok()?;
                tunnel(guard, &pulse, &wanted.early, client.split(), server.split()).await
            }
        }
    };
    let forbidden = async {
        let near = is_own(address);
        let allows = |rules: &HostRules| rules.allow_address(&wanted.target, wanted.port, address, near);
        // The sender outlives every connection, so this cannot fail.
        let _now = rules.wait_for(|rules| !allows(rules)).await;
    };
    tokio::select! {
        _over = passing => {}
        () = forbidden => {}
        () = pulse.stops(guard.bounds.idle_time) => {}
    }
}

type Ends<'a> = (ReadHalf<'a>, WriteHalf<'a>);

/// One plain HTTP request and its response.
struct Request<'a> {
    head: &'a [u8],
    body: u64,
    early: &'a [u8],
}

impl Request<'_> {
    async fn pass(&self, guard: &Guard, pulse: &Pulse, client: Ends<'_>, server: Ends<'_>) -> Option<()> {
        let ((from_client, mut to_client), (mut from_server, mut to_server)) = (client, server);
        let way_out = Way { guard, pulse, counted: &guard.counts.sent };
        let way_in = Way { guard, pulse, counted: &guard.counts.received };
        // Bytes after the body are not forwarded.
        let early = &self.early[..self.early.len().min(usize::try_from(self.body).unwrap_or(usize::MAX))];
        way_out.put(&mut to_server, self.head).await?;
        way_out.put(&mut to_server, early).await?;
        let mut rest = from_client.take(self.body - early.len() as u64);
        let asking = async {
            way_out.pass(&mut rest, &mut to_server).await?;
            // The response is still to come.
            std::future::pending::<Option<()>>().await
        };
        // The end of the response or a failure to forward the body ends the connection.
        tokio::select! {
            done = asking => done,
            done = way_in.pass(&mut from_server, &mut to_client) => done,
        }
    }
}

/// Relays both directions; either side may finish before the other.
async fn tunnel(
    guard: &Guard,
    pulse: &Pulse,
    early: &[u8],
    (mut from_client, mut to_client): Ends<'_>,
    (mut from_server, mut to_server): Ends<'_>,
) -> Option<()> {
    let way_out = Way { guard, pulse, counted: &guard.counts.sent };
    let way_in = Way { guard, pulse, counted: &guard.counts.received };
    way_out.put(&mut to_server, early).await?;
    let out = async {
        way_out.pass(&mut from_client, &mut to_server).await?;
        to_server.shutdown().await.ok()
    };
    let back = async {
        way_in.pass(&mut from_server, &mut to_client).await?;
        to_client.shutdown().await.ok()
    };
    tokio::try_join!(some(out), some(back)).ok().map(drop)
}

async fn some(passing: impl Future<Output = Option<()>>) -> Result<(), ()> {
    passing.await.ok_or(())
}

/// One direction of a connection.
struct Way<'a> {
    guard: &'a Guard,
    pulse: &'a Pulse,
    counted: &'a AtomicU64,
}

impl Way<'_> {
    /// Copies until the end of the stream. Returns `None` on failure.
    async fn pass(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> Option<()> {
        let mut buffer = Vec::with_capacity(BUFFER);
        loop {
            buffer.clear();
            if from.read_buf(&mut buffer).await.ok()? == 0 {
                return Some(());
            }
            self.put(to, &buffer).await?;
        }
    }

    /// Writes and counts, up to the total byte limit.
    async fn put(&self, to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Option<()> {
        let before = self.counted.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if before.saturating_add(bytes.len() as u64) > self.guard.bounds.bytes {
            self.guard.refuse(Refusal::TooMany("bytes"));
            return None;
        }
        self.pulse.beat();
        to.write_all(bytes).await.ok()?;
        self.pulse.beat();
        Some(())
    }
}
