//! The launcher's own place: for an ordinary user a user namespace around everything, for all a mount namespace in
//! which the host is at `/host` and root trees are built beside it.

use std::cell::OnceCell;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::CapabilitySet;

use super::idmap::{self, Existing, Range};
use super::ids::Ids;
use crate::cgroup::{self, Controller, Group, Hierarchy};
use crate::fault;
use crate::inside;
use crate::spec::{Layer, MissingLayer};
use crate::step::{Step, StepFailed, step};
use crate::{sys, template};

/// What a launcher works with.
pub(super) struct Home {
    pub(super) groups: Hierarchy,
    pub(super) ids: Ids,
    /// `/proc` of the host.
    pub(super) proc: OwnedFd,
    /// The network namespace that the launcher itself is in.
    pub(super) network: OwnedFd,
    /// Whether it can leave that and come back: an ordinary user cannot, so its jails make their own as they start.
    pub(super) can_change_network: bool,
    pub(super) landlock: bool,
    /// What PID 1 of a living jail becomes, once there was one.
    guest: OnceCell<OwnedFd>,
    pub(super) missing: Vec<MissingLayer>,
}

impl Home {
    /// A group for one jail, where the host has any controller; with so many processes of ours in it.
    pub(super) fn make_group(&self, ours: u32) -> Result<Option<Group>, StepFailed> {
        if self.groups.controllers().is_empty() {
            return Ok(None);
        }
        step(Step::Cgroup, "", || self.groups.create(ours).map(Some).map_err(errno_of))
    }

    /// A group for one living jail, where the host has any.
    pub(super) fn make_living_group(&self) -> Result<Option<Group>, StepFailed> {
        step(Step::Cgroup, "", || self.groups.create_living().map_err(errno_of))
    }

    /// Whether there is something that PID 1 of a living jail can become.
    pub(super) fn has_guest(&self) -> bool {
        self.guest.get().is_some()
    }

    /// Keeps what PID 1 of living jails becomes.
    pub(super) fn keep_guest(&self, binary: OwnedFd) {
        let _first = self.guest.set(binary);
    }

    /// What PID 1 of a living jail becomes.
    pub(super) fn guest(&self) -> Result<&OwnedFd, StepFailed> {
        self.guest.get().ok_or_else(|| StepFailed::new(Step::Guest, "", Errno::NOENT))
    }

