//! Tests how prepared packages reach a provider.

use std::sync::{Arc, Mutex};

use serde_json::json;

use super::*;
use crate::packages::PackagesError;
use crate::provider::{Blind, Sandbox};

/// A provider that records plans and fails to open any.
#[derive(Debug, Default)]
struct Noting(Mutex<Vec<Plan>>);

impl Provider for Noting {
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
struct Always(Prepared);

impl Packages for Always {
    fn prepare<'a>(
        &'a self,
        _: Needs<'a>,
        _: &'a mut dyn Progress,
    ) -> BoxFuture<'a, Result<Prepared, PackagesError>> {
        Box::pin(std::future::ready(Ok(self.0.clone())))
    }
    fn stock(&self) -> BoxFuture<'_, Stock> {
        Box::pin(std::future::ready(Stock::default()))
    }
}

#[tokio::test]
async fn modules_of_a_request_are_never_imported_ahead_and_the_profiles_only_as_locked() {
    for (profile_replaced, expected) in [(false, vec!["numpy", "pandas", "matplotlib"]), (true, vec![])] {
        let prepared =
            Prepared { frequent_imports: vec!["evil".to_owned()], profile_replaced, ..Prepared::default() };
        let provider = Arc::new(Noting::default());
        let noting: Arc<dyn Provider> = Arc::<Noting>::clone(&provider);
        let engine = Engine::new(noting, Profiles::shipped(), Limits::CEILING);
        let engine = engine.with_packages(Arc::new(Always(prepared)));
        let request = json!({"profile": "data", "language": "python", "code": "import evil"});
        let request = serde_json::from_value(request).unwrap();
        let admitted = engine.admit(request, HostPaths::default()).unwrap();
        let never = Box::pin(std::future::pending());
        engine.execute("x".to_owned(), admitted, &mut Blind, never).await.unwrap_err();
        let plans = provider.0.lock().unwrap();
        assert_eq!(
            (plans[0].preimports.len(), &plans[0].frequent_imports),
            (expected.len(), &vec!["evil".to_owned()])
        );
        assert_eq!(plans[0].preimports, expected);
    }
}
