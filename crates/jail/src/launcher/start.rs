//! Starting one jail: everything that needs the launcher's rights, then the clone.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::pipe::PipeFlags;

use super::home::{Home, controller_layer};
use super::ids::Taken;
use super::runs::Run;
use super::spares::{Spares, error_errno};
use super::idmap;
use crate::cgroup::{self, Controller, Group};
use crate::inside::{self, Cell, Descriptors};
use crate::seccomp::Filter;
use crate::spec::{HostBind, Jail, Layer, Network, WORKSPACE};
use crate::step::{Step, StepFailed, step};
use crate::sys::{self, Cloned};
use crate::template::{self, Templates};
use crate::fault;

/// What starting takes from the launcher.
pub(super) struct Starter<'a> {
    pub(super) home: &'a Home,
    pub(super) spares: &'a mut Spares,
    pub(super) templates: &'a mut Templates,
    pub(super) filter: &'a Filter,
}

impl Starter<'_> {
    /// Starts a jail with the ids taken for it.
    pub(super) fn start(&mut self, jail: &Jail, taken: Taken, fds: Vec<OwnedFd>) -> Result<Run, StepFailed> {
        let started = Instant::now();
        if jail.require_separate_uid && !taken.separate() {
            return Err(StepFailed::new(Step::UserId, "of its own, as required", Errno::PERM));
        }
        let descriptors = step(Step::Stdio, "", || descriptors(jail, fds))?;
        step(Step::Stdio, "", || hand_over(&descriptors, taken))?;
        let root = self.templates.place(&jail.root)?;
        let binds = self.host_binds(jail, taken)?;
        let group = self.group(jail)?;
        let own_network = jail.network == Network::Own && !fault::without(Layer::NetNs);
        let made_ahead = own_network && self.home.can_change_network;
        let network = made_ahead.then(|| self.spares.network(self.home)).transpose()?;
        let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
        let (told, report) = step(Step::Namespaces, "", pipe)?;
        let (go, let_go) = step(Step::Namespaces, "", pipe)?;
        let landlock = self.home.landlock;
        let cell = Cell {
            jail,
            root: &root,
            binds: &binds,
            groups: group.as_ref().map_or(&[], Group::join_fds),
            go,
            report,
            descriptors,
            filter: self.filter,
            landlock,
            own_init_uid: taken.separate(),
            new_network: own_network && !made_ahead,
            data_limit: (!self.home.has(Controller::Memory)).then_some(jail.limits.memory_bytes),
        };
        let into = group.as_ref().and_then(Group::clone_into);
        let flags = namespaces(cell.new_network);
        let cloned = step(Step::Namespaces, "", || self.clone_into(flags, network.as_ref(), into))?;
        let (pid, pidfd) = match cloned {
            Cloned::Child => inside::enter(cell),
            Cloned::Parent { pid, pidfd } => (pid, pidfd.ok_or(Errno::NOSYS)),
        };
        let pidfd = pidfd.map_err(|errno| StepFailed::new(Step::Namespaces, "", errno))?;
        drop(cell);
        let layers = self.layers(jail, taken, landlock);
        let run = Run::new(pidfd, told, group, taken, layers, started, jail.limits.timeout);
        let (uids, gids) = taken.maps();
        step(Step::IdMap, "", || idmap::write_maps(&self.home.proc, pid, &uids, &gids))
            .and_then(|()| step(Step::IdMap, "", || rustix::io::write(&let_go, b"1").map(drop)))
            .inspect_err(|_| run.kill())?;
        Ok(run)
    }

    /// The launcher steps into the network for the moment of the clone: its jails own no network namespace, they
    /// only live in one.
    fn clone_into(
        &self,
        flags: libc::c_int,
        network: Option<&OwnedFd>,
        group: Option<std::os::fd::BorrowedFd<'_>>,
    ) -> Result<Cloned, Errno> {
        let Some(network) = network else { return sys::clone(flags, group) };
        sys::setns(network.as_fd(), libc::CLONE_NEWNET)?;
        let cloned = sys::clone(flags, group);
        if !matches!(cloned, Ok(Cloned::Child)) {
            sys::setns(self.home.network.as_fd(), libc::CLONE_NEWNET)?;
        }
        cloned
    }

    fn group(&mut self, jail: &Jail) -> Result<Option<Group>, StepFailed> {
        let Some(group) = self.spares.group(self.home)? else { return Ok(None) };
        let limits = cgroup::Limits {
            memory_bytes: jail.limits.memory_bytes,
            cpu_millis: jail.limits.cpu_millis,
            // PID 1 is ours and not the program's.
            pids: jail.limits.processes + jail.commands.len() as u32,
        };
        let skipped = [Layer::CgroupMemory, Layer::CgroupCpu, Layer::CgroupPids].into_iter().any(fault::without);
        if !skipped {
            group.set_limits(&limits).map_err(|error| {
                let file = match &error {
                    cgroup::Error::Write { file, .. } | cgroup::Error::Open { file, .. } => file,
                    cgroup::Error::Make { .. } => "",
                };
                StepFailed::new(Step::Cgroup, file, error_errno(&error))
            })?;
        }
        Ok(Some(group))
    }

    /// Detached mounts of the playground and of all other host folders.
    fn host_binds(&self, jail: &Jail, taken: Taken) -> Result<Vec<(OwnedFd, String)>, StepFailed> {
        let playground = jail.playground.iter().map(|source| HostBind {
            source: source.clone(),
            destination: WORKSPACE.to_owned(),
            writable: true,
        });
        playground
            .chain(jail.binds.iter().cloned())
            .map(|bind| {
                let mount = step(Step::HostFolder, &bind.source, || self.host_bind(&bind, taken))?;
                Ok((mount, bind.destination))
            })
            .collect()
    }

    /// A host folder in which the owner's files are the sandbox user's, and what the sandbox makes is the owner's.
    fn host_bind(&self, bind: &HostBind, taken: Taken) -> Result<OwnedFd, Errno> {
        let source = template::open_host(&bind.source)?;
        let mount = template::detached(&source)?;
        let mut attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
        if !bind.writable {
            attributes |= libc::MOUNT_ATTR_RDONLY;
        }
        if !self.home.ids.can_map_mounts() {
            sys::mount_setattr(mount.as_fd(), true, attributes, None)?;
            return Ok(mount);
        }
        let owner = rustix::fs::fstat(&source)?;
        let map = idmap::mount_map(&self.home.proc, (owner.st_uid, owner.st_gid), (taken.uid, taken.gid))?;
        // Only the folder itself is mapped, so mounts below it, which may be of another kind, are not shown.
        sys::mount_setattr(mount.as_fd(), false, attributes, Some(map.as_fd()))?;
        Ok(mount)
    }

    fn layers(&self, jail: &Jail, taken: Taken, landlock: bool) -> Vec<Layer> {
        let mut layers = inside::layers(jail, landlock, taken.separate());
        layers.extend(self.home.groups.controllers().into_iter().map(controller_layer));
        layers.sort();
        layers
    }
}

