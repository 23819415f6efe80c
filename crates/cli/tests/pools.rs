//! Warm pools and zygotes, inspected from the process that owns them: their number, their tenants, and what
//! happens when one is killed. This binary is its own launcher.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_engine::Engine;
use belljar_engine::limits::{Limits, LimitsSpec};
use belljar_engine::outcome::Warmth;
use belljar_engine::profile::{Profile, Profiles};
use belljar_engine::provider::{DiscardSink, PoolMetrics};
use belljar_engine::report::{Report, Status};
use belljar_engine::request::{HostPaths, Request};
use belljar_engine::warm::{WarmPoolMode, WarmSettings};
use belljar_providers::native::{Native, SpawnedLauncher};
use libtest_mimic::{Arguments, Trial};
use rustix::process::{Pid, Signal, kill_process};

type Verdict = Result<(), String>;
type Case = fn() -> Verdict;

/// Fails a case with the given value.
macro_rules! check {
    ($condition:expr, $seen:expr) => {
        let holds: bool = $condition;
        if !holds {
            return Err(format!("{} does not hold; seen: {:#?}", stringify!($condition), $seen));
        }
    };
}

fn main() -> ExitCode {
    belljar_jail::launcher::run_if_asked();
    let mut arguments = Arguments::from_args();
    // The cases inspect the processes of this one.
    arguments.test_threads = Some(1);
    let cases: [(&str, Case); 15] = [
        ("a_pool_follows_demand_and_ends_with_it", a_pool_follows_demand),
        ("memory_bounds_a_pool", memory_bounds_a_pool),
        ("a_tenant_leaves_half_of_what_waits_to_others", a_tenant_may_use_half_of_the_warm_children),
        ("many_different_limits_are_not_all_kept_warm", many_different_limits_are_not_all_kept_warm),
        ("no_two_tenants_share_a_zygote", no_two_tenants_share_a_zygote),
        (
            "a_network_is_used_again_by_its_tenant_only_and_only_when_nothing_is_left",
            a_clean_network_namespace_is_reused_by_its_tenant_only,
        ),
        ("a_zygote_that_is_killed_is_replaced", a_zygote_that_is_killed_is_replaced),
        ("a_zygote_that_hangs_is_replaced", a_zygote_that_hangs_is_replaced),
        ("a_child_that_is_killed_is_not_missed", a_killed_warm_child_is_replaced),
        ("a_launcher_that_is_killed_is_replaced", a_launcher_that_is_killed_is_replaced),
        ("nothing_in_a_warm_jail_outlives_its_launcher", nothing_in_a_warm_jail_outlives_its_launcher),
        ("who_collects_artifacts_is_confined", the_artifact_collector_is_confined),
        ("a_zygote_has_no_rights", a_zygote_has_no_rights),
        ("a_zygote_keeps_nothing_of_its_children", a_zygote_leaks_no_descriptors),
        ("modules_are_imported_ahead_of_time_or_refused", preimports_work_or_are_refused),
    ];
    let trials = cases.map(|(name, case)| Trial::test(name, move || case().map_err(Into::into)));
    libtest_mimic::run(&arguments, trials.into()).exit_code()
}

struct PoolFixture {
    engine: Arc<Engine>,
    runtime: tokio::runtime::Runtime,
}

impl PoolFixture {
    fn new(settings: WarmSettings, profiles: Profiles) -> Self {
        let launched = SpawnedLauncher::start().expect("the launcher starts");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let native = runtime.block_on(Native::connect(launched, settings)).expect("the launcher works here");
        Self { engine: Arc::new(Engine::new(Arc::new(native), profiles, Limits::CEILING)), runtime }
    }

    fn usual() -> Self {
        Self::new(WarmSettings::default(), Profiles::built_in())
    }

    fn run_for(&self, tenant: &str, code: &str, profile: Option<&str>) -> Result<Report, String> {
        self.runtime.block_on(execute(Arc::clone(&self.engine), tenant, code.to_owned(), profile))
    }

    fn run(&self, code: &str) -> Result<Report, String> {
        self.run_for("default", code, None)
    }

    fn pools(&self) -> Vec<PoolMetrics> {
        self.runtime.block_on(self.engine.pools())
    }

