//! The state of a run.
//!
//! ```text
//! Running ──answered──────────────────────────────────────────▶ Answered ──PID 1 reaped──▶ recycled
//!    ├──warm child ended──▶ KillDue ──answer sent, killed───────┘  ▲
//!    ├──warm child left artifacts, killed──▶ Draining ──answered───┤
//!    │                                          └──PID 1 reaped──▶ Collecting ──collector reaped──▶ recycled
//!    └──sandbox closed, killed──▶ Closing ──PID 1 reaped, answered──▶ recycled
//! ```
//!
//! A run is answered by its program's end, or earlier by its deadline, an out-of-memory kill or a kill.

use std::os::fd::OwnedFd;

use belljar_model::outcome::Usage;

use crate::spec::JailEnding;

/// How a warm child ended, until that can be answered. Its usage counts if no cgroup does.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChildEnd {
    pub(super) ending: JailEnding,
    pub(super) usage: Usage,
}

/// The state of a run.
#[derive(Debug, Default)]
pub(super) enum RunState {
    /// The program runs.
    #[default]
    Running,
    /// A sandbox was killed on request, which is answered once nothing of it is left.
    Closing,
    /// The program was answered, and its jail is killed once the answer has been sent.
    KillDue,
    /// A warm child left artifacts, which are collected once every process in the jail has exited.
    Draining(ChildEnd),
    /// The process with this pidfd collects the artifacts of a warm child.
    Collecting(ChildEnd, OwnedFd),
    /// The program was answered; PID 1, or this artifact collector, is to be reaped.
    Answered(Option<OwnedFd>),
}

/// An event that changes the state of a run.
#[derive(Debug)]
pub(super) enum RunEvent {
    /// A kill of a sandbox was requested.
    CloseRequested,
    /// The end of a warm child was answered; its jail is not killed yet.
    ChildAnswered,
    /// The jail of an answered child was killed.
    Killed,
    /// A warm child ended and left artifacts.
    ArtifactsLeft(ChildEnd),
    /// The collector of artifacts was started.
    CollectorStarted(OwnedFd),
    /// The end of the run was answered.
    Answered,
}

impl RunState {
    /// Returns the state after an event. An event that does not apply changes nothing.
    pub(super) fn next(self, event: RunEvent) -> Self {
        match (self, event) {
            (Self::Running, RunEvent::CloseRequested) => Self::Closing,
            (Self::Running, RunEvent::ChildAnswered) => Self::KillDue,
            (Self::Running, RunEvent::ArtifactsLeft(end)) => Self::Draining(end),
            (Self::Draining(end), RunEvent::CollectorStarted(collector)) => Self::Collecting(end, collector),
            (Self::Collecting(_, collector), RunEvent::Answered) => Self::Answered(Some(collector)),
            (Self::Running | Self::Closing | Self::Draining(_), RunEvent::Answered)
            | (Self::KillDue, RunEvent::Killed) => Self::Answered(None),
            (state, _) => state,
        }
    }

    /// Changes to the state after an event.
    pub(super) fn handle(&mut self, event: RunEvent) {
        *self = std::mem::take(self).next(event);
    }

    /// Returns whether the end of the run has been answered.
    pub(super) fn is_answered(&self) -> bool {
        matches!(self, Self::KillDue | Self::Answered(_))
    }

    /// Returns whether the program may still run.
    pub(super) fn is_running(&self) -> bool {
        matches!(self, Self::Running | Self::Closing)
    }

    /// Returns the process that collects artifacts.
    pub(super) fn collector(&self) -> Option<&OwnedFd> {
        match self {
            Self::Collecting(_, collector) | Self::Answered(Some(collector)) => Some(collector),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: ChildEnd = ChildEnd {
        ending: JailEnding::Exited(3),
        usage: Usage { cpu: std::time::Duration::ZERO, peak_memory_bytes: 0, peak_processes: None },
    };

    fn after(events: impl IntoIterator<Item = RunEvent>) -> RunState {
        events.into_iter().fold(RunState::Running, RunState::next)
    }

    fn collector() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    #[test]
    fn artifacts_are_collected_before_the_answer() {
        let draining = || RunEvent::ArtifactsLeft(END);
        assert!(matches!(after([draining()]), RunState::Draining(end) if end.ending == END.ending));
        let collecting = || [draining(), RunEvent::CollectorStarted(collector())];
        let state = after(collecting());
        assert!(!state.is_answered() && !state.is_running() && state.collector().is_some());
        // A deadline that passes meanwhile leaves the collector to be reaped.
        let late = state.next(RunEvent::Answered);
        assert!(late.is_answered() && late.collector().is_some());
        assert!(matches!(after([draining(), RunEvent::Answered]), RunState::Answered(None)));
    }

    #[test]
    fn child_is_killed_after_its_answer_once() {
        let due = after([RunEvent::ChildAnswered]);
        assert!(due.is_answered() && matches!(due, RunState::KillDue));
        assert!(matches!(due.next(RunEvent::Killed), RunState::Answered(None)));
    }

    #[test]
    fn answer_is_final() {
        let events = [
            RunEvent::CloseRequested,
            RunEvent::ChildAnswered,
            RunEvent::Killed,
            RunEvent::ArtifactsLeft(END),
            RunEvent::CollectorStarted(collector()),
            RunEvent::Answered,
        ];
        assert!(matches!(
            events.into_iter().fold(after([RunEvent::Answered]), RunState::next),
            RunState::Answered(None)
        ));
    }
}
