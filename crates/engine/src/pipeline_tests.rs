//! Tests how prepared packages reach a provider.

use std::sync::{Arc, Mutex};

use serde_json::json;

use super::*;
use crate::packages::PackagesError;
use crate::provider::{DiscardSink, Sandbox};

/// A provider that records plans and fails to open any.
#[derive(Debug, Default)]
struct RecordingProvider(Mutex<Vec<Plan>>);

impl Provider for RecordingProvider {
    fn name(&self) -> &'static str {
        "noting"
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities { package_layers: true, ..Capabilities::default() }
    }
    fn open<'a>(&'a self, plan: &'a Plan) -> BoxFuture<'a, Result<Box<dyn Sandbox>, ProviderError>> {
        self.0.lock().unwrap().push(plan.clone());
        let failed = ProviderError::Setup { step: "open".to_owned(), cause: "never".to_owned() };
        Box::pin(async { Err(failed) })
    }
    fn pools(&self) -> BoxFuture<'_, Vec<PoolMetrics>> {
        Box::pin(async { Vec::new() })
    }
    fn shut_down(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// A package resolver that always returns this value.
#[derive(Debug)]
struct FixedResolver(ProvidedPackages);

impl PackageResolver for FixedResolver {
    fn prepare<'a>(
        &'a self,
        _: PackageNeeds<'a>,
        _: &'a mut dyn Progress,
    ) -> BoxFuture<'a, Result<ProvidedPackages, PackagesError>> {
        Box::pin(std::future::ready(Ok(self.0.clone())))
    }
    fn stats(&self) -> BoxFuture<'_, PackageStats> {
        Box::pin(std::future::ready(PackageStats::default()))
    }
}

#[tokio::test]
async fn only_locked_profile_modules_are_preimported() {
    for (profile_replaced, expected) in [(false, vec!["numpy", "pandas", "matplotlib"]), (true, vec![])] {
        let prepared = ProvidedPackages {
            frequent_imports: vec!["evil".to_owned()],
            profile_replaced,
            ..ProvidedPackages::default()
        };
        let provider = Arc::new(RecordingProvider::default());
        let noting: Arc<dyn Provider> = Arc::<RecordingProvider>::clone(&provider);
        let engine = Engine::new(noting, Profiles::built_in(), Limits::CEILING);
        let engine = engine.with_packages(Arc::new(FixedResolver(prepared)));
        let request = json!({"profile": "data", "language": "python", "code": "import evil"});
        let request = serde_json::from_value(request).unwrap();
        let admitted = engine.admit(request, HostPaths::default()).unwrap();
        let never = Box::pin(std::future::pending());
        engine.execute("x".to_owned(), admitted, &mut DiscardSink, never).await.unwrap_err();
        let plans = provider.0.lock().unwrap();
        assert_eq!(
            (plans[0].preimports.len(), &plans[0].frequent_imports),
            (expected.len(), &vec!["evil".to_owned()])
        );
        assert_eq!(plans[0].preimports, expected);
    }
}
