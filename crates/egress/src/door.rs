//! One proxy connection from the sandbox: reads its request, checks it, and relays or refuses it.

use std::sync::Arc;
use std::time::Duration;

use belljar_engine::network::Target;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::guard::{Guard, Unreached};
use crate::relay::{self, Flow};
use crate::{http, socks};

/// Time allowed for delivering a refusal to the client.
const FAREWELL: Duration = Duration::from_secs(1);
/// How much is read from a refused client so that the answer arrives.
const UNHEARD: usize = 256 << 10;

/// A request to the proxy.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) target: Target,
    pub(crate) port: u16,
    pub(crate) how: How,
    /// Bytes for the destination that arrived with the request.
    pub(crate) early: Vec<u8>,
}

/// The protocol of a proxy request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// HTTP CONNECT: a tunnel.
    Connect,
    /// SOCKS5: a tunnel.
    Socks,
    /// One plain HTTP request: the rewritten head and the length of the body. Everything the server sends is
    /// relayed.
    Request { head: Vec<u8>, body: u64 },
}

/// Serves one proxy connection.
pub(crate) async fn attend(guard: Arc<Guard>, mut client: TcpStream) {
    let asked = timeout(guard.bounds.head_time, ask(&guard, &mut client)).await;
    let answer = match asked {
        Ok(Ok(wanted)) => {
            // Subscribe before checking, so that no later rule change is missed.
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
        Err(_) => http::answer("408 Request Timeout", "no request arrived in time"),
    };
    // A client that does not read in time misses the answer.
    let _heard = timeout(FAREWELL, farewell(&mut client, &answer)).await;
}

/// Reads the request. An error holds the answer to send instead.
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

/// Sends the answer and drains unread input. Closing with unread input resets the connection, which loses the
/// answer.
async fn farewell(client: &mut TcpStream, answer: &[u8]) -> std::io::Result<()> {
    client.write_all(answer).await?;
    client.shutdown().await?;
    let mut unheard = client.take(UNHEARD as u64);
    tokio::io::copy(&mut unheard, &mut tokio::io::sink()).await.map(drop)
}