    /// A network namespace for one jail, with loopback up.
    pub(super) fn make_network(&self) -> Result<OwnedFd, StepFailed> {
        step(Step::Network, "", || {
            sys::unshare(libc::CLONE_NEWNET)?;
            let made = sys::loopback_up().and_then(|()| {
                rustix::fs::openat(&self.proc, "self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            });
            sys::setns(self.network.as_fd(), libc::CLONE_NEWNET)?;
            made
        })
    }

    /// The number of a process on the host.
    pub(super) fn pid_of(&self, pidfd: &OwnedFd) -> Result<i32, Errno> {
        sys::pid_of(&self.proc, pidfd)
    }

    pub(super) fn has(&self, controller: Controller) -> bool {
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

pub(super) fn set_up() -> Result<Home, StepFailed> {
    // Control groups and the lock on ids are found by host paths, so before those paths move.
    let (groups, missing_groups) = Hierarchy::discover();
    groups.leave_room_for_others();
    let mut missing: Vec<MissingLayer> = missing_groups
        .into_iter()
        .map(|m| MissingLayer { layer: controller_layer(m.controller), reason: m.reason, remedy: m.remedy })
        .collect();
    let landlock = inside::landlock_supported();
    if !landlock {
        missing.push(MissingLayer {
            layer: Layer::Landlock,
            reason: "this kernel has landlock switched off, or is older than 5.13".to_owned(),
            remedy: "boot with lsm=landlock,… (see /sys/kernel/security/lsm)".to_owned(),
        });
    }
    let root = rustix::process::geteuid().is_root();
    let ids = if root { root_ids() } else { enter_user_namespace() }?;
    if let Some(gap) = ids.gap() {
        missing.push(gap);
    }
    step(Step::LauncherNamespaces, "mount", || sys::unshare(libc::CLONE_NEWNS))?;
    step(Step::LauncherRoot, "", pivot)?;
    let open = |path: &str| rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let proc = step(Step::LauncherRoot, "/proc", || open("/host/proc"))?;
    let network = step(Step::LauncherRoot, "/proc/self/ns/net", || open("/host/proc/self/ns/net"))?;
    // Root of a container may lack what it takes to bring loopback up out here; inside, everybody has it.
    let may_administer = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN));
    let can_change_network = ids.is_host_root() && may_administer;
    // Where this is refused, shells for warm interpreters are too, and the receipt of a run says that it was cold.
    let _kept = sys::keep_rights_as_another_user();
    Ok(Home { groups, ids, proc, network, can_change_network, landlock, guest: OnceCell::new(), missing })
}

pub(super) fn controller_layer(controller: Controller) -> Layer {
    match controller {
        Controller::Memory => Layer::CgroupMemory,
        Controller::Cpu => Layer::CgroupCpu,
        Controller::Pids => Layer::CgroupPids,
    }
}

/// Root takes ids from a range that no distribution and no container manager gives away; root of a container, from
/// what exists there.
fn root_ids() -> Result<Ids, StepFailed> {
    const FOLDER: &str = "/run/belljar";
    const RANGE: Range = Range { first: 0x7000_0000, count: 0x1_0000 };
    if fault::without(Layer::SeparateUid) {
        return Ok(Ids::shared(65_534, 65_534, "a test left it out"));
    }
    let existing = |map: &str| idmap::existing(&std::fs::read_to_string(map).unwrap_or_default());
    match (existing("/proc/self/uid_map"), existing("/proc/self/gid_map")) {
        (Existing::All, Existing::All) => {
            step(Step::UserId, FOLDER, || Ids::range(RANGE, RANGE, FOLDER, true))
        }
        (Existing::Some(uids), Existing::Some(gids)) => {
            let folder = idmap::runtime_folder(0);
            step(Step::UserId, &folder, || Ids::range(uids, gids, &folder, false))
        }
        (Existing::RootAlone, Existing::RootAlone) => {
            Ok(Ids::shared(0, 0, "no other user exists in the namespace that this runs in"))
        }
        // The sandbox user would be the host's root: the one thing that it may never be.
        _ => Err(StepFailed::new(Step::UserId, "other than root's", Errno::PERM)),
    }
}

/// An ordinary user becomes all-powerful in a namespace of its own, and keeps its ids in it.
fn enter_user_namespace() -> Result<Ids, StepFailed> {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let failed = |errno| StepFailed::new(Step::LauncherNamespaces, "user", errno);
    fault::inject(Step::LauncherNamespaces).map_err(failed)?;
    let (uids, gids) = match idmap::subordinate_ranges(uid) {
        Ok(ranges) => ranges,
        Err(reason) => {
            idmap::unshare_alone(uid, gid).map_err(failed)?;
            return Ok(Ids::shared(uid, gid, &reason));
        }
    };
    if !idmap::unshare_with_ranges((uid, uids), (gid, gids)).map_err(failed)? {
        return Ok(Ids::shared(
            uid,
            gid,
            "newuidmap or newgidmap refused the ids of /etc/subuid and /etc/subgid",
        ));
    }
    let folder = idmap::runtime_folder(uid);
    step(Step::UserId, &folder, || Ids::range(uids, gids, &folder, false))
}

/// Puts the host below `/host` of a small root of ours. Any folder will do to mount it on for the moment; `/proc`
/// is there on every system.
fn pivot() -> Result<(), Errno> {
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("tmpfs", "/proc", "tmpfs", flags, Some(c"mode=0755,size=16m"))?;
    rustix::fs::mkdir("/proc/host", Mode::from_raw_mode(0o755))?;
    rustix::process::pivot_root("/proc", "/proc/host")?;
    rustix::process::chdir("/")?;
    template::prepare()
}
