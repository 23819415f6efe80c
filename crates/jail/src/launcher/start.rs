//! Starting one jail: a shell is made, ahead of time or now, and then told what to run.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::Signal;

use super::ear::Ear;
use super::home::{Home, controller_layer};
use super::idmap;
use super::ids::Taken;
use super::oom_score::{self, OomScores, Standing};
use super::plot::Plot;
use super::run::Run;
use crate::cgroup::{self, Controller, Group};
use crate::fault;
use crate::inside::{self, Ground, Shell};
use crate::seccomp::{Filter, Wearer};
use crate::spec::{HostBind, INNER_UID, Jail, Layer, Limits, Network, WORKSPACE};
use crate::step::{Step, StepFailed, step};
use crate::sys::{self, Cloned};
use crate::template::{self, Root};
use crate::wire;

/// What a shell is made for.
pub(super) struct Wanted<'a> {
    pub(super) root: &'a Root,
    pub(super) network: Network,
    /// Host folders, the playground among them.
    pub(super) binds: Vec<HostBind>,
    /// How many commands will run in it.
    pub(super) commands: usize,
    /// Whether it stays, and PID 1 becomes the guest.
    pub(super) living: bool,
    /// Where the sockets of its gate go.
    pub(super) gate: Option<&'a OwnedFd>,
}

/// The filters of a cold jail.
pub(super) struct Filters {
    /// Of PID 1.
    plain: Filter,
    /// Of commands.
    heard: Filter,
}

impl Filters {
    pub(super) fn new() -> Self {
        Self {
            plain: Filter::for_this_machine(Wearer::Program),
            heard: Filter::for_this_machine(Wearer::Heard),
        }
    }
}

/// A PID 1 that has set up its place and waits to be told what to run. Used once.
pub(super) struct Waiting {
    /// Number of its root.
    pub(super) root: u64,
    pid: i32,
    pidfd: OwnedFd,
    told: OwnedFd,
    orders: OwnedFd,
    seats: Vec<OwnedFd>,
    /// Where the guest says how soon a process is to go when memory runs out.
    score: Option<OwnedFd>,
    group: Option<Group>,
    /// What the group holds it to so far.
    limits: Option<cgroup::Limits>,
    taken: Taken,
}

/// The parts of a jail that are of use while something runs in it: PID 1, where that tells how things went, and what
/// can be had again.
pub(super) struct Parts {
    pub(super) pid: i32,
    pub(super) pidfd: OwnedFd,
    pub(super) told: Option<OwnedFd>,
    pub(super) remains: Remains,
}

/// What a jail leaves behind for another one.
pub(super) struct Remains {
    pub(super) group: Option<Group>,
    pub(super) lodging: Lodging,
}

/// Whose a jail was.
pub(super) enum Lodging {
    /// Ids of its own, with everything else that it was made of.
    Ids(Taken),
    /// It stood on a plot.
    Plot(Box<Plot>),
}

/// A shell that was killed and is not yet gone.
pub(super) struct Discarded {
    pid: i32,
    pidfd: OwnedFd,
    remains: Remains,
}

impl Discarded {
    /// Whether waiting for it takes no time.
    pub(super) fn is_gone(&self) -> bool {
        is_readable(self.pidfd.as_fd())
    }

    /// Waits until it is gone; gives what is left to tidy up. In the loop only where it is gone, or has done nothing yet.
    pub(super) fn wait(self) -> Remains {
        let _reaped = sys::wait_for(self.pidfd.as_fd());
        self.remains
    }

    /// Whether a process is its PID 1.
    pub(super) fn knows(&self, pid: i32) -> bool {
        self.pid == pid
    }
}

/// Makes a shell.
pub(super) fn prepare(
    home: &mut Home,
    filters: &Filters,
    wanted: &Wanted<'_>,
) -> Result<Waiting, StepFailed> {
    let taken = step(Step::UserId, "", || home.ids.take(!wanted.binds.is_empty()))?;
    prepare_as(home, filters, wanted, taken).inspect_err(|_| home.ids.give_back(taken))
}

