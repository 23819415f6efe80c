//! A zygote's child in a jail: from being asked for, over waiting for something to run, to being a run.
//!
//! ```text
//! jail asked of the builder ──Built──▶ child asked of the zygote ──Born──▶ ┐
//!                                                                ──READY─▶ ┴▶ looked at from outside ──Inspected──▶ waiting
//! waiting ──order──▶ a run
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Signal;

use super::builder::JailBuilder;
use super::child_line::ChildLine;
use super::ear::Ear;
use super::home::Home;
use super::ids::Taken;
use super::plot::Plot;
use super::run::Run;
use super::start::{self, Lodging, Parts, Remains};
use super::zygote::Zygote;
use crate::bare::message::{Birth, BirthStep, MAX_LIMITS, kind, without};
use crate::bare::rights::ResourceLimit;
use crate::cgroup::{Controller, Group};
use crate::inside::{self, BuilderOrder, Expected, JailPlan, NewPlot};
use crate::spec::{ArtifactRules, INNER_UID, Jail, Layer, Limits, Usage, Warmth};
use crate::step::{Step, StepFailed, step};
use crate::{fault, sys};

/// How long a child may take to get ready that imports modules ahead of time.
const READY: Duration = Duration::from_secs(15);

/// What waits for a child to be ready.
pub(super) struct Pending {
    pub(super) run: u64,
    pub(super) jail: Box<Jail>,
    pub(super) fds: Vec<OwnedFd>,
    pub(super) started: Instant,
}

impl Pending {
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.jail.limits.timeout.and_then(|timeout| self.started.checked_add(timeout))
    }
}

/// A child that is due or waits.
pub(super) struct Child {
    pub(super) number: u64,
    pub(super) limits: Limits,
    group: Option<Group>,
    taken: Taken,
    /// Kept, so that the namespace in which the jail lives is.
    builder: Rc<JailBuilder>,
    /// There as soon as the jail stands, unless it stands on one that was there before.
    plot: Option<Plot>,
    jail: Option<BuiltJail>,
    /// PID 1 ends when this is closed.
    leash: OwnedFd,
    /// Until it runs.
    line: ChildLine,
    /// The child's end of it, until the zygote is asked.
    childs_line: Option<OwnedFd>,
    main: Option<Process>,
    listener: Option<OwnedFd>,
    inspection: Inspection,
    awaited: bool,
    /// Whether it imports modules ahead of time, once it has been seen to be confined.
    prepares: bool,
    asked: Instant,
    /// From being asked for to being ready.
    pub(super) took: Duration,
    pub(super) memory_bytes: u64,
    cpu_before: Duration,
}

/// How far a child has come with showing that it is confined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inspection {
    /// It has not said so.
    NotReady,
    /// It says so.
    Claimed,
    /// The builder looks at it.
    UnderWay,
    /// It is, and imports modules ahead of time.
    Preparing,
    /// It is, and waits.
    Passed,
}

/// A jail that stands: PID 1 is in it, and nobody else.
struct BuiltJail {
    init: Process,
    /// Mount, ipc, uts, cgroup and pid.
    namespaces: Vec<OwnedFd>,
    /// The workspace, through which the launcher looks at the disk without a path in it.
    disk: OwnedFd,
    /// Its own `/proc`, until the child has been looked at.
    proc: Option<OwnedFd>,
    /// Landlock's, where the kernel has it.
    rules: Option<OwnedFd>,
}

/// How many namespaces are the jail's own and not its plot's.
const OWN_NAMESPACES: usize = 5;

/// A process of a jail.
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) pidfd: OwnedFd,
}

impl Process {
    fn kill(&self) {
        // Only a process that is gone already cannot be killed, and that is what is wanted.
        let _killed = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    fn is_gone(&self) -> bool {
        start::is_readable(self.pidfd.as_fd())
    }
}

impl Child {
    /// Asks for a child: first of all, for its jail.
    pub(super) fn ask_for(
        number: u64,
        home: &mut Home,
        zygote: &mut Zygote,
        limits: &Limits,
        awaited: bool,
    ) -> Result<Self, StepFailed> {
        let plot = zygote.take_plot();
        let taken = match &plot {
            Some(plot) => plot.taken,
            None => step(Step::UserId, "", || home.ids.take(false))?,
        };
        Self::send_for(number, home, zygote, (plot, taken), limits, awaited)
            .inspect_err(|_| home.ids.give_back(taken))
    }

