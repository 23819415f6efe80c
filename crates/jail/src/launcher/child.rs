//! A zygote's child in a jail: from being asked for, over waiting for something to run, to being a run.
//!
//! ```text
//! asked of the zygote, for a built jail ──Born──▶ ┐
//!                                       ──READY─▶ ┴▶ looked at from outside ──Inspected──▶ waiting
//! waiting ──order──▶ a run
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Signal;

use super::child_line::ChildLine;
use super::ear::Ear;
use super::home::Home;
use super::run::Run;
use super::start::{self, Lodging, Parts, Remains};
use super::warm_jail::{Dying, WarmJail};
use super::zygote::Zygote;
use crate::bare::message::{Birth, BirthStep, MAX_LIMITS, kind, without};
use crate::bare::rights::ResourceLimit;
use crate::cgroup::{Controller, Group};
use crate::inside::{self, BuilderOrder, Expected};
use crate::spec::{ArtifactRules, INNER_UID, Jail, Layer, Limits, Usage, Warmth};
use crate::step::{Step, StepFailed, step};
use crate::{fault, sys};

/// How long a jail may take to be built, or a child to get ready, that no request waits for.
pub(super) const READY: Duration = Duration::from_secs(15);

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
    jail: WarmJail,
    /// Until it runs.
    line: ChildLine,
    main: Option<Process>,
    listener: Option<OwnedFd>,
    inspection: Inspection,
    /// Whether it imports modules ahead of time, once it has been seen to be confined.
    prepares: bool,
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

/// A process of a jail.
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) pidfd: OwnedFd,
}

impl Process {
    pub(super) fn kill(&self) {
        // Only a process that is gone already cannot be killed, and that is what is wanted.
        let _killed = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    pub(super) fn is_gone(&self) -> bool {
        start::is_readable(self.pidfd.as_fd())
    }
}

impl Child {
    /// Asks a zygote to fork into a jail that stands. On failure the jail is given back.
    pub(super) fn ask_for(
        home: &Home,
        zygote: &mut Zygote,
        jail: WarmJail,
        awaited: bool,
    ) -> Result<Self, Box<(StepFailed, WarmJail)>> {
        match send_birth(home, zygote, &jail, awaited) {
            Ok(line) => Ok(Self {
                prepares: !awaited && zygote.children_prepare(),
                jail,
                line: ChildLine::new(line),
                main: None,
                listener: None,
                inspection: Inspection::NotReady,
                took: Duration::ZERO,
                memory_bytes: 0,
                cpu_before: Duration::ZERO,
            }),
            Err(failed) => Err(Box::new((failed, jail))),
        }
    }

    /// Its number, which is the one of its jail.
    pub(super) fn number(&self) -> u64 {
        self.jail.number
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.jail.limits
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
        self.jail.asked + READY
    }

    /// Whether there is something to hear from it yet.
    pub(super) fn is_silent(&self) -> bool {
        matches!(self.inspection, Inspection::NotReady | Inspection::Preparing)
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
        let (Inspection::Claimed, Some(main), Some(built), Some(namespaces)) =
            (self.inspection, &self.main, &self.jail.built, self.jail.namespaces())
        else {
            return Ok(());
        };
        let mut fds: Vec<_> = built.proc.iter().map(AsFd::as_fd).collect();
        fds.extend(namespaces);
        fds.push(main.pidfd.as_fd());
        if let Some(group) = &self.jail.group {
            fds.extend(group.newer_doors().map_err(start::group_failed)?);
        }
        self.jail.builder.ask(&BuilderOrder::Inspect(Box::new(expected(home, &self.jail))), &fds)?;
        self.inspection = Inspection::UnderWay;
        Ok(())
    }

    /// It is what it must be. One that prepares is told to.
    pub(super) fn passed(&mut self) -> Result<(), StepFailed> {
        self.inspection = if self.prepares { Inspection::Preparing } else { Inspection::Passed };
        self.jail.close_unneeded();
        if self.prepares {
            step(Step::Order, "", || self.line.have_prepared())?;
        }
        Ok(())
    }

    /// It waits from now on: what it took to get there is not its program's.
    pub(super) fn settle(&mut self, home: &Home) {
        self.took = self.jail.asked.elapsed();
        self.memory_bytes = self.jail.group.as_ref().and_then(Group::memory).unwrap_or(0);
        let counted = self.jail.group.as_ref().and_then(|group| group.usage().cpu);
        let seen = || self.main.as_ref().map(|main| seen(home, main.pid).cpu);
        self.cpu_before = counted.or_else(seen).unwrap_or_default();
    }

    /// Whether it can be told what to run.
    pub(super) fn is_ready(&self) -> bool {
        self.inspection == Inspection::Passed
    }

