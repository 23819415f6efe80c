//! A warm jail: requested from the builder, then built, then entered by a child.
//!
//! A request that finds a built jail waits only for the fork, so in `fork` mode some jails are built ahead of
//! demand.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

use rustix::io::Errno;

use super::builder::JailBuilder;
use super::child::{Process, faults};
use super::home::Home;
use super::ids::Taken;
use super::plot::Plot;
use super::start::{self, Lodging, Remains};
use super::zygote::Zygote;
use crate::cgroup::Group;
use crate::inside::{self, BuilderOrder, JailPlan, NewPlot};
use crate::spec::Limits;
use crate::step::{Step, StepFailed, step};
use crate::sys;

/// Number of namespaces that belong to the jail itself and not to its namespace set.
const OWN_NAMESPACES: usize = 5;

/// A jail that the builder is building or has built.
pub(super) struct WarmJail {
    /// The number of the jail and of the child that enters it.
    pub(super) number: u64,
    pub(super) limits: Limits,
    /// Whether it is reserved for an idle child.
    pub(super) for_pool: bool,
    pub(super) asked: Instant,
    pub(super) group: Option<Group>,
    pub(super) taken: Taken,
    /// Keeps the builder alive, and with it the pid namespace of the jail.
    pub(super) builder: Rc<JailBuilder>,
    /// The namespace set: a reused one from the start, a new one once the jail is built.
    pub(super) plot: Option<Plot>,
    pub(super) built: Option<BuiltJail>,
    /// The liveness pipe: PID 1 exits when it is closed.
    pub(super) leash: OwnedFd,
}

/// The parts of a built jail, in which PID 1 is the only process.
pub(super) struct BuiltJail {
    pub(super) init: Process,
    /// The mount, ipc, uts, cgroup and pid namespaces, in this order.
    namespaces: Vec<OwnedFd>,
    /// Files through which the child joins its cgroups, opened with the rights of its own user.
    pub(super) group_files: Vec<OwnedFd>,
    /// The workspace, through which the launcher inspects the disk without resolving a path in it.
    pub(super) disk: OwnedFd,
    /// The jail's own `/proc`, until the child has been inspected.
    pub(super) proc: Option<OwnedFd>,
    /// The Landlock ruleset, if the kernel supports Landlock.
    pub(super) rules: Option<OwnedFd>,
}

impl WarmJail {
    /// Asks a zygote's builder to build a jail.
    pub(super) fn ask_for(
        number: u64,
        home: &mut Home,
        zygote: &mut Zygote,
        limits: &Limits,
        for_pool: bool,
    ) -> Result<Self, StepFailed> {
        let plot = zygote.take_plot();
        let taken = match &plot {
            Some(plot) => plot.taken,
            None => step(Step::UserId, "", || home.ids.take(false))?,
        };
        Self::send_for(number, home, zygote, (plot, taken), limits, for_pool)
            .inspect_err(|_| home.ids.give_back(taken))
    }