    fn send_for(
        number: u64,
        home: &Home,
        zygote: &Zygote,
        (plot, taken): (Option<Plot>, Taken),
        limits: &Limits,
        awaited: bool,
    ) -> Result<Self, StepFailed> {
        let group = home.make_group(0)?;
        if let Some(group) = &group {
            start::limit_group(group, &start::group_limits(limits, 0))?;
        }
        let (line, childs_line) = step(Step::Namespaces, "", sys::line)?;
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
            group,
            taken,
            builder: Rc::clone(zygote.builder()),
            plot,
            jail: None,
            leash,
            line: ChildLine::new(line),
            childs_line: Some(childs_line),
            main: None,
            listener: None,
            inspection: Inspection::NotReady,
            awaited,
            prepares: !awaited && zygote.children_prepare(),
            asked: Instant::now(),
            took: Duration::ZERO,
            memory_bytes: 0,
            cpu_before: Duration::ZERO,
        })
    }

    /// Its jail stands: the zygote is asked to fork into it.
    pub(super) fn built(
        &mut self,
        home: &Home,
        zygote: &mut Zygote,
        fds: Vec<OwnedFd>,
        has_rules: bool,
    ) -> Result<(), StepFailed> {
        self.take_jail(home, zygote.number(), fds, has_rules)?;
        let (Some(jail), Some(plot), Some(line)) = (&self.jail, &self.plot, self.childs_line.take()) else {
            return Err(StepFailed::new(Step::Order, "", Errno::BADMSG));
        };
        let doors = match &self.group {
            Some(group) => group.doors_as(self.taken.uid).map_err(start::group_failed)?,
            None => Vec::new(),
        };
        let birth = birth(home, self.taken.separate(), &self.limits, self.awaited, jail.rules.is_some());
        let mut fds = namespaces(plot, jail);
        fds.push(line.as_fd());
        fds.extend(jail.rules.iter().chain(&doors).map(AsFd::as_fd));
        zygote.ask(self.number, &birth, &fds)
    }

    fn take_jail(
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
        self.jail =
            Some(BuiltJail { init: Process { pid, pidfd }, namespaces, disk, proc: Some(proc), rules });
        if self.plot.is_none() {
            self.plot = Plot::new(zygote, self.taken, Rc::clone(&self.builder), fds);
        }
        Ok(())
    }

    /// The zygote had it.
    pub(super) fn born(&mut self, main: Process) {
        self.main = Some(main);
    }

    /// What to watch while it is due.
    pub(super) fn watched(&self) -> BorrowedFd<'_> {
        self.line.watched()
    }

    /// When it has taken too long to get ready, though nobody waits for it: a module that it imports may never come back.
    pub(super) fn overdue(&self) -> Instant {
        self.asked + READY
    }

    /// Whether there is something to hear from it yet.
    pub(super) fn is_silent(&self) -> bool {
        matches!(self.inspection, Inspection::NotReady | Inspection::Preparing) && self.childs_line.is_none()
    }

    /// Hears whether it is ready.
    pub(super) fn hear(&mut self) -> Result<(), StepFailed> {
        let heard = match self.line.hear() {
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            heard => heard.map_err(|errno| StepFailed::new(Step::Order, "", errno))?,
        };
        match heard {
            Some(heard) if heard.kind == kind::READY => {
                match self.inspection {
                    Inspection::Preparing => self.inspection = Inspection::Passed,
                    _ => {
                        self.listener = heard.fds.into_iter().next();
                        self.inspection = Inspection::Claimed;
                    }
                }
                Ok(())
            }
            Some(heard) => Err(heard.failure),
            None => Err(StepFailed::new(Step::Fork, "(it was killed)", Errno::CHILD)),
        }
    }

    /// Has a child that says it is confined looked at from outside.
    pub(super) fn have_inspected(&mut self, home: &Home) -> Result<(), StepFailed> {
        let (Inspection::Claimed, Some(main), Some(jail), Some(plot)) =
            (self.inspection, &self.main, &self.jail, &self.plot)
        else {
            return Ok(());
        };
        let mut fds: Vec<_> = jail.proc.iter().map(AsFd::as_fd).collect();
        fds.extend(namespaces(plot, jail));
        fds.push(main.pidfd.as_fd());
        if let Some(group) = &self.group {
            fds.extend(group.newer_doors().map_err(start::group_failed)?);
        }
        let expected = expected(home, self.number, self.taken, &self.limits, self.group.as_ref());
        self.builder.ask(&BuilderOrder::Inspect(Box::new(expected)), &fds)?;
        self.inspection = Inspection::UnderWay;
        Ok(())
    }

    /// It is what it must be. One that prepares is told to.
    pub(super) fn passed(&mut self) -> Result<(), StepFailed> {
        self.inspection = if self.prepares { Inspection::Preparing } else { Inspection::Passed };
        // What nobody needs any more is not kept open while it waits.
        if let Some(jail) = &mut self.jail {
            jail.namespaces.clear();
            (jail.proc, jail.rules) = (None, None);
        }
        if self.prepares {
            step(Step::Order, "", || self.line.have_prepared())?;
        }
        Ok(())
    }

    /// It waits from now on: what it took to get there is not its program's.
    pub(super) fn settle(&mut self, home: &Home) {
        self.took = self.asked.elapsed();
        self.memory_bytes = self.group.as_ref().and_then(Group::memory).unwrap_or(0);
        let counted = self.group.as_ref().and_then(|group| group.usage().cpu);
        let seen = || self.main.as_ref().map(|main| seen(home, main.pid).cpu);
        self.cpu_before = counted.or_else(seen).unwrap_or_default();
    }

    /// Whether it can be told what to run.
    pub(super) fn is_ready(&self) -> bool {
        self.inspection == Inspection::Passed
    }

    /// Its processes, as far as they are known.
    fn processes(&self) -> impl Iterator<Item = &Process> {
        self.main.iter().chain(self.jail.iter().map(|jail| &jail.init))
    }

    /// Whether one of its processes has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.processes().any(Process::is_gone)
    }

    /// Whether it still waits and is well.
    pub(super) fn is_well(&self) -> bool {
        self.is_ready() && !self.has_ended()
    }

    /// Its number on the host. Its PID 1 has no memory of its own.
    pub(super) fn pid(&self) -> Option<u32> {
        self.main.as_ref().map(|main| main.pid as u32)
    }

    /// Whether a process is its own or its PID 1.
    pub(super) fn knows(&self, pid: u32) -> bool {
        self.processes().any(|process| process.pid as u32 == pid)
    }

    /// Tells it what to run. On failure it is of no further use.
    pub(super) fn order(
        mut self,
        home: &Home,
        pending: &mut Pending,
        warmth: Warmth,
    ) -> Result<Run, Box<(StepFailed, Child)>> {
        if let Err(failed) = self.tell(pending) {
            return Err(Box::new((failed, self)));
        }
        let (main, jail, plot) = match (self.main.take(), self.jail.take(), self.plot.take()) {
            (Some(main), Some(jail), Some(plot)) => (main, jail, plot),
            (main, jail, plot) => {
                let failed = StepFailed::new(Step::Order, "", Errno::BADF);
                return Err(Box::new((failed, Child { main, jail, plot, ..self })));
            }
        };
        let wanted = &pending.jail;
        let layers = start::layers(home, wanted, self.taken);
        let remains = Remains { group: self.group, lodging: Lodging::Plot(Box::new(plot)) };
        let parts = Parts { pid: jail.init.pid, pidfd: jail.init.pidfd, told: None, remains };
        let child = RunningChild {
            pid: main.pid,
            pidfd: main.pidfd,
            reaped: None,
            line: self.line,
            _leash: self.leash,
            disk: jail.disk,
            collector: pending.fds.drain(programs(pending)..).next(),
            rules: wanted.artifacts.clone(),
            cpu_before: self.cpu_before,
        };
        let run = Run::new(parts, layers, pending.started, &wanted.limits);
        Ok(run.with_child(child, warmth).with_ear(Ear::of(self.listener)))
    }

    fn tell(&mut self, pending: &Pending) -> Result<(), StepFailed> {
        start::hand_over(&pending.fds, self.taken)?;
        let fds: Vec<_> = pending.fds[..programs(pending)].iter().map(AsFd::as_fd).collect();
        step(Step::Order, "", || self.line.send(pending.jail.workdir.as_bytes(), &fds))
    }

    /// Ends it.
    pub(super) fn discard(self) -> Dying {
        self.processes().for_each(Process::kill);
        let lodging = match self.plot {
            Some(plot) => Lodging::Plot(Box::new(plot)),
            None => Lodging::Ids(self.taken),
        };
        Dying {
            number: self.number,
            main: self.main,
            is_unheard: self.jail.is_none(),
            init: self.jail.map(|jail| jail.init),
            builder: self.builder,
            remains: Some(Remains { group: self.group, lodging }),
        }
    }
}

