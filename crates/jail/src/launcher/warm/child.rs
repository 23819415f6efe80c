//! A warm child: a fork of a zygote in its own jail, from the fork request until it runs a program.
//!
//! ```text
//! fork requested into a built jail ──Forked──▶ ┐
//!                                  ──READY───▶ ┴▶ inspected from outside ──Inspected──▶ idle
//! idle ──request──▶ a run
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use belljar_model::layer::Layer;
use belljar_model::outcome::Warmth;
use belljar_zygote::message::{ForkRequest, MAX_LIMITS, kind};
use belljar_zygote::privileges::ResourceLimit;
use rustix::io::Errno;

use super::child_connection::ChildConnection;
use super::jail::{WarmJail, faults};
use super::running_child::{RunningChild, usage_from_proc};
use super::zygote::Zygote;
use crate::cgroup::{Controller, Group};
use crate::inside::{self, BuilderRequest, ExpectedChild};
use crate::launcher::limits;
use crate::launcher::pending_run::{PendingRun, chown_streams};
use crate::launcher::process::ProcessHandle;
use crate::launcher::reaper::DyingJail;
use crate::launcher::recyclable::{IdSource, Recyclable};
use crate::launcher::run::{Run, StartedJail};
use crate::launcher::setup::LauncherContext;
use crate::launcher::watch::seccomp_notify::NotifyListener;
use crate::spec::{INNER_UID, JailLimits};
use crate::step::{Step, StepFailed, step};
use crate::{fault, sys};

/// Time limit for building a jail, or preparing a child, that no request waits for.
pub(super) const PREPARE_TIMEOUT: Duration = Duration::from_secs(15);

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

