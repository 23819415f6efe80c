//! Runs a real program with one provider, outside of the set of providers in use.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use belljar_engine::limits::Limits;
use belljar_engine::profile::Profiles;
use belljar_engine::provider::{DiscardSink, Provider, ProviderError};
use belljar_engine::report::{Report, Status};
use belljar_engine::request::{HostPaths, Request};
use belljar_engine::{Engine, Error as EngineError};
use tokio::time::timeout;

/// Id of the run, which is not recorded.
const ID: &str = "test";
/// Time limit, including set-up: an image may have to be pulled.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);
/// A program that nearly every image has.
const PROGRAM: &str = "true";

/// Runs a request, and returns why it could not run.
pub(crate) async fn run_request(
    provider: &Arc<dyn Provider>,
    ceiling: Limits,
    request: Request,
) -> Result<Report, String> {
    let ran = run(provider, ceiling, request).await.ok_or_else(|| "the test took too long".to_owned())?;
    ran.map_err(|error| error.to_string())
}

/// Checks that a provider can run a program. A self-test does not use all settings.
pub(super) async fn check_runs(provider: &Arc<dyn Provider>, ceiling: Limits) -> Result<(), String> {
    let request = Request { command: Some(vec![PROGRAM.to_owned()]), ..Request::default() };
    match run(provider, ceiling, request).await {
        None => Err("a test program took too long".to_owned()),
        Some(Ok(report)) if report.status == Status::Succeeded => Ok(()),
        Some(Ok(report)) => {
            let why = report.error.unwrap_or_else(|| report.status.name().to_owned());
            Err(format!("a test program failed: {why}"))
        }
        // The sandbox worked; its image has no such program.
        Some(Err(EngineError::Provider(ProviderError::Invalid { field: "command", .. }))) => Ok(()),
        Some(Err(error)) => Err(error.to_string()),
    }
}

async fn run(
    provider: &Arc<dyn Provider>,
    ceiling: Limits,
    request: Request,
) -> Option<Result<Report, EngineError>> {
    let engine = Engine::new(Arc::clone(provider), Profiles::built_in(), ceiling);
    let work = async {
        let admitted = engine.admit(request, HostPaths::default())?;
        engine.execute(ID.to_owned(), admitted, &mut DiscardSink, Box::pin(pending())).await
    };
    timeout(TEST_TIMEOUT, work).await.ok()
}
