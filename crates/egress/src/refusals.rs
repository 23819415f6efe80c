//! Refused connections and lookups: one entry per destination with a count, never more than a result can
//! show.

use belljar_engine::finding::{Finding, MAX_FINDINGS};
use belljar_engine::network::TargetHost;

/// A refused connection or lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EgressRefusal {
    /// No rule covers this host.
    Host(TargetHost, u16),
    /// No rule covers this name, which was looked up.
    Lookup(TargetHost),
    /// An allowed name does not resolve to a public address. Private addresses and names that do not exist
    /// get the same answer: a user who may list names must not be able to map an internal network.
    NotPublic(TargetHost, u16),
    /// In network mode `internet`: an address that is not public, or a name that does not resolve to one.
    NotInternet(TargetHost, u16),
    /// An allowed name that was looked up does not resolve to a public address.
    NoPublicAddress(TargetHost),
    /// A UDP datagram, which is not a DNS query.
    Datagram(TargetHost, u16),
    /// A limit was reached.
    LimitReached(&'static str),
}

impl EgressRefusal {
    /// Returns the message, which the program sees too.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Host(target, port) => {
                format!("connection to {target}:{port} was refused: not in network.hosts")
            }
            Self::Lookup(target) => format!("looking up {target} was refused: not in network.hosts"),
            Self::NotPublic(target, port) => format!(
                "connection to {target}:{port} was refused: the name does not resolve to a public address"
            ),
            Self::NotInternet(target @ TargetHost::Address(_), port) => format!(
                "connection to {target}:{port} was refused: network 'internet' reaches public addresses only"
            ),
            Self::NotInternet(target, port) => format!(
                "connection to {target}:{port} was refused: the name does not resolve to a public address, and \
                 network 'internet' reaches no others"
            ),
            Self::NoPublicAddress(target) => {
                format!("looking up {target} was refused: the name does not resolve to a public address")
            }
            Self::Datagram(target, port) => {
                format!("a UDP datagram to {target}:{port} was refused: only TCP and DNS lead out")
            }
            Self::LimitReached(what) => format!("a connection was refused or ended: too many {what}"),
        }
    }

    fn suggestion(&self) -> String {
        let allow = |rule: &str| {
            format!("to allow it: --network {rule}, or \"{rule}\" in network.hosts of the request or profile")
        };
        match self {
            Self::Host(target, port) => allow(&format!("{target}:{port}")),
            Self::Lookup(target) => allow(&target.to_string()),
            Self::NotPublic(_, port) => format!(
                "check the name; if it has a private address, an administrator can list it: \"ADDRESS:{port}\" in \
                 network.hosts of a profile"
            ),
            Self::NotInternet(TargetHost::Name(name), _) if name == "localhost" => {
                "for a server inside the sandbox, connect directly instead of through the proxy".to_owned()
            }
            Self::NotInternet(TargetHost::Address(_), port) => format!(
                "to allow single private addresses, list them instead: --network ADDRESS:{port} (network.hosts of a \
                 request or profile)"
            ),
            Self::NotInternet(TargetHost::Name(_), port) => format!(
                "check the name; if it has a private address, list that instead: --network ADDRESS:{port} \
                 (network.hosts of a request or profile)"
            ),
            Self::NoPublicAddress(_) => {
                "check the name; if it has a private address, list that instead: --network ADDRESS:PORT \
                 (network.hosts of a request or profile)"
                    .to_owned()
            }
            Self::Datagram(..) => "use TCP, or network mode 'full'".to_owned(),
            Self::LimitReached(_) => "use fewer, or network mode 'full'".to_owned(),
        }
    }

    /// Returns the setting that decided.
    fn decided_by(&self) -> &'static str {
        match self {
            Self::NotInternet(..) => "network.mode = internet",
            Self::Datagram(..) => "network.mode",
            Self::Host(..)
            | Self::Lookup(_)
            | Self::NotPublic(..)
            | Self::NoPublicAddress(_)
            | Self::LimitReached(_) => "network.hosts",
        }
    }

    fn finding(&self, count: u64) -> Finding {
        let rule = match self {
            Self::Host(..) | Self::Lookup(_) => "network-host",
            Self::NotPublic(..) | Self::NotInternet(..) | Self::NoPublicAddress(_) => "network-address",
            Self::Datagram(..) => "network-protocol",
            Self::LimitReached(_) => "network-limit",
        };
        let times = if count > 1 { format!(" ({count} times)") } else { String::new() };
        Finding {
            rule: rule.to_owned(),
            category: "network".to_owned(),
            severity: "warning".to_owned(),
            message: format!("{}{times}", self.message()),
            line: None,
            column: None,
            suggestion: self.suggestion(),
            decided_by: self.decided_by().to_owned(),
        }
    }
}

