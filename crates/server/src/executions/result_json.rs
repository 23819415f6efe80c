//! Result objects of executions without a report: queued, running, interrupted or never started.

use belljar_engine::report::{Report, Status};
use belljar_store::ExecutionId;
use belljar_store::executions::ExecutionRecord;
use serde_json::{Map, Value};

/// Returns a result object with empty values, except for the status and, if any, the reason.
pub(crate) fn blank_result(
    id: &ExecutionId,
    status: Status,
    error: Option<&str>,
    metadata: &Map<String, Value>,
) -> Value {
    let report = Report::blank(id.to_string(), status, error.map(str::to_owned), metadata.clone());
    serde_json::to_value(report).unwrap_or_default()
}

/// Returns the JSON of a stored execution: its result, or a blank result with its status.
pub(crate) fn stored_result(execution: ExecutionRecord) -> String {
    let ExecutionRecord { summary, result } = execution;
    result.unwrap_or_else(|| {
        let error =
            (summary.status == Status::Interrupted).then_some("the server ended while this was running");
        blank_result(&summary.id, summary.status, error, &summary.metadata).to_string()
    })
}