    /// Runs trivial code until one run is served this way.
    fn until(&self, tenant: &str, profile: Option<&str>, wanted: Warmth) -> Result<(), String> {
        for _ in 0..300 {
            if self.run_for(tenant, "0", profile)?.warmth() == wanted {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(format!("nothing became warm: {:#?}", self.pools()))
    }

    /// Runs many requests at once. All must succeed, each with its own output.
    fn load(&self, count: usize, jobs: usize, meanwhile: impl FnOnce()) -> Result<Vec<Report>, String> {
        let limit = Arc::new(tokio::sync::Semaphore::new(jobs));
        let mut running = Vec::new();
        for number in 0..count {
            let (engine, limit) = (Arc::clone(&self.engine), Arc::clone(&limit));
            running.push(self.runtime.spawn(async move {
                let _permit = limit.acquire_owned().await.map_err(|error| error.to_string())?;
                let report = execute(engine, "default", format!("print({number})"), None).await?;
                match report.stdout == format!("{number}\n") && report.status == Status::Succeeded {
                    true => Ok(report),
                    false => Err(format!("{number}: {report:?}")),
                }
            }));
        }
        std::thread::sleep(Duration::from_millis(100));
        meanwhile();
        let ended = running.into_iter().map(|task| self.runtime.block_on(task));
        ended.map(|ended| ended.map_err(|error| error.to_string())?).collect()
    }
}

impl Drop for PoolFixture {
    fn drop(&mut self) {
        self.runtime.block_on(self.engine.shut_down());
    }
}

async fn execute(
    engine: Arc<Engine>,
    tenant: &str,
    code: String,
    profile: Option<&str>,
) -> Result<Report, String> {
    let request = Request {
        language: Some("python".to_owned()),
        code: Some(code),
        profile: profile.map(str::to_owned),
        ..Request::default()
    };
    execute_request(engine, tenant, request).await
}

async fn execute_request(engine: Arc<Engine>, tenant: &str, request: Request) -> Result<Report, String> {
    let admitted = engine.admit(request, HostPaths::default()).map_err(|error| error.to_string())?;
    let admitted = admitted.with_tenant(tenant);
    let cancel = Box::pin(std::future::pending());
    let run = engine.execute("exec_test".to_owned(), admitted, &mut DiscardSink, cancel).await;
    run.map_err(|error| error.to_string())
}

/// Returns the descendants of this process, according to `/proc`.
fn processes(wanted: impl Fn(u32) -> bool) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("proc is there").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| wanted(*pid)).collect()
}

fn field(pid: u32, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}

fn launchers() -> Vec<u32> {
    let own = std::process::id().to_string();
    processes(|pid| field(pid, "PPid") == own && !field(pid, "State").starts_with('Z'))
}

/// Returns the zygotes: children of the launcher without a program of their own, in its own pid namespace.
/// The short-lived intermediate process of a fork looks the same, so only processes that exist for some time
/// count.
fn zygotes() -> Vec<u32> {
    let mut seen = zygote_candidates();
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(30));
        let again = zygote_candidates();
        seen.retain(|pid| again.contains(pid));
    }
    seen
}

