//! The environment of a case: an engine with one provider, and helpers to use it.

use std::future::Future;
use std::sync::Arc;

use belljar_engine::Engine;
use belljar_engine::layer::Layer;
use belljar_engine::limits::Limits;
use belljar_engine::outcome::Warmth;
use belljar_engine::plan::OutputOverflow;
use belljar_engine::profile::{Profile, Profiles};
use belljar_engine::provider::{Provider, Sink, SinkControl, Stream};
use belljar_engine::report::Report;
use belljar_engine::request::{HostPaths, Request};
use belljar_engine::warm::{WarmPoolMode, WarmSettings};
use belljar_providers::docker::{self, Docker};
use belljar_providers::native::{Native, SpawnedLauncher};
use belljar_providers::remote::RemoteProvider;
use serde_json::Value;

/// The result of a case, with what was seen if it failed.
pub(crate) type Verdict = Result<(), String>;
/// A synchronous case.
pub(crate) type Case = fn(&Fixture) -> Verdict;

/// Fails a case with the value seen unless the condition holds.
macro_rules! check {
    ($condition:expr, $seen:expr) => {
        let holds: bool = $condition;
        if !holds {
            return Err(format!("{} does not hold; seen: {:#?}", stringify!($condition), $seen));
        }
    };
}
pub(crate) use check;

#[derive(Clone)]
pub(crate) struct Fixture {
    engine: Arc<Engine>,
    runtime: Arc<tokio::runtime::Runtime>,
    warming: WarmPoolMode,
}

impl Fixture {
    pub(crate) fn native(warming: WarmPoolMode) -> Self {
        // The cases ask the gate's proxy for hosts near this machine. TUN devices have tests over the real binary.
        let launched = SpawnedLauncher::start().expect("the launcher starts").with_proxy_only(true);
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let settings = WarmSettings::default().with_mode(warming);
        let native = runtime.block_on(Native::connect(launched, settings)).expect("the launcher works here");
        Self::with_provider(Arc::new(native), runtime, warming)
    }

    /// Creates a fixture over Docker.
    pub(crate) fn docker(settings: docker::Settings) -> Self {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        Self::with_provider(Arc::new(Docker::new(settings)), runtime, WarmPoolMode::Off)
    }

    /// Creates a fixture from a prepared engine.
    pub(crate) fn with_engine(engine: Engine) -> Self {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        Self { engine: Arc::new(engine), runtime: Arc::new(runtime), warming: WarmPoolMode::Off }
    }

    /// Creates a fixture over a remote service.
    pub(crate) fn remote(remote: RemoteProvider) -> Self {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        Self::with_provider(Arc::new(remote), runtime, WarmPoolMode::Off)
    }

    fn with_provider(
        provider: Arc<dyn Provider>,
        runtime: tokio::runtime::Runtime,
        warming: WarmPoolMode,
    ) -> Self {
        let mut profiles = Profiles::built_in();
        let strict = Profile { output_overflow: OutputOverflow::Kill, ..Profile::default() };
        profiles.insert("kill-floods".to_owned(), strict);
        let engine = Arc::new(Engine::new(provider, profiles, Limits::CEILING));
        Self { engine, runtime: Arc::new(runtime), warming }
    }

    /// Runs the self-test of the provider.
    pub(crate) fn self_test(&self) -> Verdict {
        let entries = self.engine.providers().entries();
        self.runtime.block_on(entries[0].run_self_test(std::future::pending()))
    }

    /// Runs a request to its end.
    pub(crate) fn run(&self, request: Value) -> Result<Report, String> {
        self.run_until(request, std::future::pending(), &mut Quiet)
    }

    /// Runs a request with host folders.
    pub(crate) fn run_with(&self, request: Value, paths: HostPaths) -> Result<Report, String> {
        self.execute(request, paths, std::future::pending(), &mut Quiet)
    }

    /// Runs Python code to its end.
    pub(crate) fn python(&self, code: &str) -> Result<Report, String> {
        self.run(serde_json::json!({"language": "python", "code": code}))
    }

    /// Runs Python code without waiting for a warm interpreter: many runs at once keep a pool empty.
    pub(crate) fn python_without_warmup(&self, code: &str) -> Result<Report, String> {
        let request = serde_json::json!({"language": "python", "code": code});
        self.run_without_warmup(request, std::future::pending(), &mut Quiet)
    }