impl WarmChild {
    /// Asks a zygote to fork into a built jail. On failure, returns the jail. `awaited` says whether a
    /// request waits for the child.
    pub(super) fn request_fork(
        context: &LauncherContext,
        zygote: &mut Zygote,
        jail: WarmJail,
        awaited: bool,
    ) -> Result<Self, Box<(StepFailed, WarmJail)>> {
        match send_fork_request(context, zygote, &jail, awaited) {
            Ok(socket) => Ok(Self {
                preimports: !awaited && zygote.children_preimport(),
                jail,
                connection: ChildConnection::new(socket),
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
        let message = match self.connection.receive() {
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            message => message.map_err(|errno| StepFailed::new(Step::Task, "", errno))?,
        };
        match message {
            Some(message) if message.kind == kind::READY => {
                match self.inspection {
                    Inspection::Preparing => self.inspection = Inspection::Passed,
                    _ => {
                        self.listener = message.fds.into_iter().next();
                        self.inspection = Inspection::Claimed;
                    }
                }
                Ok(())
            }
            Some(message) => Err(message.failure),
            None => Err(StepFailed::new(Step::Fork, "(it was killed)", Errno::CHILD)),
        }
    }

    /// Asks the builder to inspect the child, if it claims to be confined and its process is known.
    pub(super) fn request_inspection(&mut self, context: &LauncherContext) -> Result<(), StepFailed> {
        let (Inspection::Claimed, Some(main), Some(built), Some(namespaces)) =
            (self.inspection, &self.main, &self.jail.built, self.jail.namespaces())
        else {
            return Ok(());
        };
        let mut fds: Vec<_> = built.proc.iter().map(AsFd::as_fd).collect();
        fds.extend(namespaces);
        fds.push(main.pidfd.as_fd());
        if let Some(group) = &self.jail.group {
            fds.extend(group.v2_join_fds().map_err(limits::cgroup_failure)?);
        }
        self.jail.builder.send(&BuilderRequest::Inspect(Box::new(expected(context, &self.jail))), &fds)?;
        self.inspection = Inspection::InProgress;
        Ok(())
    }

    /// Records that it passed inspection, and starts its preimports, if it has any.
    pub(super) fn mark_inspected(&mut self) -> Result<(), StepFailed> {
        self.inspection = if self.preimports { Inspection::Preparing } else { Inspection::Passed };
        self.jail.close_inspection_fds();
        if self.preimports {
            step(Step::Task, "", || self.connection.start_preparing())?;
        }
        Ok(())
    }

    /// Records the time, memory and CPU time that its preparation took. They do not count for its program.
    pub(super) fn record_preparation(&mut self, context: &LauncherContext) {
        self.preparation_time = self.jail.requested.elapsed();
        self.memory_bytes = self.jail.group.as_ref().and_then(Group::memory_in_use).unwrap_or(0);
        let counted = self.jail.group.as_ref().and_then(|group| group.usage().cpu);
        let seen = || self.main.as_ref().map(|main| usage_from_proc(context, main.pid).cpu);
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
        context: &LauncherContext,
        pending: &mut PendingRun,
        warmth: Warmth,
    ) -> Result<Run, Box<(StepFailed, WarmChild)>> {
        if let Err(failed) = self.send_request(pending) {
            return Err(Box::new((failed, self)));
        }
        let (main, built, namespace_set) =
            match (self.main.take(), self.jail.built.take(), self.jail.namespace_set.take()) {
                (Some(main), Some(built), Some(namespace_set)) => (main, built, namespace_set),
                (main, built, namespace_set) => {
                    let failed = StepFailed::new(Step::Task, "", Errno::BADF);
                    return Err(Box::new((
                        failed,
                        WarmChild { main, jail: WarmJail { built, namespace_set, ..self.jail }, ..self },
                    )));
                }
            };
        let wanted = &pending.jail;
        let layers = limits::layers(context, wanted, self.jail.ids);
        let recyclable =
            Recyclable { group: self.jail.group, ids: IdSource::NamespaceSet(Box::new(namespace_set)) };
        let parts = StartedJail { pid: built.init.pid, pidfd: built.init.pidfd, report: None, recyclable };
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
        let listener = NotifyListener::with_listener(self.listener);
        let mut run = Run::new(parts, layers, pending.started, wanted, listener);
        (run.child, run.warmth) = (Some(child), warmth);
        Ok(run)
    }

    fn send_request(&mut self, pending: &PendingRun) -> Result<(), StepFailed> {
        chown_streams(&pending.fds, self.jail.ids)?;
        let fds: Vec<_> = pending.fds[..program_fds_len(pending)].iter().map(AsFd::as_fd).collect();
        step(Step::Task, "", || self.connection.send(pending.jail.workdir.as_bytes(), &fds))
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
    context: &LauncherContext,
    zygote: &mut Zygote,
    jail: &WarmJail,
    awaited: bool,
) -> Result<OwnedFd, StepFailed> {
    let (Some(built), Some(mut fds)) = (&jail.built, jail.namespaces()) else {
        return Err(StepFailed::new(Step::Task, "", Errno::BADMSG));
    };
    let (socket, child_socket) = step(Step::Namespaces, "", sys::packet_socketpair)?;
    let request = fork_request(
        context,
        jail.ids.is_separate(),
        &jail.limits,
        awaited,
        built.landlock_ruleset.is_some(),
    );
    fds.push(child_socket.as_fd());
    fds.extend(built.landlock_ruleset.iter().chain(&built.cgroup_join_fds).map(AsFd::as_fd));
    zygote.request_fork(jail.number, &request, &fds)?;
    Ok(socket)
}

fn fork_request(
    context: &LauncherContext,
    separate: bool,
    wanted: &JailLimits,
    awaited: bool,
    has_rules: bool,
) -> ForkRequest {
    let resources = resource_limits(context, separate, wanted);
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

fn resource_limits(context: &LauncherContext, separate: bool, wanted: &JailLimits) -> Vec<ResourceLimit> {
    let ours = inside::own_process_count(separate, context.has_controller(Controller::Pids));
    inside::resource_limits(wanted, ours, !context.has_controller(Controller::Memory))
}

/// Returns what an inspection of a child in this jail must find, without the layers that a test leaves out.
fn expected(context: &LauncherContext, jail: &WarmJail) -> ExpectedChild {
    let resources = resource_limits(context, jail.ids.is_separate(), &jail.limits);
    let rlimits = resources.iter().map(|limit| (limit.resource, limit.hard)).collect();
    ExpectedChild {
        number: jail.number,
        uid: jail.ids.uid,
        gid: jail.ids.gid,
        has_no_groups: context.ids.is_host_root(),
        rlimits: if fault::is_left_out(Layer::Rlimits) { Vec::new() } else { rlimits },
        cgroup_suffixes: jail.group.as_ref().map(Group::path_suffixes).unwrap_or_default(),
        has_no_new_privs: !fault::is_left_out(Layer::NoNewPrivs),
        has_no_capabilities: !fault::is_left_out(Layer::NoCapabilities),
        filters_len: if fault::is_left_out(Layer::Seccomp) { 0 } else { 2 },
    }
}
