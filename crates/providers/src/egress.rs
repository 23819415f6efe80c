//! What every sandbox with egress shares: the descriptors that PID 1 opens inside and sends out to be served here,
//! and, where the gate is a proxy, the variables that point its programs to it and the module that makes Node.js
//! read them.

use std::collections::BTreeMap;
use std::io;
use std::net::{TcpListener, UdpSocket};

use belljar_egress::{EgressSockets, GateEntry};
use belljar_engine::language::Language;
use belljar_engine::network::GateKind;
use belljar_engine::plan::{Network, Plan};
use belljar_jail::proxy_sockets;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Variables that configure a proxy. Some programs read only the uppercase name, others only the lowercase
/// one.
const PROXY_VARIABLES: [&str; 3] = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];
/// Hosts inside the sandbox itself.
const NO_PROXY_HOSTS: &str = "localhost,127.0.0.1";

/// The module that makes older versions of Node.js use the proxy. All Node.js processes load it, also those
/// that a JavaScript program, a shell or a command starts.
pub(crate) const NODE_PRELOAD: &str = include_str!("node_proxy.cjs");
/// Where the module is inside.
pub(crate) const NODE_PRELOAD_PATH: &str = "/.belljar/node_proxy.cjs";
const NODE_PRELOAD_OPTION: &str = "--require=/.belljar/node_proxy.cjs";
const NODE_OPTIONS: &str = "NODE_OPTIONS";

/// Languages whose programs are Node.js, or may well start it. A variable that loads code is given to no others.
const NODE_LANGUAGES: [&str; 3] = ["javascript", "typescript", "bash"];

/// Receives the descriptors of a gate.
pub(crate) async fn receive_sockets(socket: UnixStream, kind: GateKind) -> io::Result<EgressSockets> {
    loop {
        socket.readable().await?;
        match socket.try_io(Interest::READABLE, || Ok(proxy_sockets::receive(&socket)?)) {
            Ok([entry, dns_tcp, dns_udp]) => {
                return Ok(EgressSockets {
                    entry: match kind {
                        GateKind::Proxy => GateEntry::Proxy(TcpListener::from(entry)),
                        GateKind::Tun => GateEntry::Tun(entry),
                    },
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
    extend_environment(&mut env, std::mem::take(&mut plan.env));
    plan.env = env;
    plan
}

/// Adds variables, which replace those of the same name. Own options for Node.js are added to the one that
/// loads the module instead, so that they do not cut Node.js off from the network.
pub(crate) fn extend_environment(
    env: &mut BTreeMap<String, String>,
    given: impl IntoIterator<Item = (String, String)>,
) {
    let loads_module = |options: &String| options.starts_with(NODE_PRELOAD_OPTION);
    let has_module = env.get(NODE_OPTIONS).is_some_and(loads_module);
    env.extend(given);
    if let Some(options) = env.get_mut(NODE_OPTIONS).filter(|options| has_module && !loads_module(options)) {
        *options = format!("{NODE_PRELOAD_OPTION} {options}");
    }
}

/// Removes the option that loads the module from the environment of code in a language without Node.js.
pub(crate) fn remove_node_preload(env: &mut BTreeMap<String, String>, language: &Language) {
    if !NODE_LANGUAGES.contains(&language.name)
        && env.get(NODE_OPTIONS).is_some_and(|options| options == NODE_PRELOAD_OPTION)
    {
        env.remove(NODE_OPTIONS);
    }
}

fn proxy_environment(network: &Network) -> BTreeMap<String, String> {
    let Some(rules) = network.gate_rules() else { return BTreeMap::new() };
    let proxy = format!("http://127.0.0.1:{}", proxy_sockets::PROXY_PORT);
    // If the rules open the host's loopback, `localhost` means the host.
    let no_proxy = if rules.allows_host_loopback() { "" } else { NO_PROXY_HOSTS };
    let proxies = PROXY_VARIABLES.map(|name| (name, proxy.as_str()));
    let uppercase = proxies.into_iter().chain([("NO_PROXY", no_proxy)]);
    let mut env: BTreeMap<_, _> = uppercase
        .flat_map(|(name, value)| [name.to_owned(), name.to_lowercase()].map(|name| (name, value.to_owned())))
        .collect();
    // Node.js reads the proxy variables only with this one set, and only since 22.21 and 24.5.
    env.insert("NODE_USE_ENV_PROXY".to_owned(), "1".to_owned());
    env.insert(NODE_OPTIONS.to_owned(), NODE_PRELOAD_OPTION.to_owned());
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_options_of_node_are_added_to_the_module() {
        let options = |env: &BTreeMap<String, String>| env[NODE_OPTIONS].clone();
        let own = |text: &str| [(NODE_OPTIONS.to_owned(), text.to_owned())];
        let mut env = BTreeMap::from(own(NODE_PRELOAD_OPTION));
        extend_environment(&mut env, own("--max-old-space-size=64"));
        assert_eq!(options(&env), "--require=/.belljar/node_proxy.cjs --max-old-space-size=64");
        extend_environment(&mut env, own("--enable-source-maps"));
        assert_eq!(options(&env), "--require=/.belljar/node_proxy.cjs --enable-source-maps");
        assert!(NODE_PRELOAD_OPTION.ends_with(NODE_PRELOAD_PATH));
        let mut without = BTreeMap::new();
        extend_environment(&mut without, own("--enable-source-maps"));
        assert_eq!(options(&without), "--enable-source-maps");
    }
}