/// The namespaces of a child, in the order in which it enters them.
fn namespaces<'a>(plot: &'a Plot, jail: &'a BuiltJail) -> Vec<BorrowedFd<'a>> {
    [&plot.user, &plot.network].into_iter().chain(&jail.namespaces).map(AsFd::as_fd).collect()
}

/// How many of the descriptors are the program's. The artifacts pipe, the last one, is the collector's.
fn programs(pending: &Pending) -> usize {
    pending.fds.len() - usize::from(pending.jail.artifacts.is_some())
}

/// A child that was killed. PID 1 is gone when the launcher has waited for everybody else in there.
pub(super) struct Dying {
    pub(super) number: u64,
    main: Option<Process>,
    init: Option<Process>,
    builder: Rc<JailBuilder>,
    /// Its jail is still being built.
    is_unheard: bool,
    remains: Option<Remains>,
}

impl Dying {
    /// The builder has answered about its jail: PID 1 has lost its leash, and ends.
    pub(super) fn built(&mut self, home: &Home, init: Option<OwnedFd>) {
        let pid = init.as_ref().and_then(|pidfd| home.pid_of(pidfd).ok());
        self.init = init.zip(pid).map(|(pidfd, pid)| Process { pid, pidfd });
        self.is_unheard = false;
    }

