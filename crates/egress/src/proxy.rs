//! One proxy connection from the sandbox: reads its request, checks it, and relays or refuses it.

use std::sync::Arc;
use std::time::Duration;

use belljar_engine::network::TargetHost;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::access::{AccessControl, ConnectError};
use crate::relay::{self, ProxyConnection};
use crate::{http, socks};

/// Time allowed for delivering a refusal to the client.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);
/// How much is read from a refused client so that the answer arrives.
const MAX_DRAINED_BYTES: usize = 256 << 10;

/// A request to the proxy.
#[derive(Debug)]
pub(crate) struct ProxyRequest {
    pub(crate) target: TargetHost,
    pub(crate) port: u16,
    pub(crate) protocol: ProxyProtocol,
    /// Bytes for the destination that arrived with the request.
    pub(crate) early: Vec<u8>,
}

/// The protocol of a proxy request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ProxyProtocol {
    /// HTTP CONNECT: a tunnel.
    Connect,
    /// SOCKS5: a tunnel.
    Socks,
    /// One plain HTTP request: the rewritten head and the length of the body. Everything the server sends is
    /// relayed.
    Http { head: Vec<u8>, body: u64 },
}

/// Serves one proxy connection.
pub(crate) async fn serve_connection(guard: Arc<AccessControl>, mut client: TcpStream) {
    let asked = timeout(guard.bounds.head_timeout, read_request(&guard, &mut client)).await;
    let answer = match asked {
        Ok(Ok(wanted)) => {
            // Subscribe before checking, so that no later rule change is missed.
            let rules = guard.rules.subscribe();
            match guard.connect_if_allowed(&wanted.target, wanted.port).await {
                Ok((server, address)) => {
                    let flow = ProxyConnection { guard: &guard, rules, address, wanted };
                    return relay::relay(flow, client, server).await;
                }
                Err(why) => refusal_response(&wanted.protocol, &why),
            }
        }
        Ok(Err(answer)) => answer,
        Err(_) => http::build_response("408 Request Timeout", "no request arrived in time"),
    };
    // A client that does not read in time misses the answer.
    let _heard = timeout(REFUSAL_TIMEOUT, send_refusal(&mut client, &answer)).await;
}

/// Reads the request. An error holds the answer to send instead.
async fn read_request(guard: &AccessControl, client: &mut TcpStream) -> Result<ProxyRequest, Vec<u8>> {
    let mut first = [0];
    match client.peek(&mut first).await {
        Ok(1) if first[0] == socks::VERSION => socks::read_request(client).await,
        Ok(1) => http::read_request(client, guard.bounds.head_bytes).await,
        _ => Err(Vec::new()),
    }
}

fn refusal_response(how: &ProxyProtocol, why: &ConnectError) -> Vec<u8> {
    match (how, why) {
        (ProxyProtocol::Socks, ConnectError::Refused(_)) => socks::build_reply(socks::NOT_ALLOWED),
        (ProxyProtocol::Socks, ConnectError::Failed(_)) => socks::build_reply(socks::UNREACHABLE),
        (_, ConnectError::Refused(message)) => http::build_response("403 Forbidden", message),
        (_, ConnectError::Failed(message)) => http::build_response("502 Bad Gateway", message),
    }
}

/// Sends the answer and drains unread input. Closing with unread input resets the connection, which loses the
/// answer.
async fn send_refusal(client: &mut TcpStream, answer: &[u8]) -> std::io::Result<()> {
    client.write_all(answer).await?;
    client.shutdown().await?;
    let mut unheard = client.take(MAX_DRAINED_BYTES as u64);
    tokio::io::copy(&mut unheard, &mut tokio::io::sink()).await.map(drop)
}
