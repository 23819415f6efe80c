//! Hosts reached through the operator's proxy: the rules decide by name, and the proxy resolves it.

use std::io;
use std::net::IpAddr;

use belljar_engine::network::{TargetHost, UpstreamProxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::access::{AccessControl, ConnectError};

/// The longest response head accepted from a proxy.
const MAX_HEAD_BYTES: usize = 8 << 10;

impl AccessControl {
    /// Connects to a host through a proxy. Returns the stream and the proxy's address. The caller has checked
    /// the rules.
    pub(crate) async fn connect_through_proxy(
        &self,
        proxy: &UpstreamProxy,
        target: &TargetHost,
        port: u16,
    ) -> Result<(TcpStream, IpAddr), ConnectError> {
        let failed = |error: io::Error| {
            ConnectError::Failed(format!("{target}:{port}: the configured proxy: {error}"))
        };
        let addresses = self.resolve(proxy.target()).await.map_err(failed)?;
        let (mut stream, address) = self.connect(&addresses, proxy.port()).await.map_err(failed)?;
        let request = proxy.connect_request(target, port);
        match timeout(self.limits.connect_timeout, request_tunnel(&mut stream, &request)).await {
            Ok(Ok(())) => Ok((stream, address)),
            Ok(Err(error)) => Err(failed(error)),
            Err(_) => Err(failed(io::ErrorKind::TimedOut.into())),
        }
    }
}

/// Requests a tunnel. Reads only the response head: what follows comes from the destination.
async fn request_tunnel(stream: &mut TcpStream, request: &str) -> io::Result<()> {
    stream.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= MAX_HEAD_BYTES {
            return Err(io::Error::other("its response is too long"));
        }
        head.push(stream.read_u8().await?);
    }
    let line = String::from_utf8_lossy(&head);
    let status = line.split_whitespace().nth(1).unwrap_or_default();
    match line.starts_with("HTTP/1.") && status.len() == 3 && status.starts_with('2') {
        true => Ok(()),
        false => Err(io::Error::other(format!("it responded with status {}", status.escape_debug()))),
    }
}
