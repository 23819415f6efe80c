//! Why sandboxes end: the kind of end for programs and metrics, and a reason for people.

use std::time::Duration;

use belljar_engine::quantity::show_time;
use belljar_store::SandboxEnd;

/// Why a sandbox ends.
#[derive(Debug, Clone)]
pub(crate) struct EndCause {
    pub(crate) kind: SandboxEnd,
    pub(crate) reason: String,
}

impl EndCause {
    fn new(kind: SandboxEnd, reason: impl Into<String>) -> Self {
        Self { kind, reason: reason.into() }
    }

    /// Ended by its owner.
    pub(crate) fn closed() -> Self {
        Self::new(SandboxEnd::Closed, "closed on request")
    }

    /// The client that asked for it was gone when it was ready.
    pub(super) fn creator_gone() -> Self {
        Self::new(SandboxEnd::Closed, "closed: its creator disconnected before it was ready")
    }

    /// The MCP session that opened it has ended.
    pub(crate) fn session_ended() -> Self {
        Self::new(SandboxEnd::Closed, "closed: the session that opened it has ended")
    }

    /// Its tenant is being deleted.
    pub(crate) fn tenant_deleted() -> Self {
        Self::new(SandboxEnd::Closed, "closed: its tenant was deleted")
    }

    /// The sandbox was not used for its timeout.
    pub(super) fn unused(timeout: Duration) -> Self {
        Self::new(SandboxEnd::Expired, format!("expired: not used for {}", show_time(timeout)))
    }

    /// Its life is over, used or not.
    pub(super) fn life_over(life: Duration) -> Self {
        Self::new(SandboxEnd::Expired, format!("expired: its life of {} has ended", show_time(life)))
    }

    /// The sandbox broke or could not be created.
    pub(super) fn failed(why: impl Into<String>) -> Self {
        Self::new(SandboxEnd::Failed, why)
    }

    /// The server shuts down.
    pub(super) fn shutdown() -> Self {
        Self::new(SandboxEnd::Interrupted, "its server was shut down")
    }
}
