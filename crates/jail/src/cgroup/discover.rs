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
use super::obstacle::{Obstacle, Setting};
use super::owner::{Owner, REFUGE, abandoned};
use super::parse::{self, Membership, Mount, Version};
use super::place::Place;
use super::{Controller, Missing, files, v1, v2};

/// The result of discovery.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) places: Vec<Place>,
    pub(super) missing: Vec<Missing>,
    /// Where groups can be frozen.
    pub(super) freezer: Freezer,
    /// Directories of dead launchers, each with the index of the place beside it.
    pub(super) abandoned: Vec<(usize, String)>,
}

/// Information about the host, used for discovery.
struct Host {
    mounts: Vec<Mount>,
    memberships: Vec<Membership>,
    me: Owner,
    setting: Setting,
}

impl Host {
    fn read(setting: Setting) -> Option<Host> {
        let read = |path| std::fs::read_to_string(path).ok();
        Some(Host {
            mounts: parse::mounts(&read("/proc/self/mountinfo")?),
            memberships: parse::memberships(&read("/proc/self/cgroup")?),
            me: Owner::me()?,
            setting,
        })
    }
}

impl Setting {
    fn read() -> Setting {
        Setting {
            root: rustix::process::geteuid().is_root(),
            systemd: Path::new("/run/systemd/system").exists(),
            container: Path::new("/.dockerenv").exists() || Path::new("/run/.containerenv").exists(),
        }
    }
}

pub(super) fn discover() -> Found {
    let mut found = Found::default();
    let setting = Setting::read();
    let Some(host) = Host::read(setting) else {
        found.lack(&Controller::ALL, &Obstacle::NoProc, Version::V2, setting);
        found.freezer.obstacle = Some(Obstacle::NoProc.reason(v1::FREEZER));
        return found;
    };
    for own in host.memberships.iter().filter(|own| own.version == Version::V1) {
        found.search_v1(&host, own);
    }
    let on_v1 = |controller: &Controller| host.memberships.iter().any(|own| own.has(&controller.to_string()));
    let wanted: Vec<Controller> =
        Controller::ALL.into_iter().filter(|controller| !on_v1(controller)).collect();
    if !wanted.is_empty() {
        found.search_v2(&host, &wanted);
    }
    if !found.places.iter().any(Place::can_freeze) {
        found.search_freezer(&host);
    }
    found.missing.sort_by_key(|missing| missing.controller);
    found
}

impl Found {
    fn lack(&mut self, controllers: &[Controller], obstacle: &Obstacle, version: Version, setting: Setting) {
        self.missing
            .extend(controllers.iter().map(|controller| obstacle.missing(*controller, version, setting)));
    }

    fn keep(&mut self, place: Place) {
        let index = self.places.len();
        self.abandoned.extend(abandoned(place.base.as_fd()).into_iter().map(|name| (index, name)));
        self.places.push(place);
    }

    fn search_v1(&mut self, host: &Host, own: &Membership) {
        let mut wanted = Controller::ALL.to_vec();
        wanted.retain(|controller| own.has(&controller.to_string()));
        let accounting = own.has(v1::ACCOUNTING);
        if wanted.is_empty() && !accounting {
            return;
        }
        let mut place = match v1_place(host, own) {
            Ok(place) => place,
            Err(obstacle) => return self.lack(&wanted, &obstacle, Version::V1, host.setting),
        };
        place.accounting = accounting;
        place.freezer = own.has(v1::FREEZER);
        for controller in wanted {
            if v1::offers(place.home.as_fd(), controller) {
                place.controllers.push(controller);
            } else {
                let obstacle = Obstacle::NoSuchLimit { file: v1::limit_file(controller) };
                self.lack(&[controller], &obstacle, Version::V1, host.setting);
            }
        }
        if accounting || !place.controllers.is_empty() {
            self.keep(place);
        }
    }

    /// Finds the v1 freezer, which usually has its own hierarchy. It limits nothing, so only its absence is
    /// reported.
    fn search_freezer(&mut self, host: &Host) {
        let own = host.memberships.iter().find(|own| own.has(v1::FREEZER));
        match own.ok_or(Obstacle::NotMounted).and_then(|own| v1_place(host, own)) {
            Ok(mut place) => {
                place.freezer = true;
                self.freezer.abandoned = abandoned(place.base.as_fd());
                self.freezer.place = Some(Arc::new(place));
            }
            Err(obstacle) => self.freezer.obstacle = Some(obstacle.reason(v1::FREEZER)),
        }
    }

    fn search_v2(&mut self, host: &Host, wanted: &[Controller]) {
        let lacking = match v2_place(host, wanted) {
            Ok((place, lacking)) => {
                if !place.controllers.is_empty() {
                    self.keep(place);
                }
                lacking
            }
            Err(obstacle) => wanted.iter().map(|controller| (*controller, obstacle.clone())).collect(),
        };
        for (controller, obstacle) in lacking {
            self.lack(&[controller], &obstacle, Version::V2, host.setting);
        }
    }
}

fn v1_place(host: &Host, own: &Membership) -> Result<Place, Obstacle> {
    if own.has("cpuset") {
        return Err(Obstacle::SharedWithCpuset);
    }
    let mounted = parse::mount_of(&host.mounts, own).is_some();
    let folder = parse::own_folder(&host.mounts, own).ok_or(if mounted {
        Obstacle::OutOfSight
    } else {
        Obstacle::NotMounted
    })?;
    let base = open_group(&folder, Version::V1)?;
    Place::make(base, host.me, Version::V1)
        .map_err(|errno| Obstacle::failed(&folder, &host.me.to_string(), errno))
}