    fn send_for(
        number: u64,
        home: &Home,
        zygote: &Zygote,
        (plot, taken): (Option<Plot>, Taken),
        limits: &Limits,
        for_pool: bool,
    ) -> Result<Self, StepFailed> {
        let group = home.make_group(0)?;
        if let Some(group) = &group {
            start::limit_group(group, &start::group_limits(limits, 0))?;
        }
        let (end, leash) =
            step(Step::Namespaces, "", || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC))?;
        let mut fds = vec![end.as_fd()];
        fds.extend(
            plot.iter().flat_map(|plot| [plot.user.as_fd(), plot.network.as_fd(), plot.mounts.as_fd()]),
        );
        if let Some(group) = &group {
            fds.extend(group.doors().map_err(start::group_failed)?);
        }
        let (without, fail) = faults();
        let (uids, gids) = taken.maps();
        let own_init_uid = taken.separate();
        let plan = JailPlan {
            number,
            new_plot: plot.is_none().then_some(NewPlot { uids, gids, own_init_uid }),
            own_init_uid,
            disk_options: inside::disk_options(limits.disk_bytes),
            without,
            fail,
        };
        zygote.builder().ask(&BuilderOrder::Build(plan), &fds)?;
        drop(fds);
        Ok(Self {
            number,
            limits: *limits,
            for_pool,
            asked: Instant::now(),
            group,
            taken,
            builder: Rc::clone(zygote.builder()),
            plot,
            built: None,
            leash,
        })
    }

    /// Takes ownership of the descriptors of a jail that the builder has built.
    pub(super) fn take_built(
        &mut self,
        home: &Home,
        zygote: u64,
        fds: Vec<OwnedFd>,
        has_rules: bool,
    ) -> Result<(), StepFailed> {
        let lost = || StepFailed::new(Step::Order, "", Errno::BADMSG);
        let mut fds = fds.into_iter();
        let pidfd = fds.next().ok_or_else(lost)?;
        let pid = step(Step::Init, "(it was killed)", || home.pid_of(&pidfd))?;
        let namespaces: Vec<OwnedFd> = fds.by_ref().take(OWN_NAMESPACES).collect();
        let (disk, proc) = fds.next().zip(fds.next()).ok_or_else(lost)?;
        let rules = if has_rules { fds.next() } else { None };
        if self.plot.is_none() {
            self.plot = Plot::new(zygote, self.taken, Rc::clone(&self.builder), fds);
        }
        let group_files = match &self.group {
            Some(group) => group.doors_as(self.taken.uid).map_err(start::group_failed)?,
            None => Vec::new(),
        };
        let init = Process { pid, pidfd };
        self.built = Some(BuiltJail { init, namespaces, group_files, disk, proc: Some(proc), rules });
        Ok(())
    }

    /// Returns the namespaces of a child, in the order in which it enters them.
    pub(super) fn namespaces(&self) -> Option<Vec<BorrowedFd<'_>>> {
        let (plot, built) = (self.plot.as_ref()?, self.built.as_ref()?);
        Some([&plot.user, &plot.network].into_iter().chain(&built.namespaces).map(AsFd::as_fd).collect())
    }

    /// Closes descriptors that only the inspection needs.
    pub(super) fn close_unneeded(&mut self) {
        if let Some(built) = &mut self.built {
            built.namespaces.clear();
            built.group_files.clear();
            (built.proc, built.rules) = (None, None);
        }
    }

    /// Returns whether a child can enter it.
    pub(super) fn is_ready(&self) -> bool {
        self.built.is_some() && !self.init().is_some_and(Process::is_gone)
    }

    /// Returns its PID 1, once the jail is built.
    pub(super) fn init(&self) -> Option<&Process> {
        self.built.as_ref().map(|built| &built.init)
    }

    /// Kills it, and the child in it, if there is one.
    pub(super) fn discard(self, main: Option<Process>) -> Dying {
        main.iter().chain(self.init()).for_each(Process::kill);
        let lodging = match self.plot {
            Some(plot) => Lodging::Plot(Box::new(plot)),
            None => Lodging::Ids(self.taken),
        };
        Dying {
            number: self.number,
            main,
            is_unheard: self.built.is_none(),
            init: self.built.map(|built| built.init),
            builder: self.builder,
            remains: Some(Remains { group: self.group, lodging }),
        }
    }
}

/// A killed jail. PID 1 exits once the launcher has reaped every other process in the jail.
pub(super) struct Dying {
    pub(super) number: u64,
    main: Option<Process>,
    init: Option<Process>,
    builder: Rc<JailBuilder>,
    /// Whether the builder has not answered yet: the jail is still being built.
    is_unheard: bool,
    remains: Option<Remains>,
}

impl Dying {
    /// Handles the builder's answer. PID 1 exits by itself, because its liveness pipe is closed.
    pub(super) fn built(&mut self, home: &Home, init: Option<OwnedFd>) {
        let pid = init.as_ref().and_then(|pidfd| home.pid_of(pidfd).ok());
        self.init = init.zip(pid).map(|(pidfd, pid)| Process { pid, pidfd });
        self.is_unheard = false;
    }

    /// Reaps the processes that have exited. Returns what can be recycled, once none is left.
    pub(super) fn bury(&mut self) -> Option<Remains> {
        for process in [&mut self.main, &mut self.init] {
            if process.as_ref().is_some_and(Process::is_gone)
                && let Some(process) = process.take()
            {
                let _reaped = sys::wait_for(process.pidfd.as_fd());
            }
        }
        let may_come = self.is_unheard && !self.builder.is_gone();
        if self.main.is_none() && self.init.is_none() && !may_come { self.remains.take() } else { None }
    }

    pub(super) fn knows(&self, pid: i32) -> bool {
        [&self.main, &self.init].into_iter().flatten().any(|process| process.pid == pid)
    }
}
