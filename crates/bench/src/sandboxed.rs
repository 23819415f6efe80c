//! Runs a workload in sandboxes, through the engine in this process, as every front end does.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use belljar_engine::Engine;
use belljar_engine::layer::Layer;
use belljar_engine::limits::Limits;
use belljar_engine::outcome::Warmth;
use belljar_engine::profile::{Profile, Profiles};
use belljar_engine::provider::Provider;
use belljar_engine::report::{Report, Status};
use belljar_engine::request::{HostPaths, Request};

use crate::error::BenchError;
use crate::sample::Sample;
use crate::workload::{CodeSample, Workload};
use belljar_engine::provider::DiscardSink;

/// The isolation layers of the first run, which every other run must have as well.
pub(crate) type ExpectedLayers = Arc<OnceLock<Vec<Layer>>>;

const PROFILE: &str = "bench";
/// How long to wait for a warm sandbox.
const WARM_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs one workload in sandboxes of one provider.
#[derive(Debug)]
pub(crate) struct SandboxBench {
    engine: Engine,
    workload: &'static Workload,
    pub(crate) expected: Warmth,
    pub(crate) name: &'static str,
    /// Whether to wait for a warm sandbox before each run, because starting one takes longer than any pause.
    waits: bool,
    layers: ExpectedLayers,
}

impl SandboxBench {
    /// Uses the shipped profiles and not this machine's own, so that figures of two machines are comparable.
    pub(crate) fn new(
        provider: Arc<dyn Provider>,
        workload: &'static Workload,
        wanted: Warmth,
        layers: ExpectedLayers,
    ) -> Self {
        let preimports = workload.modules.iter().map(|name| (*name).to_owned()).collect();
        let mut profiles = Profiles::built_in();
        profiles.insert(PROFILE.to_owned(), Profile { preimports, ..Profile::default() });
        let engine = Engine::new(provider, profiles, Limits::CEILING);
        Self { engine, workload, expected: wanted, name: wanted.name(), waits: false, layers }
    }

    /// Sets the row name, and makes every run wait for a warm sandbox first.
    pub(crate) fn waiting_as(self, name: &'static str) -> Self {
        Self { name, waits: true, ..self }
    }

    /// Waits until a sandbox is warm, or until `PATIENCE` has passed.
    async fn wait_for_warm(&self) {
        let end = Instant::now() + WARM_TIMEOUT;
        while self.engine.pools().await.iter().all(|pool| pool.size == 0) && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Runs a code sample. Measures from the request to the complete report.
    pub(crate) async fn run_once(&self, piece: &CodeSample) -> Result<Sample, BenchError> {
        let code = piece.code.clone();
        if self.waits && self.layers.get().is_some() {
            self.wait_for_warm().await;
        }
        let started = Instant::now();
        let report = self.execute(code).await?;
        let took = started.elapsed();
        if report.status != Status::Succeeded || report.stdout != piece.answer {
            return Err(self.unexpected_result(&report));
        }
        self.check_layers(report.isolation())?;
        Ok(Sample { took, warmth: Some(report.warmth()) })
    }

    /// Runs the workload's probe in a sandbox and returns its output.
    pub(crate) async fn probe(&self) -> Result<String, BenchError> {
        let report = self.execute(self.workload.probe.to_owned()).await?;
        match report.status {
            Status::Succeeded => Ok(report.stdout),
            _ => Err(self.unexpected_result(&report)),
        }
    }

    async fn execute(&self, code: String) -> Result<Report, BenchError> {
        let request = Request {
            language: Some(self.workload.language.to_owned()),
            code: Some(code),
            profile: Some(PROFILE.to_owned()),
            ..Request::default()
        };
        let admitted = self.engine.admit(request, HostPaths::default())?;
        let never = Box::pin(std::future::pending());
        Ok(self.engine.execute(String::new(), admitted, &mut DiscardSink, never).await?)
    }

    fn unexpected_result(&self, report: &Report) -> BenchError {
        let why = report.error.as_deref().unwrap_or("its output is not what the workload prints");
        BenchError::machine(format!(
            "{} in a sandbox: {why}; check this machine with: belljar doctor",
            self.workload.name
        ))
    }

    /// Refuses to compare runs with different isolation layers.
    fn check_layers(&self, layers: &[Layer]) -> Result<(), BenchError> {
        let first = self.layers.get_or_init(|| layers.to_vec());
        if first == layers {
            return Ok(());
        }
        let differ = |layer: &&Layer| first.contains(layer) != layers.contains(layer);
        let names: Vec<_> = Layer::ALL.iter().filter(differ).map(|layer| layer.name()).collect();
        Err(BenchError::machine(format!(
            "{} with warmth {:?}: a run had other isolation layers than the first run ({}); \
             check with: belljar doctor",
            self.workload.name,
            self.expected,
            names.join(", ")
        )))
    }
}
