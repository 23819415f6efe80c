//! Cold starts: sets up a jail, on demand or in advance, and then sends it what to run.

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

/// The parts of a jail that must be known when it is set up, before it is known what will run in it.
pub(super) struct Wanted<'a> {
    pub(super) root: &'a Root,
    pub(super) network: Network,
    /// Host folders, including the playground.
    pub(super) binds: Vec<HostBind>,
    /// How many commands will run in the jail.
    pub(super) commands: usize,
    /// Whether the jail is a sandbox, so that PID 1 becomes the guest.
    pub(super) living: bool,
    /// Where PID 1 sends the sockets of the jail's network gate.
    pub(super) gate: Option<&'a OwnedFd>,
}

/// The seccomp filters of a cold jail.
pub(super) struct Filters {
    /// For PID 1.
    plain: Filter,
    /// For commands; the launcher listens to its notifications.
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

/// A jail that is set up, or about to be, and whose PID 1 waits to learn what to run. Used once.
pub(super) struct Waiting {
    /// The number of its root tree.
    pub(super) root: u64,
    pid: i32,
    pidfd: OwnedFd,
    told: OwnedFd,
    orders: OwnedFd,
    seats: Vec<OwnedFd>,
    /// `oom_score_adj` of PID 1, opened for writing and passed to the guest.
    score: Option<OwnedFd>,
    group: Option<Group>,
    /// The cgroup limits set so far.
    limits: Option<cgroup::Limits>,
    taken: Taken,
}

/// The handles of a jail while something runs in it: PID 1, its report pipe, and what can be recycled
/// afterwards.
pub(super) struct Parts {
    pub(super) pid: i32,
    pub(super) pidfd: OwnedFd,
    pub(super) told: Option<OwnedFd>,
    pub(super) remains: Remains,
}

/// Resources of a jail that a later jail can reuse.
pub(super) struct Remains {
    pub(super) group: Option<Group>,
    pub(super) lodging: Lodging,
}

/// Where the user ids of a jail came from.
pub(super) enum Lodging {
    /// A lease of the jail's own. All its namespaces were its own, too.
    Ids(Taken),
    /// The reusable namespace set that the jail was built on.
    Plot(Box<Plot>),
}

/// A spare jail that was killed but has not exited yet.
pub(super) struct Discarded {
    pid: i32,
    pidfd: OwnedFd,
    remains: Remains,
}

impl Discarded {
    /// Returns whether it has exited, so that `wait` does not block.
    pub(super) fn is_gone(&self) -> bool {
        is_readable(self.pidfd.as_fd())
    }

    /// Waits until it has exited, and returns what can be recycled. In the event loop, call this only if it
    /// has exited or has not done anything yet.
    pub(super) fn wait(self) -> Remains {
        let _reaped = sys::wait_for(self.pidfd.as_fd());
        self.remains
    }

    /// Returns whether a process is its PID 1.
    pub(super) fn knows(&self, pid: i32) -> bool {
        self.pid == pid
    }
}

/// Sets up a jail that then waits to learn what to run.
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
    // Only the owner of a network namespace may bind the DNS port in it. So with a gate, PID 1 owns the
    // namespace until it drops its rights.
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
        // The launcher may open the score only now. If it cannot, all processes in the jail have the same
        // score.
        waiting.score = oom_score::open_oom_score(home, waiting.pid).ok();
    }
    match let_in(home, &waiting, &let_go) {
        Ok(()) => Ok(waiting),
        Err(failed) => {
            // This does not block for long: PID 1 has not done anything yet.
            waiting.discard().wait();
            Err(failed)
        }
    }
}

/// Writes the id maps of PID 1 and lets it proceed.
fn let_in(home: &Home, waiting: &Waiting, let_go: &OwnedFd) -> Result<(), StepFailed> {
    let (uids, gids) = waiting.taken.maps();
    step(Step::IdMap, "", || {
        idmap::write_maps(&home.proc, waiting.pid, &uids, &gids)?;
        rustix::io::write(let_go, b"1").map(drop)
    })
}

/// Clones PID 1 into a network namespace. The launcher enters that namespace for the duration of the clone,
/// because these jails do not own their network namespace.
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

