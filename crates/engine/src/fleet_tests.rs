use super::*;
use crate::plan::Plan;
use crate::provider::{BoxFuture, PoolMetrics, Sandbox};

/// A provider with a given name and capabilities that opens nothing.
#[derive(Debug)]
struct Claims(&'static str, Capabilities);

impl Provider for Claims {
    fn name(&self) -> &'static str {
        self.0
    }
    fn capabilities(&self) -> Capabilities {
        self.1.clone()
    }
    fn open<'a>(&'a self, _: &'a Plan) -> BoxFuture<'a, Result<Box<dyn Sandbox>, ProviderError>> {
        Box::pin(async { Err(lost()) })
    }
    fn pools(&self) -> BoxFuture<'_, Vec<PoolMetrics>> {
        Box::pin(async { Vec::new() })
    }
    fn shut_down(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

impl Chosen {
    /// A selected provider with these capabilities.
    pub(crate) fn claiming(capabilities: Capabilities) -> Self {
        let post = Arc::new(Post::new(Arc::new(Claims("claims", capabilities))));
        Self { post, instead_of: None, crew: Weak::new() }
    }
}

fn lost() -> ProviderError {
    ProviderError::Lost { message: "it went away".to_owned() }
}

fn member(name: &'static str, strength: Option<Strength>, instead: &[&str]) -> Member {
    let capabilities = Capabilities { strength, ..Capabilities::default() };
    let instead = instead.iter().map(|name| (*name).to_owned()).collect();
    Member { provider: Arc::new(Claims(name, capabilities)), instead }
}

fn crew(usual: &str) -> Arc<Crew> {
    let host = |missing| Some(Strength::new(Kernel::Host, missing));
    let members = vec![
        member("native", host(0), &[]),
        member("docker", host(1), &["gvisor", "native"]),
        member("gvisor", Some(Strength::new(Kernel::Gvisor, 4)), &[]),
        member("simulated", None, &[]),
    ];
    Arc::new(Crew::new(members, usual, None).unwrap())
}

fn name(chosen: &Chosen) -> &'static str {
    chosen.post.provider.name()
}

#[test]
fn the_first_name_counts_and_auto_is_the_strongest() {
    let members = vec![member("native", None, &[]), member("docker", None, &[])];
    let fleet = Fleet::new(members, "docker", vec!["docker", "native", "x"]).unwrap();
    let chosen = |names| fleet.choose(names).map(|chosen| name(&chosen)).map_err(|error| error.to_string());
    assert_eq!(chosen([Some("native"), Some("docker"), Some("docker")]), Ok("native"));
    assert_eq!(chosen([None, Some("native"), Some("docker")]), Ok("native"));
    assert_eq!(chosen([None, None, Some("native")]), Ok("native"));
    assert_eq!(chosen([None, None, None]), Ok("docker"));
    assert_eq!(
        chosen([Some("x"), None, None]).unwrap_err(),
        "provider: 'x' is not configured; configured: docker, native"
    );
    // Also after the set was replaced.
    let _retired = fleet.set(fleet.stage(vec![member("native", None, &[])], "native").unwrap());
    assert_eq!(
        fleet.check("nativ").unwrap_err().to_string(),
        "provider: there is no provider 'nativ' (did you mean 'native'?); known: docker, native, x; configured: native"
    );
    assert!(
        chosen([Some("auto"), None, None]).unwrap_err().contains("name one"),
        "no provider has a strength"
    );
    assert_eq!(name(&crew("auto").choose(None, Instant::now()).unwrap()), "gvisor");
    let weak = member("weak", Some(Strength::new(Kernel::Host, 3)), &[]);
    let strong = member("strong", Some(Strength::new(Kernel::Host, 0)), &[]);
    let crew = Arc::new(Crew::new(vec![weak, strong], AUTO, None).unwrap());
    assert_eq!(name(&crew.choose(None, Instant::now()).unwrap()), "strong");
}

#[test]
fn names_that_nobody_has_are_refused_and_change_nothing() {
    assert!(Crew::new(vec![member("a", None, &[])], "b", None).is_err());
    assert!(Crew::new(vec![member("a", None, &["b"])], "a", None).is_err());
    assert!(Crew::new(vec![member("a", None, &[AUTO])], "a", None).is_err());
    let fleet = Fleet::of(Arc::new(Claims("a", Capabilities::default())));
    assert!(fleet.stage(vec![], "a").is_err());
    assert_eq!(name(&fleet.choose([None; 3]).unwrap()), "a");
    let _retired = fleet.set(fleet.stage(vec![member("b", None, &[])], "b").unwrap());
    assert_eq!(name(&fleet.choose([None; 3]).unwrap()), "b");
}

