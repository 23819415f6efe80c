//! Tests how prepared packages reach a provider.

use std::sync::{Arc, Mutex};

use serde_json::json;

use super::*;
use crate::packages::PackagesError;
use crate::provider::{DiscardSink, ProviderError};
use crate::testing::FakeProvider;

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
        let recorded = Arc::new(Mutex::new(Vec::new()));
        let plans = Arc::clone(&recorded);
        let provider = FakeProvider::new("fake", move |plan, _, _, _| {
            plans.lock().unwrap().push(plan.clone());
            Box::pin(std::future::ready(Err(ProviderError::setup("open", "never"))))
        });
        let provider =
            provider.with_capabilities(Capabilities { package_layers: true, ..Capabilities::default() });
        let engine = Engine::new(Arc::new(provider), Profiles::built_in(), Limits::CEILING);
        let engine = engine.with_packages(Arc::new(FixedResolver(prepared)));
        let request = json!({"profile": "data", "language": "python", "code": "import evil"});
        let request = serde_json::from_value(request).unwrap();
        let admitted = engine.admit(request, HostPaths::default()).unwrap();
        let never = Box::pin(std::future::pending());
        engine.execute("x".to_owned(), admitted, &mut DiscardSink, never).await.unwrap_err();
        let plans = recorded.lock().unwrap();
        assert_eq!(
            (plans[0].preimports.len(), &plans[0].frequent_imports),
            (expected.len(), &vec!["evil".to_owned()])
        );
        assert_eq!(plans[0].preimports, expected);
    }
}