/// Returns the playground of a jail and all its other host folders.
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

/// Opens a host folder and creates a detached mount of it. If the launcher runs as the host's root, mounts
/// below the folder are left out: they may belong to other users, and may not support id mapping.
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

/// Maps ids on the mount: the owner's files appear as the sandbox user's, and files created inside belong to
/// the owner.
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
        // The file system does not support id mapping. A read-only mount is then read with the rights of
        // "others".
        Err(Errno::INVAL) if !writable => Ok(()),
        mapped => mapped,
    }
}

impl Waiting {
    /// Returns whether PID 1 is alive and has reported no failure.
    pub(super) fn is_well(&self) -> bool {
        !is_readable(self.pidfd.as_fd()) && !is_readable(self.told.as_fd())
    }

    /// Returns the pid of its PID 1 on the host.
    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// Kills it.
    pub(super) fn discard(self) -> Discarded {
        // This fails only if the process has already exited.
        let _killed = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
        let remains = Remains { group: self.group, lodging: Lodging::Ids(self.taken) };
        Discarded { pid: self.pid, pidfd: self.pidfd, remains }
    }

    /// Sends it what to run. A jail for which this fails cannot be used again.
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
        // The guest is PID 1; a sandbox starts without commands.
        let ours = if jail.living { 1 } else { jail.commands.len() };
        self.limit(group_limits(&jail.limits, ours))?;
        if jail.living {
            let fds: Vec<_> = fds.iter().chain(&self.score).map(AsFd::as_fd).collect();
            return self.sent(wire::send(self.orders.as_fd(), jail, &fds));
        }
        hand_over(fds, self.taken)?;
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        // The artifacts pipe, which comes last, goes to PID 1; all others go to the program.
        let (programs, collectors) = fds.split_at(fds.len() - usize::from(jail.artifacts.is_some()));
        let sent = wire::send(self.orders.as_fd(), jail, collectors)
            .and_then(|()| self.seats.iter().try_for_each(|seat| wire::send(seat.as_fd(), jail, programs)));
        self.sent(sent)
    }

    /// Returns the failure that PID 1 reported, if it did not take the request.
    fn sent(&self, sent: Result<(), Errno>) -> Result<(), StepFailed> {
        let sent = step(Step::Order, "", || sent);
        sent.map_err(|failed| inside::read_failure(self.told.as_fd()).unwrap_or(failed))
    }

    /// Sets the cgroup limits unless they are already set. Spare jails get them in advance, as a guess.
    pub(super) fn limit(&mut self, limits: cgroup::Limits) -> Result<(), StepFailed> {
        let Some(group) = self.group.as_ref().filter(|_| self.limits != Some(limits)) else { return Ok(()) };
        limit_group(group, &limits)?;
        self.limits = Some(limits);
        Ok(())
    }
}

/// Makes the sandbox user the owner of the standard streams. A program that opens `/dev/stdout` opens the
/// pipe anew, and must own it to do so. Anything but a pipe is refused: it may belong to another user.
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

/// Sets the limits of a cgroup.
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

/// Returns the cgroup limits for a jail. `ours` processes in the cgroup do not count against the program's
/// limit: PID 1, if it is in the cgroup, and every command that waits for its turn.
pub(super) fn group_limits(limits: &Limits, ours: usize) -> cgroup::Limits {
    let pids = limits.processes + ours as u32;
    cgroup::Limits {
        memory_bytes: if fault::without(Layer::CgroupMemory) { 1 << 40 } else { limits.memory_bytes },
        cpu_millis: if fault::without(Layer::CgroupCpu) { 1_000_000 } else { limits.cpu_millis },
        pids: if fault::without(Layer::CgroupPids) { 1 << 20 } else { pids },
    }
}

/// Returns the isolation layers that will be in force in a jail.
pub(super) fn layers(home: &Home, jail: &Jail, taken: Taken) -> Vec<Layer> {
    let mut layers = inside::layers(jail, home.landlock, taken.separate());
    layers.extend(home.groups.controllers().into_iter().map(controller_layer));
    layers.sort();
    layers
}

/// Returns whether there is something to read, or the other end is closed.
pub(super) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut polled, Some(&now)) != Ok(0)
}
