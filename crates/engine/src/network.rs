//! What a sandbox may reach through the gate: the host rules of network mode `hosts`, or every public address
//! in mode `internet`.
//!
//! ```text
//! pypi.org            that name, ports 80 and 443        10.0.0.5:8080      that address, even if it is private
//! *.example.com:8443  every name below it, one port      10.0.0.0/8         an address block
//! localhost:5000      the host's own loopback            [fd00::/8]:443     the same for IPv6
//! ```
//!
//! Only listed names are resolved. The resolved address is checked again: a private address must be listed
//! itself. Otherwise the owner of a name could point it at hosts on this network. Mode `internet` has no
//! list: every name is resolved, and only public addresses are reached.

mod address;
mod mode;
mod proxy;

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

pub use address::PrivateRanges;
use address::{CidrBlock, is_public};
pub use mode::{GateKind, Network, NetworkCeiling};
pub use proxy::UpstreamProxy;

use belljar_model::request::NetworkSpec;

/// Maximum number of rules of one sandbox.
pub const MAX_RULES: usize = 100;
/// The ports that a rule without a port allows.
pub const DEFAULT_PORTS: [u16; 2] = [80, 443];

const LOCALHOST: &str = "localhost";

/// A destination host, by name or address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TargetHost {
    /// A name: lower-case ASCII without a trailing dot.
    Name(String),
    /// An address.
    Address(IpAddr),
}

impl TargetHost {
    /// Returns whether it is the name `localhost`.
    pub fn is_localhost(&self) -> bool {
        matches!(self, Self::Name(name) if name == LOCALHOST)
    }

    /// Returns whether it is `localhost` or a name below it: always the machine that resolves it.
    fn is_below_localhost(&self) -> bool {
        self.is_localhost() || matches!(self, Self::Name(name) if name.ends_with(".localhost"))
    }

    /// Creates a target from an address, in canonical form: an IPv4-mapped IPv6 address becomes IPv4.
    pub fn from_address(address: IpAddr) -> Self {
        Self::Address(address.to_canonical())
    }
}

impl FromStr for TargetHost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        match bare.unwrap_or(text).parse::<IpAddr>() {
            Ok(address) if bare.is_none() || address.is_ipv6() => Ok(Self::from_address(address)),
            _ => Ok(Self::Name(parse_name(text)?)),
        }
    }
}

impl fmt::Display for TargetHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// The hosts that a rule matches.
#[derive(Debug, Clone, PartialEq, Eq)]
enum HostPattern {
    Name(String),
    /// Every name with this suffix, which starts with a dot.
    Suffix(String),
    Block(CidrBlock),
}

/// A rule that allows a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRule {
    pattern: HostPattern,
    port: Option<u16>,
}

impl HostRule {
    fn matches_port(&self, port: u16) -> bool {
        self.port.map_or(DEFAULT_PORTS.contains(&port), |own| own == port)
    }

    fn matches(&self, target: &TargetHost) -> bool {
        match (&self.pattern, target) {
            (HostPattern::Name(own), TargetHost::Name(name)) => own == name,
            (HostPattern::Suffix(end), TargetHost::Name(name)) => {
                name.len() > end.len() && name.ends_with(end)
            }
            (HostPattern::Block(block), TargetHost::Address(address)) => block.contains(*address),
            _ => false,
        }
    }
}

impl FromStr for HostRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains("://") {
            return Err("is a URL; write the host alone, as in example.com:443".to_owned());
        }
        if text.contains('@') {
            return Err("contains a user; write the host alone".to_owned());
        }
        if NetworkSpec::PLAIN_MODES.contains(&text) {
            return Err("is a network mode and not a host; write it alone".to_owned());
        }
        let (host, port) = split_port(text)?;
        let pattern = match host.strip_prefix('*') {
            Some("") => return Err("is every host; use network mode 'internet' instead".to_owned()),
            Some(below) => {
                let below = below.strip_prefix('.').ok_or("'*' stands for whole labels: *.example.com")?;
                HostPattern::Suffix(format!(".{}", parse_name(below)?))
            }
            None => match CidrBlock::parse(host)? {
                Some(block) => HostPattern::Block(block),
                None => HostPattern::Name(parse_name(host)?),
            },
        };
        Ok(Self { pattern, port })
    }
}

