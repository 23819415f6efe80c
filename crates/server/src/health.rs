//! Readiness: whether the server can run code now.

use std::time::{Duration, Instant};

use belljar_engine::Engine;
use belljar_engine::provider::DiscardSink;
use belljar_engine::report::Status;
use belljar_engine::request::{HostPaths, Request};
use belljar_store::{Store, Timestamp};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::error::Error;

/// How long the result of a probe is reused.
const PROBE_RESULT_TTL: Duration = Duration::from_secs(5);
/// Timeout of a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// The result of the last probe and its time.
#[derive(Debug, Default)]
pub(crate) struct Readiness(Mutex<Option<(Instant, Result<(), Error>)>>);

impl Readiness {
    /// Probes whether code can run, unless that was done a moment ago.
    pub(crate) async fn check(&self, engine: &Engine, store: &Store) -> Result<(), Error> {
        let mut last = self.0.lock().await;
        if let Some((since, result)) = &*last
            && since.elapsed() < PROBE_RESULT_TTL
        {
            return result.clone();
        }
        let result = timeout(PROBE_TIMEOUT, probe(engine, store)).await.unwrap_or(Err(Error::Overloaded));
        *last = Some((Instant::now(), result.clone()));
        result
    }
}

/// Runs a minimal program and writes to the database.
async fn probe(engine: &Engine, store: &Store) -> Result<(), Error> {
    let request = Request { command: Some(vec!["true".to_owned()]), ..Request::default() };
    let admitted = engine.admit(request, HostPaths::default())?;
    let never = Box::pin(std::future::pending());
    let report = engine.execute("probe".to_owned(), admitted, &mut DiscardSink, never).await?;
    store.probe(Timestamp::now()).await?;
    if report.status == Status::Succeeded { Ok(()) } else { Err(Error::Internal) }
}
