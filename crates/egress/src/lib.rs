//! Egress for sandboxes that may reach individual hosts, or the internet: their only way to the network.
//!
//! ```text
//! sandbox's loopback         this process                                                 the network
//!   :3128  HTTP, SOCKS5 ───▶ proxy.rs: reads the request              http.rs, socks.rs
//!   :53    DNS ────────────▶ dns_server.rs ──┐                        dns.rs
//!                            access.rs: checks rules, resolves, checks the address ──▶ connects to it
//!                            relay.rs: counts bytes; ends at a limit, when idle, or on a rule change
//! ```
//!
//! With a TUN device in place of the proxy, programs need not know of the gate (`tun/mod.rs`):
//!
//! ```text
//!   any address ──packets──▶ tun: ends TCP here, relays to what access.rs connects to
//!   :53    DNS ────────────▶ dns_server.rs: answers each allowed name with an address that stands for it
//! ```
//!
//! The crate serves listening sockets that it is given and knows nothing about jails. Everything that
//! connects to them is hostile: every read has a size limit and every wait a timeout. In mode `hosts`, a name
//! that no rule covers is never looked up, so a lookup cannot leak data.

mod access;
mod dns;
mod dns_server;
mod egress;
mod http;
mod limits;
mod proxy;
mod proxy_request;
mod refusals;
mod relay;
mod resolve;
mod socks;
mod tun;
mod upstream_proxy;

pub use egress::{Egress, EgressSockets, GateEntry, Traffic};
pub use limits::EgressLimits;
pub use refusals::RefusalMark;
pub use resolve::{Resolve, SystemResolver};
