//! Starting one jail: a shell is made, ahead of time or now, and then told what to run.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;
use rustix::process::{Signal, WaitId, WaitIdOptions};

use super::home::{Home, controller_layer};
use super::idmap;
use super::ids::Taken;
use super::runs::Run;
use crate::cgroup::{self, Controller, Group};
use crate::fault;
use crate::inside::{self, Shell};
use crate::seccomp::Filter;
use crate::spec::{HostBind, Jail, Layer, Network, RootTree, WORKSPACE};
use crate::step::{Step, StepFailed, step};
use crate::sys::{self, Cloned};
use crate::template;
use crate::wire;

/// What a shell is made for.
pub(super) struct Wanted<'a> {
    pub(super) tree: &'a RootTree,
    /// Where the tree stands.
    pub(super) root: &'a str,
    pub(super) network: Network,
    /// Host folders, the playground among them.
    pub(super) binds: Vec<HostBind>,
    /// How many commands.
    pub(super) seats: usize,
}

/// A PID 1 that has set up its place and waits to be told what to run. Used once.
pub(super) struct Waiting {
    pub(super) root: String,
    pidfd: OwnedFd,
    told: OwnedFd,
    orders: OwnedFd,
    seats: Vec<OwnedFd>,
    group: Option<Group>,
    /// What the group holds it to so far.
    limits: Option<cgroup::Limits>,
    taken: Taken,
}

/// Makes a shell.
pub(super) fn prepare(home: &mut Home, filter: &Filter, wanted: &Wanted<'_>) -> Result<Waiting, StepFailed> {
    let taken = step(Step::UserId, "", || home.ids.take(!wanted.binds.is_empty()))?;
    prepare_as(home, filter, wanted, taken).inspect_err(|_| home.ids.give_back(taken))
}

fn prepare_as(
    home: &Home,
    filter: &Filter,
    wanted: &Wanted<'_>,
    taken: Taken,
) -> Result<Waiting, StepFailed> {
    let binds = host_binds(home, &wanted.binds, taken)?;
    let group = home.make_group()?;
    let own_network = wanted.network == Network::Own && !fault::without(Layer::NetNs);
    let network = (own_network && home.can_change_network).then(|| home.make_network()).transpose()?;
    let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
    let (told, report) = step(Step::Namespaces, "", pipe)?;
    let (go, let_go) = step(Step::Namespaces, "", pipe)?;
    let line =
        || rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (our_orders, orders) = step(Step::Namespaces, "", line)?;
    let (our_seats, seats) = (0..wanted.seats)
        .map(|_| step(Step::Namespaces, "", line))
        .collect::<Result<(Vec<_>, Vec<_>), _>>()?;
    let shell = Shell {
        tree: wanted.tree,
        root: wanted.root,
        binds: &binds,
        groups: group.as_ref().map_or(&[], Group::join_fds),
        go,
        orders,
        seats,
        report,
        filter,
        landlock: home.landlock,
        own_init_uid: taken.separate(),
        new_network: own_network && network.is_none(),
        group_counts_processes: home.has(Controller::Pids),
        hold_each_process: !home.has(Controller::Memory),
    };
    let flags = namespaces(shell.new_network);
    let into = group.as_ref().and_then(Group::clone_into);
    let cloned = step(Step::Namespaces, "", || clone_into(home, flags, network.as_ref(), into))?;
    let (pid, pidfd) = match cloned {
        Cloned::Child => inside::enter(&shell),
        Cloned::Parent { pid, pidfd } => (pid, pidfd.ok_or(Errno::NOSYS)),
    };
    let pidfd = pidfd.map_err(|errno| StepFailed::new(Step::Namespaces, "", errno))?;
    drop(shell);
    let root = wanted.root.to_owned();
    let waiting =
        Waiting { root, pidfd, told, orders: our_orders, seats: our_seats, group, limits: None, taken };
    let (uids, gids) = taken.maps();
    let mapped = step(Step::IdMap, "", || {
        idmap::write_maps(&home.proc, pid, &uids, &gids)?;
        rustix::io::write(&let_go, b"1").map(drop)
    });
    match mapped {
        Ok(()) => Ok(waiting),
        Err(failed) => {
            waiting.discard();
            Err(failed)
        }
    }
}

