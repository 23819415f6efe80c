//! A provider whose settings cannot be used. It fails every request with the reason, so that no other
//! provider silently takes its place.

use belljar_engine::outcome::Outcome;
use belljar_engine::plan::{Plan, Task};
use belljar_engine::provider::{BoxFuture, Capabilities, Provider, ProviderError, Sink};

#[derive(Debug)]
pub(super) struct UnusableProvider {
    pub(super) name: &'static str,
    pub(super) why: String,
}

impl UnusableProvider {
    fn error(&self) -> ProviderError {
        let step = format!("use the settings of provider '{}'", self.name);
        ProviderError::Setup { step, cause: self.why.clone() }
    }
}

impl Provider for UnusableProvider {
    fn name(&self) -> &'static str {
        self.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn run<'a>(
        &'a self,
        _plan: &'a Plan,
        _task: &'a Task,
        _sink: &'a mut dyn Sink,
        _cancel: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, Result<Outcome, ProviderError>> {
        Box::pin(std::future::ready(Err(self.error())))
    }

    fn self_test(&self) -> BoxFuture<'_, Result<(), ProviderError>> {
        Box::pin(std::future::ready(Err(self.error())))
    }

    fn shut_down(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}
