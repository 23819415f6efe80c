//! Egress of a sandbox that may reach individual hosts: PID 1 of the jail sends listening sockets, which are
//! served here.

use std::collections::BTreeMap;
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use belljar_egress::{Bounds, Doors, Egress, System};
use belljar_engine::plan::Network;
use belljar_engine::provider::ProviderError;
use belljar_jail::gate;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::io::Interest;
use tokio::net::UnixStream;

use super::run::setup;

/// Variables that configure a proxy. Some programs read only the uppercase name, others only the lowercase
/// one.
const HTTP_PROXIES: [&str; 3] = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];
/// Hosts inside the sandbox itself.
const OWN: &str = "localhost,127.0.0.1";

/// Egress that waits for the jail's sockets.
#[derive(Debug)]
pub(super) struct Gate {
    egress: Egress,
    theirs: OwnedFd,
}

impl Gate {
    /// Creates the egress, if the network has individual hosts.
    pub(super) fn of(network: &Network) -> Result<Option<Self>, ProviderError> {
        let Network::Hosts(rules) = network else { return Ok(None) };
        let failed = |error: io::Error| setup("create the egress socket", &error);
        let (ours, theirs) = line().map_err(failed)?;
        let egress = Egress::new(rules.clone(), Bounds::default(), Arc::new(System));
        egress.serve(doors(ours));
        Ok(Some(Self { egress, theirs }))
    }

    /// Returns the descriptor to send with the start request.
    pub(super) fn theirs(&self) -> BorrowedFd<'_> {
        self.theirs.as_fd()
    }

    /// Closes the jail's end after the start request was sent.
    pub(super) fn ordered(self) -> Egress {
        self.egress
    }
}

fn line() -> io::Result<(UnixStream, OwnedFd)> {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((UnixStream::from_std(ours.into())?, theirs))
}

/// Receives the listening sockets.
pub(crate) async fn doors(line: UnixStream) -> io::Result<Doors> {
    loop {
        line.readable().await?;
        match line.try_io(Interest::READABLE, || Ok(gate::receive(&line)?)) {
            Ok([proxy, names, datagrams]) => {
                return Ok(Doors {
                    proxy: TcpListener::from(proxy),
                    names: TcpListener::from(names),
                    datagrams: UdpSocket::from(datagrams),
                });
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the variables that point programs to the proxy.
pub(crate) fn environment(network: &Network) -> BTreeMap<String, String> {
    let Network::Hosts(rules) = network else { return BTreeMap::new() };
    let proxy = format!("http://127.0.0.1:{}", gate::PROXY);
    // If the rules open the host's loopback, `localhost` means the host.
    let own = if rules.open_loopback() { "" } else { OWN };
    let proxies = HTTP_PROXIES.map(|name| (name, proxy.as_str()));
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