/// The launcher steps into the network for the moment of the clone: its jails own no network namespace, they only
/// live in one.
fn clone_into(
    home: &Home,
    flags: libc::c_int,
    network: Option<&OwnedFd>,
    group: Option<BorrowedFd<'_>>,
) -> Result<Cloned, Errno> {
    let Some(network) = network else { return sys::clone(flags, group) };
    sys::setns(network.as_fd(), libc::CLONE_NEWNET)?;
    let cloned = sys::clone(flags, group);
    if !matches!(cloned, Ok(Cloned::Child)) {
        sys::setns(home.network.as_fd(), libc::CLONE_NEWNET)?;
    }
    cloned
}

fn namespaces(network: bool) -> libc::c_int {
    let wanted = [
        (network, libc::CLONE_NEWNET),
        (!fault::without(Layer::UserNs), libc::CLONE_NEWUSER),
        (!fault::without(Layer::PidNs), libc::CLONE_NEWPID),
        (!fault::without(Layer::MountNs), libc::CLONE_NEWNS),
        (!fault::without(Layer::IpcNs), libc::CLONE_NEWIPC),
        (!fault::without(Layer::UtsNs), libc::CLONE_NEWUTS),
    ];
    wanted.into_iter().filter(|(wanted, _)| *wanted).fold(0, |flags, (_, flag)| flags | flag)
}

/// The playground of a jail and all its other host folders.
pub(super) fn wanted_binds(jail: &Jail) -> Vec<HostBind> {
    let playground = jail.playground.iter().map(|source| HostBind {
        source: source.clone(),
        destination: WORKSPACE.to_owned(),
        writable: true,
    });
    playground.chain(jail.binds.iter().cloned()).collect()
}

fn host_binds(home: &Home, binds: &[HostBind], taken: Taken) -> Result<Vec<(OwnedFd, String)>, StepFailed> {
    let bind = |bind: &HostBind| {
        let (source, mount) = step(Step::HostFolder, &bind.source, || host_bind(home, bind))?;
        if home.ids.is_host_root() {
            step(Step::Owners, &bind.source, || map_owner(home, &source, &mount, bind.writable, taken))?;
        }
        Ok((mount, bind.destination.clone()))
    };
    binds.iter().map(bind).collect()
}

/// A host folder, and a detached mount of it. What is mounted below it belongs to somebody else and may be of a kind
/// that cannot be mapped: it is not shown, where the kernel lets us choose.
fn host_bind(home: &Home, bind: &HostBind) -> Result<(OwnedFd, OwnedFd), Errno> {
    let source = template::open_host(&bind.source)?;
    let detach = if home.ids.is_host_root() { template::detached_alone } else { template::detached };
    let mount = detach(&source)?;
    let mut attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    if !bind.writable {
        attributes |= libc::MOUNT_ATTR_RDONLY;
    }
    sys::mount_setattr(mount.as_fd(), true, attributes, None)?;
    Ok((source, mount))
}

/// Makes the owner's files the sandbox user's, and what the sandbox makes the owner's.
fn map_owner(
    home: &Home,
    source: &OwnedFd,
    mount: &OwnedFd,
    writable: bool,
    taken: Taken,
) -> Result<(), Errno> {
    let owner = rustix::fs::fstat(source)?;
    let map = idmap::mount_map(&home.proc, (owner.st_uid, owner.st_gid), (taken.uid, taken.gid))?;
    match sys::mount_setattr(mount.as_fd(), false, 0, Some(map.as_fd())) {
        // This file system cannot; what is only read is then read with everybody's rights.
        Err(Errno::INVAL) if !writable => Ok(()),
        mapped => mapped,
    }
}