impl fmt::Display for HostRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.pattern, self.port) {
            (HostPattern::Name(name), _) => f.write_str(name)?,
            (HostPattern::Suffix(end), _) => write!(f, "*{end}")?,
            (HostPattern::Block(block), Some(_)) if block.is_ipv6() => write!(f, "[{block}]")?,
            (HostPattern::Block(block), _) => write!(f, "{block}")?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// Splits `HOST`, `HOST:PORT` or `[IPV6]:PORT`. An IPv6 address without a port needs no brackets.
fn split_port(text: &str) -> Result<(&str, Option<u16>), String> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or("has a '[' without its ']'")?;
            if !host.contains(':') {
                return Err("has brackets around something that is not an IPv6 address".to_owned());
            }
            match rest {
                "" => (host, None),
                rest => (host, Some(rest.strip_prefix(':').ok_or("has something after its ']'")?)),
            }
        }
        None if text.matches(':').count() > 1 => (text, None),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    Ok((host, port.map(parse_port).transpose()?))
}

/// Parses a port number, digits only.
///
/// # Errors
/// Fails if the text is not a port from 1 to 65535.
pub fn parse_port(text: &str) -> Result<u16, String> {
    let digits = !text.is_empty() && text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(port) if digits && port > 0 => Ok(port),
        _ => Err(format!("'{}' is not a port from 1 to 65535", text.escape_debug())),
    }
}

/// Normalizes a host name. Refuses numeric forms that a resolver might read as an address.
fn parse_name(text: &str) -> Result<String, String> {
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    if !name.is_ascii() {
        return Err("is not ASCII; write it in punycode, with xn--".to_owned());
    }
    if name.contains('/') {
        return Err("contains a path; write the host alone".to_owned());
    }
    if name.contains('*') {
        return Err("'*' stands for whole labels at the beginning: *.example.com".to_owned());
    }
    if name.is_empty() || name.len() > 253 {
        return Err("is not a host: it is empty or longer than 253 characters".to_owned());
    }
    for label in name.split('.') {
        let letters = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
        if label.is_empty() || label.len() > 63 || !letters {
            return Err("is not a host: labels must have 1 to 63 letters, digits, '-' or '_'".to_owned());
        }
    }
    let last = name.rsplit('.').next().unwrap_or_default();
    if last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x") {
        return Err("is neither a name nor an address in standard notation".to_owned());
    }
    Ok(name)
}

/// The hosts that a sandbox may reach through the gate. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRules {
    allowed: AllowedHosts,
    /// Whether allowed names may resolve to private addresses.
    allow_private: bool,
    /// The operator's proxy for outgoing connections, if any.
    proxy: Option<Arc<UpstreamProxy>>,
    /// Addresses that the operator treats as private.
    private_ranges: PrivateRanges,
}

/// The hosts that are allowed before they are resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AllowedHosts {
    Listed(Arc<[HostRule]>),
    /// Every name and every public address, on every port.
    Internet,
}

impl HostRules {
    /// Creates the rules of network mode `internet`: every public address.
    pub fn internet() -> Self {
        Self::allowing(AllowedHosts::Internet)
    }

    /// Parses the rules of a request.
    ///
    /// # Errors
    /// Names the first invalid rule, and why.
    pub fn parse<T: AsRef<str>>(hosts: &[T]) -> Result<Self, String> {
        if hosts.is_empty() {
            return Err("is empty; name a host, or use mode 'none'".to_owned());
        }
        if hosts.len() > MAX_RULES {
            return Err(format!("more than {MAX_RULES}; use '*.example.com', or mode 'internet'"));
        }
        let rule = |text: &T| {
            let text = text.as_ref().trim();
            text.parse().map_err(|why: String| {
                let shown: String = text.chars().take(80).collect();
                format!("'{}' {why}", shown.escape_debug())
            })
        };
        Ok(Self::allowing(AllowedHosts::Listed(hosts.iter().map(rule).collect::<Result<_, _>>()?)))
    }

    fn allowing(allowed: AllowedHosts) -> Self {
        Self { allowed, allow_private: false, proxy: None, private_ranges: PrivateRanges::default() }
    }

    /// Returns whether these are the rules of network mode `internet`.
    pub fn is_internet(&self) -> bool {
        self.allowed == AllowedHosts::Internet
    }

    /// Returns the listed rules: none in mode `internet`.
    fn listed(&self) -> &[HostRule] {
        match &self.allowed {
            AllowedHosts::Listed(rules) => rules,
            AllowedHosts::Internet => &[],
        }
    }

