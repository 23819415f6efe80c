//! A namespace set: user, network and mount namespaces that jails of one zygote use one after the other.
//!
//! Creating and destroying a network namespace costs more than the rest of a warm run, so an empty one is
//! reused, but only for the same zygote, and so for the same tenant. The user namespace is part of the set
//! because it owns the network namespace. Each jail starts with a copy of the mount namespace.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use super::builder::JailBuilder;
use crate::launcher::ids::lease::IdLease;

/// A reusable set of namespaces.
pub(crate) struct NamespaceSet {
    /// The number of the zygote that it was created for.
    pub(crate) zygote: u64,
    pub(super) ids: IdLease,
    pub(crate) user: OwnedFd,
    pub(super) network: OwnedFd,
    pub(crate) mounts: OwnedFd,
    /// `/proc/net/sockstat` of the network namespace.
    sockstat: OwnedFd,
    /// Keeps the builder alive, and with it the pid namespace of the jails.
    _builder: Rc<JailBuilder>,
}

impl NamespaceSet {
    /// Takes ownership of a namespace set that the zygote's builder created. `None` if a descriptor is
    /// missing.
    pub(super) fn new(
        zygote: u64,
        ids: IdLease,
        builder: Rc<JailBuilder>,
        fds: impl IntoIterator<Item = OwnedFd>,
    ) -> Option<Self> {
        let mut fds = fds.into_iter();
        let (user, network, mounts, sockstat) = (fds.next()?, fds.next()?, fds.next()?, fds.next()?);
        Some(Self { zygote, ids, user, network, mounts, sockstat, _builder: builder })
    }

    /// Returns whether nothing is left of a jail whose processes have all exited: no open socket, no socket
    /// in TIME_WAIT, no IP fragment.
    pub(super) fn is_empty(&self) -> bool {
        let mut text = [0; 1 << 10];
        let read = rustix::io::pread(&self.sockstat, &mut text, 0).unwrap_or(0);
        std::str::from_utf8(&text[..read]).is_ok_and(all_counters_are_zero)
    }
}

/// Returns whether all counters in the text of `sockstat` are zero.
fn all_counters_are_zero(text: &str) -> bool {
    let count = |family: &str, what: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(family))?;
        let mut fields = line.split_whitespace().skip_while(|field| *field != what).skip(1);
        fields.next()?.parse::<u64>().ok()
    };
    [("sockets:", "used"), ("TCP:", "inuse"), ("TCP:", "tw"), ("UDP:", "inuse"), ("FRAG:", "inuse")]
        .iter()
        .all(|(family, what)| count(family, what) == Some(0))
}

#[cfg(test)]
mod tests {
    use super::all_counters_are_zero;

    const EMPTY: &str = "sockets: used 0\nTCP: inuse 0 orphan 3 tw 0 alloc 9 mem 2\nUDP: inuse 0 mem 1\n\
        UDPLITE: inuse 0\nRAW: inuse 0\nFRAG: inuse 0 memory 0\n";

    #[test]
    fn leftover_sockets_are_detected() {
        assert!(all_counters_are_zero(EMPTY));
        for (what, instead) in [("used 0", "used 1"), ("tw 0", "tw 1"), ("FRAG: inuse 0", "FRAG: inuse 2")] {
            assert!(!all_counters_are_zero(&EMPTY.replace(what, instead)), "{instead}");
        }
        assert!(
            !all_counters_are_zero("") && !all_counters_are_zero("sockets: used 0\n"),
            "a missing counter does not mean zero"
        );
    }
}
