//! Executions: what ran or runs, for whom, and what came of it.
//!
//! ```text
//! begin ─▶ queued ─start─▶ running ─finish─▶ succeeded, failed, timed_out, limit_exceeded, refused, cancelled
//!            │                │
//!            └────────────────┴─ the server died under it ─▶ interrupted
//! ```
//!
//! An end is for good: whoever comes second changes nothing.

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
    /// How an execution stands.
    Status, "status" {
        /// Waits for its turn.
        Queued = "queued",
        /// Under way.
        Running = "running",
        /// Exit status 0.
        Succeeded = "succeeded",
        /// Any other exit, or a signal.
        Failed = "failed",
        /// Its time was over.
        TimedOut = "timed_out",
        /// It ended because of a limit.
        LimitExceeded = "limit_exceeded",
        /// By policy; nothing ran.
        Refused = "refused",
        /// Somebody asked for it.
        Cancelled = "cancelled",
        /// The server died under it.
        Interrupted = "interrupted",
    }
}

impl Status {
    /// Whether nothing more will come of it.
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

/// An execution that is about to wait or to run.
#[derive(Debug, Clone)]
pub struct NewExecution {
    /// Its name.
    pub id: ExecutionId,
    /// Whose it is.
    pub tenant: TenantName,
    /// Language, or what stands for it.
    pub language: String,
    /// Echoed from the request.
    pub metadata: Map<String, Value>,
    /// By what a repeated request is known.
    pub idempotency: Option<Idempotency>,
    /// When it was asked for.
    pub created: Timestamp,
    /// When it started; nothing while it is queued.
    pub started: Option<Timestamp>,
}

/// What came of an execution. Only an end can be made into one.
#[derive(Debug, Clone)]
pub struct Finished {
    status: Status,
    exit_code: Option<u8>,
    cpu_ms: u64,
    json: String,
    ended: Timestamp,
}

impl Finished {
    /// What the engine reports.
    ///
    /// # Errors
    /// It is more than is kept.
    pub fn report(report: &Report, ended: Timestamp) -> Result<Self, Error> {
        let json = bound::json("result", report, MAX_RESULT)?;
        let cpu_ms = report.usage.cpu_ms.max(0.0).ceil() as u64;
        Ok(Self { status: report.status.into(), exit_code: report.exit_code, cpu_ms, json, ended })
    }

    /// Cancelled before it started, with the result object.
    ///
    /// # Errors
    /// It is more than is kept.
    pub fn cancelled(result: &Value, ended: Timestamp) -> Result<Self, Error> {
        Self::unrun(Status::Cancelled, result, ended)
    }

    /// Could not be started although nobody waits for the error, with a result object that carries it.
    ///
    /// # Errors
    /// It is more than is kept.
    pub fn failed(result: &Value, ended: Timestamp) -> Result<Self, Error> {
        Self::unrun(Status::Failed, result, ended)
    }

    /// The result object as it will be kept.
    pub fn json(&self) -> &str {
        &self.json
    }

    /// How it ended.
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
    /// Its name.
    pub id: ExecutionId,
    /// How it stands.
    pub status: Status,
    /// Language, or what stands for it.
    pub language: String,
    /// Echoed from the request.
    pub metadata: Map<String, Value>,
    /// When it was asked for.
    pub created: Timestamp,
    /// When it started.
    pub started: Option<Timestamp>,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// Null when signalled, killed or not ended.
    pub exit_code: Option<u8>,
    /// Processor time.
    pub cpu_ms: u64,
    /// What it takes in the database.
    pub size_bytes: u64,
}

/// An execution with its result.
#[derive(Debug, Clone, PartialEq)]
pub struct Execution {
    /// All but the result.
    pub summary: Summary,
    /// The result object as JSON; nothing before the end, and for an interrupted one.
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