#[tokio::test]
async fn whoever_is_replaced_ends_after_the_last_whom_it_serves() {
    let provider: Arc<dyn Provider> = Arc::new(Claims("a", Capabilities::default()));
    let fleet = Fleet::of(Arc::clone(&provider));
    fleet.crew().named("a").unwrap().note(Some(&lost()));
    let same = fleet.stage(vec![Member::alone(Arc::clone(&provider))], "a").unwrap();
    assert!(fleet.set(same).is_empty(), "an unchanged provider is kept");
    assert_eq!(fleet.all()[0].seen().failures, 1, "and so is its health");
    let served = fleet.choose([None; 3]).unwrap();
    let mut retired = fleet.set(fleet.stage(vec![member("a", None, &[])], "a").unwrap());
    let end = tokio::spawn(retired.remove(0).end());
    tokio::task::yield_now().await;
    assert!(!end.is_finished());
    drop(served);
    end.await.unwrap();
}

#[tokio::test]
async fn auto_takes_nobody_who_fails_its_own_test() {
    let strength = |missing| Some(Strength::new(Kernel::Host, missing));
    let members = vec![member("weak", strength(3), &[]), member("strong", strength(0), &[])];
    let fleet = Fleet::new(members, AUTO, Vec::new()).unwrap();
    let chosen = || fleet.choose([None; 3]).map(|chosen| name(&chosen)).map_err(|error| error.to_string());
    assert_eq!(chosen(), Ok("strong"));
    for post in fleet.candidates() {
        post.test(std::future::pending()).await.unwrap();
    }
    assert_eq!(chosen(), Ok("strong"));
    let fail = |name| fleet.crew().named(name).unwrap().health().test = Some(Err("no".to_owned()));
    fail("strong");
    assert_eq!(chosen(), Ok("weak"));
    fail("weak");
    assert!(chosen().unwrap_err().contains("passes its self-test"));
    assert!(fleet.check(AUTO).is_ok() && fleet.check("other").is_err());
}

#[test]
fn one_that_fails_is_left_alone_and_tried_again() {
    let (crew, now) = (crew("native"), Instant::now());
    let post = crew.named("native").unwrap();
    for _ in 0..TRIES {
        assert!(crew.choose(None, now).is_ok());
        post.note(Some(&lost()));
    }
    let error = crew.choose(None, now).unwrap_err().to_string();
    assert!(
        error.contains("'native' has failed 5 times in a row") && error.contains("it went away"),
        "{error}"
    );
    let later = Instant::now() + REST;
    assert!(crew.choose(None, later).is_ok(), "one may try");
    assert!(crew.choose(None, later).is_err(), "and only one");
    post.note(None);
    assert!(crew.choose(None, later).is_ok());
}

#[test]
fn others_stand_in_where_they_are_listed_only() {
    let (crew, now) = (crew("docker"), Instant::now());
    let fail = |name| (0..TRIES).for_each(|_| crew.named(name).unwrap().note(Some(&lost())));
    fail("docker");
    let chosen = crew.choose(None, now).unwrap();
    assert_eq!((name(&chosen), chosen.instead_of), ("gvisor", Some("docker")));
    fail("gvisor");
    assert_eq!(name(&crew.choose(None, now).unwrap()), "native");
    assert!(crew.choose(Some("gvisor"), now).is_err(), "it has no fallback");
}

#[test]
fn what_is_wrong_with_a_request_is_no_failure() {
    let crew = crew("native");
    let error = ProviderError::Invalid { field: "image", message: "is not there".to_owned() };
    (0..2 * TRIES).for_each(|_| crew.named("native").unwrap().note(Some(&error)));
    assert!(crew.choose(None, Instant::now()).is_ok());
}

#[test]
fn what_a_provider_cannot_do_is_refused_with_the_names_of_those_who_can() {
    let mut members = vec![member("native", None, &[]), member("docker", None, &[])];
    let able = Capabilities { host_paths: true, ..Capabilities::default() };
    members.push(Member::alone(Arc::new(Claims("able", able))));
    let crew = Arc::new(Crew::new(members, "native", None).unwrap());
    let chosen = crew.choose(None, Instant::now()).unwrap();
    let refused = |what| chosen.demand(what, "mount").unwrap_err().to_string();
    assert_eq!(
        refused(Capability::HostPaths),
        "mount: provider 'native' cannot mount host folders or volumes (it does not support 'host_paths'; \
         supported by: able)"
    );
    assert!(
        refused(Capability::SingleHosts).contains("'single_hosts'; supported by: no configured provider)")
    );
    let able = crew.choose(Some("able"), Instant::now()).unwrap();
    assert!(able.demand(Capability::HostPaths, "mount").is_ok());
}