    /// Waits for what has ended; what is left to tidy up when nothing lives any more.
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

fn birth(home: &Home, separate: bool, wanted: &Limits, awaited: bool, has_rules: bool) -> Birth {
    let resources = resource_limits(home, separate, wanted);
    let mut limits = [ResourceLimit::default(); MAX_LIMITS];
    limits[..resources.len()].copy_from_slice(&resources);
    let (without, fail) = faults();
    Birth {
        uid: INNER_UID,
        awaited: awaited.into(),
        has_rules: has_rules.into(),
        limits_len: resources.len() as u32,
        limits,
        without,
        fail,
    }
}

fn resource_limits(home: &Home, separate: bool, wanted: &Limits) -> Vec<ResourceLimit> {
    let ours = inside::processes_of_ours(separate, home.has(Controller::Pids));
    inside::resource_limits(wanted, ours, !home.has(Controller::Memory))
}

/// What a child with these limits must be, seen from outside; without what a test leaves out.
fn expected(home: &Home, number: u64, taken: Taken, limits: &Limits, group: Option<&Group>) -> Expected {
    let resources = resource_limits(home, taken.separate(), limits);
    let rlimits = resources.iter().map(|limit| (limit.resource, limit.hard)).collect();
    Expected {
        number,
        uid: taken.uid,
        gid: taken.gid,
        no_groups: home.ids.is_host_root(),
        rlimits: if fault::without(Layer::Rlimits) { Vec::new() } else { rlimits },
        groups: group.map(Group::paths).unwrap_or_default(),
        no_new_privs: !fault::without(Layer::NoNewPrivs),
        no_capabilities: !fault::without(Layer::NoCapabilities),
        filters: if fault::without(Layer::Seccomp) { 0 } else { 2 },
    }
}

/// For tests: layers that a child leaves out, and a step that fails.
fn faults() -> (u32, u32) {
    let layers = [
        (Layer::Rlimits, without::RLIMITS),
        (Layer::NoCapabilities, without::CAPABILITIES),
        (Layer::NoNewPrivs, without::NO_NEW_PRIVS),
        (Layer::Landlock, without::LANDLOCK),
        (Layer::Seccomp, without::SECCOMP),
        (Layer::CgroupNs, without::CGROUP_NAMESPACE),
    ];
    let without =
        layers.iter().filter(|(layer, _)| fault::without(*layer)).fold(0, |all, (_, bit)| all | bit);
    let failing = (1..).map_while(BirthStep::of).find(|step| fault::inject(inside::step_of(*step)).is_err());
    (without, failing.map_or(0, |step| step as u32))
}

/// What a process has used so far, and the children that it waited for, where no control group counts.
fn seen(home: &Home, pid: i32) -> Usage {
    let read = |file: &str| -> Option<String> {
        let path = format!("{pid}/{file}");
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&home.proc, path, flags, Mode::empty()).ok()?;
        let mut text = [0; 2 << 10];
        let len = rustix::io::read(&file, &mut text).ok()?;
        String::from_utf8(text[..len].to_vec()).ok()
    };
    let first = |text: String| text.split_whitespace().next()?.parse().ok();
    let own = read("schedstat").and_then(first).map_or(Duration::ZERO, Duration::from_nanos);
    // The kernel counts these in hundredths of a second; behind the name, which may hold anything, they are 14 and 15.
    let ticks = read("stat").and_then(|text| {
        let (_, fields) = text.rsplit_once(')')?;
        let of_children = fields.split_whitespace().skip(13).take(2);
        Some(of_children.filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>())
    });
    let peak = read("status").and_then(|text| {
        let kilobytes = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        kilobytes.split_whitespace().next()?.parse::<u64>().ok()
    });
    Usage {
        cpu: own + Duration::from_millis(10 * ticks.unwrap_or(0)),
        peak_memory_bytes: peak.unwrap_or(0) << 10,
        peak_processes: None,
    }
}