    /// Runs a request until it ends or `cancel` does.
    pub(crate) fn run_until(
        &self,
        request: Value,
        cancel: impl Future<Output = ()> + Send + 'static,
        sink: &mut dyn Sink,
    ) -> Result<Report, String> {
        let warm = self.warm_up(&request)?;
        let report = self.run_without_warmup(request, cancel, sink)?;
        match report.warmth() {
            Warmth::Cold if warm => Err("expected a warm run, but it was cold".to_owned()),
            _ => Ok(report),
        }
    }

    fn run_without_warmup(
        &self,
        request: Value,
        cancel: impl Future<Output = ()> + Send + 'static,
        sink: &mut dyn Sink,
    ) -> Result<Report, String> {
        self.execute(request, HostPaths::default(), cancel, sink)
    }

    fn execute(
        &self,
        request: Value,
        paths: HostPaths,
        cancel: impl Future<Output = ()> + Send + 'static,
        sink: &mut dyn Sink,
    ) -> Result<Report, String> {
        let mut request: Request = serde_json::from_value(request).map_err(|error| error.to_string())?;
        // Policies are not under test here.
        request.policy.get_or_insert_with(|| "off".to_owned());
        let admitted = self.engine.admit(request, paths).map_err(|error| error.to_string())?;
        let run = self.engine.execute("exec_test".to_owned(), admitted, sink, Box::pin(cancel));
        self.runtime.block_on(run).map_err(|error| error.to_string())
    }

    /// Waits until an interpreter with this request's limits is warm. Returns whether the request can be
    /// warm.
    fn warm_up(&self, request: &Value) -> Result<bool, String> {
        let can_be = ["python", "javascript"].iter().any(|name| request["language"] == *name);
        if self.warming == WarmPoolMode::Off || !can_be {
            return Ok(false);
        }
        let mut trifle = request.clone();
        trifle["code"] = "0".into();
        for field in ["arguments", "stdin", "files", "code_base64"] {
            trifle.as_object_mut().map(|trifle| trifle.remove(field));
        }
        let wanted = if self.warming == WarmPoolMode::Pool { Warmth::Pool } else { Warmth::Fork };
        for _ in 0..200 {
            let report = self.run_without_warmup(trifle.clone(), std::future::pending(), &mut Quiet)?;
            if report.warmth() == wanted {
                return Ok(true);
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let pools = self.runtime.block_on(self.engine.pools());
        Err(format!("nothing became warm: {pools:?}"))
    }

    /// Starts a request and drops it after a while.
    pub(crate) fn abandon(&self, request: Value, after: std::time::Duration) -> Result<(), String> {
        let request: Request = serde_json::from_value(request).map_err(|error| error.to_string())?;
        let admitted = self.engine.admit(request, HostPaths::default()).map_err(|error| error.to_string())?;
        let mut view = Quiet;
        let cancel = Box::pin(std::future::pending());
        let run = self.engine.execute("exec_test".to_owned(), admitted, &mut view, cancel);
        match self.runtime.block_on(async { tokio::time::timeout(after, run).await }) {
            Err(_) => Ok(()),
            Ok(ended) => Err(format!("the run ended before it was dropped: {ended:?}")),
        }
    }

    /// Returns the engine.
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Runs an async case with a timeout.
    pub(crate) fn block_on(&self, case: impl Future<Output = Verdict>) -> Verdict {
        let patience = std::time::Duration::from_secs(120);
        let case = async { tokio::time::timeout(patience, case).await };
        self.runtime.block_on(case).unwrap_or_else(|_| Err("the case timed out".to_owned()))
    }

    /// Returns whether a layer is enforced here. Cases that need a missing one are skipped.
    pub(crate) fn has(&self, layer: Layer) -> bool {
        self.engine.capabilities().missing.iter().all(|missing| missing.layer != layer)
    }

    /// Returns the metrics of the pools.
    pub(crate) fn pools(&self) -> Vec<belljar_engine::provider::PoolMetrics> {
        self.runtime.block_on(self.engine.pools())
    }

    pub(crate) fn shut_down(&self) {
        self.runtime.block_on(self.engine.shut_down());
    }
}

/// A sink that ignores all output.
pub(crate) struct Quiet;

impl Sink for Quiet {
    fn output(&mut self, _stream: Stream, _bytes: &[u8]) -> SinkControl {
        SinkControl::Continue
    }
}
