//! Sets up the launcher itself: for an unprivileged user a user namespace, and always a mount namespace in
//! which the host is mounted at `/host` and root trees are built beside it.

use std::cell::OnceCell;
use std::os::fd::{AsFd, OwnedFd};

use belljar_model::layer::{Layer, MissingLayer};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::CapabilitySet;

use super::ids::lease::IdAllocator;
use super::ids::map::{self as id_map, IdRange, NamespaceIds};
use crate::cgroup::{self, Controller, Group, Hierarchy};
use crate::fault;
use crate::inside;
use crate::step::{Step, StepFailed, step};
use crate::{root_trees, sys};

/// The launcher's environment: cgroups, ids, and descriptors opened at startup.
pub(super) struct LauncherContext {
    pub(super) groups: Hierarchy,
    pub(super) ids: IdAllocator,
    /// `/proc` of the host.
    pub(super) proc: OwnedFd,
    /// The network namespace that the launcher itself is in.
    pub(super) network: OwnedFd,
    /// Whether the launcher can leave that namespace and return. An unprivileged one cannot, so its jails
    /// create their own network namespaces when they are cloned.
    pub(super) can_change_network: bool,
    pub(super) has_landlock: bool,
    /// The guest binary, once it has been copied for the first sandbox.
    guest: OnceCell<OwnedFd>,
    /// Isolation layers that this host does not support.
    pub(super) missing: Vec<MissingLayer>,
}

impl LauncherContext {
    /// Creates a cgroup for a jail, if the host has any controller. `ours` processes in it will not be the
    /// program's.
    pub(super) fn create_cgroup(&self, ours: u32) -> Result<Option<Group>, StepFailed> {
        if self.groups.controllers().is_empty() {
            return Ok(None);
        }
        step(Step::Cgroup, "", || self.groups.create(ours).map(Some).map_err(errno_of))
    }

    /// Creates a cgroup for a sandbox, if the host has cgroups.
    pub(super) fn create_sandbox_cgroup(&self) -> Result<Option<Group>, StepFailed> {
        step(Step::Cgroup, "", || self.groups.create_for_sandbox().map_err(errno_of))
    }

    /// Returns whether the guest binary is available.
    pub(super) fn has_guest(&self) -> bool {
        self.guest.get().is_some()
    }

    /// Stores the guest binary.
    pub(super) fn set_guest(&self, binary: OwnedFd) {
        let _first = self.guest.set(binary);
    }

    /// Returns the guest binary, which PID 1 of a sandbox executes.
    pub(super) fn guest(&self) -> Result<&OwnedFd, StepFailed> {
        self.guest.get().ok_or_else(|| StepFailed::new(Step::Guest, "", Errno::NOENT))
    }

