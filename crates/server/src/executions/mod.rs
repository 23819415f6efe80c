//! Executions: admitted, queued, run, recorded, found again.

mod admission;
mod artifacts;
pub(crate) mod executor;
pub(crate) mod inputs;
pub(crate) mod live_executions;
mod queued_execution;
mod result_json;
mod unrecorded_start;

use std::sync::Arc;

use axum::body::Bytes;
use belljar_engine::admit::AdmittedRequest;
use belljar_engine::language::Language;
use belljar_engine::request::{HostPaths, Request};
use belljar_store::executions::Idempotency;
use belljar_store::{ExecutionId, Timestamp};
use serde_json::{Map, Value};

use crate::app_state::AppState;
use crate::authentication::Caller;
use crate::body_memory::{BodyReservation, RequestReservation};
use crate::error::Error;
use crate::sandboxes::live_sandbox::SandboxInUse;

#[cfg(test)]
pub(crate) use self::result_json::blank_result;

/// An admitted execution.
#[derive(Debug)]
pub(crate) struct ExecutionJob {
    pub(crate) admitted: AdmittedRequest,
    /// The sandbox to run in; `None` for a fresh one.
    pub(crate) sandbox: Option<SandboxInUse>,
    pub(crate) language: &'static str,
    pub(crate) metadata: Map<String, Value>,
    pub(crate) idempotency: Option<Idempotency>,
    /// No client waits for the answer, so a failure is stored as a result.
    pub(crate) detached: bool,
    /// Whether output can be followed.
    pub(crate) keeps_transcript: bool,
    /// Memory reserved for the request.
    pub(crate) reservation: Arc<RequestReservation>,
}

/// Admits a request on behalf of the caller's tenant.
pub(crate) async fn admit(
    state: &Arc<AppState>,
    caller: &Caller,
    inside: Option<SandboxInUse>,
    request: Request,
    reservation: BodyReservation,
) -> Result<ExecutionJob, Error> {
    let reservation = reservation.into_request()?;
    let language = language_name(&request)?;
    let metadata = request.metadata.clone();
    let (engine, owner) = (Arc::clone(&state.engine), caller.clone());
    let check = state.check_workers.run_check(&caller.tenant, move || {
        let tenancy = owner.tenancy();
        let admitted = match &inside {
            None => engine.admit_for_tenant(request, HostPaths::default(), tenancy)?,
            Some(sandbox) => engine.admit_in_sandbox(&sandbox.admitted, request, tenancy.policy)?,
        };
        Ok::<_, Error>((admitted, inside))
    });
    let (admitted, inside) = check.await?.map_err(|error| state.error_for(caller.is_admin(), error))?;
    // An execution inside a sandbox already belongs to the sandbox's tenant.
    let admitted = if inside.is_none() { admitted.with_tenant(caller.tenant.as_str()) } else { admitted };
    Ok(ExecutionJob {
        admitted,
        sandbox: inside,
        language,
        metadata,
        idempotency: None,
        detached: false,
        keeps_transcript: false,
        reservation: Arc::new(reservation),
    })
}

/// Returns the name of a request's language, or what stands for it.
fn language_name(request: &Request) -> Result<&'static str, Error> {
    match &request.language {
        Some(name) => Ok(Language::from_name(name)?.name),
        None => Ok("command"),
    }
}

/// Refuses a tenant that has used up its CPU quota for the day.
pub(crate) async fn check_quota(state: &AppState, caller: &Caller) -> Result<(), Error> {
    let Some(seconds) = caller.quotas.cpu_seconds_per_day else { return Ok(()) };
    let now = Timestamp::now();
    let used = state.store.usage(&caller.tenant, now.day()).await?;
    if used.cpu_ms < seconds.saturating_mul(1_000) {
        return Ok(());
    }
    let left = now.day().next().start().millis() - now.millis();
    Err(Error::CpuQuotaUsedUp { retry_after: left.unsigned_abs().div_ceil(1_000) })
}

/// Returns the JSON of an execution of the caller's tenant: its result, or its status until it ends.
pub(crate) async fn stored_result(
    state: &AppState,
    caller: &Caller,
    id: &ExecutionId,
) -> Result<Bytes, Error> {
    let found = state.store.execution(&caller.tenant, id).await?.ok_or(Error::NotFound("execution"))?;
    Ok(result_json::stored_result(found).into())
}
