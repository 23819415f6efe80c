//! Refused connections and lookups: one entry per destination with a count, never more than a result can
//! show.

use belljar_engine::finding::{Finding, MAX_FINDINGS};
use belljar_engine::network::Target;

/// A refused connection or lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No rule covers this host.
    Host(Target, u16),
    /// No rule covers this name, which was looked up.
    Lookup(Target),
    /// The name is listed, but does not resolve to a public address. Private addresses and names that do not
    /// exist get the same answer: a user who may list names must not be able to map an internal network.
    NotPublic(Target, u16),
    /// A limit was reached.
    TooMany(&'static str),
}

impl Refusal {
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
            Self::TooMany(what) => format!("a connection was refused or ended: too many {what}"),
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
            Self::TooMany(_) => "use fewer, or network mode 'full'".to_owned(),
        }
    }

    fn finding(&self, count: u64) -> Finding {
        let rule = match self {
            Self::Host(..) | Self::Lookup(_) => "network-host",
            Self::NotPublic(..) => "network-address",
            Self::TooMany(_) => "network-limit",
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
            decided_by: "network.hosts".to_owned(),
        }
    }
}

#[derive(Debug, Clone)]
struct Entry {
    refusal: Refusal,
    count: u64,
    latest: u64,
}

/// All refusals. When full, the least recent one is evicted.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    entries: Vec<Entry>,
    seen: u64,
}

/// A position in the log of refusals.
#[derive(Debug)]
pub struct Mark {
    seen: u64,
    entries: Vec<Entry>,
}

impl Refusals {
    /// Counts a refusal. Returns whether it has no entry yet.
    pub(crate) fn note(&mut self, refusal: Refusal) -> bool {
        self.seen += 1;
        let latest = self.seen;
        if let Some(known) = self.entries.iter_mut().find(|entry| entry.refusal == refusal) {
            known.count += 1;
            known.latest = latest;
            return false;
        }
        if self.entries.len() == MAX_FINDINGS
            && let Some(oldest) = (0..MAX_FINDINGS).min_by_key(|at| self.entries[*at].latest)
        {
            self.entries.remove(oldest);
        }
        self.entries.push(Entry { refusal, count: 1, latest });
        true
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark { seen: self.seen, entries: self.entries.clone() }
    }

    /// Returns a finding for each refusal since the mark.
    pub(crate) fn since(&self, mark: &Mark) -> Vec<Finding> {
        let before = |refusal: &Refusal| {
            mark.entries.iter().find(|entry| entry.refusal == *refusal).map_or(0, |entry| entry.count)
        };
        let new = self.entries.iter().filter(|entry| entry.latest > mark.seen);
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

    fn host(name: &str) -> Refusal {
        Refusal::Host(name.parse().unwrap(), 443)
    }

    #[test]
    fn each_host_is_there_once_and_never_too_many() {
        let mut refusals = Refusals::default();
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
    fn a_task_sees_what_was_refused_while_it_ran() {
        let mut refusals = Refusals::default();
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
