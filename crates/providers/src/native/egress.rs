//! Egress of a sandbox that may reach individual hosts: PID 1 of the jail sends listening sockets, which are
//! served here.
//!
//! They are served until the run or the sandbox is over.

use std::collections::BTreeMap;
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use belljar_egress::{Egress, EgressLimits, EgressSockets, SystemResolver};
use belljar_engine::plan::Network;
use belljar_engine::provider::ProviderError;
use belljar_jail::proxy_sockets;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::io::Interest;
use tokio::net::UnixStream;

use super::run::setup_error;

/// Variables that configure a proxy. Some programs read only the uppercase name, others only the lowercase
/// one.
const PROXY_VARIABLES: [&str; 3] = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];
/// Hosts inside the sandbox itself.
const NO_PROXY_HOSTS: &str = "localhost,127.0.0.1";

/// Egress that waits for the jail's sockets.
#[derive(Debug)]
pub(super) struct JailEgress {
    egress: Egress,
    child_socket: OwnedFd,
}

impl JailEgress {
    /// Creates the egress, if the network has individual hosts.
    pub(super) fn for_network(network: &Network) -> Result<Option<Self>, ProviderError> {
        let Network::Hosts(rules) = network else { return Ok(None) };
        let failed = |error: io::Error| setup_error("create the egress socket", &error);
        let (ours, theirs) = socket_pair().map_err(failed)?;
        let egress = Egress::new(rules.clone(), EgressLimits::default(), Arc::new(SystemResolver));
        egress.serve(receive_sockets(ours));
        Ok(Some(Self { egress, child_socket: theirs }))
    }

    /// Returns the descriptor to send with the start request.
    pub(super) fn child_fd(&self) -> BorrowedFd<'_> {
        self.child_socket.as_fd()
    }

    /// Closes the jail's end after the start request was sent.
    pub(super) fn into_egress(self) -> Egress {
        self.egress
    }
}

fn socket_pair() -> io::Result<(UnixStream, OwnedFd)> {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((UnixStream::from_std(ours.into())?, theirs))
}

/// Receives the listening sockets.
pub(crate) async fn receive_sockets(line: UnixStream) -> io::Result<EgressSockets> {
    loop {
        line.readable().await?;
        match line.try_io(Interest::READABLE, || Ok(proxy_sockets::receive(&line)?)) {
            Ok([proxy, names, datagrams]) => {
                return Ok(EgressSockets {
                    proxy: TcpListener::from(proxy),
                    dns_tcp: TcpListener::from(names),
                    dns_udp: UdpSocket::from(datagrams),
                });
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the variables that point programs to the proxy.
pub(crate) fn proxy_environment(network: &Network) -> BTreeMap<String, String> {
    let Network::Hosts(rules) = network else { return BTreeMap::new() };
    let proxy = format!("http://127.0.0.1:{}", proxy_sockets::PROXY_PORT);
    // If the rules open the host's loopback, `localhost` means the host.
    let own = if rules.allows_host_loopback() { "" } else { NO_PROXY_HOSTS };
    let proxies = PROXY_VARIABLES.map(|name| (name, proxy.as_str()));
    let upper = proxies.into_iter().chain([("NO_PROXY", own)]);
    let mut env: BTreeMap<_, _> = upper
        .flat_map(|(name, value)| [name.to_owned(), name.to_lowercase()].map(|name| (name, value.to_owned())))
        .collect();
    // Node.js reads the proxy variables only with this one set.
    env.insert("NODE_USE_ENV_PROXY".to_owned(), "1".to_owned());
    env
}

/// Returns the resolv.conf for inside the sandbox.
pub(super) fn resolv_conf() -> String {
    "# answers only for reachable hosts\nnameserver 127.0.0.1\noptions timeout:5 attempts:2\n".to_owned()
}
