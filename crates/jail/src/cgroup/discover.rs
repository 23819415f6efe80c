//! Finds where groups can be created on this host, once, before the mount namespace changes.
//!
//! A controller belongs to v1 if `/proc/self/cgroup` names it, and to v2 otherwise. On v1 the parent is the
//! process's own group, so that limits above it still apply. On v2 it is the process's own group if a service
//! manager has delegated it; otherwise, for root, the root, where processes and groups may be mixed; and for
//! others their own group, if no other process is in it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{CWD, fstatfs};
use rustix::io::Errno;

use super::freezer::Freezer;
use super::launcher_dir::LauncherDir;
use super::obstacle::{HostTraits, Obstacle};
use super::owner::{AbandonedDir, LauncherIdentity, MOVED_SUFFIX, abandoned};
use super::parse::{self, CgroupMount, CgroupVersion, Membership};
use super::{Controller, MissingController, files, v1, v2};

/// The result of discovery.
#[derive(Debug, Default)]
pub(super) struct Discovery {
    pub(super) launcher_dirs: Vec<LauncherDir>,
    pub(super) missing: Vec<MissingController>,
    /// Where groups can be frozen.
    pub(super) freezer: Freezer,
    /// Directories of dead launchers, each with the index of the launcher directory beside it.
    pub(super) abandoned: Vec<(usize, AbandonedDir)>,
}

/// Information about the host, used for discovery.
struct HostCgroups {
    mounts: Vec<CgroupMount>,
    memberships: Vec<Membership>,
    owner: LauncherIdentity,
    setting: HostTraits,
}

impl HostCgroups {
    fn read(setting: HostTraits) -> Option<HostCgroups> {
        let read = |path| std::fs::read_to_string(path).ok();
        Some(HostCgroups {
            mounts: parse::mounts(&read("/proc/self/mountinfo")?),
            memberships: parse::memberships(&read("/proc/self/cgroup")?),
            owner: LauncherIdentity::current()?,
            setting,
        })
    }
}

impl HostTraits {
    fn read() -> HostTraits {
        HostTraits {
            root: rustix::process::geteuid().is_root(),
            systemd: Path::new("/run/systemd/system").exists(),
            container: Path::new("/.dockerenv").exists() || Path::new("/run/.containerenv").exists(),
        }
    }
}

pub(super) fn discover() -> Discovery {
    let mut found = Discovery::default();
    let setting = HostTraits::read();
    let Some(host) = HostCgroups::read(setting) else {
        found.report_missing(&Controller::ALL, &Obstacle::NoProc, CgroupVersion::V2, setting);
        found.freezer.obstacle = Some(Obstacle::NoProc.reason(v1::FREEZER));
        return found;
    };
    for own in host.memberships.iter().filter(|own| own.version == CgroupVersion::V1) {
        found.search_v1(&host, own);
    }
    let on_v1 = |controller: &Controller| host.memberships.iter().any(|own| own.has(&controller.to_string()));
    let wanted: Vec<Controller> =
        Controller::ALL.into_iter().filter(|controller| !on_v1(controller)).collect();
    if !wanted.is_empty() {
        found.search_v2(&host, &wanted);
    }
    if !found.launcher_dirs.iter().any(LauncherDir::can_freeze) {
        found.search_freezer(&host);
    }
    found.missing.sort_by_key(|missing| missing.controller);
    found
}

impl Discovery {
    fn report_missing(
        &mut self,
        controllers: &[Controller],
        obstacle: &Obstacle,
        version: CgroupVersion,
        setting: HostTraits,
    ) {
        self.missing
            .extend(controllers.iter().map(|controller| obstacle.missing(*controller, version, setting)));
    }

    fn add_launcher_dir(&mut self, launcher_dir: LauncherDir) {
        let index = self.launcher_dirs.len();
        self.abandoned.extend(abandoned(launcher_dir.parent.as_fd()).into_iter().map(|dir| (index, dir)));
        self.launcher_dirs.push(launcher_dir);
    }