/// A child that was told what to run.
pub(super) struct RunningChild {
    pid: i32,
    pub(super) pidfd: OwnedFd,
    /// As `wait` gives it, once it was waited for.
    reaped: Option<i32>,
    line: ChildLine,
    /// PID 1 ends when this is closed.
    _leash: OwnedFd,
    disk: OwnedFd,
    /// Where artifacts go.
    collector: Option<OwnedFd>,
    rules: Option<ArtifactRules>,
    pub(super) cpu_before: Duration,
}

impl RunningChild {
    /// Waits for it; it has ended, or everybody in its jail has.
    pub(super) fn reap(&mut self) -> i32 {
        *self.reaped.get_or_insert_with(|| sys::put_an_end_to(self.pidfd.as_fd()).unwrap_or(libc::SIGKILL))
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// What it has used so far, as far as `/proc` tells; before it was waited for.
    pub(super) fn usage(&self, home: &Home) -> Usage {
        seen(home, self.pid)
    }

    pub(super) fn is_reaped(&self) -> bool {
        self.reaped.is_some()
    }

    /// A step that failed after the order.
    pub(super) fn failure(&self) -> Option<StepFailed> {
        self.line.hear().ok().flatten().map(|heard| heard.failure)
    }

    /// No block or no inode is left.
    pub(super) fn disk_is_full(&self) -> bool {
        rustix::fs::fstatfs(&self.disk).is_ok_and(|disk| disk.f_bfree == 0 || disk.f_ffree == 0)
    }

    /// Whether the program left something to collect: one name, looked up without following anything.
    pub(super) fn left_artifacts(&self) -> bool {
        self.collector.is_some()
            && rustix::fs::statat(&self.disk, "artifacts", AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    pub(super) fn take_collector_pipe(&mut self) -> Option<OwnedFd> {
        self.collector.take()
    }

    pub(super) fn artifact_rules(&self) -> Option<&ArtifactRules> {
        self.rules.as_ref()
    }

    pub(super) fn disk(&self) -> &OwnedFd {
        &self.disk
    }
}
