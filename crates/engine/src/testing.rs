//! A provider for tests, here and in other crates: a function says what it runs.

use std::fmt;
use std::future::ready;

use crate::outcome::Outcome;
use crate::plan::{Plan, Task};
use crate::provider::{BoxFuture, Capabilities, PoolMetrics, Provider, ProviderError, Sink};

type RunResult = Result<Outcome, ProviderError>;
type RunFunction = dyn for<'a> Fn(&'a Plan, &'a Task, &'a mut dyn Sink, BoxFuture<'a, ()>) -> BoxFuture<'a, RunResult>
    + Send
    + Sync;

/// A provider that runs a function in place of a program.
pub struct FakeProvider {
    name: &'static str,
    capabilities: Capabilities,
    pools: Vec<PoolMetrics>,
    run: Box<RunFunction>,
}

impl fmt::Debug for FakeProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeProvider").field("name", &self.name).finish_non_exhaustive()
    }
}

impl FakeProvider {
    /// Creates a provider that supports nothing but running this function.
    pub fn new<F>(name: &'static str, run: F) -> Self
    where
        F: for<'a> Fn(&'a Plan, &'a Task, &'a mut dyn Sink, BoxFuture<'a, ()>) -> BoxFuture<'a, RunResult>
            + Send
            + Sync
            + 'static,
    {
        Self { name, capabilities: Capabilities::default(), pools: Vec::new(), run: Box::new(run) }
    }

    /// Creates a provider that fails every run.
    pub fn failing(name: &'static str, capabilities: Capabilities) -> Self {
        let fake = Self::new(name, |_, _, _, _| Box::pin(ready(Err(ProviderError::lost("it went away")))));
        fake.with_capabilities(capabilities)
    }

    /// Sets the capabilities.
    #[must_use]
    pub fn with_capabilities(self, capabilities: Capabilities) -> Self {
        Self { capabilities, ..self }
    }

    /// Sets the metrics of the warm pools.
    #[must_use]
    pub fn with_pools(self, pools: Vec<PoolMetrics>) -> Self {
        Self { pools, ..self }
    }
}

impl Provider for FakeProvider {
    fn name(&self) -> &'static str {
        self.name
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn run<'a>(
        &'a self,
        plan: &'a Plan,
        task: &'a Task,
        sink: &'a mut dyn Sink,
        cancel: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, RunResult> {
        (self.run)(plan, task, sink, cancel)
    }

    fn pools(&self) -> BoxFuture<'_, Vec<PoolMetrics>> {
        Box::pin(ready(self.pools.clone()))
    }

    fn shut_down(&self) -> BoxFuture<'_, ()> {
        Box::pin(ready(()))
    }
}
