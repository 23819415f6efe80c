//! Tests how prepared packages reach a provider.

use std::sync::{Arc, Mutex};

use serde_json::json;

use super::*;
use crate::packages::PackagesError;
use crate::provider::{DiscardSink, ProviderError};
use crate::provider_set::ProviderWithFallbacks;
use crate::sandbox_handle::SandboxCapabilities;
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

/// The provider that should open a sandbox, with the tenant and the number of mounts.
type OpenAttempt = (&'static str, String, usize);

/// A provider that opens no sandbox, and records what it should open.
#[derive(Debug)]
struct Unopened {
    name: &'static str,
    error: fn() -> ProviderError,
    opened: Arc<Mutex<Vec<OpenAttempt>>>,
}

impl Provider for Unopened {
    fn name(&self) -> &'static str {
        self.name
    }
    fn capabilities(&self) -> Capabilities {
        let sandboxes = SandboxCapabilities::default();
        Capabilities { host_paths: true, sandboxes: Some(sandboxes), ..Capabilities::default() }
    }
    fn run<'a>(
        &'a self,
        _: &'a Plan,
        _: &'a Task,
        _: &'a mut dyn Sink,
        _: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, Result<Outcome, ProviderError>> {
        Box::pin(std::future::ready(Err((self.error)())))
    }
    fn open<'a>(&'a self, plan: &'a Plan) -> BoxFuture<'a, Result<Box<dyn SandboxHandle>, ProviderError>> {
        self.opened.lock().unwrap().push((self.name, plan.tenant.clone(), plan.mounts.len()));
        Box::pin(std::future::ready(Err((self.error)())))
    }
    fn shut_down(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

#[tokio::test]
async fn a_sandbox_that_cannot_be_set_up_is_opened_by_the_fallback() {
    let setup = || ProviderError::setup("reach the daemon", "no");
    let lost = || ProviderError::lost("it went away");
    let invalid = || ProviderError::Invalid { field: "image", message: "no such image".to_owned() };
    let cases: [(RunError, bool); 3] = [(setup, true), (lost, false), (invalid, false)];
    for (error, falls_back) in cases {
        let opened = Arc::new(Mutex::new(Vec::new()));
        let provider = |name, error| -> Arc<dyn Provider> {
            Arc::new(Unopened { name, error, opened: Arc::clone(&opened) })
        };
        let members = vec![
            ProviderWithFallbacks {
                provider: provider("first", error),
                fallbacks: vec!["backup".to_owned()],
            },
            ProviderWithFallbacks::without_fallbacks(provider("backup", lost)),
        ];
        let providers = Arc::new(ProviderSet::new(members, "first", Vec::new()).unwrap());
        let engine = Engine::with_providers(providers, Profiles::built_in(), Limits::CEILING);
        let request = json!({"volumes": [{"name": "data", "path": "/data"}]});
        let admitted = engine.admit_sandbox(serde_json::from_value(request).unwrap(), None).unwrap();
        let mut admitted =
            admitted.with_tenant("ada").with_volumes(|_| Some("/volumes/data".into())).unwrap();
        admitted.timeout = Duration::from_secs(7);
        engine.open_sandbox(&mut admitted, &mut DiscardSink).await.unwrap_err();
        let seen = ["first", "backup"].map(|name| (name, "ada".to_owned(), 1));
        assert_eq!(*opened.lock().unwrap(), seen[..if falls_back { 2 } else { 1 }]);
        assert_eq!(admitted.replaced_provider(), falls_back.then_some("first"));
        assert_eq!(admitted.timeout, Duration::from_secs(7));
    }
}

/// Creates the error of a run.
type RunError = fn() -> ProviderError;

/// Returns a provider that fails every run with this error.
fn broken(name: &'static str, error: RunError) -> Arc<dyn Provider> {
    Arc::new(FakeProvider::new(name, move |_, _, _, _| Box::pin(std::future::ready(Err(error())))))
}

fn working(name: &'static str) -> Arc<dyn Provider> {
    Arc::new(FakeProvider::new(name, move |_, _, sink, _| {
        sink.output(Stream::Stdout, name.as_bytes());
        let outcome = Outcome::new(Ending::Exited(0), Duration::ZERO, Receipt::new(name, Kernel::Host));
        Box::pin(std::future::ready(Ok(outcome)))
    }))
}

#[tokio::test]
async fn the_first_failure_goes_to_the_fallback_unless_something_may_have_run() {
    let setup = || ProviderError::setup("reach the daemon", "no");
    let lost = || ProviderError::lost("it went away");
    let invalid = || ProviderError::Invalid { field: "command", message: "no such program".to_owned() };
    let cases: [(RunError, bool); 3] = [(setup, true), (lost, false), (invalid, false)];
    for (error, falls_back) in cases {
        let fallbacks = vec!["worse".to_owned(), "backup".to_owned()];
        let members = vec![
            ProviderWithFallbacks { provider: broken("first", error), fallbacks },
            ProviderWithFallbacks::without_fallbacks(broken("worse", setup)),
            ProviderWithFallbacks::without_fallbacks(working("backup")),
        ];
        let providers = Arc::new(ProviderSet::new(members, "first", Vec::new()).unwrap());
        // A provider that keeps failing is no fallback.
        let worse = providers.entries().into_iter().find(|entry| entry.name() == "worse").unwrap();
        for _ in 0..5 {
            worse.record_result(Some(&setup()));
        }
        let engine = Engine::with_providers(Arc::clone(&providers), Profiles::built_in(), Limits::CEILING);
        let request = serde_json::from_value(json!({"command": ["true"]})).unwrap();
        let admitted = engine.admit(request, HostPaths::default()).unwrap().with_tenant("ada");
        let never = Box::pin(std::future::pending());
        let ran = engine.execute("x".to_owned(), admitted, &mut DiscardSink, never).await;
        match ran {
            Ok(report) => {
                let receipt = serde_json::to_value(&report).unwrap()["receipt"].clone();
                assert!(falls_back, "{receipt}");
                assert_eq!(
                    (&receipt["provider"], &receipt["instead_of"]),
                    (&json!("backup"), &json!("first"))
                );
            }
            Err(failed) => assert!(!falls_back, "{failed}"),
        }
        let first = providers.entries().into_iter().find(|entry| entry.name() == "first").unwrap();
        assert_eq!(
            first.health_snapshot().failures,
            u32::from(!matches!(error(), ProviderError::Invalid { .. }))
        );
    }
}
