use super::*;
use crate::outcome::Kernel;
use crate::profile::Profile;
use crate::provider::IsolationStrength;
use crate::testing::FakeProvider;

impl SelectedProvider {
    /// A selected provider with these capabilities.
    pub(crate) fn with_capabilities(capabilities: Capabilities) -> Self {
        let entry = Arc::new(ProviderEntry::new(Arc::new(FakeProvider::failing("fake", capabilities))));
        Self { entry, instead_of: None, others: Weak::new() }
    }
}

fn lost() -> ProviderError {
    ProviderError::lost("it went away")
}

fn member(
    name: &'static str,
    strength: Option<IsolationStrength>,
    fallbacks: &[&str],
) -> ProviderWithFallbacks {
    let capabilities = Capabilities { strength, ..Capabilities::default() };
    let fallbacks = fallbacks.iter().map(|name| (*name).to_owned()).collect();
    ProviderWithFallbacks { provider: Arc::new(FakeProvider::failing(name, capabilities)), fallbacks }
}

fn table(default_name: &str) -> Arc<ProviderTable> {
    let host = |missing| Some(IsolationStrength::new(Kernel::Host, missing));
    let members = vec![
        member("native", host(0), &[]),
        member("docker", host(1), &["gvisor", "native"]),
        member("gvisor", Some(IsolationStrength::new(Kernel::Gvisor, 4)), &[]),
        member("simulated", None, &[]),
    ];
    Arc::new(ProviderTable::new(members, default_name, None).unwrap())
}

fn name(chosen: &SelectedProvider) -> &'static str {
    chosen.entry.provider.name()
}

#[test]
fn the_first_name_wins_and_auto_selects_the_strongest() {
    let members = vec![member("native", None, &[]), member("docker", None, &[])];
    let providers = ProviderSet::new(members, "docker", vec!["docker", "native", "x"]).unwrap();
    let chosen = |[request, profile, tenant]: [Option<&str>; 3]| {
        let profile = Profile { provider: profile.map(str::to_owned), ..Profile::default() };
        let chosen = providers.choose(profile.provider_of(request, tenant));
        chosen.map(|chosen| name(&chosen)).map_err(|error| error.to_string())
    };
    assert_eq!(chosen([Some("native"), Some("docker"), Some("docker")]), Ok("native"));
    assert_eq!(chosen([None, Some("native"), Some("docker")]), Ok("native"));
    assert_eq!(chosen([None, None, Some("native")]), Ok("native"));
    assert_eq!(chosen([None, None, None]), Ok("docker"));
    assert_eq!(
        chosen([Some("x"), None, None]).unwrap_err(),
        "provider: 'x' is not configured; configured: docker, native"
    );
    // Also after the set was replaced.
    let _retired = providers.replace(providers.stage(vec![member("native", None, &[])], "native").unwrap());
    assert_eq!(
        providers.check("nativ").unwrap_err().to_string(),
        "provider: there is no provider 'nativ' (did you mean 'native'?); known: docker, native, x; configured: native"
    );
    assert!(
        chosen([Some("auto"), None, None]).unwrap_err().contains("name one"),
        "no provider has a strength"
    );
    assert_eq!(name(&table("auto").choose(None, Instant::now()).unwrap()), "gvisor");
    let weak = member("weak", Some(IsolationStrength::new(Kernel::Host, 3)), &[]);
    let strong = member("strong", Some(IsolationStrength::new(Kernel::Host, 0)), &[]);
    let table = Arc::new(ProviderTable::new(vec![weak, strong], AUTO, None).unwrap());
    assert_eq!(name(&table.choose(None, Instant::now()).unwrap()), "strong");
}

#[test]
fn unknown_names_are_refused_and_change_nothing() {
    assert!(ProviderTable::new(vec![member("a", None, &[])], "b", None).is_err());
    assert!(ProviderTable::new(vec![member("a", None, &["b"])], "a", None).is_err());
    assert!(ProviderTable::new(vec![member("a", None, &[AUTO])], "a", None).is_err());
    let providers = ProviderSet::single(Arc::new(FakeProvider::failing("a", Capabilities::default())));
    assert!(providers.stage(vec![], "a").is_err());
    assert_eq!(name(&providers.choose(None).unwrap()), "a");
    let _retired = providers.replace(providers.stage(vec![member("b", None, &[])], "b").unwrap());
    assert_eq!(name(&providers.choose(None).unwrap()), "b");
}

