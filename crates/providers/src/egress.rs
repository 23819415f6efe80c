//! What every sandbox with egress shares: the variables that point its programs to the proxy, and the
//! listening sockets that PID 1 opens inside and sends out to be served here.

use std::collections::BTreeMap;
use std::io;
use std::net::{TcpListener, UdpSocket};

use belljar_egress::EgressSockets;
use belljar_engine::plan::{Network, Plan};
use belljar_jail::proxy_sockets;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Variables that configure a proxy. Some programs read only the uppercase name, others only the lowercase
/// one.
const PROXY_VARIABLES: [&str; 3] = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];
/// Hosts inside the sandbox itself.
const NO_PROXY_HOSTS: &str = "localhost,127.0.0.1";

/// Receives the listening sockets.
pub(crate) async fn receive_sockets(socket: UnixStream) -> io::Result<EgressSockets> {
    loop {
        socket.readable().await?;
        match socket.try_io(Interest::READABLE, || Ok(proxy_sockets::receive(&socket)?)) {
            Ok([proxy, dns_tcp, dns_udp]) => {
                return Ok(EgressSockets {
                    proxy: TcpListener::from(proxy),
                    dns_tcp: TcpListener::from(dns_tcp),
                    dns_udp: UdpSocket::from(dns_udp),
                });
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the plan with the variables that point programs to the proxy. The plan's own variables win.
pub(crate) fn with_proxy_environment(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    let mut env = proxy_environment(&plan.network);
    env.append(&mut plan.env);
    plan.env = env;
    plan
}

fn proxy_environment(network: &Network) -> BTreeMap<String, String> {
    let Network::Hosts(rules) = network else { return BTreeMap::new() };
    let proxy = format!("http://127.0.0.1:{}", proxy_sockets::PROXY_PORT);
    // If the rules open the host's loopback, `localhost` means the host.
    let no_proxy = if rules.allows_host_loopback() { "" } else { NO_PROXY_HOSTS };
    let proxies = PROXY_VARIABLES.map(|name| (name, proxy.as_str()));
    let uppercase = proxies.into_iter().chain([("NO_PROXY", no_proxy)]);
    let mut env: BTreeMap<_, _> = uppercase
        .flat_map(|(name, value)| [name.to_owned(), name.to_lowercase()].map(|name| (name, value.to_owned())))
        .collect();
    // Node.js reads the proxy variables only with this one set.
    env.insert("NODE_USE_ENV_PROXY".to_owned(), "1".to_owned());
    env
}
