//! The door: one connection from inside, what it asks for, and what it is told.

use std::sync::Arc;
use std::time::Duration;

use belljar_engine::network::Target;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::guard::{Guard, Unreached};
use crate::relay::{self, Flow};
use crate::{http, socks};

/// How long somebody who was refused may take to hear it.
const FAREWELL: Duration = Duration::from_secs(1);
/// What is read of somebody who was refused, so that the answer arrives.
const UNHEARD: usize = 256 << 10;

/// What a connection asks for.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) target: Target,
    pub(crate) port: u16,
    pub(crate) how: How,
    /// What it sent already for the host.
    pub(crate) early: Vec<u8>,
}

/// How it asked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// By CONNECT: bytes both ways.
    Connect,
    /// By SOCKS5: bytes both ways.
    Socks,
    /// One request, with the head as the host is to see it and a body of so many bytes; and all that comes back.
    Request { head: Vec<u8>, body: u64 },
}

/// Serves one connection.
pub(crate) async fn attend(guard: Arc<Guard>, mut client: TcpStream) {
    let asked = timeout(guard.bounds.head_time, ask(&guard, &mut client)).await;
    let answer = match asked {
        Ok(Ok(wanted)) => {
            // Rules that change from here on are seen.
            let rules = guard.rules.subscribe();
            match guard.reach(&wanted.target, wanted.port).await {
                Ok((server, address)) => {
                    let flow = Flow { guard: &guard, rules, address, wanted };
                    return relay::relay(flow, client, server).await;
                }
                Err(why) => refusal(&wanted.how, &why),
            }
        }
        Ok(Err(answer)) => answer,
        Err(_) => http::answer("408 Request Timeout", "nothing was asked for in time"),
    };
    // Whoever does not listen misses it.
    let _heard = timeout(FAREWELL, farewell(&mut client, &answer)).await;
}

/// What is asked for, or what to answer instead.
async fn ask(guard: &Guard, client: &mut TcpStream) -> Result<Wanted, Vec<u8>> {
    let mut first = [0];
    match client.peek(&mut first).await {
        Ok(1) if first[0] == socks::VERSION => socks::ask(client).await,
        Ok(1) => http::ask(client, guard.bounds.head_bytes).await,
        _ => Err(Vec::new()),
    }
}

fn refusal(how: &How, why: &Unreached) -> Vec<u8> {
    match (how, why) {
        (How::Socks, Unreached::Refused(_)) => socks::reply(socks::NOT_ALLOWED),
        (How::Socks, Unreached::Failed(_)) => socks::reply(socks::UNREACHABLE),
        (_, Unreached::Refused(message)) => http::answer("403 Forbidden", message),
        (_, Unreached::Failed(message)) => http::answer("502 Bad Gateway", message),
    }
}

/// Closing while something is unread would take the answer back.
async fn farewell(client: &mut TcpStream, answer: &[u8]) -> std::io::Result<()> {
    client.write_all(answer).await?;
    client.shutdown().await?;
    let mut unheard = client.take(UNHEARD as u64);
    tokio::io::copy(&mut unheard, &mut tokio::io::sink()).await.map(drop)
}
