//! The TUN device of a sandbox whose programs connect to hosts by themselves: what its two ends must agree on.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The sandbox's own IPv4 address. The block 198.18.0.0/15 is for tests of network devices, so no server on the
/// internet has an address in it.
pub const ADDRESS_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The sandbox's own IPv6 address.
pub const ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0xfd62, 0x656c, 0x6c6a, 0, 0, 0, 0, 1);
/// Largest packet. Packets go from one process to another, so large ones only save work.
pub const MTU: u16 = 16 << 10;