    /// Adds ranges that are treated as private: listed names may not resolve to them.
    #[must_use]
    pub fn with_private_ranges(self, private: &PrivateRanges) -> Self {
        Self { private_ranges: private.clone(), ..self }
    }

    /// Allows listed names to resolve to private addresses, as an internal package mirror does. Only for
    /// hosts that an administrator configured, never for hosts from a request.
    #[must_use]
    pub fn allowing_private_addresses(self) -> Self {
        Self { allow_private: true, ..self }
    }

    /// Connects through a proxy, which also resolves the names. Only for hosts that an administrator
    /// configured, never for hosts from a request.
    #[must_use]
    pub fn via_proxy(self, proxy: UpstreamProxy) -> Self {
        Self { proxy: Some(Arc::new(proxy)), ..self.allowing_private_addresses() }
    }

    /// Returns the proxy for connections to a host, if it needs one.
    pub fn proxy_for(&self, target: &TargetHost) -> Option<Arc<UpstreamProxy>> {
        self.proxy.clone().filter(|proxy| !proxy.is_bypassed_for(target))
    }

    /// Returns whether names may resolve to private addresses, so that their answers need no filtering.
    pub fn may_reach_private(&self) -> bool {
        self.allow_private
    }

    /// Returns whether a host may be contacted, before it is resolved.
    pub fn allows(&self, target: &TargetHost, port: u16) -> bool {
        match (&self.allowed, target) {
            (AllowedHosts::Listed(rules), _) => {
                rules.iter().any(|rule| rule.matches_port(port) && rule.matches(target))
            }
            (AllowedHosts::Internet, TargetHost::Name(_)) => !target.is_below_localhost(),
            (AllowedHosts::Internet, TargetHost::Address(address)) => {
                self.allow_private || is_public(*address, &self.private_ranges)
            }
        }
    }

    /// Returns whether a name may be resolved.
    pub fn allows_lookup(&self, target: &TargetHost) -> bool {
        match &self.allowed {
            AllowedHosts::Listed(rules) => rules.iter().any(|rule| rule.matches(target)),
            AllowedHosts::Internet => !target.is_below_localhost(),
        }
    }

    /// Returns whether the resolved address of a host may be connected to. `near` is set if the address
    /// belongs to this machine.
    pub fn allows_address(&self, target: &TargetHost, port: u16, address: IpAddr, near: bool) -> bool {
        self.allows(target, port)
            && self.reaches(target, address, near, |rule| {
                rule.matches_port(port) && rule.matches_address(address)
            })
    }

    /// Returns whether a resolved address may be returned to the program.
    pub fn allows_answer(&self, target: &TargetHost, address: IpAddr) -> bool {
        self.allows_lookup(target)
            && self.reaches(target, address, false, |rule| rule.matches_address(address))
    }

    fn reaches(
        &self,
        target: &TargetHost,
        address: IpAddr,
        near: bool,
        listed: impl Fn(&HostRule) -> bool,
    ) -> bool {
        let address = address.to_canonical();
        (is_public(address, &self.private_ranges) && !near)
            || self.allow_private
            || (target.is_localhost() && address.is_loopback())
            || self.listed().iter().any(listed)
    }

    /// Returns whether the host's loopback is allowed: then `localhost` is the host's, not the sandbox's.
    pub fn allows_host_loopback(&self) -> bool {
        self.listed().iter().any(|rule| match &rule.pattern {
            HostPattern::Name(name) => name == LOCALHOST,
            HostPattern::Suffix(_) => false,
            HostPattern::Block(block) => block.is_loopback(),
        })
    }

    /// Returns whether all listed rules are names other than `localhost`.
    fn are_public_names(&self) -> bool {
        self.listed().iter().all(|rule| match &rule.pattern {
            HostPattern::Name(name) => name != LOCALHOST,
            HostPattern::Suffix(_) => true,
            HostPattern::Block(_) => false,
        })
    }

    /// Returns the listed rules in canonical notation.
    pub fn hosts(&self) -> Vec<String> {
        self.listed().iter().map(HostRule::to_string).collect()
    }
}

impl HostRule {
    fn matches_address(&self, address: IpAddr) -> bool {
        matches!(&self.pattern, HostPattern::Block(block) if block.contains(address.to_canonical()))
    }
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