fn prepare_as(
    home: &Home,
    filters: &Filters,
    wanted: &Wanted<'_>,
    taken: Taken,
) -> Result<Waiting, StepFailed> {
    let binds = host_binds(home, &wanted.binds, taken)?;
    let guest = wanted.living.then(|| home.guest()).transpose()?;
    let group = if wanted.living { home.make_living_group() } else { home.make_group(1) }?;
    let own_network = wanted.network != Network::Host && !fault::without(Layer::NetNs);
    // Only who owns a network may listen on the port of DNS in it; so one with a gate is PID 1's own until it gives that up.
    let make_network = wanted.network == Network::Own && own_network && home.can_change_network;
    let network = make_network.then(|| home.make_network()).transpose()?;
    let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
    let (told, report) = step(Step::Namespaces, "", pipe)?;
    let (go, let_go) = step(Step::Namespaces, "", pipe)?;
    let (our_orders, orders) = step(Step::Namespaces, "", sys::line)?;
    let lines = (0..wanted.commands).map(|_| step(Step::Namespaces, "", sys::line));
    let (our_seats, seats) = lines.collect::<Result<(Vec<_>, Vec<_>), _>>()?;
    let shell = Shell {
        ground: Ground {
            tree: &wanted.root.tree,
            root: &wanted.root.path,
            binds: &binds,
            owner: (INNER_UID, INNER_UID),
            disk_bytes: None,
        },
        groups: group.as_ref().map_or(&[], Group::join_fds),
        go,
        orders,
        seats,
        report,
        filter: &filters.plain,
        heard: &filters.heard,
        guest,
        gate: wanted.gate,
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
    let mut waiting = Waiting {
        root: wanted.root.number,
        pid,
        pidfd,
        told,
        orders: our_orders,
        seats: our_seats,
        score: None,
        group,
        limits: None,
        taken,
    };
    oom_score::set_oom_score(home, waiting.pid, OomScores::of(Standing::WithinShare, wanted.living).main);
    if wanted.living {
        // Now it still is what this process may change. Where it is not, everybody inside has the same score.
        waiting.score = oom_score::open_oom_score(home, waiting.pid).ok();
    }
    match let_in(home, &waiting, &let_go) {
        Ok(()) => Ok(waiting),
        Err(failed) => {
            // It has done nothing yet.
            waiting.discard().wait();
            Err(failed)
        }
    }
}

/// Gives PID 1 its ids and lets it go on.
fn let_in(home: &Home, waiting: &Waiting, let_go: &OwnedFd) -> Result<(), StepFailed> {
    let (uids, gids) = waiting.taken.maps();
    step(Step::IdMap, "", || {
        idmap::write_maps(&home.proc, waiting.pid, &uids, &gids)?;
        rustix::io::write(let_go, b"1").map(drop)
    })
}

/// The launcher steps into the network for the moment of the clone: its jails own no network namespace, they only
/// live in one.
fn clone_into(
    home: &Home,
    flags: libc::c_int,
    network: Option<&OwnedFd>,
    group: Option<BorrowedFd<'_>>,
) -> Result<Cloned, Errno> {
    if let Some(network) = network {
        sys::setns(network.as_fd(), libc::CLONE_NEWNET)?;
    }
    let cloned = sys::clone(flags, group);
    if network.is_some() && !matches!(cloned, Ok(Cloned::Child)) {
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
        !is_readable(self.pidfd.as_fd()) && !is_readable(self.told.as_fd())
    }

    /// Its number on the host.
    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// Kills it.
    pub(super) fn discard(self) -> Discarded {
        // Only a process that is gone already cannot be killed, and that is what is wanted.
        let _killed = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
        let remains = Remains { group: self.group, lodging: Lodging::Ids(self.taken) };
        Discarded { pid: self.pid, pidfd: self.pidfd, remains }
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
        let layers = layers(home, jail, self.taken);
        let Waiting { pid, pidfd, told, orders, seats, group, taken, .. } = self;
        let parts =
            Parts { pid, pidfd, told: Some(told), remains: Remains { group, lodging: Lodging::Ids(taken) } };
        let ear = if jail.living { Ear::staying(orders) } else { Ear::at(seats) };
        let run = Run::new(parts, layers, started, jail).with_ear(ear);
        Ok(if jail.living { run.living() } else { run })
    }

    fn tell(&mut self, jail: &Jail, fds: &[OwnedFd]) -> Result<(), StepFailed> {
        if jail.require_separate_uid && !self.taken.separate() {
            return Err(StepFailed::new(Step::UserId, "of its own, as required", Errno::PERM));
        }
        // A guest is PID 1 and no command.
        let ours = if jail.living { 1 } else { jail.commands.len() };
        self.limit(group_limits(&jail.limits, ours))?;
        if jail.living {
            let fds: Vec<_> = fds.iter().chain(&self.score).map(AsFd::as_fd).collect();
            return self.sent(wire::send(self.orders.as_fd(), jail, &fds));
        }
        hand_over(fds, self.taken)?;
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        // The artifacts pipe, the last one, is PID 1's; all others are the program's.
        let (programs, collectors) = fds.split_at(fds.len() - usize::from(jail.artifacts.is_some()));
        let sent = wire::send(self.orders.as_fd(), jail, collectors)
            .and_then(|()| self.seats.iter().try_for_each(|seat| wire::send(seat.as_fd(), jail, programs)));
        self.sent(sent)
    }

    /// Where nobody takes the order, somebody has told why.
    fn sent(&self, sent: Result<(), Errno>) -> Result<(), StepFailed> {
        let sent = step(Step::Order, "", || sent);
        sent.map_err(|failed| inside::read_failure(self.told.as_fd()).unwrap_or(failed))
    }

    /// Has the group hold it to these limits, ahead of time where they can be guessed.
    pub(super) fn limit(&mut self, limits: cgroup::Limits) -> Result<(), StepFailed> {
        let Some(group) = self.group.as_ref().filter(|_| self.limits != Some(limits)) else { return Ok(()) };
        limit_group(group, &limits)?;
        self.limits = Some(limits);
        Ok(())
    }
}

/// A program that opens `/dev/stdout` opens the pipe anew, and must own it to do so. Standard streams only, and
/// pipes only: anything else belongs to somebody.
pub(super) fn hand_over(fds: &[OwnedFd], taken: Taken) -> Result<(), StepFailed> {
    if !taken.separate() {
        return Ok(());
    }
    step(Step::Stdio, "", || {
        let (uid, gid) = (rustix::fs::Uid::from_raw(taken.uid), rustix::fs::Gid::from_raw(taken.gid));
        for pipe in fds.get(1..4).ok_or(Errno::BADF)? {
            if FileType::from_raw_mode(rustix::fs::fstat(pipe)?.st_mode) != FileType::Fifo {
                return Err(Errno::INVAL);
            }
            rustix::fs::fchown(pipe, Some(uid), Some(gid))?;
        }
        Ok(())
    })
}

/// Has a group hold what is in it to these limits.
pub(super) fn limit_group(group: &Group, limits: &cgroup::Limits) -> Result<(), StepFailed> {
    group.set_limits(limits).map_err(group_failed)
}

pub(super) fn group_failed(error: cgroup::Error) -> StepFailed {
    let (file, errno) = match error {
        cgroup::Error::Write { file, errno } | cgroup::Error::Open { file, errno } => (file, errno),
        cgroup::Error::Make { errno } => ("", errno),
    };
    StepFailed::new(Step::Cgroup, file, errno)
}

/// What the group of a jail has to hold it to. Of its processes so many are ours and not the program's: PID 1 where it is
/// in there, and every command that only waits for its turn.
pub(super) fn group_limits(limits: &Limits, ours: usize) -> cgroup::Limits {
    let pids = limits.processes + ours as u32;
    cgroup::Limits {
        memory_bytes: if fault::without(Layer::CgroupMemory) { 1 << 40 } else { limits.memory_bytes },
        cpu_millis: if fault::without(Layer::CgroupCpu) { 1_000_000 } else { limits.cpu_millis },
        pids: if fault::without(Layer::CgroupPids) { 1 << 20 } else { pids },
    }
}

/// What will be in force.
pub(super) fn layers(home: &Home, jail: &Jail, taken: Taken) -> Vec<Layer> {
    let mut layers = inside::layers(jail, home.landlock, taken.separate());
    layers.extend(home.groups.controllers().into_iter().map(controller_layer));
    layers.sort();
    layers
}

/// Whether there is something to read, or the other side is gone.
pub(super) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut polled, Some(&now)) != Ok(0)
}
