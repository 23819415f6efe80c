//! The only way out of a sandbox that may reach single hosts.
//!
//! ```text
//! sandbox's loopback            this process                                              the world
//!   :3128  HTTP, SOCKS5 ──────▶ door.rs: what is asked for?      http.rs, socks.rs
//!   :53    DNS ───────────────▶ names.rs ──┐                     dns.rs
//!                               guard.rs: may it be? looked up, looked at again ─────────▶ connect to that address
//!                               relay.rs: bytes, counted, until a bound, a silence or another rule ends it
//! ```
//!
//! It serves listening sockets that are handed in, and knows no jail: what connects to them is hostile. Every read has a
//! bound and every wait an end. A name that no rule is about is never looked up, so nothing leaves by asking for one.

mod bounds;
mod dns;
mod door;
mod egress;
mod guard;
mod http;
mod names;
mod refusals;
mod relay;
mod resolve;
mod socks;
mod upstream;

pub use bounds::Bounds;
pub use egress::{Doors, Egress, Traffic};
pub use refusals::Mark;
pub use resolve::{Resolve, System};