    /// Its processes, as far as they are known.
    fn processes(&self) -> impl Iterator<Item = &Process> {
        self.main.iter().chain(self.jail.init())
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
        let (main, built, plot) = match (self.main.take(), self.jail.built.take(), self.jail.plot.take()) {
            (Some(main), Some(built), Some(plot)) => (main, built, plot),
            (main, built, plot) => {
                let failed = StepFailed::new(Step::Order, "", Errno::BADF);
                return Err(Box::new((
                    failed,
                    Child { main, jail: WarmJail { built, plot, ..self.jail }, ..self },
                )));
            }
        };
        let wanted = &pending.jail;
        let layers = start::layers(home, wanted, self.jail.taken);
        let remains = Remains { group: self.jail.group, lodging: Lodging::Plot(Box::new(plot)) };
        let parts = Parts { pid: built.init.pid, pidfd: built.init.pidfd, told: None, remains };
        let child = RunningChild {
            pid: main.pid,
            pidfd: main.pidfd,
            reaped: None,
            line: self.line,
            _leash: self.jail.leash,
            disk: Some(built.disk),
            collector: pending.fds.drain(programs(pending)..).next(),
            rules: wanted.artifacts.clone(),
            cpu_before: self.cpu_before,
        };
        let run = Run::new(parts, layers, pending.started, wanted);
        Ok(run.with_child(child, warmth).with_ear(Ear::of(self.listener)))
    }

    fn tell(&mut self, pending: &Pending) -> Result<(), StepFailed> {
        start::hand_over(&pending.fds, self.jail.taken)?;
        let fds: Vec<_> = pending.fds[..programs(pending)].iter().map(AsFd::as_fd).collect();
        step(Step::Order, "", || self.line.send(pending.jail.workdir.as_bytes(), &fds))
    }

    /// Ends it.
    pub(super) fn discard(self) -> Dying {
        self.jail.discard(self.main)
    }
}

/// How many of the descriptors are the program's. The artifacts pipe, the last one, is the collector's.
fn programs(pending: &Pending) -> usize {
    pending.fds.len() - usize::from(pending.jail.artifacts.is_some())
}

/// Sends a zygote the order for a child; gives the launcher's end of the child's line.
fn send_birth(
    home: &Home,
    zygote: &mut Zygote,
    jail: &WarmJail,
    awaited: bool,
) -> Result<OwnedFd, StepFailed> {
    let (Some(built), Some(mut fds)) = (&jail.built, jail.namespaces()) else {
        return Err(StepFailed::new(Step::Order, "", Errno::BADMSG));
    };
    let (line, childs_line) = step(Step::Namespaces, "", sys::line)?;
    let birth = birth(home, jail.taken.separate(), &jail.limits, awaited, built.rules.is_some());
    fds.push(childs_line.as_fd());
    fds.extend(built.rules.iter().chain(&built.group_files).map(AsFd::as_fd));
    zygote.ask(jail.number, &birth, &fds)?;
    Ok(line)
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

/// What a child in this jail must be, seen from outside; without what a test leaves out.
fn expected(home: &Home, jail: &WarmJail) -> Expected {
    let resources = resource_limits(home, jail.taken.separate(), &jail.limits);
    let rlimits = resources.iter().map(|limit| (limit.resource, limit.hard)).collect();
    Expected {
        number: jail.number,
        uid: jail.taken.uid,
        gid: jail.taken.gid,
        no_groups: home.ids.is_host_root(),
        rlimits: if fault::without(Layer::Rlimits) { Vec::new() } else { rlimits },
        groups: jail.group.as_ref().map(Group::paths).unwrap_or_default(),
        no_new_privs: !fault::without(Layer::NoNewPrivs),
        no_capabilities: !fault::without(Layer::NoCapabilities),
        filters: if fault::without(Layer::Seccomp) { 0 } else { 2 },
    }
}

/// For tests: layers that a child leaves out, and a step that fails.
pub(super) fn faults() -> (u32, u32) {
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
    /// Until it is killed.
    disk: Option<OwnedFd>,
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
        let disk = self.disk.as_ref().and_then(|disk| rustix::fs::fstatfs(disk).ok());
        disk.is_some_and(|disk| disk.f_bfree == 0 || disk.f_ffree == 0)
    }

    /// Whether the program left something to collect: one name, looked up without following anything.
    pub(super) fn left_artifacts(&self) -> bool {
        let left = |disk: &OwnedFd| rustix::fs::statat(disk, "artifacts", AtFlags::SYMLINK_NOFOLLOW).is_ok();
        self.collector.is_some() && self.disk.as_ref().is_some_and(left)
    }

    pub(super) fn take_collector_pipe(&mut self) -> Option<OwnedFd> {
        self.collector.take()
    }

    pub(super) fn artifact_rules(&self) -> Option<&ArtifactRules> {
        self.rules.as_ref()
    }

    pub(super) fn disk(&self) -> Option<&OwnedFd> {
        self.disk.as_ref()
    }

    /// Lets go of the disk while another process still holds it: freeing what a program wrote takes as long as that is
    /// large, and the last process to close it does that.
    pub(super) fn close_disk(&mut self) {
        self.disk = None;
    }
}
