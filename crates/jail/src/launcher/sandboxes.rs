//! What the launcher does for sandboxes only: it queues them until the guest binary is ready, pauses and
//! resumes them, and handles their seccomp notifications in turn.

use std::os::fd::AsFd;
use std::time::Instant;

use belljar_model::layer::Layer;

use super::attach;
use super::guest_binary::GuestSealer;
use super::pending_run::PendingRun;
use super::run::Run;
use super::runs::{EventSource, Runs};
use super::sandbox_run::SandboxRun;
use super::watch::notify_budget::MAX_PER_TURN;
use crate::cgroup::Group;
use crate::spec::{JailRequest, JailResponse};
use crate::step::{Step, StepFailed, step};
use crate::wire::LauncherEvent;

/// Maximum cgroups that are paused, resumed or checked for it in one turn of the event loop.
const MAX_FREEZER_STEPS: usize = 8;

impl Runs {
    /// Starts a sandbox, or queues it until the guest binary is ready.
    pub(super) fn start_sandbox(&mut self, pending: PendingRun) -> Result<(), StepFailed> {
        if self.context.has_guest() {
            return self.start_cold(&pending);
        }
        let sealer = match &mut self.guest_sealer {
            Some(sealer) => sealer,
            none => none.insert(step(Step::Guest, "", || GuestSealer::begin(&self.context.proc))?),
        };
        sealer.pending.push(pending);
        Ok(())
    }

    /// Starts the sandboxes that waited for the guest binary.
    pub(super) fn start_waiting_sandboxes(&mut self) -> Vec<LauncherEvent> {
        let Some(sealer) = self.guest_sealer.take() else { return Vec::new() };
        let (binary, waiting) = sealer.finish(&self.context.proc);
        let unsealed = binary.map(|binary| self.context.set_guest(binary)).err();
        let mut events = Vec::new();
        for pending in waiting {
            let failed = match unsealed {
                Some(errno) => Some(StepFailed::new(Step::Guest, "", errno)),
                None => self.start_cold(&pending).err(),
            };
            events.extend(failed.map(|failure| LauncherEvent::Failed { run: pending.run, failure }));
        }
        events
    }

    /// Answers a query about a sandbox. `None` if the answer comes later.
    pub(super) fn answer(&mut self, request: u64, jail: u64, query: JailRequest) -> Option<JailResponse> {
        if let JailRequest::AttachPackages { source, path } = &query {
            return Some(self.attach_packages(jail, source, path));
        }
        answer(self.find(jail), request, query)
    }

    fn attach_packages(&mut self, jail: u64, source: &str, path: &str) -> JailResponse {
        let Some((run, context)) = self.find_with_context(jail).filter(|(run, _)| run.is_sandbox()) else {
            return JailResponse::Gone;
        };
        // Its programs decide what a path means.
        if !run.layers.contains(&Layer::ReadOnlyRoot) {
            return JailResponse::Refused("its root is writable; install packages in it".to_owned());
        }
        match attach::attach_packages(context, run.pidfd.as_fd(), source, path) {
            Ok(()) => JailResponse::Done,
            Err(failed) => JailResponse::Refused(failed.to_string()),
        }
    }

    /// Begins a turn of the event loop. If many sandboxes have seccomp notifications, keeps only as many as a
    /// turn may handle, those handled least recently. The others stay ready for the next turn.
    pub(super) fn begin_turn(&mut self, ready: &mut Vec<EventSource>) {
        let sandboxes = self.running.iter().filter(|(_, run)| run.is_sandbox()).count();
        self.notify_budget.begin_turn(sandboxes, Instant::now());
        let running = &self.running;
        let last_handled = |watched: &EventSource| {
            let EventSource::Notification(number) = watched else { return None };
            let (_, run) = running.iter().find(|(found, run)| found == number && run.is_sandbox())?;
            Some(run.listener.last_handled())
        };
        let mut handled: Vec<_> =
            ready.iter().filter_map(|watched| Some((last_handled(watched)?, *watched))).collect();
        if handled.len() > 1 {
            handled.sort_by_key(|(last, _)| *last);
            handled.truncate(MAX_PER_TURN as usize);
            ready.retain(|watched| last_handled(watched).is_none());
            ready.extend(handled.into_iter().map(|(_, watched)| watched));
        }
    }

    /// Proceeds with due pauses and resumes, the longest overdue first, a few per turn.
    pub(super) fn proceed_pausing(&mut self, now: Instant) -> Vec<LauncherEvent> {
        let mut due: Vec<(Instant, usize)> = Vec::new();
        for (at, (_, run)) in self.running.iter().enumerate() {
            let when = run.pausing_due(now).filter(|when| *when <= now);
            due.extend(when.map(|when| (when, at)));
        }
        due.sort_unstable();
        due.truncate(MAX_FREEZER_STEPS);
        let running = &mut self.running;
        let proceeded = due.into_iter().filter_map(|(_, at)| {
            let (sandbox, group) = running[at].1.sandbox_mut()?;
            sandbox.pause_queue.proceed(group, now)
        });
        proceeded.map(|(run, answer)| LauncherEvent::JailAnswered { run, response: answer }).collect()
    }

    /// Reaps a run, and answers all outstanding pause and resume requests for it.
    pub(super) fn reap_sandbox(&mut self, number: u64) -> Vec<LauncherEvent> {
        let sandbox = self.find(number).and_then(|run| run.sandbox_mut());
        let requests = sandbox.map(|(sandbox, _)| sandbox.pause_queue.cancel_all()).unwrap_or_default();
        let gone =
            requests.into_iter().map(|run| LauncherEvent::JailAnswered { run, response: JailResponse::Gone });
        self.reap(number).into_iter().chain(gone).collect()
    }
}

/// Answers a query about a sandbox. `None` if the answer comes later.
fn answer(run: Option<&mut Run>, request: u64, query: JailRequest) -> Option<JailResponse> {
    let Some(run) = run.filter(|run| run.is_sandbox()) else { return Some(JailResponse::Gone) };
    let with_sandbox =
        |run: &mut Run, answer: fn(&mut SandboxRun, u64, Option<&Group>) -> Option<JailResponse>| {
            run.sandbox_mut()
                .map_or(Some(JailResponse::Gone), |(sandbox, group)| answer(sandbox, request, group))
        };
    match query {
        JailRequest::Layers => Some(JailResponse::Layers(run.layers.clone())),
        JailRequest::Calls => Some(JailResponse::Calls(run.listener.denied().to_vec())),
        JailRequest::Stats => {
            with_sandbox(run, |sandbox, _, group| Some(JailResponse::Stats(sandbox.stats(group))))
        }
        JailRequest::Pause => {
            with_sandbox(run, |sandbox, request, _| sandbox.pause_queue.enqueue(request, true))
        }
        JailRequest::AttachPackages { .. } => None,
        JailRequest::Resume => {
            with_sandbox(run, |sandbox, request, _| sandbox.pause_queue.enqueue(request, false))
        }
    }
}