    fn search_v1(&mut self, host: &HostCgroups, own: &Membership) {
        let mut wanted = Controller::ALL.to_vec();
        wanted.retain(|controller| own.has(&controller.to_string()));
        let accounting = own.has(v1::ACCOUNTING);
        if wanted.is_empty() && !accounting {
            return;
        }
        let mut launcher_dir = match create_v1_dir(host, own) {
            Ok(launcher_dir) => launcher_dir,
            Err(obstacle) => return self.report_missing(&wanted, &obstacle, CgroupVersion::V1, host.setting),
        };
        launcher_dir.counts_cpu = accounting;
        launcher_dir.is_freezer = own.has(v1::FREEZER);
        for controller in wanted {
            if v1::supports_limit(launcher_dir.fd.as_fd(), controller) {
                launcher_dir.controllers.push(controller);
            } else {
                let obstacle = Obstacle::NoSuchLimit { file: v1::limit_file(controller) };
                self.report_missing(&[controller], &obstacle, CgroupVersion::V1, host.setting);
            }
        }
        if accounting || !launcher_dir.controllers.is_empty() {
            self.add_launcher_dir(launcher_dir);
        }
    }

    /// Finds the v1 freezer, which usually has its own hierarchy. It limits nothing, so only its absence is
    /// reported.
    fn search_freezer(&mut self, host: &HostCgroups) {
        let own = host.memberships.iter().find(|own| own.has(v1::FREEZER));
        match own.ok_or(Obstacle::NotMounted).and_then(|own| create_v1_dir(host, own)) {
            Ok(mut launcher_dir) => {
                launcher_dir.is_freezer = true;
                self.freezer.abandoned = abandoned(launcher_dir.parent.as_fd());
                self.freezer.launcher_dir = Some(Arc::new(launcher_dir));
            }
            Err(obstacle) => self.freezer.obstacle = Some(obstacle.reason(v1::FREEZER)),
        }
    }

    fn search_v2(&mut self, host: &HostCgroups, wanted: &[Controller]) {
        let lacking = match create_v2_dir(host, wanted) {
            Ok((launcher_dir, lacking)) => {
                if !launcher_dir.controllers.is_empty() {
                    self.add_launcher_dir(launcher_dir);
                }
                lacking
            }
            Err(obstacle) => wanted.iter().map(|controller| (*controller, obstacle.clone())).collect(),
        };
        for (controller, obstacle) in lacking {
            self.report_missing(&[controller], &obstacle, CgroupVersion::V2, host.setting);
        }
    }
}

fn create_v1_dir(host: &HostCgroups, own: &Membership) -> Result<LauncherDir, Obstacle> {
    if own.has("cpuset") {
        return Err(Obstacle::SharedWithCpuset);
    }
    let mounted = parse::mount_of(&host.mounts, own).is_some();
    let folder = parse::own_folder(&host.mounts, own).ok_or(if mounted {
        Obstacle::NotVisible
    } else {
        Obstacle::NotMounted
    })?;
    let base = open_group(&folder, CgroupVersion::V1)?;
    LauncherDir::create(base, host.owner, CgroupVersion::V1)
        .map_err(|errno| Obstacle::failed(&folder, &host.owner.to_string(), errno))
}

/// A directory of the v2 hierarchy in which ours might be created, and whether its processes must be moved
/// first.
struct BaseCandidate {
    folder: String,
    base: OwnedFd,
    move_processes: bool,
    /// The child group into which an earlier launcher moved this process. The last launcher to leave removes
    /// it.
    child_group: Option<String>,
}

type UnavailableControllers = Vec<(Controller, Obstacle)>;

/// Creates our directory in the first possible candidate. If all fail, returns the last failure.
fn create_v2_dir(
    host: &HostCgroups,
    wanted: &[Controller],
) -> Result<(LauncherDir, UnavailableControllers), Obstacle> {
    let own =
        host.memberships.iter().find(|own| own.version == CgroupVersion::V2).ok_or(Obstacle::NotMounted)?;
    let mount = parse::mount_of(&host.mounts, own).ok_or(Obstacle::NotMounted)?;
    let mut refusal = Obstacle::NotVisible;
    let (root, own) = (root_candidate(host, mount), own_candidate(host, own));
    let given = |own: &Result<BaseCandidate, Obstacle>| {
        own.as_ref().is_ok_and(|own| v2::is_delegated(own.base.as_fd()))
    };
    let candidates = if own.as_ref().is_some_and(given) { [own, root] } else { [root, own] };
    for candidate in candidates.into_iter().flatten() {
        match candidate.and_then(|candidate| create_in_candidate(host.owner, candidate, wanted)) {
            Ok(launcher_dir) => return Ok(launcher_dir),
            Err(obstacle) => refusal = obstacle,
        }
    }
    Err(refusal)
}

