//! Address blocks, and which addresses are public.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// A CIDR block of IPv4 or IPv6 addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CidrBlock {
    base: IpAddr,
    bits: u8,
}

impl CidrBlock {
    const fn v4(a: u8, b: u8, bits: u8) -> Self {
        Self { base: IpAddr::V4(Ipv4Addr::new(a, b, 0, 0)), bits }
    }

    const fn v6(a: u16, b: u16, c: u16, bits: u8) -> Self {
        Self { base: IpAddr::V6(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0)), bits }
    }

    /// Parses `ADDRESS` or `ADDRESS/BITS`; returns `None` if the text is not an address at all.
    pub(super) fn parse(text: &str) -> Result<Option<Self>, String> {
        let (address, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        let Ok(given) = address.parse::<IpAddr>() else { return Ok(None) };
        let base = given.to_canonical();
        let width = width(base);
        let bits = match bits {
            None => width,
            Some(_) if base != given => {
                return Err("is an IPv4 block in IPv6 form; write it as IPv4".to_owned());
            }
            Some(bits) => match bits.parse() {
                Ok(0) => return Err("is every address; use network mode 'internet' instead".to_owned()),
                Ok(bits) if bits <= width => bits,
                _ => return Err(format!("needs a number of bits from 1 to {width} after its '/'")),
            },
        };
        let block = Self { base, bits };
        if prefix(base, bits) << (width - bits) != as_u128(base) {
            return Err("has bits set beyond its prefix; write the first address of the block".to_owned());
        }
        Ok(Some(block))
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.base.is_ipv4() && prefix(address, self.bits) == prefix(self.base, self.bits)
    }

    pub(super) fn is_ipv6(&self) -> bool {
        self.base.is_ipv6()
    }

    pub(super) fn is_loopback(&self) -> bool {
        self.base.is_loopback()
    }
}

impl fmt::Display for CidrBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.base.fmt(f)?;
        if self.bits == width(self.base) { Ok(()) } else { write!(f, "/{}", self.bits) }
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn as_u128(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

fn prefix(address: IpAddr, bits: u8) -> u128 {
    as_u128(address) >> (width(address) - bits)
}

/// Private, special-purpose and reserved blocks. Blocks for documentation are left out: they are harmless.
const NOT_PUBLIC: &[CidrBlock] = &[
    CidrBlock::v4(0, 0, 8),             // this network
    CidrBlock::v4(10, 0, 8),            // private
    CidrBlock::v4(100, 64, 10),         // carrier-grade NAT
    CidrBlock::v4(127, 0, 8),           // loopback
    CidrBlock::v4(169, 254, 16),        // link-local, cloud metadata services
    CidrBlock::v4(172, 16, 12),         // private
    CidrBlock::v4(192, 0, 24),          // protocol assignments
    CidrBlock::v4(192, 168, 16),        // private
    CidrBlock::v4(198, 18, 15),         // benchmarking
    CidrBlock::v4(224, 0, 3),           // multicast, reserved, broadcast
    CidrBlock::v6(0, 0, 0, 8),          // unspecified, loopback, IPv4-compatible
    CidrBlock::v6(0x64, 0xff9b, 1, 48), // local-use NAT64
    CidrBlock::v6(0x100, 0, 0, 64),     // discard-only
    CidrBlock::v6(0x5f00, 0, 0, 16),    // segment routing (SRv6)
    CidrBlock::v6(0xfc00, 0, 0, 7),     // unique local
    CidrBlock::v6(0xfe80, 0, 0, 9),     // link-local and site-local
    CidrBlock::v6(0xff00, 0, 0, 8),     // multicast
];

/// Cloud-internal services at addresses that the registries list as public.
const CLOUD_SERVICES: &[CidrBlock] = &[
    // Azure WireServer: configuration and certificates of the virtual machine.
    CidrBlock { base: IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)), bits: 32 },
    CidrBlock::v4(161, 26, 16), // IBM Cloud: name servers, mirrors, infrastructure
    CidrBlock::v4(166, 8, 14),  // IBM Cloud: service endpoints
];

/// Maximum number of ranges in the configuration.
const MAX_RANGES: usize = 1_000;

/// Address ranges that the operator treats as private, in addition to the built-in ones. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrivateRanges(Arc<[CidrBlock]>);

impl Default for PrivateRanges {
    fn default() -> Self {
        Self(Arc::from([]))
    }
}

impl PrivateRanges {
    /// Parses `ADDRESS` and `ADDRESS/BITS` entries.
    ///
    /// # Errors
    /// Names the first entry that is not an address range, and why.
    pub fn parse<T: AsRef<str>>(ranges: &[T]) -> Result<Self, String> {
        if ranges.len() > MAX_RANGES {
            return Err(format!("has more than {MAX_RANGES} ranges; write fewer, larger ones"));
        }
        let parse = |text: &T| {
            let text = text.as_ref().trim();
            let shown = || text.chars().take(80).collect::<String>().escape_debug().to_string();
            match CidrBlock::parse(text) {
                Ok(Some(block)) => Ok(block),
                Ok(None) => Err(format!("'{}' is not an address range such as 10.1.0.0/16", shown())),
                Err(why) => Err(format!("'{}' {why}", shown())),
            }
        };
        ranges.iter().map(parse).collect::<Result<_, _>>().map(Self)
    }

    fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|block| block.contains(address))
    }
}

impl fmt::Display for PrivateRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&ranges.join(", "))
    }
}

/// Returns whether an address belongs to the public internet.
pub(super) fn is_public(address: IpAddr, private: &PrivateRanges) -> bool {
    let address = address.to_canonical();
    let translated = match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(six) => embedded_ipv4(six).map(IpAddr::V4),
    };
    // An IPv6 address that embeds an IPv4 address reaches that address; the operator's ranges apply to both.
    let destination = translated.unwrap_or(address);
    let mut built_in = NOT_PUBLIC.iter().chain(CLOUD_SERVICES);
    !built_in.any(|block| block.contains(destination))
        && !private.contains(destination)
        && !private.contains(address)
}

/// Returns the IPv4 address embedded in an IPv6 address by NAT64, 6to4 or Teredo.
fn embedded_ipv4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let number = u128::from(address);
    let [a, b, c, ..] = address.segments();
    let four = match (a, b) {
        (0x64, 0xff9b) if number >> 32 == 0x0064_ff9b << 64 => number as u32,
        (0x2002, _) => u32::from(b) << 16 | u32::from(c),
        (0x2001, 0) => !(number as u32),
        _ => return None,
    };
    Some(four.into())
}
