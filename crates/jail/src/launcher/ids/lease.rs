//! Leases of host user ids: each live jail has ids of its own, also across several launchers on one machine.
//! A lease is a lock on one byte of a file, which the kernel releases when its holder exits.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};

use belljar_model::layer::{Layer, MissingLayer};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::map::IdRange;
use crate::spec::{INNER_INIT_UID, INNER_UID};
use crate::sys;

/// The source of id leases.
#[derive(Debug)]
pub(crate) enum IdAllocator {
    /// A range of ids with a lock file; each jail gets two ids.
    Range {
        uids: IdRange,
        gids: IdRange,
        lock: OwnedFd,
        /// Slots that this launcher holds. It could lock them again, because the locks are its own.
        held: RefCell<BTreeSet<u32>>,
        next: u32,
        /// Whether the launcher runs as the host's root, which can also map ids of mounts.
        is_host_root: bool,
        /// The launcher's own ids, used for jails with host folders if ids of mounts cannot be mapped.
        launcher_ids: (u32, u32),
    },
    /// All jails share the same ids, for the reason in `gap`.
    Shared { uid: u32, gid: u32, missing_layer: MissingLayer },
}

/// Pairs of an id inside and the id outside.
type IdPairs = Vec<(u32, u32)>;

/// The leased ids of one jail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IdLease {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    slot: Option<u32>,
}

impl IdLease {
    /// Returns whether no other jail or user has these ids.
    pub(crate) fn is_separate(self) -> bool {
        self.slot.is_some()
    }

    /// Returns the uid map and the gid map.
    pub(crate) fn maps(self) -> (IdPairs, IdPairs) {
        let mut uids = vec![(INNER_UID, self.uid)];
        let mut gids = vec![(INNER_UID, self.gid)];
        if self.is_separate() {
            uids.push((INNER_INIT_UID, self.uid + 1));
            gids.push((INNER_INIT_UID, self.gid + 1));
        }
        (uids, gids)
    }
}

impl IdAllocator {
    /// Creates a source that gives every jail the same ids.
    pub(crate) fn shared(uid: u32, gid: u32, reason: &str) -> Self {
        let missing_layer = MissingLayer {
            layer: Layer::SeparateUid,
            reason: reason.to_owned(),
            remedy: "apt-get install uidmap && usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER"
                .to_owned(),
        };
        Self::Shared { uid, gid, missing_layer }
    }

    /// Creates a source of separate ids, with its lock file in `folder`.
    pub(crate) fn range(uids: IdRange, gids: IdRange, folder: &str, root: bool) -> Result<Self, Errno> {
        match rustix::fs::mkdir(folder, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::open(folder, flags, Mode::empty())?;
        // A folder of another user could only block ids, but must not be trusted.
        let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        if rustix::fs::fstat(&folder)?.st_uid != own.0 {
            return Err(Errno::PERM);
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = rustix::fs::openat(&folder, "ids", flags, Mode::from_raw_mode(0o600))?;
        let slots = uids.count.min(gids.count) / 2;
        let next = rustix::process::getpid().as_raw_nonzero().get() as u32 % slots;
        let held = RefCell::default();
        Ok(Self::Range { uids, gids, lock, held, next, is_host_root: root, launcher_ids: own })
    }

    /// Returns the isolation layer that is missing if ids are shared.
    pub(crate) fn missing_layer(&self) -> Option<MissingLayer> {
        match self {
            Self::Range { .. } => None,
            Self::Shared { missing_layer, .. } => Some(missing_layer.clone()),
        }
    }

    /// Returns whether the launcher runs as the host's root, which may map ids of mounts and enter network
    /// namespaces.
    pub(crate) fn is_host_root(&self) -> bool {
        matches!(self, Self::Range { is_host_root: true, .. })
    }

    /// Leases ids for a jail. If it has host folders whose ids cannot be mapped, it gets the launcher's own
    /// ids: only the owner of the folders can use them.
    pub(crate) fn lease(&mut self, host_folders: bool) -> Result<IdLease, Errno> {
        match self {
            Self::Shared { uid, gid, .. } => Ok(IdLease { uid: *uid, gid: *gid, slot: None }),
            Self::Range { is_host_root: false, launcher_ids: own, .. } if host_folders => {
                Ok(IdLease { uid: own.0, gid: own.1, slot: None })
            }
            Self::Range { uids, gids, lock, held, next, .. } => {
                let slots = uids.count.min(gids.count) / 2;
                for _ in 0..slots {
                    let slot = *next;
                    *next = (*next + 1) % slots;
                    if take_lock(lock, held, slot) {
                        let (uid, gid) = (uids.first + 2 * slot, gids.first + 2 * slot);
                        return Ok(IdLease { uid, gid, slot: Some(slot) });
                    }
                }
                Err(Errno::USERS)
            }
        }
    }

    /// Releases a lease.
    pub(crate) fn release(&self, lease: IdLease) {
        if let (Self::Range { lock, held, .. }, Some(slot)) = (self, lease.slot) {
            sys::unlock_byte(lock.as_fd(), slot.into());
            held.borrow_mut().remove(&slot);
        }
    }
}

/// Takes the lock of a slot, unless this or another launcher has it.
fn take_lock(lock: &OwnedFd, held: &RefCell<BTreeSet<u32>>, slot: u32) -> bool {
    let mut held = held.borrow_mut();
    !held.contains(&slot) && sys::lock_byte(lock.as_fd(), slot.into()).is_ok() && held.insert(slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_slot_is_leased_twice() {
        let folder = std::env::temp_dir().join(format!("belljar-leases-{}", std::process::id()));
        let folder = folder.to_str().unwrap();
        let ids = IdRange { first: 1_000_000, count: 4 };
        let create = || IdAllocator::range(ids, ids, folder, true).unwrap();
        let (mut one, mut two) = (create(), create());
        let (first, second) = (one.lease(false).unwrap(), two.lease(false).unwrap());
        assert_ne!(first, second);
        // Its own lock would not stop it.
        assert_eq!(one.lease(false), Err(Errno::USERS));
        one.release(first);
        assert_eq!(two.lease(false), Ok(first), "another launcher may have it then");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