/// Returns the mount point as a candidate, for root, if groups can be created there without moving processes.
fn root_candidate(host: &HostCgroups, mount: &CgroupMount) -> Option<Result<BaseCandidate, Obstacle>> {
    if !host.setting.root {
        return None;
    }
    let base = match open_group(&mount.point, CgroupVersion::V2) {
        Ok(base) => base,
        Err(obstacle) => return Some(Err(obstacle)),
    };
    let free = v2::is_true_root(base.as_fd()) || v2::members(base.as_fd()).is_ok_and(|all| all.is_empty());
    free.then(|| {
        Ok(BaseCandidate { folder: mount.point.clone(), base, move_processes: false, child_group: None })
    })
}

/// Returns the group of this process, or its parent if an earlier launcher moved this process into a child of
/// it.
fn own_candidate(host: &HostCgroups, own: &Membership) -> Option<Result<BaseCandidate, Obstacle>> {
    let folder = parse::own_folder(&host.mounts, own)?;
    let (folder, child_group) = match folder.rsplit_once('/') {
        Some((above, name)) if name.ends_with(MOVED_SUFFIX) && LauncherIdentity::parse(name).is_some() => {
            (above.to_owned(), Some(name.to_owned()))
        }
        _ => (folder, None),
    };
    Some(open_group(&folder, CgroupVersion::V2).map(|base| BaseCandidate {
        folder,
        base,
        move_processes: true,
        child_group,
    }))
}

/// Creates our directory and enables the controllers for the groups in it, one by one, so that an unavailable
/// one does not affect the others.
fn create_in_candidate(
    me: LauncherIdentity,
    candidate: BaseCandidate,
    wanted: &[Controller],
) -> Result<(LauncherDir, UnavailableControllers), Obstacle> {
    let BaseCandidate { folder, base, move_processes, child_group: known_child_group } = candidate;
    let above = v2::has_visible_parent(base.as_fd()).then(|| folder.rsplit_once('/')).flatten();
    let not_offered =
        || Obstacle::NotOffered { folder: folder.clone(), above: above.map(|(above, _)| above.to_owned()) };
    if !wanted.iter().any(|controller| v2::is_available(base.as_fd(), *controller)) {
        return Err(not_offered()); // before anything is created or moved
    }
    let mut launcher_dir = LauncherDir::create(base, me, CgroupVersion::V2)
        .map_err(|errno| Obstacle::failed(&folder, &me.to_string(), errno))?;
    let child_group = format!("{}{MOVED_SUFFIX}", launcher_dir.name);
    let moved =
        move_processes && v2::move_processes_to_child(launcher_dir.parent.as_fd(), &child_group, &folder)?;
    launcher_dir.moved_into = if moved { Some(child_group) } else { known_child_group };
    let mut lacking = UnavailableControllers::new();
    for controller in wanted.iter().copied() {
        if !v2::is_available(launcher_dir.parent.as_fd(), controller) {
            lacking.push((controller, not_offered()));
            continue;
        }
        let enabled = v2::enable(launcher_dir.parent.as_fd(), controller)
            .and_then(|()| v2::enable(launcher_dir.fd.as_fd(), controller));
        match enabled {
            Ok(()) => launcher_dir.controllers.push(controller),
            Err(errno) => {
                lacking.push((controller, Obstacle::failed(&folder, "cgroup.subtree_control", errno)))
            }
        }
    }
    Ok((launcher_dir, lacking))
}

/// Opens a directory and verifies that it is a cgroup: another file system may be mounted over it.
fn open_group(folder: &str, version: CgroupVersion) -> Result<OwnedFd, Obstacle> {
    const V1_MAGIC: i64 = 0x0027_e0eb;
    const V2_MAGIC: i64 = 0x6367_7270;
    let failed = |errno: Errno| Obstacle::failed(folder, "", errno);
    let dir = files::open_dir(CWD, folder).map_err(failed)?;
    let expected = match version {
        CgroupVersion::V1 => V1_MAGIC,
        CgroupVersion::V2 => V2_MAGIC,
    };
    let kind = fstatfs(&dir).map_err(failed)?.f_type;
    if kind as i64 == expected { Ok(dir) } else { Err(Obstacle::NotVisible) }
}

#[cfg(test)]
#[path = "discover_tests.rs"]
mod tests;