#[derive(Debug, Clone)]
struct RefusalCount {
    refusal: EgressRefusal,
    count: u64,
    last_position: u64,
}

/// All refusals. When full, the least recent one is evicted.
#[derive(Debug, Default)]
pub(crate) struct RefusalLog {
    entries: Vec<RefusalCount>,
    position: u64,
}

/// A position in the log of refusals.
#[derive(Debug)]
pub struct RefusalMark {
    position: u64,
    entries: Vec<RefusalCount>,
}

impl RefusalLog {
    /// Counts a refusal. Returns whether it has no entry yet.
    pub(crate) fn note(&mut self, refusal: EgressRefusal) -> bool {
        self.position += 1;
        let latest = self.position;
        if let Some(known) = self.entries.iter_mut().find(|entry| entry.refusal == refusal) {
            known.count += 1;
            known.last_position = latest;
            return false;
        }
        if self.entries.len() == MAX_FINDINGS
            && let Some(oldest) = (0..MAX_FINDINGS).min_by_key(|at| self.entries[*at].last_position)
        {
            self.entries.remove(oldest);
        }
        self.entries.push(RefusalCount { refusal, count: 1, last_position: latest });
        true
    }

    pub(crate) fn mark(&self) -> RefusalMark {
        RefusalMark { position: self.position, entries: self.entries.clone() }
    }

    /// Returns a finding for each refusal since the mark.
    pub(crate) fn since(&self, mark: &RefusalMark) -> Vec<Finding> {
        let before = |refusal: &EgressRefusal| {
            mark.entries.iter().find(|entry| entry.refusal == *refusal).map_or(0, |entry| entry.count)
        };
        let new = self.entries.iter().filter(|entry| entry.last_position > mark.position);
        new.map(|entry| entry.refusal.finding(entry.count.saturating_sub(before(&entry.refusal)).max(1)))
            .collect()
    }

    pub(crate) fn findings(&self) -> Vec<Finding> {
        self.entries.iter().map(|entry| entry.refusal.finding(entry.count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> EgressRefusal {
        EgressRefusal::Host(name.parse().unwrap(), 443)
    }

    #[test]
    fn each_host_has_one_entry_and_entries_are_bounded() {
        let mut refusals = RefusalLog::default();
        for number in 0..3 * MAX_FINDINGS {
            refusals.note(host(&format!("h{number}.test")));
            refusals.note(host("always.test"));
        }
        let findings = refusals.findings();
        assert_eq!(findings.len(), MAX_FINDINGS);
        assert!(findings.iter().any(|finding| finding.message.ends_with("network.hosts (300 times)")));
        assert!(findings.iter().any(|finding| finding.message.contains("h299.test:443")));
    }

    #[test]
    fn findings_since_a_mark_cover_later_refusals_only() {
        let mut refusals = RefusalLog::default();
        refusals.note(host("before.test"));
        refusals.note(host("both.test"));
        let mark = refusals.mark();
        refusals.note(host("both.test"));
        refusals.note(host("after.test"));
        let messages: Vec<_> = refusals.since(&mark).into_iter().map(|finding| finding.message).collect();
        assert_eq!(
            messages,
            ["both.test", "after.test"]
                .map(|name| format!("connection to {name}:443 was refused: not in network.hosts"))
        );
    }
}