    /// Creates a network namespace for a jail, with the loopback interface up.
    pub(super) fn create_network(&self) -> Result<OwnedFd, StepFailed> {
        step(Step::Network, "", || {
            sys::unshare(libc::CLONE_NEWNET)?;
            let made = sys::loopback_up().and_then(|()| {
                rustix::fs::openat(&self.proc, "self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            });
            sys::setns(self.network.as_fd(), libc::CLONE_NEWNET)?;
            made
        })
    }

    /// Returns the pid of a process on the host.
    pub(super) fn pid_of(&self, pidfd: &OwnedFd) -> Result<i32, Errno> {
        sys::pid_in_procfs(&self.proc, pidfd)
    }

    /// Returns whether the host has a cgroup controller.
    pub(super) fn has_controller(&self, controller: Controller) -> bool {
        self.groups.controllers().contains(&controller)
    }
}

fn errno_of(error: cgroup::Error) -> Errno {
    match error {
        cgroup::Error::Make { errno }
        | cgroup::Error::Open { errno, .. }
        | cgroup::Error::Write { errno, .. } => errno,
    }
}

/// Moves this process into the launcher's namespaces and returns its environment.
pub(super) fn set_up() -> Result<LauncherContext, StepFailed> {
    // Cgroups and the lock file for ids are found by host paths, so this comes before those paths move.
    let (groups, missing_groups) = Hierarchy::discover();
    groups.reserve_host_memory();
    let mut missing: Vec<MissingLayer> = missing_groups
        .into_iter()
        .map(|m| MissingLayer { layer: controller_layer(m.controller), reason: m.reason, remedy: m.remedy })
        .collect();
    let landlock = inside::landlock_supported();
    if !landlock {
        missing.push(MissingLayer {
            layer: Layer::Landlock,
            reason: "landlock is disabled in this kernel, or the kernel is older than 5.13".to_owned(),
            remedy: "boot with lsm=landlock,… (see /sys/kernel/security/lsm)".to_owned(),
        });
    }
    let root = rustix::process::geteuid().is_root();
    let ids = if root { ids_for_root() } else { enter_user_namespace() }?;
    if let Some(layer) = ids.missing_layer() {
        missing.push(layer);
    }
    step(Step::LauncherNamespaces, "mount", || sys::unshare(libc::CLONE_NEWNS))?;
    step(Step::LauncherRoot, "", pivot)?;
    let open = |path: &str| rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let proc = step(Step::LauncherRoot, "/proc", || open("/host/proc"))?;
    let network = step(Step::LauncherRoot, "/proc/self/ns/net", || open("/host/proc/self/ns/net"))?;
    // Root of a container may lack the capabilities to bring loopback up out here; inside its user namespace,
    // every jail has them.
    let may_administer = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN));
    let can_change_network = ids.is_host_root() && may_administer;
    // If this is refused, jails for warm interpreters cannot be built either, and receipts say that runs were
    // cold.
    let _kept = sys::keep_capabilities_on_setuid();
    Ok(LauncherContext {
        groups,
        ids,
        proc,
        network,
        can_change_network,
        has_landlock: landlock,
        guest: OnceCell::new(),
        missing,
    })
}

/// Returns the isolation layer that a cgroup controller enforces.
pub(super) fn controller_layer(controller: Controller) -> Layer {
    match controller {
        Controller::Memory => Layer::CgroupMemory,
        Controller::Cpu => Layer::CgroupCpu,
        Controller::Pids => Layer::CgroupPids,
    }
}

/// Returns the ids for a launcher that runs as root: on the host, a range that no distribution and no
/// container manager assigns; in a container, from the ids that are mapped there.
fn ids_for_root() -> Result<IdAllocator, StepFailed> {
    const FOLDER: &str = "/run/belljar";
    const RANGE: IdRange = IdRange { first: 0x7000_0000, count: 0x1_0000 };
    /// 256 blocks.
    const BLOCKS: IdRange = IdRange { first: 0x7100_0000, count: 0x100_0000 };
    if fault::is_left_out(Layer::SeparateUid) {
        return Ok(IdAllocator::shared(65_534, 65_534, "disabled by a test"));
    }
    let existing = |map: &str| id_map::parse_id_map(&std::fs::read_to_string(map).unwrap_or_default());
    match (existing("/proc/self/uid_map"), existing("/proc/self/gid_map")) {
        (NamespaceIds::All, NamespaceIds::All) => {
            let ids = step(Step::UserId, FOLDER, || IdAllocator::range(RANGE, RANGE, FOLDER, true));
            ids.map(|ids| ids.with_blocks(BLOCKS))
        }
        (NamespaceIds::Range(uids), NamespaceIds::Range(gids)) => {
            let folder = id_map::lease_lock_folder(0);
            step(Step::UserId, &folder, || IdAllocator::range(uids, gids, &folder, false))
        }
        (NamespaceIds::RootAlone, NamespaceIds::RootAlone) => {
            Ok(IdAllocator::shared(0, 0, "this user namespace maps no user but root"))
        }
        // The sandbox user would be the host's root, which must never happen.
        _ => Err(StepFailed::new(Step::UserId, "other than root's", Errno::PERM)),
    }
}

/// Moves an unprivileged launcher into a user namespace of its own, where it has all capabilities and keeps
/// its ids.
fn enter_user_namespace() -> Result<IdAllocator, StepFailed> {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let failed = |errno| StepFailed::new(Step::LauncherNamespaces, "user", errno);
    fault::inject(Step::LauncherNamespaces).map_err(failed)?;
    let (uids, gids) = match id_map::subordinate_ranges(uid) {
        Ok(ranges) => ranges,
        Err(reason) => {
            id_map::unshare_with_own_ids(uid, gid).map_err(failed)?;
            return Ok(IdAllocator::shared(uid, gid, &reason));
        }
    };
    if !id_map::unshare_with_ranges((uid, uids), (gid, gids)).map_err(failed)? {
        return Ok(IdAllocator::shared(
            uid,
            gid,
            "newuidmap or newgidmap rejected the ranges of /etc/subuid and /etc/subgid",
        ));
    }
    let folder = id_map::lease_lock_folder(uid);
    step(Step::UserId, &folder, || IdAllocator::range(uids, gids, &folder, false))
}

/// Changes the root to a small tmpfs with the host below `/host`. The tmpfs is mounted on `/proc` for the
/// moment, because that folder exists on every system.
fn pivot() -> Result<(), Errno> {
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("tmpfs", "/proc", "tmpfs", flags, Some(c"mode=0755,size=16m"))?;
    rustix::fs::mkdir("/proc/host", Mode::from_raw_mode(0o755))?;
    rustix::process::pivot_root("/proc", "/proc/host")?;
    rustix::process::chdir("/")?;
    root_trees::create_launcher_dirs()
}