#[tokio::test]
async fn a_replaced_provider_shuts_down_after_its_last_request() {
    let provider: Arc<dyn Provider> = Arc::new(FakeProvider::failing("a", Capabilities::default()));
    let providers = ProviderSet::single(Arc::clone(&provider));
    providers.current().find("a").unwrap().record_result(Some(&lost()));
    let same =
        providers.stage(vec![ProviderWithFallbacks::without_fallbacks(Arc::clone(&provider))], "a").unwrap();
    assert!(providers.replace(same).is_empty(), "an unchanged provider is kept");
    assert_eq!(providers.entries()[0].health_snapshot().failures, 1, "and so is its health");
    let served = providers.choose(None).unwrap();
    let mut retired = providers.replace(providers.stage(vec![member("a", None, &[])], "a").unwrap());
    let end = tokio::spawn(retired.remove(0).shut_down());
    tokio::task::yield_now().await;
    assert!(!end.is_finished());
    drop(served);
    end.await.unwrap();
}

#[tokio::test]
async fn auto_skips_providers_that_fail_their_self_test() {
    let strength = |missing| Some(IsolationStrength::new(Kernel::Host, missing));
    let members = vec![member("weak", strength(3), &[]), member("strong", strength(0), &[])];
    let providers = ProviderSet::new(members, AUTO, Vec::new()).unwrap();
    let chosen = || providers.choose(None).map(|chosen| name(&chosen)).map_err(|error| error.to_string());
    assert_eq!(chosen(), Ok("strong"));
    for entry in providers.candidates() {
        entry.run_self_test(std::future::pending()).await.unwrap();
    }
    assert_eq!(chosen(), Ok("strong"));
    let fail =
        |name| providers.current().find(name).unwrap().lock_health().self_test = Some(Err("no".to_owned()));
    fail("strong");
    assert_eq!(chosen(), Ok("weak"));
    fail("weak");
    assert!(chosen().unwrap_err().contains("passes its self-test"));
    assert!(providers.check(AUTO).is_ok() && providers.check("other").is_err());
}

#[test]
fn a_failing_provider_is_retried_after_an_interval() {
    let (table, now) = (table("native"), Instant::now());
    let entry = table.find("native").unwrap();
    for _ in 0..MAX_FAILURES {
        assert!(table.choose(None, now).is_ok());
        entry.record_result(Some(&lost()));
    }
    let error = table.choose(None, now).unwrap_err().to_string();
    assert!(
        error.contains("'native' has failed 5 times in a row") && error.contains("it went away"),
        "{error}"
    );
    let later = Instant::now() + RETRY_INTERVAL;
    assert!(table.choose(None, later).is_ok(), "one may try");
    assert!(table.choose(None, later).is_err(), "and only one");
    entry.record_result(None);
    assert!(table.choose(None, later).is_ok());
}

#[test]
fn only_listed_fallbacks_take_over() {
    let (table, now) = (table("docker"), Instant::now());
    let fail = |name| (0..MAX_FAILURES).for_each(|_| table.find(name).unwrap().record_result(Some(&lost())));
    fail("docker");
    let chosen = table.choose(None, now).unwrap();
    assert_eq!((name(&chosen), chosen.instead_of), ("gvisor", Some("docker")));
    fail("gvisor");
    assert_eq!(name(&table.choose(None, now).unwrap()), "native");
    assert!(table.choose(Some("gvisor"), now).is_err(), "it has no fallback");
}

#[test]
fn request_errors_are_not_provider_failures() {
    let table = table("native");
    let error = ProviderError::Invalid { field: "image", message: "is not there".to_owned() };
    (0..2 * MAX_FAILURES).for_each(|_| table.find("native").unwrap().record_result(Some(&error)));
    assert!(table.choose(None, Instant::now()).is_ok());
}

#[test]
fn missing_capabilities_name_the_providers_that_have_them() {
    let mut members = vec![member("native", None, &[]), member("docker", None, &[])];
    let able = Capabilities { host_paths: true, ..Capabilities::default() };
    members.push(ProviderWithFallbacks::without_fallbacks(Arc::new(FakeProvider::failing("able", able))));
    let table = Arc::new(ProviderTable::new(members, "native", None).unwrap());
    let chosen = table.choose(None, Instant::now()).unwrap();
    let refused = |what| chosen.require_capability(what, "mount").unwrap_err().to_string();
    assert_eq!(
        refused(Capability::HostPaths),
        "mount: provider 'native' cannot mount host folders or volumes (it does not support 'host_paths'; \
         supported by: able)"
    );
    assert!(
        refused(Capability::SingleHosts).contains("'single_hosts'; supported by: no configured provider)")
    );
    let able = table.choose(Some("able"), Instant::now()).unwrap();
    assert!(able.require_capability(Capability::HostPaths, "mount").is_ok());
}
