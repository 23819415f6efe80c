//! Executions: their requests, states and results.
//!
//! ```text
//! begin ─▶ queued ─start─▶ running ─finish─▶ succeeded, failed, timed_out, limit_exceeded, refused,
//!            │                │              cancelled
//!            └────────────────┴─ the server died under it ─▶ interrupted
//! ```
//!
//! An end is final: a second attempt to finish an execution changes nothing.

mod artifacts;
mod idempotency;
mod lifecycle;
mod list;
mod metadata;

use std::sync::Arc;

use belljar_engine::report::{Report, Status};
use rusqlite::Row;
use rusqlite::types::FromSqlError;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::Error;
use crate::id::ExecutionId;
use crate::name::TenantName;
use crate::size_limits::{self, MAX_RESULT_BYTES};
use crate::time::Timestamp;

pub use artifacts::{NewArtifact, StoredArtifact};
pub use idempotency::{Idempotency, IdempotencyKey};
pub use lifecycle::{BeginResult, FinishResult};
pub use list::{ExecutionFilter, ExecutionPage};

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
pub struct ExecutionOutcome {
    status: Status,
    exit_code: Option<u8>,
    cpu_ms: u64,
    json: String,
    artifacts: Arc<[NewArtifact]>,
    ended: Timestamp,
}

impl ExecutionOutcome {
    /// Takes the outcome from the engine's report.
    ///
    /// # Errors
    /// The result is larger than the limit.
    pub fn from_report(report: &Report, ended: Timestamp) -> Result<Self, Error> {
        let json = size_limits::encode_json("result", report, MAX_RESULT_BYTES)?;
        let cpu_ms = report.usage.cpu.as_micros().div_ceil(1_000) as u64;
        let (status, exit_code) = (report.status, report.exit_code);
        Ok(Self { status, exit_code, cpu_ms, json, artifacts: Arc::default(), ended })
    }

    /// Adds artifacts that are stored beside the result.
    #[must_use]
    pub fn with_artifacts(self, artifacts: Vec<NewArtifact>) -> Self {
        Self { artifacts: artifacts.into(), ..self }
    }

    /// Returns the artifacts that are stored beside the result.
    pub fn artifacts(&self) -> &Arc<[NewArtifact]> {
        &self.artifacts
    }

    /// Returns the size of the result and its artifacts in bytes.
    pub fn size(&self) -> usize {
        self.json.len() + self.artifacts.iter().map(|artifact| artifact.content.len()).sum::<usize>()
    }

    /// Outcome of an execution that was canceled before it started, with its result object.
    ///
    /// # Errors
    /// The result is larger than the limit.
    pub fn canceled_before_start(result: &Value, ended: Timestamp) -> Result<Self, Error> {
        Self::without_run(Status::Cancelled, result, ended)
    }

    /// Outcome of an execution that could not be started, with a result object that carries the error,
    /// because no client waits for the error itself.
    ///
    /// # Errors
    /// The result is larger than the limit.
    pub fn failed_to_start(result: &Value, ended: Timestamp) -> Result<Self, Error> {
        Self::without_run(Status::Failed, result, ended)
    }

    /// Returns the result object as it will be stored.
    pub fn json(&self) -> &str {
        &self.json
    }

    /// Returns the final status.
    pub fn status(&self) -> Status {
        self.status
    }

    fn without_run(status: Status, result: &Value, ended: Timestamp) -> Result<Self, Error> {
        let json = size_limits::encode_json("result", result, MAX_RESULT_BYTES)?;
        Ok(Self { status, exit_code: None, cpu_ms: 0, json, artifacts: Arc::default(), ended })
    }
}

/// An execution without its result. Times are in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "Summary")]
pub struct ExecutionSummary {
    /// Execution id.
    pub id: ExecutionId,
    /// Status of the execution.
    pub status: Status,
    /// Language of the code, or `command`.
    pub language: String,
    /// Metadata of the request.
    pub metadata: Map<String, Value>,
    /// Creation time.
    pub created: Timestamp,
    /// Start time; null while queued.
    pub started: Option<Timestamp>,
    /// End time; null until it ends.
    pub ended: Option<Timestamp>,
    /// Exit code; null until the end, or if the program was killed by a signal.
    pub exit_code: Option<u8>,
    /// CPU time in milliseconds.
    pub cpu_ms: u64,
    /// Size of the stored result in bytes.
    pub size_bytes: u64,
}

/// An execution with its result.
#[derive(Debug, Clone, PartialEq)]
pub struct ExecutionRecord {
    /// Everything but the result.
    pub summary: ExecutionSummary,
    /// The result object as JSON; `None` for unfinished and interrupted executions.
    pub result: Option<String>,
}

/// Reads a status from a column.
fn status_column(row: &Row<'_>, column: usize) -> rusqlite::Result<Status> {
    let status = row.get_ref(column)?.as_str()?.parse::<Status>();
    Ok(status.map_err(|error| FromSqlError::Other(error.into()))?)
}
