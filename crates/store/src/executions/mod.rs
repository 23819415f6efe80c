//! Executions: their requests, states and results.
//!
//! ```text
//! begin ─▶ queued ─start─▶ running ─finish─▶ succeeded, failed, timed_out, limit_exceeded, refused,
//!            │                │              cancelled
//!            └────────────────┴─ the server died under it ─▶ interrupted
//! ```
//!
//! An end is final: a second attempt to finish an execution changes nothing.

mod idempotency;
mod life;
mod list;
mod metadata;

use belljar_engine::report::{Report, Status as Ran};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::bound::{self, MAX_RESULT};
use crate::error::Error;
use crate::id::ExecutionId;
use crate::name::TenantName;
use crate::time::Timestamp;
use crate::words::words;

pub use idempotency::{Idempotency, IdempotencyKey};
pub use life::{Begun, Finish};
pub use list::{Filter, Page};

words! {
    /// State of an execution.
    Status, "status" {
        /// Waits for a free slot.
        Queued = "queued",
        /// Is running.
        Running = "running",
        /// Exited with status 0.
        Succeeded = "succeeded",
        /// Exited with another status, or was killed by a signal.
        Failed = "failed",
        /// Exceeded its time limit.
        TimedOut = "timed_out",
        /// Ended because of a resource limit.
        LimitExceeded = "limit_exceeded",
        /// Refused by policy; nothing ran.
        Refused = "refused",
        /// Canceled on request.
        Cancelled = "cancelled",
        /// The server died during the execution.
        Interrupted = "interrupted",
    }
}

impl Status {
    /// Returns whether the execution has ended.
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }
}

impl From<Ran> for Status {
    fn from(status: Ran) -> Self {
        match status {
            Ran::Succeeded => Self::Succeeded,
            Ran::Failed => Self::Failed,
            Ran::TimedOut => Self::TimedOut,
            Ran::LimitExceeded => Self::LimitExceeded,
            Ran::Cancelled => Self::Cancelled,
            Ran::Refused => Self::Refused,
        }
    }
}

/// An execution that is about to be queued or run.
#[derive(Debug, Clone)]
pub struct NewExecution {
    /// Id of the execution.
    pub id: ExecutionId,
    /// Owner of the execution.
    pub tenant: TenantName,
    /// Language, or a name for an execution without one.
    pub language: String,
    /// Metadata of the request, echoed in the result.
    pub metadata: Map<String, Value>,
    /// Identifies a repeated request.
    pub idempotency: Option<Idempotency>,
    /// When the execution was requested.
    pub created: Timestamp,
    /// When the execution started; `None` while it is queued.
    pub started: Option<Timestamp>,
}

/// Outcome of an execution. Can only be built from a final state.
#[derive(Debug, Clone)]
pub struct Finished {
    status: Status,
    exit_code: Option<u8>,
    cpu_ms: u64,
    json: String,
    ended: Timestamp,
}

impl Finished {
    /// Takes the outcome from the engine's report.
    ///
    /// # Errors
    /// The result is larger than the limit.
    pub fn report(report: &Report, ended: Timestamp) -> Result<Self, Error> {
        let json = bound::json("result", report, MAX_RESULT)?;
        let cpu_ms = report.usage.cpu_ms.max(0.0).ceil() as u64;
        Ok(Self { status: report.status.into(), exit_code: report.exit_code, cpu_ms, json, ended })
    }

    /// Outcome of an execution that was canceled before it started, with its result object.
    ///
    /// # Errors
    /// The result is larger than the limit.
    pub fn cancelled(result: &Value, ended: Timestamp) -> Result<Self, Error> {
        Self::unrun(Status::Cancelled, result, ended)
    }

    /// Outcome of an execution that could not be started, with a result object that carries the error,
    /// because no client waits for the error itself.
    ///
    /// # Errors
    /// The result is larger than the limit.
    pub fn failed(result: &Value, ended: Timestamp) -> Result<Self, Error> {
        Self::unrun(Status::Failed, result, ended)
    }

    /// Returns the result object as it will be stored.
    pub fn json(&self) -> &str {
        &self.json
    }

    /// Returns the final status.
    pub fn status(&self) -> Status {
        self.status
    }

    fn unrun(status: Status, result: &Value, ended: Timestamp) -> Result<Self, Error> {
        let json = bound::json("result", result, MAX_RESULT)?;
        Ok(Self { status, exit_code: None, cpu_ms: 0, json, ended })
    }
}

/// An execution without its result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Id of the execution.
    pub id: ExecutionId,
    /// State of the execution.
    pub status: Status,
    /// Language, or a name for an execution without one.
    pub language: String,
    /// Metadata of the request, echoed in the result.
    pub metadata: Map<String, Value>,
    /// When the execution was requested.
    pub created: Timestamp,
    /// When the execution started.
    pub started: Option<Timestamp>,
    /// When the execution ended.
    pub ended: Option<Timestamp>,
    /// Exit code; `None` if the program was killed or is unfinished.
    pub exit_code: Option<u8>,
    /// CPU time.
    pub cpu_ms: u64,
    /// Space that the execution uses in the database.
    pub size_bytes: u64,
}

/// An execution with its result.
#[derive(Debug, Clone, PartialEq)]
pub struct Execution {
    /// Everything but the result.
    pub summary: Summary,
    /// The result object as JSON; `None` for unfinished and interrupted executions.
    pub result: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_the_words_of_the_result_object() {
        for ran in
            [Ran::Succeeded, Ran::Failed, Ran::TimedOut, Ran::LimitExceeded, Ran::Cancelled, Ran::Refused]
        {
            let word = serde_json::to_value(ran).unwrap();
            assert_eq!(word, Status::from(ran).as_str());
            assert!(Status::from(ran).is_final());
        }
        assert!(!Status::Queued.is_final());
        assert!(
            "done".parse::<Status>().unwrap_err().to_string().starts_with("status: must be one of queued")
        );
    }
}
