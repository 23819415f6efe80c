//! Result objects of executions without a report: queued, running, interrupted or never started.

use belljar_store::ExecutionId;
use belljar_store::executions::{ExecutionRecord, ExecutionStatus};
use serde_json::{Map, Value, json};

/// Returns a result object with empty values, except for the status and, if any, the reason.
pub(crate) fn blank_result(
    id: &ExecutionId,
    status: ExecutionStatus,
    error: Option<&str>,
    metadata: &Map<String, Value>,
) -> Value {
    json!({
        "id": id,
        "status": status,
        "exit_code": null,
        "signal": null,
        "limit": null,
        "stdout": "",
        "stderr": "",
        "stdout_truncated": false,
        "stderr_truncated": false,
        "result": {"present": false, "value": null},
        "artifacts": [],
        "error": error,
        "findings": [],
        "dependencies": {"packages": [], "cache": "none", "install_ms": 0},
        "duration_ms": 0.0,
        "usage": {"cpu_ms": 0.0, "peak_memory_bytes": 0, "processes_peak": null},
        "receipt": null,
        "metadata": metadata,
    })
}

/// Returns the JSON of a stored execution: its result, or a blank result with its status.
pub(crate) fn stored_result(execution: ExecutionRecord) -> String {
    let ExecutionRecord { summary, result } = execution;
    result.unwrap_or_else(|| {
        let error = (summary.status == ExecutionStatus::Interrupted)
            .then_some("the server ended while this was running");
        blank_result(&summary.id, summary.status, error, &summary.metadata).to_string()
    })
}