impl Waiting {
    /// Whether it is still there and well.
    pub(super) fn is_well(&self) -> bool {
        let mut polled = [PollFd::new(&self.pidfd, PollFlags::IN), PollFd::new(&self.told, PollFlags::IN)];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut polled, Some(&now)) == Ok(0)
    }

    /// Ends it; gives back what the launcher has to tidy up.
    pub(super) fn discard(self) -> (Option<Group>, Taken) {
        // Only a process that is gone already cannot be killed, and that is what is wanted.
        let _killed = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
        let _reaped = rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED);
        (self.group, self.taken)
    }

    /// Tells it what to run. On failure it is of no further use.
    pub(super) fn order(
        mut self,
        home: &Home,
        jail: &Jail,
        fds: &[OwnedFd],
        started: Instant,
    ) -> Result<Run, Box<(StepFailed, Waiting)>> {
        if let Err(failed) = self.tell(jail, fds) {
            return Err(Box::new((failed, self)));
        }
        let mut layers = inside::layers(jail, home.landlock, self.taken.separate());
        layers.extend(home.groups.controllers().into_iter().map(controller_layer));
        layers.sort();
        Ok(Run::new(self.pidfd, self.told, self.group, self.taken, layers, started, jail.limits.timeout))
    }

    fn tell(&mut self, jail: &Jail, fds: &[OwnedFd]) -> Result<(), StepFailed> {
        if jail.require_separate_uid && !self.taken.separate() {
            return Err(StepFailed::new(Step::UserId, "of its own, as required", Errno::PERM));
        }
        self.hand_over(fds)?;
        self.limit(group_limits(jail))?;
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        // The artifacts pipe, the last one, is PID 1's; all others are the program's.
        let (programs, collectors) = fds.split_at(fds.len() - usize::from(jail.artifacts.is_some()));
        let sent = step(Step::Order, "", || {
            wire::send(self.orders.as_fd(), jail, collectors)?;
            self.seats.iter().try_for_each(|seat| wire::send(seat.as_fd(), jail, programs))
        });
        // Where nobody takes the order, somebody has told why.
        sent.map_err(|failed| inside::read_failure(&self.told).unwrap_or(failed))
    }

    /// A program that opens `/dev/stdout` opens the pipe anew, and must own it to do so. Standard streams only, and
    /// pipes only: anything else belongs to somebody.
    fn hand_over(&self, fds: &[OwnedFd]) -> Result<(), StepFailed> {
        if !self.taken.separate() {
            return Ok(());
        }
        step(Step::Stdio, "", || {
            for pipe in fds.get(1..4).ok_or(Errno::BADF)? {
                if FileType::from_raw_mode(rustix::fs::fstat(pipe)?.st_mode) != FileType::Fifo {
                    return Err(Errno::INVAL);
                }
                let (uid, gid) =
                    (rustix::fs::Uid::from_raw(self.taken.uid), rustix::fs::Gid::from_raw(self.taken.gid));
                rustix::fs::fchown(pipe, Some(uid), Some(gid))?;
            }
            Ok(())
        })
    }

    /// Has the group hold it to these limits, ahead of time where they can be guessed.
    pub(super) fn limit(&mut self, limits: cgroup::Limits) -> Result<(), StepFailed> {
        let Some(group) = self.group.as_ref().filter(|_| self.limits != Some(limits)) else { return Ok(()) };
        group.set_limits(&limits).map_err(|error| {
            let (file, errno) = match error {
                cgroup::Error::Write { file, errno } | cgroup::Error::Open { file, errno } => (file, errno),
                cgroup::Error::Make { errno } => ("", errno),
            };
            StepFailed::new(Step::Cgroup, file, errno)
        })?;
        self.limits = Some(limits);
        Ok(())
    }
}

/// What the group of a jail has to hold it to.
pub(super) fn group_limits(jail: &Jail) -> cgroup::Limits {
    // PID 1 is ours and not the program's, and so is every command that only waits for its turn.
    let pids = jail.limits.processes + jail.commands.len() as u32;
    cgroup::Limits {
        memory_bytes: if fault::without(Layer::CgroupMemory) { 1 << 40 } else { jail.limits.memory_bytes },
        cpu_millis: if fault::without(Layer::CgroupCpu) { 1_000_000 } else { jail.limits.cpu_millis },
        pids: if fault::without(Layer::CgroupPids) { 1 << 20 } else { pids },
    }
}
