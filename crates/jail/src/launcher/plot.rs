//! A plot: user, network and mount namespaces in which the jails of one zygote stand, one after the other.
//!
//! Making and destroying a network namespace costs more than all the rest of a warm run, so one in which nothing is left
//! is used again, but only ever for the same zygote, and so for the same tenant. The user namespace comes with it
//! because it owns it. The mounts are what each jail starts from, with its own copy.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use super::builder::JailBuilder;
use super::ids::Taken;

pub(super) struct Plot {
    /// Number of the zygote that it was made for.
    pub(super) zygote: u64,
    pub(super) taken: Taken,
    pub(super) user: OwnedFd,
    pub(super) network: OwnedFd,
    pub(super) mounts: OwnedFd,
    /// What the kernel counts of the sockets in there.
    sockets: OwnedFd,
    /// Kept, so that the pid namespace in which its jails live is.
    _builder: Rc<JailBuilder>,
}

impl Plot {
    /// A plot that the zygote's builder made.
    pub(super) fn new(
        zygote: u64,
        taken: Taken,
        builder: Rc<JailBuilder>,
        fds: impl IntoIterator<Item = OwnedFd>,
    ) -> Option<Self> {
        let mut fds = fds.into_iter();
        let (user, network, mounts, sockets) = (fds.next()?, fds.next()?, fds.next()?, fds.next()?);
        Some(Self { zygote, taken, user, network, mounts, sockets, _builder: builder })
    }

    /// Whether nothing is left in it of a jail all of whose processes are gone: no socket of any kind, none that only
    /// waits for the rest of its time, no piece of a packet.
    pub(super) fn is_empty(&self) -> bool {
        let mut text = [0; 1 << 10];
        let read = rustix::io::pread(&self.sockets, &mut text, 0).unwrap_or(0);
        std::str::from_utf8(&text[..read]).is_ok_and(counts_nothing)
    }
}

/// Whether the kernel's count of sockets says that there are none.
fn counts_nothing(text: &str) -> bool {
    let count = |family: &str, what: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(family))?;
        let mut words = line.split_whitespace().skip_while(|word| *word != what).skip(1);
        words.next()?.parse::<u64>().ok()
    };
    [("sockets:", "used"), ("TCP:", "inuse"), ("TCP:", "tw"), ("UDP:", "inuse"), ("FRAG:", "inuse")]
        .iter()
        .all(|(family, what)| count(family, what) == Some(0))
}

#[cfg(test)]
mod tests {
    use super::counts_nothing;

    const EMPTY: &str = "sockets: used 0\nTCP: inuse 0 orphan 3 tw 0 alloc 9 mem 2\nUDP: inuse 0 mem 1\n\
        UDPLITE: inuse 0\nRAW: inuse 0\nFRAG: inuse 0 memory 0\n";

    #[test]
    fn what_is_left_is_seen() {
        assert!(counts_nothing(EMPTY));
        for (what, instead) in [("used 0", "used 1"), ("tw 0", "tw 1"), ("FRAG: inuse 0", "FRAG: inuse 2")] {
            assert!(!counts_nothing(&EMPTY.replace(what, instead)), "{instead}");
        }
        assert!(
            !counts_nothing("") && !counts_nothing("sockets: used 0\n"),
            "what is not said is not nothing"
        );
    }
}
