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

use super::child_connection::ChildConnection;
use super::cold_start::{self, IdSource, Recyclable, StartedJail};
use super::run::Run;
use super::seccomp_notify::NotifyListener;
use super::setup::LauncherContext;
use super::warm_jail::{DyingJail, WarmJail};
use super::zygote::Zygote;
use crate::bare::message::{ForkRequest, MAX_LIMITS, SetupStep, kind, without};
use crate::bare::rights::ResourceLimit;
use crate::cgroup::{Controller, Group};
use crate::inside::{self, BuilderRequest, ExpectedChild};
use crate::spec::{ArtifactRules, INNER_UID, Jail, JailLayer, JailLimits, JailUsage, JailWarmth};
use crate::step::{Step, StepFailed, step};
use crate::{fault, sys};

/// Time limit for building a jail, or preparing a child, that no request waits for.
pub(super) const PREPARE_TIMEOUT: Duration = Duration::from_secs(15);

/// A request that waits to be started.
pub(super) struct PendingRun {
    pub(super) run: u64,
    pub(super) jail: Box<Jail>,
    pub(super) fds: Vec<OwnedFd>,
    pub(super) started: Instant,
}

impl PendingRun {
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.jail.limits.timeout.and_then(|timeout| self.started.checked_add(timeout))
    }
}

/// A child that is in preparation or idle.
pub(super) struct WarmChild {
    jail: WarmJail,
    /// The connection to the child until it runs a program.
    connection: ChildConnection,
    main: Option<ProcessHandle>,
    listener: Option<OwnedFd>,
    inspection: Inspection,
    /// Whether it preimports modules after it has passed inspection.
    preimports: bool,
    /// Time from the request for its jail until it was ready.
    pub(super) preparation_time: Duration,
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
    InProgress,
    /// Inspection passed; the child preimports modules.
    Preparing,
    /// Inspection passed; the child is ready for a request.
    Passed,
}

/// A process of a jail: its pid on the host and its pidfd.
pub(super) struct ProcessHandle {
    pub(super) pid: i32,
    pub(super) pidfd: OwnedFd,
}

