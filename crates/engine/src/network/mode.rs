//! Network modes: how much of the network a sandbox gets, and how much requests may ask for.

use belljar_model::outcome::NetworkReceipt;
use belljar_model::request::NetworkSpec;

use super::HostRules;
use crate::Error;

/// How the programs of a sandbox reach its gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateKind {
    /// Variables tell them to use a proxy on the sandbox's loopback.
    Proxy,
    /// Programs connect to hosts by themselves: a TUN device leads to the gate.
    Tun,
}

/// Network access of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Network {
    /// Only its own loopback.
    None,
    /// Listed hosts, through the gate.
    Hosts(HostRules),
    /// Every public address, through the gate.
    Internet(HostRules),
    /// The host's own network: everything that the host can reach.
    Full,
}

impl Network {
    /// Parses the network of a request or profile.
    pub(crate) fn parse(spec: Option<&NetworkSpec>) -> Result<Self, Error> {
        let Some(spec) = spec else { return Ok(Self::None) };
        let mode = match spec.mode.as_str() {
            "hosts" => {
                return match HostRules::parse(&spec.hosts) {
                    Ok(rules) => Ok(Self::Hosts(rules)),
                    Err(message) => Err(Error::Invalid { field: "network.hosts", message }),
                };
            }
            "none" => Self::None,
            "internet" => Self::Internet(HostRules::internet()),
            "full" => Self::Full,
            other => return Err(unknown_mode(other)),
        };
        if spec.hosts.is_empty() {
            Ok(mode)
        } else {
            Err(Error::invalid("network.hosts", "only allowed with mode 'hosts'"))
        }
    }

    /// Returns the mode that has these rules.
    pub fn from_rules(rules: HostRules) -> Self {
        if rules.is_internet() { Self::Internet(rules) } else { Self::Hosts(rules) }
    }

    /// Returns the rules of the gate, in the modes that have one.
    pub fn gate_rules(&self) -> Option<&HostRules> {
        match self {
            Self::Hosts(rules) | Self::Internet(rules) => Some(rules),
            Self::None | Self::Full => None,
        }
    }

    /// Returns the name of the mode.
    pub fn mode(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Hosts(_) => "hosts",
            Self::Internet(_) => "internet",
            Self::Full => "full",
        }
    }

    /// Returns the part of the receipt about the network of a sandbox that a provider has opened on this
    /// host.
    pub fn receipt(&self, gate: GateKind) -> NetworkReceipt {
        let gated: &'static [&'static str] = match gate {
            GateKind::Proxy => &["net_ns", "gate"],
            GateKind::Tun => &["net_ns", "gate", "tun"],
        };
        let (enforced_by, reaches): (&'static [&'static str], _) = match self {
            Self::None => (&["net_ns"], "nothing but its own loopback"),
            Self::Hosts(_) => (gated, "listed hosts"),
            Self::Internet(_) => (gated, "public addresses"),
            Self::Full => (&[], "the host's own network: everything that the host can reach"),
        };
        NetworkReceipt { mode: self.mode(), enforced_by, reaches }
    }
}

fn unknown_mode(given: &str) -> Error {
    let shown: String = given.chars().take(80).collect();
    let shown = shown.escape_debug();
    let list = if HostRules::parse(&[given]).is_ok() {
        format!("; to allow that host: {{\"mode\": \"hosts\", \"hosts\": [\"{shown}\"]}}")
    } else {
        String::new()
    };
    Error::invalid("network.mode", format!("unknown mode '{shown}'; use none, hosts, internet or full{list}"))
}

/// The network ceiling: the most access that requests may ask for. Profiles are not bound by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NetworkCeiling {
    /// No network.
    None,
    /// Hosts by name, which reach public addresses only.
    Names,
    /// Hosts by name or address, including private addresses, but not all of the internet at once.
    Hosts,
    /// Hosts by name, and all of the internet; no private addresses.
    Internet,
    /// Everything that this machine can reach.
    #[default]
    Full,
}

impl NetworkCeiling {
    /// Refuses a requested network above the ceiling.
    pub(crate) fn check(self, network: Network) -> Result<Network, Error> {
        let (sufficient, what): (&[Self], _) = match &network {
            Network::None => return Ok(network),
            Network::Hosts(rules) if rules.are_public_names() => {
                (&[Self::Names, Self::Hosts, Self::Internet, Self::Full], "hosts")
            }
            Network::Hosts(_) => (&[Self::Hosts, Self::Full], "hosts by address, and 'localhost',"),
            Network::Internet(_) => (&[Self::Internet, Self::Full], "'internet'"),
            Network::Full => (&[Self::Full], "'full'"),
        };
        if sufficient.contains(&self) {
            return Ok(network);
        }
        let message = format!(
            "requests may not use {what} here; put it into a profile, or have an administrator raise network in [server]"
        );
        Err(Error::Unsupported { field: "network", message })
    }
}
