//! Hosts that are reached through the operator's proxy: the rules decide by name, and the proxy looks the name up.

use std::io;
use std::net::IpAddr;

use belljar_engine::network::{Proxy, Target};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::guard::{Guard, Unreached};

/// The longest answer of a proxy.
const MAX_HEAD: usize = 8 << 10;

impl Guard {
    /// Connects to a host by way of a proxy; to which address of the proxy's. The caller has asked the rules.
    pub(crate) async fn reach_through(
        &self,
        proxy: &Proxy,
        target: &Target,
        port: u16,
    ) -> Result<(TcpStream, IpAddr), Unreached> {
        let failed =
            |error: io::Error| Unreached::Failed(format!("{target}:{port}: the configured proxy: {error}"));
        let addresses = self.addresses(proxy.target()).await.map_err(failed)?;
        let (mut stream, address) = self.connect(&addresses, proxy.port()).await.map_err(failed)?;
        let request = proxy.request(target, port);
        match timeout(self.bounds.connect_time, ask(&mut stream, &request)).await {
            Ok(Ok(())) => Ok((stream, address)),
            Ok(Err(error)) => Err(failed(error)),
            Err(_) => Err(failed(io::ErrorKind::TimedOut.into())),
        }
    }
}

/// Asks for a connection. Of what follows the answer's head nothing is read: it is the host's.
async fn ask(stream: &mut TcpStream, request: &str) -> io::Result<()> {
    stream.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= MAX_HEAD {
            return Err(io::Error::other("its answer is too long"));
        }
        head.push(stream.read_u8().await?);
    }
    let line = String::from_utf8_lossy(&head);
    let status = line.split_whitespace().nth(1).unwrap_or_default();
    match line.starts_with("HTTP/1.") && status.len() == 3 && status.starts_with('2') {
        true => Ok(()),
        false => Err(io::Error::other(format!("it answered {}", status.escape_debug()))),
    }
}