impl ProcessHandle {
    pub(super) fn kill(&self) {
        // This fails only if the process has already exited.
        let _killed = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    pub(super) fn has_exited(&self) -> bool {
        cold_start::is_readable(self.pidfd.as_fd())
    }
}

impl WarmChild {
    /// Asks a zygote to fork into a built jail. On failure, returns the jail. `awaited` says whether a
    /// request waits for the child.
    pub(super) fn request_fork(
        home: &LauncherContext,
        zygote: &mut Zygote,
        jail: WarmJail,
        awaited: bool,
    ) -> Result<Self, Box<(StepFailed, WarmJail)>> {
        match send_fork_request(home, zygote, &jail, awaited) {
            Ok(line) => Ok(Self {
                preimports: !awaited && zygote.children_preimport(),
                jail,
                connection: ChildConnection::new(line),
                main: None,
                listener: None,
                inspection: Inspection::NotReady,
                preparation_time: Duration::ZERO,
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

    pub(super) fn limits(&self) -> &JailLimits {
        &self.jail.limits
    }

    /// Records the process that the zygote reported.
    pub(super) fn set_process(&mut self, main: ProcessHandle) {
        self.main = Some(main);
    }

    /// Returns the descriptor to poll while the child is in preparation.
    pub(super) fn watched(&self) -> BorrowedFd<'_> {
        self.connection.watched()
    }

    /// Returns the deadline of its preparation. A child that no request waits for needs one as well, because
    /// the import of a module may never finish.
    pub(super) fn deadline(&self) -> Instant {
        self.jail.requested + PREPARE_TIMEOUT
    }

    /// Returns whether a message from the child is expected.
    pub(super) fn expects_message(&self) -> bool {
        matches!(self.inspection, Inspection::NotReady | Inspection::Preparing)
    }

    /// Receives one message, if there is one, and updates the child's progress.
    pub(super) fn receive(&mut self) -> Result<(), StepFailed> {
        let heard = match self.connection.receive() {
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
    pub(super) fn request_inspection(&mut self, home: &LauncherContext) -> Result<(), StepFailed> {
        let (Inspection::Claimed, Some(main), Some(built), Some(namespaces)) =
            (self.inspection, &self.main, &self.jail.built, self.jail.namespaces())
        else {
            return Ok(());
        };
        let mut fds: Vec<_> = built.proc.iter().map(AsFd::as_fd).collect();
        fds.extend(namespaces);
        fds.push(main.pidfd.as_fd());
        if let Some(group) = &self.jail.group {
            fds.extend(group.v2_join_fds().map_err(cold_start::cgroup_failure)?);
        }
        self.jail.builder.send(&BuilderRequest::Inspect(Box::new(expected(home, &self.jail))), &fds)?;
        self.inspection = Inspection::InProgress;
        Ok(())
    }

    /// Records that it passed inspection, and starts its preimports, if it has any.
    pub(super) fn mark_inspected(&mut self) -> Result<(), StepFailed> {
        self.inspection = if self.preimports { Inspection::Preparing } else { Inspection::Passed };
        self.jail.close_inspection_fds();
        if self.preimports {
            step(Step::Order, "", || self.connection.start_preparing())?;
        }
        Ok(())
    }

    /// Records the time, memory and CPU time that its preparation took. They do not count for its program.
    pub(super) fn record_preparation(&mut self, home: &LauncherContext) {
        self.preparation_time = self.jail.requested.elapsed();
        self.memory_bytes = self.jail.group.as_ref().and_then(Group::memory_in_use).unwrap_or(0);
        let counted = self.jail.group.as_ref().and_then(|group| group.usage().cpu);
        let seen = || self.main.as_ref().map(|main| usage_from_proc(home, main.pid).cpu);
        self.cpu_before = counted.or_else(seen).unwrap_or_default();
    }

    /// Returns whether it can be sent a request.
    pub(super) fn is_ready(&self) -> bool {
        self.inspection == Inspection::Passed
    }

    /// Returns its known processes.
    fn processes(&self) -> impl Iterator<Item = &ProcessHandle> {
        self.main.iter().chain(self.jail.init())
    }

    /// Returns whether one of its processes has exited.
    pub(super) fn has_ended(&self) -> bool {
        self.processes().any(ProcessHandle::has_exited)
    }

    /// Returns whether it is ready and its processes are alive.
    pub(super) fn is_usable(&self) -> bool {
        self.is_ready() && !self.has_ended()
    }

    /// Returns its pid on the host. Its PID 1 is left out, because it has no memory of its own.
    pub(super) fn pid(&self) -> Option<u32> {
        self.main.as_ref().map(|main| main.pid as u32)
    }

    /// Returns whether a process is this child or its PID 1.
    pub(super) fn owns_pid(&self, pid: u32) -> bool {
        self.processes().any(|process| process.pid as u32 == pid)
    }

    /// Sends it what to run. A child for which this fails cannot be used again.
    pub(super) fn start(
        mut self,
        home: &LauncherContext,
        pending: &mut PendingRun,
        warmth: JailWarmth,
    ) -> Result<Run, Box<(StepFailed, WarmChild)>> {
        if let Err(failed) = self.send_request(pending) {
            return Err(Box::new((failed, self)));
        }
        let (main, built, plot) =
            match (self.main.take(), self.jail.built.take(), self.jail.namespace_set.take()) {
                (Some(main), Some(built), Some(plot)) => (main, built, plot),
                (main, built, plot) => {
                    let failed = StepFailed::new(Step::Order, "", Errno::BADF);
                    return Err(Box::new((
                        failed,
                        WarmChild {
                            main,
                            jail: WarmJail { built, namespace_set: plot, ..self.jail },
                            ..self
                        },
                    )));
                }
            };
        let wanted = &pending.jail;
        let layers = cold_start::layers(home, wanted, self.jail.ids);
        let remains = Recyclable { group: self.jail.group, ids: IdSource::NamespaceSet(Box::new(plot)) };
        let parts =
            StartedJail { pid: built.init.pid, pidfd: built.init.pidfd, report: None, recyclable: remains };
        let child = RunningChild {
            pid: main.pid,
            pidfd: main.pidfd,
            wait_status: None,
            connection: self.connection,
            _liveness_pipe: self.jail.liveness_pipe,
            disk: Some(built.disk),
            artifacts_pipe: pending.fds.drain(program_fds_len(pending)..).next(),
            artifact_rules: wanted.artifacts.clone(),
            cpu_before: self.cpu_before,
        };
        let run = Run::new(parts, layers, pending.started, wanted);
        Ok(run.with_child(child, warmth).with_listener(NotifyListener::with_listener(self.listener)))
    }

    fn send_request(&mut self, pending: &PendingRun) -> Result<(), StepFailed> {
        cold_start::chown_streams(&pending.fds, self.jail.ids)?;
        let fds: Vec<_> = pending.fds[..program_fds_len(pending)].iter().map(AsFd::as_fd).collect();
        step(Step::Order, "", || self.connection.send(pending.jail.workdir.as_bytes(), &fds))
    }

    /// Kills it and its jail.
    pub(super) fn kill(self) -> DyingJail {
        self.jail.kill(self.main)
    }
}

/// Returns how many of the descriptors go to the program. The artifacts pipe, which comes last, goes to the
/// collector.
fn program_fds_len(pending: &PendingRun) -> usize {
    pending.fds.len() - usize::from(pending.jail.artifacts.is_some())
}

/// Sends a fork request to the zygote. Returns the launcher's end of the child's connection.
fn send_fork_request(
    home: &LauncherContext,
    zygote: &mut Zygote,
    jail: &WarmJail,
    awaited: bool,
) -> Result<OwnedFd, StepFailed> {
    let (Some(built), Some(mut fds)) = (&jail.built, jail.namespaces()) else {
        return Err(StepFailed::new(Step::Order, "", Errno::BADMSG));
    };
    let (line, childs_line) = step(Step::Namespaces, "", sys::packet_socketpair)?;
    let birth =
        fork_request(home, jail.ids.is_separate(), &jail.limits, awaited, built.landlock_ruleset.is_some());
    fds.push(childs_line.as_fd());
    fds.extend(built.landlock_ruleset.iter().chain(&built.cgroup_join_fds).map(AsFd::as_fd));
    zygote.request_fork(jail.number, &birth, &fds)?;
    Ok(line)
}

fn fork_request(
    home: &LauncherContext,
    separate: bool,
    wanted: &JailLimits,
    awaited: bool,
    has_rules: bool,
) -> ForkRequest {
    let resources = resource_limits(home, separate, wanted);
    let mut limits = [ResourceLimit::default(); MAX_LIMITS];
    limits[..resources.len()].copy_from_slice(&resources);
    let (without, fail) = faults();
    ForkRequest {
        uid: INNER_UID,
        awaited: awaited.into(),
        has_rules: has_rules.into(),
        limits_len: resources.len() as u32,
        limits,
        layers_left_out: without,
        failing_step: fail,
    }
}

fn resource_limits(home: &LauncherContext, separate: bool, wanted: &JailLimits) -> Vec<ResourceLimit> {
    let ours = inside::own_process_count(separate, home.has_controller(Controller::Pids));
    inside::resource_limits(wanted, ours, !home.has_controller(Controller::Memory))
}

/// Returns what an inspection of a child in this jail must find, without the layers that a test leaves out.
fn expected(home: &LauncherContext, jail: &WarmJail) -> ExpectedChild {
    let resources = resource_limits(home, jail.ids.is_separate(), &jail.limits);
    let rlimits = resources.iter().map(|limit| (limit.resource, limit.hard)).collect();
    ExpectedChild {
        number: jail.number,
        uid: jail.ids.uid,
        gid: jail.ids.gid,
        has_no_groups: home.ids.is_host_root(),
        rlimits: if fault::is_left_out(JailLayer::Rlimits) { Vec::new() } else { rlimits },
        cgroup_suffixes: jail.group.as_ref().map(Group::path_suffixes).unwrap_or_default(),
        has_no_new_privs: !fault::is_left_out(JailLayer::NoNewPrivs),
        has_no_capabilities: !fault::is_left_out(JailLayer::NoCapabilities),
        filters_len: if fault::is_left_out(JailLayer::Seccomp) { 0 } else { 2 },
    }
}

/// Returns, for tests, the layers that a child leaves out and the step that fails.
pub(super) fn faults() -> (u32, u32) {
    let layers = [
        (JailLayer::Rlimits, without::RLIMITS),
        (JailLayer::NoCapabilities, without::CAPABILITIES),
        (JailLayer::NoNewPrivs, without::NO_NEW_PRIVS),
        (JailLayer::Landlock, without::LANDLOCK),
        (JailLayer::Seccomp, without::SECCOMP),
        (JailLayer::CgroupNs, without::CGROUP_NAMESPACE),
    ];
    let without =
        layers.iter().filter(|(layer, _)| fault::is_left_out(*layer)).fold(0, |all, (_, bit)| all | bit);
    let failing = (1..)
        .map_while(SetupStep::from_number)
        .find(|step| fault::inject(inside::common_step(*step)).is_err());
    (without, failing.map_or(0, |step| step as u32))
}

/// Reads from `/proc` what a process and the children that it reaped have used, for when no cgroup counts it.
fn usage_from_proc(home: &LauncherContext, pid: i32) -> JailUsage {
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
    JailUsage {
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
    wait_status: Option<i32>,
    connection: ChildConnection,
    /// The liveness pipe: PID 1 exits when it is closed.
    _liveness_pipe: OwnedFd,
    /// The jail's disk, held until the child is killed.
    disk: Option<OwnedFd>,
    /// The pipe into which artifacts are written.
    artifacts_pipe: Option<OwnedFd>,
    artifact_rules: Option<ArtifactRules>,
    pub(super) cpu_before: Duration,
}

impl RunningChild {
    /// Reaps it and returns its wait status. It has exited, or every process in its jail has.
    pub(super) fn reap(&mut self) -> i32 {
        *self
            .wait_status
            .get_or_insert_with(|| sys::kill_and_reap(self.pidfd.as_fd()).unwrap_or(libc::SIGKILL))
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns what it has used so far according to `/proc`. It must not have been reaped yet.
    pub(super) fn usage(&self, home: &LauncherContext) -> JailUsage {
        usage_from_proc(home, self.pid)
    }

    pub(super) fn is_reaped(&self) -> bool {
        self.wait_status.is_some()
    }

    /// Returns the step that failed after the request was sent, if one did.
    pub(super) fn failure(&self) -> Option<StepFailed> {
        self.connection.receive().ok().flatten().map(|heard| heard.failure)
    }

    /// Returns whether no block or no inode is free.
    pub(super) fn disk_is_full(&self) -> bool {
        let disk = self.disk.as_ref().and_then(|disk| rustix::fs::fstatfs(disk).ok());
        disk.is_some_and(|disk| disk.f_bfree == 0 || disk.f_ffree == 0)
    }

    /// Returns whether the program left artifacts to collect. Looks up one name and follows no symbolic
    /// links.
    pub(super) fn has_artifacts(&self) -> bool {
        let left = |disk: &OwnedFd| rustix::fs::statat(disk, "artifacts", AtFlags::SYMLINK_NOFOLLOW).is_ok();
        self.artifacts_pipe.is_some() && self.disk.as_ref().is_some_and(left)
    }

    pub(super) fn take_collector_pipe(&mut self) -> Option<OwnedFd> {
        self.artifacts_pipe.take()
    }

    pub(super) fn artifact_rules(&self) -> Option<&ArtifactRules> {
        self.artifact_rules.as_ref()
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
