//! SOCKS5, RFC 1928: CONNECT without authentication, to names and addresses.

use std::net::{Ipv4Addr, Ipv6Addr};

use belljar_engine::network::TargetHost;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::proxy_request::{ProxyProtocol, ProxyRequest};

pub(crate) const VERSION: u8 = 5;
pub(crate) const SUCCEEDED: u8 = 0;
pub(crate) const NOT_ALLOWED: u8 = 2;
pub(crate) const UNREACHABLE: u8 = 4;
const NO_SUCH_COMMAND: u8 = 7;
const NO_SUCH_ADDRESS: u8 = 8;
const NO_AUTHENTICATION: u8 = 0;
const NO_METHOD: u8 = 0xff;

/// Builds a reply. The bound address is left empty: clients do not need it.
pub(crate) fn build_reply(code: u8) -> Vec<u8> {
    vec![VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0]
}

/// Performs the handshake and reads the request. An error holds the answer to send instead.
pub(crate) async fn read_request(client: &mut TcpStream) -> Result<ProxyRequest, Vec<u8>> {
    // A client that disconnects midway gets no answer.
    let gone = |_| Vec::new();
    let [_, methods] = read_array::<2>(client).await.map_err(gone)?;
    let mut offered = vec![0; usize::from(methods)];
    client.read_exact(&mut offered).await.map_err(gone)?;
    if !offered.contains(&NO_AUTHENTICATION) {
        return Err(vec![VERSION, NO_METHOD]);
    }
    client.write_all(&[VERSION, NO_AUTHENTICATION]).await.map_err(gone)?;
    let [version, command, zero, kind] = read_array::<4>(client).await.map_err(gone)?;
    if (version, zero) != (VERSION, 0) {
        return Err(Vec::new());
    }
    let target = match kind {
        1 => {
            Ok(TargetHost::from_address(Ipv4Addr::from(read_array::<4>(client).await.map_err(gone)?).into()))
        }
        4 => {
            Ok(TargetHost::from_address(Ipv6Addr::from(read_array::<16>(client).await.map_err(gone)?).into()))
        }
        3 => {
            let [len] = read_array::<1>(client).await.map_err(gone)?;
            let mut name = vec![0; usize::from(len)];
            client.read_exact(&mut name).await.map_err(gone)?;
            let name = std::str::from_utf8(&name).ok();
            name.and_then(|name| name.parse().ok()).ok_or_else(|| build_reply(NO_SUCH_ADDRESS))
        }
        _ => return Err(build_reply(NO_SUCH_ADDRESS)),
    }?;
    let port = u16::from_be_bytes(read_array::<2>(client).await.map_err(gone)?);
    match command {
        1 => Ok(ProxyRequest { target, port, protocol: ProxyProtocol::Socks, early: Vec::new() }),
        _ => Err(build_reply(NO_SUCH_COMMAND)),
    }
}

async fn read_array<const N: usize>(client: &mut TcpStream) -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    client.read_exact(&mut bytes).await?;
    Ok(bytes)
}