/// A directory of the v2 hierarchy in which ours might be created, and whether its processes must be moved
/// first.
struct Candidate {
    folder: String,
    base: OwnedFd,
    evacuate: bool,
    /// The child group into which an earlier launcher moved this process. The last launcher to leave removes
    /// it.
    refuge: Option<String>,
}

type Lacking = Vec<(Controller, Obstacle)>;

/// Creates our directory in the first possible candidate. If all fail, returns the last failure.
fn v2_place(host: &Host, wanted: &[Controller]) -> Result<(Place, Lacking), Obstacle> {
    let own = host.memberships.iter().find(|own| own.version == Version::V2).ok_or(Obstacle::NotMounted)?;
    let mount = parse::mount_of(&host.mounts, own).ok_or(Obstacle::NotMounted)?;
    let mut refusal = Obstacle::OutOfSight;
    let (root, own) = (root_candidate(host, mount), own_candidate(host, own));
    let given =
        |own: &Result<Candidate, Obstacle>| own.as_ref().is_ok_and(|own| v2::is_given(own.base.as_fd()));
    let candidates = if own.as_ref().is_some_and(given) { [own, root] } else { [root, own] };
    for candidate in candidates.into_iter().flatten() {
        match candidate.and_then(|candidate| furnish(host.me, candidate, wanted)) {
            Ok(place) => return Ok(place),
            Err(obstacle) => refusal = obstacle,
        }
    }
    Err(refusal)
}

/// Returns the mount point as a candidate, for root, if groups can be created there without moving processes.
fn root_candidate(host: &Host, mount: &Mount) -> Option<Result<Candidate, Obstacle>> {
    if !host.setting.root {
        return None;
    }
    let base = match open_group(&mount.point, Version::V2) {
        Ok(base) => base,
        Err(obstacle) => return Some(Err(obstacle)),
    };
    let free = v2::is_true_root(base.as_fd()) || v2::members(base.as_fd()).is_ok_and(|all| all.is_empty());
    free.then(|| Ok(Candidate { folder: mount.point.clone(), base, evacuate: false, refuge: None }))
}

/// Returns the group of this process, or its parent if an earlier launcher moved this process into a child of
/// it.
fn own_candidate(host: &Host, own: &Membership) -> Option<Result<Candidate, Obstacle>> {
    let folder = parse::own_folder(&host.mounts, own)?;
    let (folder, refuge) = match folder.rsplit_once('/') {
        Some((above, name)) if name.ends_with(REFUGE) && Owner::of(name).is_some() => {
            (above.to_owned(), Some(name.to_owned()))
        }
        _ => (folder, None),
    };
    Some(open_group(&folder, Version::V2).map(|base| Candidate { folder, base, evacuate: true, refuge }))
}

/// Creates our directory and enables the controllers for the groups in it, one by one, so that an unavailable
/// one does not affect the others.
fn furnish(me: Owner, candidate: Candidate, wanted: &[Controller]) -> Result<(Place, Lacking), Obstacle> {
    let Candidate { folder, base, evacuate, refuge: known } = candidate;
    let above = v2::is_below_another(base.as_fd()).then(|| folder.rsplit_once('/')).flatten();
    let not_offered =
        || Obstacle::NotOffered { folder: folder.clone(), above: above.map(|(above, _)| above.to_owned()) };
    if !wanted.iter().any(|controller| v2::offered(base.as_fd(), *controller)) {
        return Err(not_offered()); // before anything is created or moved
    }
    let mut place = Place::make(base, me, Version::V2)
        .map_err(|errno| Obstacle::failed(&folder, &me.to_string(), errno))?;
    let refuge = format!("{}{REFUGE}", place.name);
    let evacuated = evacuate && v2::evacuate(place.base.as_fd(), &refuge, &folder)?;
    place.refuge = if evacuated { Some(refuge) } else { known };
    let mut lacking = Lacking::new();
    for controller in wanted.iter().copied() {
        if !v2::offered(place.base.as_fd(), controller) {
            lacking.push((controller, not_offered()));
            continue;
        }
        let enabled = v2::enable(place.base.as_fd(), controller)
            .and_then(|()| v2::enable(place.home.as_fd(), controller));
        match enabled {
            Ok(()) => place.controllers.push(controller),
            Err(errno) => {
                lacking.push((controller, Obstacle::failed(&folder, "cgroup.subtree_control", errno)))
            }
        }
    }
    Ok((place, lacking))
}

/// Opens a directory and verifies that it is a cgroup: another file system may be mounted over it.
fn open_group(folder: &str, version: Version) -> Result<OwnedFd, Obstacle> {
    const V1_MAGIC: i64 = 0x0027_e0eb;
    const V2_MAGIC: i64 = 0x6367_7270;
    let failed = |errno: Errno| Obstacle::failed(folder, "", errno);
    let dir = files::open_dir(CWD, folder).map_err(failed)?;
    let expected = match version {
        Version::V1 => V1_MAGIC,
        Version::V2 => V2_MAGIC,
    };
    let kind = fstatfs(&dir).map_err(failed)?.f_type;
    if kind as i64 == expected { Ok(dir) } else { Err(Obstacle::OutOfSight) }
}

#[cfg(test)]
#[path = "discover_tests.rs"]
mod tests;
