//! A warm child: a fork of a zygote in its own jail, from the fork request until it runs a program.
//!
//! ```text
//! fork requested into a built jail ──Forked──▶ ┐
//!                                  ──READY───▶ ┴▶ inspected from outside ──Inspected──▶ idle
//! idle ──request──▶ a run
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

/// Time limit for building a jail, or preparing a child, that no request waits for.
pub(super) const READY: Duration = Duration::from_secs(15);

/// A request that waits to be started.
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

/// A child that is in preparation or idle.
pub(super) struct Child {
    jail: WarmJail,
    /// The connection to the child until it runs a program.
    line: ChildLine,
    main: Option<Process>,
    listener: Option<OwnedFd>,
    inspection: Inspection,
    /// Whether it preimports modules after it has passed inspection.
    prepares: bool,
    /// Time from the request for its jail until it was ready.
    pub(super) took: Duration,
    pub(super) memory_bytes: u64,
    cpu_before: Duration,
}

/// The progress of a child's inspection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inspection {
    /// The child has not reported that it is confined.
    NotReady,
    /// The child claims to be confined.
    Claimed,
    /// The builder is inspecting it.
    UnderWay,
    /// Inspection passed; the child preimports modules.
    Preparing,
    /// Inspection passed; the child is ready for a request.
    Passed,
}

/// A process of a jail: its pid on the host and its pidfd.
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) pidfd: OwnedFd,
}

impl Process {
    pub(super) fn kill(&self) {
        // This fails only if the process has already exited.
        let _killed = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    pub(super) fn is_gone(&self) -> bool {
        start::is_readable(self.pidfd.as_fd())
    }
}

impl Child {
    /// Asks a zygote to fork into a built jail. On failure, returns the jail. `awaited` says whether a
    /// request waits for the child.
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

    /// Returns its number, which is that of its jail.
    pub(super) fn number(&self) -> u64 {
        self.jail.number
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.jail.limits
    }

    /// Records the process that the zygote reported.
    pub(super) fn born(&mut self, main: Process) {
        self.main = Some(main);
    }

    /// Returns the descriptor to poll while the child is in preparation.
    pub(super) fn watched(&self) -> BorrowedFd<'_> {
        self.line.watched()
    }

    /// Returns the deadline of its preparation. A child that no request waits for needs one as well, because
    /// the import of a module may never finish.
    pub(super) fn overdue(&self) -> Instant {
        self.jail.asked + READY
    }

    /// Returns whether a message from the child is expected.
    pub(super) fn is_silent(&self) -> bool {
        matches!(self.inspection, Inspection::NotReady | Inspection::Preparing)
    }

    /// Receives one message, if there is one, and updates the child's progress.
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

    /// Asks the builder to inspect the child, if it claims to be confined and its process is known.
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

    /// Records that it passed inspection, and starts its preimports, if it has any.
    pub(super) fn passed(&mut self) -> Result<(), StepFailed> {
        self.inspection = if self.prepares { Inspection::Preparing } else { Inspection::Passed };
        self.jail.close_unneeded();
        if self.prepares {
            step(Step::Order, "", || self.line.have_prepared())?;
        }
        Ok(())
    }

    /// Records the time, memory and CPU time that its preparation took. They do not count for its program.
    pub(super) fn settle(&mut self, home: &Home) {
        self.took = self.jail.asked.elapsed();
        self.memory_bytes = self.jail.group.as_ref().and_then(Group::memory).unwrap_or(0);
        let counted = self.jail.group.as_ref().and_then(|group| group.usage().cpu);
        let seen = || self.main.as_ref().map(|main| seen(home, main.pid).cpu);
        self.cpu_before = counted.or_else(seen).unwrap_or_default();
    }

    /// Returns whether it can be sent a request.
    pub(super) fn is_ready(&self) -> bool {
        self.inspection == Inspection::Passed
    }

    /// Returns its known processes.
    fn processes(&self) -> impl Iterator<Item = &Process> {
        self.main.iter().chain(self.jail.init())
    }

    /// Returns whether one of its processes has exited.
    pub(super) fn has_ended(&self) -> bool {
        self.processes().any(Process::is_gone)
    }

    /// Returns whether it is ready and its processes are alive.
    pub(super) fn is_well(&self) -> bool {
        self.is_ready() && !self.has_ended()
    }

    /// Returns its pid on the host. Its PID 1 is left out, because it has no memory of its own.
    pub(super) fn pid(&self) -> Option<u32> {
        self.main.as_ref().map(|main| main.pid as u32)
    }

    /// Returns whether a process is this child or its PID 1.
    pub(super) fn knows(&self, pid: u32) -> bool {
        self.processes().any(|process| process.pid as u32 == pid)
    }

    /// Sends it what to run. A child for which this fails cannot be used again.
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

    /// Kills it and its jail.
    pub(super) fn discard(self) -> Dying {
        self.jail.discard(self.main)
    }
}

/// Returns how many of the descriptors go to the program. The artifacts pipe, which comes last, goes to the
/// collector.
fn programs(pending: &Pending) -> usize {
    pending.fds.len() - usize::from(pending.jail.artifacts.is_some())
}

/// Sends a fork request to the zygote. Returns the launcher's end of the child's connection.
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

/// Returns what an inspection of a child in this jail must find, without the layers that a test leaves out.
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

/// Returns, for tests, the layers that a child leaves out and the step that fails.
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

/// Reads from `/proc` what a process and the children that it reaped have used, for when no cgroup counts it.
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
    // CPU time of reaped children, in hundredths of a second: the 14th and 15th field after the process name,
    // which may contain anything.
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

/// A child that runs a program.
pub(super) struct RunningChild {
    pid: i32,
    pub(super) pidfd: OwnedFd,
    /// Its wait status, once it was reaped.
    reaped: Option<i32>,
    line: ChildLine,
    /// The liveness pipe: PID 1 exits when it is closed.
    _leash: OwnedFd,
    /// The jail's disk, held until the child is killed.
    disk: Option<OwnedFd>,
    /// The pipe into which artifacts are written.
    collector: Option<OwnedFd>,
    rules: Option<ArtifactRules>,
    pub(super) cpu_before: Duration,
}

impl RunningChild {
    /// Reaps it and returns its wait status. It has exited, or every process in its jail has.
    pub(super) fn reap(&mut self) -> i32 {
        *self.reaped.get_or_insert_with(|| sys::put_an_end_to(self.pidfd.as_fd()).unwrap_or(libc::SIGKILL))
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns what it has used so far according to `/proc`. It must not have been reaped yet.
    pub(super) fn usage(&self, home: &Home) -> Usage {
        seen(home, self.pid)
    }

    pub(super) fn is_reaped(&self) -> bool {
        self.reaped.is_some()
    }

    /// Returns the step that failed after the request was sent, if one did.
    pub(super) fn failure(&self) -> Option<StepFailed> {
        self.line.hear().ok().flatten().map(|heard| heard.failure)
    }

    /// Returns whether no block or no inode is free.
    pub(super) fn disk_is_full(&self) -> bool {
        let disk = self.disk.as_ref().and_then(|disk| rustix::fs::fstatfs(disk).ok());
        disk.is_some_and(|disk| disk.f_bfree == 0 || disk.f_ffree == 0)
    }

    /// Returns whether the program left artifacts to collect. Looks up one name and follows no symbolic
    /// links.
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

    /// Closes the disk while another process still holds it. Freeing what a program wrote takes time
    /// proportional to its size, and the last process to close the disk does that work.
    pub(super) fn close_disk(&mut self) {
        self.disk = None;
    }
}
