//! One proxy connection from the sandbox: reads its request, checks it, and relays or refuses it.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::access::{AccessControl, ConnectError};
use crate::proxy_request::{ProxyProtocol, ProxyRequest};
use crate::relay::{self, ProxyConnection};
use crate::{http, socks};

/// Time allowed for delivering a refusal to the client.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);
/// How much is read from a refused client so that the answer arrives.
const MAX_DRAINED_BYTES: usize = 256 << 10;

/// Serves one proxy connection.
pub(crate) async fn serve_connection(access: Arc<AccessControl>, mut client: TcpStream) {
    let request = timeout(access.limits.head_timeout, read_request(&access, &mut client)).await;
    let answer = match request {
        Ok(Ok(request)) => {
            // Subscribe before checking, so that no later rule change is missed.
            let rules = access.rules.subscribe();
            match access.connect_if_allowed(&request.target, request.port).await {
                Ok((server, address)) => {
                    let connection = ProxyConnection { access: &access, rules, address, request };
                    return relay::relay(connection, client, server).await;
                }
                Err(error) => refusal_response(&request.protocol, &error),
            }
        }
        Ok(Err(answer)) => answer,
        Err(_) => http::build_response("408 Request Timeout", "no request arrived in time"),
    };
    // A client that does not read in time misses the answer.
    let _sent = timeout(REFUSAL_TIMEOUT, send_refusal(&mut client, &answer)).await;
}

/// Reads the request. An error holds the answer to send instead.
async fn read_request(access: &AccessControl, client: &mut TcpStream) -> Result<ProxyRequest, Vec<u8>> {
    let mut first = [0];
    match client.peek(&mut first).await {
        Ok(1) if first[0] == socks::VERSION => socks::read_request(client).await,
        Ok(1) => http::read_request(client, access.limits.head_bytes).await,
        _ => Err(Vec::new()),
    }
}

fn refusal_response(protocol: &ProxyProtocol, error: &ConnectError) -> Vec<u8> {
    match (protocol, error) {
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
    let mut unread = client.take(MAX_DRAINED_BYTES as u64);
    tokio::io::copy(&mut unread, &mut tokio::io::sink()).await.map(drop)
}
