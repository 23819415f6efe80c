//! A request to the proxy, as its protocol's parser returns it.

use belljar_engine::network::TargetHost;

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
