//! A plot: user, network and mount namespaces in which the jails of one zygote stand, one after the other.
//!
//! Making and destroying a network namespace costs more than all the rest of a warm run, so one in which nothing is left
//! is used again, but only ever for the same zygote, and so for the same tenant. The user namespace comes with it
//! because it owns it. The mounts are what each jail starts from, with its own copy.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;

use super::home::Home;
use super::idmap;
use super::ids::Taken;
use super::start;
use crate::inside::{self, Ploughing};
use crate::step::{Step, StepFailed, step};
use crate::sys::{self, Cloned};
use crate::template::Root;

pub(super) struct Plot {
    /// Number of the zygote that it was made for.
    pub(super) zygote: u64,
    pub(super) taken: Taken,
    pub(super) user: OwnedFd,
    pub(super) network: OwnedFd,
    pub(super) mounts: OwnedFd,
    /// What the kernel counts of the sockets in there.
    sockets: OwnedFd,
}

impl Plot {
    /// Makes a plot whose user namespace belongs to `owner`.
    pub(super) fn make(home: &mut Home, root: &Root, zygote: u64, owner: u32) -> Result<Self, StepFailed> {
        let taken = step(Step::UserId, "", || home.ids.take(false))?;
        Self::make_as(home, root, zygote, owner, taken).inspect_err(|_| home.ids.give_back(taken))
    }

    fn make_as(home: &Home, root: &Root, zygote: u64, owner: u32, taken: Taken) -> Result<Self, StepFailed> {
        let pipe = || step(Step::Namespaces, "", || rustix::pipe::pipe_with(PipeFlags::CLOEXEC));
        let ((told, report), (go, let_go)) = (pipe()?, pipe()?);
        let ploughing = Ploughing { root: &root.path, go, report, own_init_uid: taken.separate() };
        let flags = libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWNET;
        let cloned = step(Step::Namespaces, "", || start::clone_into(home, flags, None, None, Some(owner)))?;
        let (pid, maker) = match cloned {
            Cloned::Child => inside::enter_plot(&ploughing),
            Cloned::Parent { pid, pidfd } => (pid, pidfd.ok_or(Errno::NOSYS)),
        };
        let maker = maker.map_err(|errno| StepFailed::new(Step::Namespaces, "", errno))?;
        drop(ploughing);
        let made = Self::enclose(home, zygote, taken, pid, &let_go, told.as_fd());
        drop(let_go);
        let _reaped = sys::wait_for(maker.as_fd());
        made
    }

    fn enclose(
        home: &Home,
        zygote: u64,
        taken: Taken,
        pid: i32,
        let_go: &OwnedFd,
        told: BorrowedFd<'_>,
    ) -> Result<Self, StepFailed> {
        let (uids, gids) = taken.maps();
        step(Step::IdMap, "", || {
            idmap::write_maps(&home.proc, pid, &uids, &gids)?;
            rustix::io::write(let_go, b"1").map(drop)
        })?;
        inside::await_ready(told)?;
        let open = |name: &str| {
            let path = format!("{pid}/{name}");
            step(Step::Namespaces, name, || {
                rustix::fs::openat(&home.proc, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            })
        };
        Ok(Self {
            zygote,
            taken,
            user: open("ns/user")?,
            network: open("ns/net")?,
            mounts: open("ns/mnt")?,
            sockets: open("net/sockstat")?,
        })
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