fn namespaces(network: bool) -> libc::c_int {
    let always = libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_NEWNS;
    let conditional = [
        (network, libc::CLONE_NEWNET),
        (!fault::without(Layer::IpcNs), libc::CLONE_NEWIPC),
        (!fault::without(Layer::UtsNs), libc::CLONE_NEWUTS),
    ];
    conditional.into_iter().filter(|(wanted, _)| *wanted).fold(always, |flags, (_, flag)| flags | flag)
}

fn descriptors(jail: &Jail, fds: Vec<OwnedFd>) -> Result<Descriptors, Errno> {
    let mut fds = fds.into_iter();
    let mut next = || fds.next().ok_or(Errno::BADF);
    Ok(Descriptors {
        payload: next()?,
        stdin: next()?,
        stdout: next()?,
        stderr: next()?,
        result: jail.result_pipe.then(&mut next).transpose()?,
        artifacts: jail.artifacts.is_some().then(&mut next).transpose()?,
    })
}

/// A program that opens `/dev/stdout` opens the pipe anew, and must own it to do so. Pipes only: anything else
/// belongs to somebody.
fn hand_over(given: &Descriptors, taken: Taken) -> Result<(), Errno> {
    if !taken.separate() {
        return Ok(());
    }
    for pipe in [&given.stdin, &given.stdout, &given.stderr] {
        let stat = rustix::fs::fstat(pipe)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Fifo {
            return Err(Errno::INVAL);
        }
        let (uid, gid) = (rustix::fs::Uid::from_raw(taken.uid), rustix::fs::Gid::from_raw(taken.gid));
        rustix::fs::fchown(pipe, Some(uid), Some(gid))?;
    }
    Ok(())
}
