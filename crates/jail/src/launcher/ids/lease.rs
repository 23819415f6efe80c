//! Leases of host user ids: each live jail has ids of its own, also across several launchers on one machine.
//! A lease is a lock on one byte of a file, which the kernel releases when its holder exits.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};

use belljar_model::layer::{Layer, MissingLayer};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::map::{IdExtent, IdRange};
use crate::spec::{INNER_INIT_UID, INNER_UID};
use crate::sys;

/// The source of id leases.
#[derive(Debug)]
pub(crate) enum IdAllocator {
    /// A range of ids with a lock file; each jail gets two ids, or one with a writable root a block.
    Range {
        uids: IdRange,
        gids: IdRange,
        lock: OwnedFd,
        /// Places of the locks that this launcher holds. It could lock them again, because they are its own.
        held: RefCell<BTreeSet<u64>>,
        next: u32,
        /// Blocks of ids for jails with a writable root; only for the host's root, which can map ids of mounts.
        blocks: Option<IdRange>,
        /// Whether the launcher runs as the host's root, which can also map ids of mounts.
        is_host_root: bool,
        /// The launcher's own ids, used for jails with host folders if ids of mounts cannot be mapped.
        launcher_ids: (u32, u32),
    },
    /// All jails share the same ids, for the reason in `gap`.
    Shared { uid: u32, gid: u32, missing_layer: MissingLayer },
}

/// Number of ids of a jail with a writable root: those of users, system users and `nobody` of an image.
const BLOCK_IDS: u32 = 1 << 16;
/// Place of the first block's lock in the lock file, behind those of pairs.
const BLOCK_LOCKS: u64 = 1 << 32;

/// The leased ids of one jail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IdLease {
    /// Host user id of the sandbox user, which is the root user of a jail with a writable root.
    pub(crate) uid: u32,
    /// Host group id of that user.
    pub(crate) gid: u32,
    /// Place of the lock, if no other jail or user has these ids.
    lock_at: Option<u64>,
    is_block: bool,
}

impl IdLease {
    fn shared(uid: u32, gid: u32) -> Self {
        Self { uid, gid, lock_at: None, is_block: false }
    }

    /// Returns whether no other jail or user has these ids.
    pub(crate) fn is_separate(self) -> bool {
        self.lock_at.is_some()
    }

    /// Returns the uid map and the gid map.
    pub(crate) fn maps(self) -> (Vec<IdExtent>, Vec<IdExtent>) {
        if self.is_block {
            let all = |outside| vec![IdExtent { inside: 0, outside, count: BLOCK_IDS }];
            return (all(self.uid), all(self.gid));
        }
        let mut uids = vec![IdExtent::one(INNER_UID, self.uid)];
        let mut gids = vec![IdExtent::one(INNER_UID, self.gid)];
        if self.is_separate() {
            uids.push(IdExtent::one(INNER_INIT_UID, self.uid + 1));
            gids.push(IdExtent::one(INNER_INIT_UID, self.gid + 1));
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
        Ok(Self::Range { uids, gids, lock, held, next, blocks: None, is_host_root: root, launcher_ids: own })
    }

    /// Adds blocks of ids for jails with a writable root.
    pub(crate) fn with_blocks(mut self, ids: IdRange) -> Self {
        if let Self::Range { blocks, is_host_root: true, .. } = &mut self {
            *blocks = Some(ids);
        }
        self
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
            Self::Shared { uid, gid, .. } => Ok(IdLease::shared(*uid, *gid)),
            Self::Range { is_host_root: false, launcher_ids: own, .. } if host_folders => {
                Ok(IdLease::shared(own.0, own.1))
            }
            Self::Range { uids, gids, lock, held, next, .. } => {
                let slots = uids.count.min(gids.count) / 2;
                for _ in 0..slots {
                    let slot = *next;
                    *next = (*next + 1) % slots;
                    if take_lock(lock, held, slot.into()) {
                        let (uid, gid) = (uids.first + 2 * slot, gids.first + 2 * slot);
                        return Ok(IdLease { uid, gid, lock_at: Some(slot.into()), is_block: false });
                    }
                }
                Err(Errno::USERS)
            }
        }
    }

    /// Leases a block of ids for a jail with a writable root.
    pub(crate) fn lease_block(&mut self) -> Result<IdLease, Errno> {
        let Self::Range { blocks: Some(blocks), lock, held, .. } = self else { return Err(Errno::PERM) };
        for block in 0..blocks.count / BLOCK_IDS {
            let lock_at = BLOCK_LOCKS + u64::from(block);
            if take_lock(lock, held, lock_at) {
                let first = blocks.first + block * BLOCK_IDS;
                return Ok(IdLease { uid: first, gid: first, lock_at: Some(lock_at), is_block: true });
            }
        }
        Err(Errno::USERS)
    }

    /// Releases a lease.
    pub(crate) fn release(&self, lease: IdLease) {
        if let (Self::Range { lock, held, .. }, Some(lock_at)) = (self, lease.lock_at) {
            sys::unlock_byte(lock.as_fd(), lock_at);
            held.borrow_mut().remove(&lock_at);
        }
    }
}

/// Takes the lock at this place, unless this or another launcher has it.
fn take_lock(lock: &OwnedFd, held: &RefCell<BTreeSet<u64>>, lock_at: u64) -> bool {
    let mut held = held.borrow_mut();
    !held.contains(&lock_at) && sys::lock_byte(lock.as_fd(), lock_at).is_ok() && held.insert(lock_at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_pairs_are_leased_once() {
        let folder = std::env::temp_dir().join(format!("belljar-leases-{}", std::process::id()));
        let folder = folder.to_str().unwrap();
        let pairs = IdRange { first: 1_000_000, count: 4 };
        let blocks = IdRange { first: 2_000_000, count: 2 * BLOCK_IDS };
        let create = || IdAllocator::range(pairs, pairs, folder, true).unwrap().with_blocks(blocks);
        let (mut one, mut two) = (create(), create());
        let (first, second) = (one.lease_block().unwrap(), two.lease_block().unwrap());
        assert_eq!((first.uid, second.gid), (2_000_000, 2_000_000 + BLOCK_IDS));
        assert_eq!(first.maps().0, [IdExtent { inside: 0, outside: 2_000_000, count: BLOCK_IDS }]);
        assert_eq!(one.lease_block(), Err(Errno::USERS));
        one.release(first);
        assert_eq!(two.lease_block(), Ok(first), "another launcher may have it then");
        // Pairs have locks of their own.
        let pairs = [one.lease(false).unwrap(), two.lease(false).unwrap()];
        assert!(pairs[0] != pairs[1] && one.lease(false) == Err(Errno::USERS));
        assert_eq!(pairs[0].maps().0.len(), 2);
        let mut ordinary = IdAllocator::range(blocks, blocks, folder, false).unwrap().with_blocks(blocks);
        assert_eq!(ordinary.lease_block(), Err(Errno::PERM), "its mounts cannot be mapped");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