/// Waits for a condition.
fn soon(what: &str, holds: &mut dyn FnMut() -> bool) -> Verdict {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        if Instant::now() > end {
            return Err(format!("timed out waiting until {what}"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn zygote_candidates() -> Vec<u32> {
    let launchers: Vec<String> = launchers().iter().map(u32::to_string).collect();
    processes(|pid| {
        let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command.contains("/run/belljar/zygote")
            && launchers.contains(&field(pid, "PPid"))
            // Its children are in a pid namespace one level deeper.
            && field(pid, "NSpid").split_whitespace().count()
                == field(std::process::id(), "NSpid").split_whitespace().count() + 1
    })
}

fn signal(pids: &[u32], signal: Signal) {
    for pid in pids {
        let pid = Pid::from_raw(*pid as i32).expect("a pid");
        // A process that has already exited is fine.
        let _sent = kill_process(pid, signal);
    }
}

fn a_pool_follows_demand() -> Verdict {
    let idle = Duration::from_secs(2);
    let fixture = PoolFixture::new(WarmSettings { idle, ..WarmSettings::default() }, Profiles::built_in());
    fixture.until("default", None, Warmth::Pool)?;
    let few = fixture.pools();
    // One is in demand, and one more for each run that found none.
    check!(few.len() == 1 && few[0].name == "python" && few[0].wanted as u64 <= few[0].misses + 1, few);
    fixture.load(60, 12, || {})?;
    let mut many = Vec::new();
    soon("some children are warm again", &mut || {
        many = fixture.pools();
        many[0].size >= 1
    })?;
    check!(many[0].wanted > few[0].wanted && many[0].forks > few[0].forks, many);
    check!(
        many[0].memory_bytes > 0 && many[0].refill_ms > 0.0 && many[0].processes.len() == many[0].size,
        many
    );
    soon("no child is warm", &mut || fixture.pools().iter().all(|pool| pool.size == 0))?;
    let exists = |pid: &u32| std::path::Path::new(&format!("/proc/{pid}")).exists();
    soon("the former warm children are gone", &mut || !many[0].processes.iter().any(exists))?;
    soon("the zygote is gone", &mut || zygotes().is_empty())?;
    // The pool starts again on demand.
    fixture.until("default", None, Warmth::Pool)
}

fn memory_bounds_a_pool() -> Verdict {
    let fixture = PoolFixture::new(
        WarmSettings { memory_bytes: 5 << 20, ..WarmSettings::default() },
        Profiles::built_in(),
    );
    fixture.until("default", None, Warmth::Pool)?;
    fixture.load(60, 12, || {})?;
    soon("some children are warm again", &mut || fixture.pools()[0].size >= 1)?;
    std::thread::sleep(Duration::from_millis(300));
    let pools = fixture.pools();
    check!(pools[0].wanted > 3 && (1..=2).contains(&pools[0].size), pools);
    let none =
        PoolFixture::new(WarmSettings { memory_bytes: 0, ..WarmSettings::default() }, Profiles::built_in());
    none.until("default", None, Warmth::Fork)?;
    std::thread::sleep(Duration::from_millis(300));
    check!(none.pools()[0].size == 0, none.pools());
    Ok(())
}

/// A tenant that has filled the pool makes room for a later tenant.
fn a_tenant_may_use_half_of_the_warm_children() -> Verdict {
    // Long enough that nothing is evicted for lack of demand.
    let settings =
        WarmSettings { memory_bytes: 8 << 20, idle: Duration::from_secs(3_600), ..WarmSettings::default() };
    let fixture = PoolFixture::new(settings, Profiles::built_in());
    fixture.until("default", None, Warmth::Pool)?;
    fixture.load(60, 12, || {})?;
    soon("the pool is full", &mut || fixture.pools()[0].size >= 3)?;
    fixture.until("late", None, Warmth::Pool)?;
    let pools = fixture.pools();
    let late = pools.iter().find(|pool| pool.tenant == "late");
    check!(late.is_some_and(|pool| pool.hits >= 1), pools);
    Ok(())
}

/// A tenant chooses its limits, and every bucket of warm children costs time in the launcher's loop.
fn many_different_limits_are_not_all_kept_warm() -> Verdict {
    let idle = Duration::from_secs(3_600);
    let fixture = PoolFixture::new(WarmSettings { idle, ..WarmSettings::default() }, Profiles::built_in());
    fixture.until("default", None, Warmth::Pool)?;
    for number in 0..100 {
        let limits = LimitsSpec { memory_bytes: Some((64 << 20) + (number << 16)), ..LimitsSpec::default() };
        let request = Request {
            language: Some("python".to_owned()),
            code: Some("0".to_owned()),
            limits,
            ..Request::default()
        };
        let report =
            fixture.runtime.block_on(execute_request(Arc::clone(&fixture.engine), "default", request))?;
        check!(report.status == Status::Succeeded, report);
    }
    // One child of each bucket is in demand, and another one because none was warm.
    let pools = fixture.pools();
    check!(pools.len() == 1 && pools[0].wanted <= 40, pools);
    fixture.until("default", None, Warmth::Pool)
}

/// Children of one zygote share their memory layout and hash seed.
fn no_two_tenants_share_a_zygote() -> Verdict {
    let fixture = PoolFixture::usual();
    let mut seen = Vec::new();
    for tenant in ["a", "b"] {
        fixture.until(tenant, None, Warmth::Pool)?;
        let report = fixture.run_for(tenant, "print(hash('secret'), id(None), id(object()))", None)?;
        check!(report.warmth() != Warmth::Cold, report);
        seen.push(report.stdout);
    }
    check!(seen[0] != seen[1], seen);
    let pools = fixture.pools();
    let tenants: Vec<&str> = pools.iter().map(|pool| pool.tenant.as_str()).collect();
    check!(tenants == ["a", "b"] && zygotes().len() == 2, pools);
    let users: Vec<String> = zygotes().iter().map(|pid| field(*pid, "Uid")).collect();
    check!(users[0] != users[1], users);
    Ok(())
}

/// The identity of a network namespace, and the traces that a connection leaves in it.
const NETWORK: &str = "import os; print(os.readlink('/proc/self/ns/net'), os.readlink('/proc/self/ns/user'))\n\
    print(sum(1 for name in ('tcp', 'tcp6', 'udp', 'unix') for line in open(f'/proc/net/{name}')) - 4)\n";
const CONNECT: &str = "import socket\nserver = socket.create_server(('127.0.0.1', 0))\n\
    client = socket.create_connection(server.getsockname())\nserver.accept()[0].close()\nclient.close()\n";

fn a_clean_network_namespace_is_reused_by_its_tenant_only() -> Verdict {
    let fixture =
        PoolFixture::new(WarmSettings::default().with_mode(WarmPoolMode::Fork), Profiles::built_in());
    let network_of = |tenant: &str, code: &str| {
        let report = fixture.run_for(tenant, code, None)?;
        let Some((network, sockets)) = report.stdout.split_once('\n') else { return Err(report.stdout) };
        check!(sockets == "0\n", report);
        Ok(network.to_owned())
    };
    // Cleanup happens after the response, so the number of runs until reuse varies.
    let until_used_again = |tenant: &str| {
        let (mut seen, end) = (BTreeSet::new(), Instant::now() + Duration::from_secs(60));
        while seen.insert(network_of(tenant, NETWORK)?) {
            check!(Instant::now() < end, seen);
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok::<_, String>(seen)
    };
    let mut networks = Vec::new();
    for tenant in ["a", "b"] {
        fixture.until(tenant, None, Warmth::Fork)?;
        let mut own = until_used_again(tenant)?;
        let connected = network_of(tenant, &format!("{NETWORK}{CONNECT}"))?;
        let later = until_used_again(tenant)?;
        check!(!later.contains(&connected), (&later, &connected));
        own.extend(later);
        own.insert(connected);
        networks.push(own);
    }
    check!(networks[0].is_disjoint(&networks[1]), networks);
    Ok(())
}

fn a_zygote_that_is_killed_is_replaced() -> Verdict {
    let fixture = PoolFixture::usual();
    fixture.until("default", None, Warmth::Pool)?;
    let before = zygotes();
    check!(before.len() == 1, before);
    let reports = fixture.load(120, 8, || signal(&before, Signal::KILL))?;
    check!(reports.iter().any(|report| report.warmth() != Warmth::Cold), reports.len());
    let replaced = |now: &[u32]| now.len() == 1 && now != before;
    soon("the zygote is replaced", &mut || replaced(&zygotes()))?;
    fixture.until("default", None, Warmth::Pool)?;
    check!(fixture.pools()[0].zygotes >= 2, fixture.pools());
    Ok(())
}

fn a_zygote_that_hangs_is_replaced() -> Verdict {
    let fixture =
        PoolFixture::new(WarmSettings::default().with_mode(WarmPoolMode::Fork), Profiles::built_in());
    fixture.until("default", None, Warmth::Fork)?;
    let before = zygotes();
    let reports = fixture.load(30, 4, || signal(&before, Signal::STOP))?;
    check!(reports.len() == 30, reports.len());
    fixture.until("default", None, Warmth::Fork)?;
    check!(zygotes() != before && zygotes().len() == 1, (zygotes(), before));
    Ok(())
}

/// Returns PID 1 of a process's sandbox.
fn first_process_beside(pid: u32) -> Vec<u32> {
    let namespace = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let wanted = namespace(pid);
    processes(|other| {
        field(other, "NSpid").split_whitespace().last() == Some("1") && namespace(other) == wanted
    })
}

fn a_killed_warm_child_is_replaced() -> Verdict {
    let fixture = PoolFixture::usual();
    fixture.until("default", None, Warmth::Pool)?;
    let waiting = || fixture.pools()[0].processes.clone();
    let firsts = || waiting().iter().flat_map(|pid| first_process_beside(*pid)).collect::<Vec<u32>>();
    for which in [0, 1] {
        soon("some children are warm", &mut || !waiting().is_empty() && firsts().len() == waiting().len())?;
        let (waiting, firsts) = (waiting(), firsts());
        let victims = if which == 0 { waiting } else { firsts };
        signal(&victims, Signal::KILL);
        std::thread::sleep(Duration::from_millis(20));
        let report = fixture.run("print('fine')")?;
        check!(report.stdout == "fine\n", report);
    }
    Ok(())
}

fn a_launcher_that_is_killed_is_replaced() -> Verdict {
    let fixture = PoolFixture::usual();
    fixture.until("default", None, Warmth::Pool)?;
    let before = launchers();
    check!(before.len() == 1, before);
    let zygote = zygotes();
    let reports = fixture.load(80, 8, || signal(&before, Signal::KILL))?;
    check!(reports.len() == 80, reports.len());
    check!(launchers().len() == 1 && launchers() != before, launchers());
    check!(!zygote.iter().any(|pid| zygotes().contains(pid)), zygote);
    fixture.until("default", None, Warmth::Pool)
}

/// Kills the launcher while children are warm, one run is active, and that run has started a process in
/// another session.
fn nothing_in_a_warm_jail_outlives_its_launcher() -> Verdict {
    let fixture = PoolFixture::usual();
    fixture.until("default", None, Warmth::Pool)?;
    let mark = format!("outlives{}", std::process::id());
    let code = format!(
        "import subprocess, time\nsubprocess.Popen(['sh', '-c', 'sleep 300', '{mark}'], start_new_session=True)\n\
         time.sleep(300)"
    );
    let running = fixture.runtime.spawn(execute(Arc::clone(&fixture.engine), "default", code, None));
    let is_marked = |pid: u32| {
        std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains(&mark))
    };
    soon("the program runs", &mut || !processes(is_marked).is_empty())?;
    soon("other children are warm", &mut || fixture.pools().iter().any(|pool| !pool.processes.is_empty()))?;
    let daemons = processes(is_marked);
    let jails: BTreeSet<_> =
        daemons.iter().chain(&fixture.pools()[0].processes).map(|pid| jail_of(*pid)).collect();
    let inside = processes(|pid| jails.contains(&jail_of(pid)));
    check!(jails.len() >= 2 && !jails.contains(&None) && inside.len() > jails.len(), inside);
    signal(&launchers(), Signal::KILL);
    let alive = |pid: u32| inside.contains(&pid) && !field(pid, "State").starts_with('Z');
    soon("all processes are gone", &mut || processes(alive).is_empty())
        .map_err(|why| format!("{why}: {:?}", processes(alive)))?;
    running.abort();
    Ok(())
}

/// Returns the pid namespace of a process.
fn jail_of(pid: u32) -> Option<std::path::PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// The artifact collector reads files of a program, so it has the same privileges and fewer system calls.
fn the_artifact_collector_is_confined() -> Verdict {
    let fixture = PoolFixture::usual();
    fixture.until("default", None, Warmth::Pool)?;
    let code = "for n in range(8): open(f'artifacts/{n}.txt', 'w').write('x' * (4 << 20))";
    let launcher = launchers()[0].to_string();
    let own = jail_of(std::process::id());
    let mut seen = BTreeSet::new();
    // A collector that was just started is not confined yet, so repeat until a confined one is seen.
    for _ in 0..40 {
        let run =
            fixture.runtime.spawn(execute(Arc::clone(&fixture.engine), "default", code.to_owned(), None));
        while !run.is_finished() {
            let beside = processes(|pid| field(pid, "PPid") == launcher && jail_of(pid) == own);
            let zygotes = |pid: &u32| {
                let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                line.is_empty() || line.contains("/run/belljar/zygote")
            };
            let collectors = beside.into_iter().filter(|pid| !zygotes(pid));
            seen.extend(
                collectors
                    .map(|pid| ["Seccomp", "NoNewPrivs", "CapEff", "CapPrm"].map(|name| field(pid, name))),
            );
        }
        let report = fixture.runtime.block_on(run).map_err(|error| error.to_string())??;
        check!(report.artifacts.len() == 8 && report.warmth() != Warmth::Cold, report.artifacts.len());
        if seen.iter().any(|fields| *fields == ["2", "1", "0000000000000000", "0000000000000000"]) {
            return Ok(());
        }
    }
    Err(format!("nobody with a filter and without rights was seen: {seen:?}"))
}

/// To fork children into jails, a zygote's user must own their user namespaces, and needs nothing else.
fn a_zygote_has_no_rights() -> Verdict {
    let fixture = PoolFixture::usual();
    fixture.until("default", None, Warmth::Pool)?;
    let zygote = zygotes()[0];
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        check!(field(zygote, set) == "0000000000000000", (set, field(zygote, set)));
    }
    check!(field(zygote, "NoNewPrivs") == "1" && field(zygote, "Seccomp") == "2", field(zygote, "Seccomp"));
    let own = field(std::process::id(), "Uid");
    check!(!rustix::process::geteuid().is_root() || field(zygote, "Uid") != own, field(zygote, "Uid"));
    let namespace = |pid: &str, name: &str| std::fs::read_link(format!("/proc/{pid}/ns/{name}"));
    for name in ["mnt", "net", "ipc", "uts", "pid"] {
        let (theirs, ours) = (namespace(&zygote.to_string(), name), namespace("self", name));
        check!(theirs.as_ref().ok() != ours.as_ref().ok(), (theirs, ours));
    }
    Ok(())
}

/// A zygote does not accumulate descriptors. Its children start with a copy of its open descriptors and close
/// them all; a module that keeps a thread or a descriptor would be broken in every child.
fn a_zygote_leaks_no_descriptors() -> Verdict {
    let fixture = PoolFixture::usual();
    fixture.until("default", None, Warmth::Pool)?;
    let zygote = zygotes()[0];
    let open = || std::fs::read_dir(format!("/proc/{zygote}/fd")).map_or(0, Iterator::count);
    fixture.load(40, 4, || {})?;
    let before = open();
    fixture.load(80, 4, || {})?;
    // A few are open while a fork is in progress.
    check!(zygotes() == [zygote] && open() < before + 20, (before, open()));
    Ok(())
}

fn preimports_work_or_are_refused() -> Verdict {
    let mut profiles = Profiles::built_in();
    let mut profile = |name: &str, modules: &[&str]| {
        let preimports = modules.iter().map(|module| (*module).to_owned()).collect();
        profiles.insert(name.to_owned(), Profile { preimports, ..Profile::default() });
    };
    profile("fine", &["decimal", "sqlite3"]);
    profile("missing", &["no_such_module_at_all", "decimal"]);
    profile("threads", &["idlelib.run", "decimal"]);
    let fixture = PoolFixture::new(WarmSettings::default(), profiles);
    for name in ["fine", "missing"] {
        fixture.until("default", Some(name), Warmth::Pool)?;
        let report = fixture.run_for("default", "import sys; print('decimal' in sys.modules)", Some(name))?;
        check!(report.stdout == "True\n" && report.warmth() != Warmth::Cold, fixture.pools());
    }
    let pools = fixture.pools();
    check!(pools[0].name == "python+decimal+sqlite3" && pools[0].obstacle.is_none(), pools);
    let why = pools[1].obstacle.clone().unwrap_or_default();
    check!(
        why == "no_such_module_at_all is not kept warm: ModuleNotFoundError: No module named 'no_such_module_at_all'",
        why
    );
    Ok(())
}
