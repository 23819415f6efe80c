//! The conformance cases over Docker with a private daemon, plus cases for Docker alone: leftovers, and
//! errors when the daemon dies.

use std::time::{Duration, Instant};

use belljar_engine::layer::Layer;
use belljar_engine::outcome::{Kernel, Limit, Warmth};
use belljar_engine::report::Status;
use belljar_providers::docker::Settings;
use libtest_mimic::Trial;
use serde_json::json;

use crate::dockerd::{Dockerd, GVISOR_IN_CGROUP, IMAGE};
use crate::fixture::{Fixture, Verdict, check};
use crate::{cases, docker_failures, docker_mounts, docker_prestart, endings, long_lived};

/// Cases in which gVisor behaves differently, seen from outside.
const GVISOR_DIFFERS: [(&str, &str); 8] = [
    ("no_network", "it answers EHOSTUNREACH where Linux answers ENETUNREACH"),
    ("receipt_has_the_floor", "with --ignore-cgroups the receipt lacks the cgroup layers"),
    ("usage_is_measured", "it shows no cgroup to read usage from"),
    ("memory_runs_out", "the flags for a nested machine disable cgroups"),
    ("memory_of_a_child_runs_out", "the flags for a nested machine disable cgroups"),
    ("processes_run_out", "the flags for a nested machine disable cgroups"),
    ("inodes_run_out", "its tmpfs counts no inodes"),
    ("surviving_processes_are_not_awaited", "it sometimes sends SIGHUP to the group of a stopped process"),
];

/// Cases in which containers behave differently.
const LONG_LIVED_DIFFERS: [(&str, &str); 4] = [
    ("state_stays_between_commands", "user ids inside are host ids, and none is 1000"),
    ("files_are_read_and_written", "user ids inside are host ids, without names in the image"),
    ("the_disk_is_full_and_empty_again", "each writable tmpfs has the full size"),
    ("rules_cannot_be_set_without_egress", "this daemon has no bridge for network 'full'"),
];

/// A case with a private daemon.
pub(crate) type DaemonCase = fn(&mut Dockerd) -> Verdict;

/// Fixtures that share one daemon; empty if no daemon can be started.
pub(crate) struct DockerFixtures {
    daemon: Result<Dockerd, String>,
    fixtures: Vec<(&'static str, Fixture)>,
}

impl DockerFixtures {
    /// Starts a daemon if all tests are to run.
    pub(crate) fn start() -> Self {
        if std::env::var_os("BELLJAR_TEST_ALL").is_none_or(|all| all != "1") {
            return Self { daemon: Err("BELLJAR_TEST_ALL is not set".to_owned()), fixtures: Vec::new() };
        }
        match Dockerd::start() {
            Err(why) => Self { daemon: Err(why), fixtures: Vec::new() },
            Ok(daemon) => {
                let fixture = |pool| Fixture::docker(Settings { pool, ..settings(&daemon) });
                let gvisor = Settings { runtime: Some("runsc".to_owned()), ..settings(&daemon) };
                let fixtures = vec![
                    ("docker", fixture(0)),
                    ("docker_pool", fixture(2)),
                    ("gvisor", Fixture::docker(gvisor)),
                ];
                Self { daemon: Ok(daemon), fixtures }
            }
        }
    }

    pub(crate) fn trials(&self) -> Vec<Trial> {
        let mut trials = Vec::new();
        let daemon = match &self.daemon {
            Ok(daemon) => daemon,
            Err(why) => {
                let name = format!("docker: {why}");
                return vec![Trial::test(name, || Ok(())).with_ignored_flag(true)];
            }
        };
        for (kind, fixture) in &self.fixtures {
            for (name, case) in cases::all().into_iter().chain(endings::all()) {
                let differs = GVISOR_DIFFERS.iter().find(|(other, _)| *kind == "gvisor" && *other == name);
                let title = match differs {
                    Some((_, why)) => format!("{kind}::{name} ({why})"),
                    None => format!("{kind}::{name}"),
                };
                let fixture = fixture.clone();
                let trial = Trial::test(title, move || case(&fixture).map_err(Into::into));
                trials.push(trial.with_ignored_flag(differs.is_some()));
            }
        }
        for (kind, fixture) in [&self.fixtures[0], &self.fixtures[2]] {
            let fixture = fixture.clone();
            let case = move || receipt(&fixture).map_err(Into::into);
            trials.push(Trial::test(format!("{kind}::the_receipt_matches_the_kernel"), case));
        }
        let fixture = self.fixtures[0].1.clone();
        let code = move || docker_mounts::code_in_a_playground(&fixture).map_err(Into::into);
        trials.push(Trial::test("docker::code_in_a_playground_overwrites_nothing", code));
        trials.extend(long_lived::shared_trials(
            "docker_long_lived",
            &self.fixtures[0].1,
            &LONG_LIVED_DIFFERS,
        ));
        let host = daemon.host();
        trials.push(Trial::test("docker::filter_is_the_jails", move || filter(host).map_err(Into::into)));
        let host = daemon.host();
        let waits = move || docker_prestart::prestarted_interpreters(host).map_err(Into::into);
        trials.push(Trial::test("docker::an_interpreter_is_prestarted_in_its_container", waits));
        for (name, case) in [
            ("unsupported_requests_are_refused_by_name", refusals as DaemonCase),
            ("a_pooled_container_is_used_once", pool),
            ("a_hundred_runs_leave_nothing_behind", hundred_runs),
            ("gvisor_in_a_cgroup_obeys_its_limits", gvisor_in_cgroup),
        ]
        .into_iter()
        .chain(docker_failures::all())
        .chain(docker_mounts::all())
        {
            // One daemon per case: it starts quickly, and no other containers exist.
            let alone =
                move || Dockerd::start_minimal().and_then(|mut daemon| case(&mut daemon)).map_err(Into::into);
            trials.push(Trial::test(format!("docker_alone::{name}"), alone));
        }
        trials
    }

    pub(crate) fn end(self) {
        self.fixtures.iter().for_each(|(_, fixture)| fixture.shut_down());
    }
}

pub(crate) fn settings(daemon: &Dockerd) -> Settings {
    at(daemon.host())
}

pub(crate) fn at(host: String) -> Settings {
    Settings { host: Some(host), image: IMAGE.to_owned(), ..Settings::default() }
}

/// The kernel enforces the jail's own filter.
fn filter(host: String) -> Verdict {
    let fixture = Fixture::docker(at(host));
    let code = "import ctypes, os\n\
        libc = ctypes.CDLL(None, use_errno=True)\n\
        def call(*words):\n\
        \x20   ctypes.set_errno(0)\n\
        \x20   return ctypes.get_errno() if libc.syscall(*words) < 0 else 0\n\
        print(call(435, 0, 0), call(101, 0, 0, 0, 0), call(272, 0x10000000), call(321, 0, 0, 0), call(425, 1, 0))\n\
        print(call(41, 1, 1, 0), call(41, 38, 5, 0), call(41, 2, 3, 1), call(90, b'/workspace', 0o4755))\n\
        print([line.split()[1] for line in open('/proc/self/status') if line.startswith(('CapEff', 'CapBnd', 'NoNewPrivs', 'Seccomp:'))])\n\
        print(os.getuid() > 1000, os.listdir('/sys/devices'), open('/proc/kallsyms').read() == '')\n\
        try: open('/etc/mark', 'w')\nexcept OSError as e: print(e.errno)";
    let report = fixture.python(code)?;
    fixture.shut_down();
    let expected = "38 1 1 1 38\n0 97 1 1\n\
        ['0000000000000000', '0000000000000000', '1', '2']\nTrue [] True\n30\n";
    check!(!cfg!(target_arch = "x86_64") || report.stdout == expected, report);
    Ok(())
}

/// The receipt lists a layer only if the program's own process has it, whatever was requested from Docker.
fn receipt(fixture: &Fixture) -> Verdict {
    let code = "for line in open('/proc/self/status'):\n\
        \x20   if line.startswith(('CapBnd', 'Seccomp:')): print(line.split()[1])";
    let report = fixture.python(code)?;
    let told: Vec<_> = report.stdout.lines().collect();
    check!(told.len() == 2 && told[0].bytes().all(|digit| digit == b'0'), report);
    check!(report.isolation().contains(&Layer::NoCapabilities), report);
    check!(report.isolation().contains(&Layer::Seccomp) == (told[1] == "2"), report);
    // gVisor does not limit the number of files and, with the flags used here, ignores cgroups.
    let gvisor = report.receipt.as_ref().is_some_and(|receipt| receipt.kernel == Kernel::Gvisor);
    let limited = [Layer::DiskQuota, Layer::CgroupMemory, Layer::CgroupCpu, Layer::CgroupPids];
    check!(limited.iter().all(|layer| report.isolation().contains(layer) != gvisor), report);
    let told = report.findings.iter().any(|finding| finding.rule == "sandbox-not-limited");
    check!(told == gvisor, report);
    Ok(())
}

/// To the kernel, gVisor is one process that ends with everything in it: this is the run's ending, and no
/// failure of Docker.
#[expect(clippy::print_stdout, reason = "a skipped case says why")]
fn gvisor_in_cgroup(daemon: &mut Dockerd) -> Verdict {
    let tried = daemon.docker(&[
        "run",
        "--rm",
        "--network=none",
        "--runtime",
        GVISOR_IN_CGROUP,
        "--memory=64m",
        IMAGE,
        "true",
    ]);
    if let Err(why) = tried {
        println!("skipped: gVisor in a cgroup: {}", why.trim());
        return Ok(());
    }
    let fixture =
        Fixture::docker(Settings { runtime: Some(GVISOR_IN_CGROUP.to_owned()), ..settings(daemon) });
    let run = |program: &str, processes: u32| {
        let limits = json!({"memory_bytes": 128 << 20, "processes": processes, "timeout_ms": 60_000});
        fixture.run(json!({"command": ["sh", "-c", program], "limits": limits}))
    };
    let fine = run("echo fine", 4)?;
    check!(fine.stdout == "fine\n" && fine.findings.is_empty(), fine);
    let groups = [Layer::CgroupMemory, Layer::CgroupCpu, Layer::CgroupPids];
    check!(groups.iter().all(|layer| fine.isolation().contains(layer)), fine);
    let hog = run(
        "echo begun; /bin/busybox head -c 500000000 /dev/zero | /bin/busybox tail -n 1 | cat >/dev/null",
        8,
    )?;
    check!(hog.status == Status::LimitExceeded && hog.limit == Some(Limit::Memory), hog);
    check!(hog.stdout == "begun\n" && hog.isolation().contains(&Layer::CgroupMemory), hog);
    let many = run("for i in 1 2 3 4 5 6 7 8; do sleep 20 & done; echo all", 4)?;
    check!(!many.stdout.contains("all"), many);
    check!(run("echo again", 4)?.stdout == "again\n", "the provider still works");
    fixture.shut_down();
    Ok(())
}

fn refusals(daemon: &mut Dockerd) -> Verdict {
    let fixture = Fixture::docker(settings(daemon));
    let run = |request| fixture.run(request).err().unwrap_or_default();
    let gvisor = Fixture::docker(Settings { runtime: Some("runsc".to_owned()), ..settings(daemon) });
    for network in [json!({"mode": "hosts", "hosts": ["pypi.org"]}), json!("internet")] {
        let refused = gvisor.run(json!({"command": ["true"], "network": network})).err().unwrap_or_default();
        check!(
            refused.contains("network: provider 'docker' cannot limit the network to listed hosts"),
            refused
        );
    }
    gvisor.shut_down();
    let image = run(json!({"command": ["true"], "image": "host"}));
    check!(image.contains("'unpacked_images'"), image);
    let image = run(json!({"command": ["true"], "image": "secret/image"}));
    check!(image.contains("requests may not use image 'secret/image'"), image);
    let memory = run(json!({"command": ["true"], "limits": {"memory_bytes": 4 << 20}}));
    check!(memory.contains("6 MB or more"), memory);
    let landlock = run(json!({"command": ["true"], "require": ["landlock"]}));
    check!(landlock.contains("landlock"), landlock);
    let language = run(json!({"language": "ruby", "code": "1"}));
    check!(language.contains("ruby is not available in image belljar/test"), language);
    fixture.shut_down();
    Ok(())
}

fn pool(daemon: &mut Dockerd) -> Verdict {
    let fixture = Fixture::docker(Settings { pool: 1, ..settings(daemon) });
    let request = json!({"command": ["sh", "-c", "echo /tmp/*; echo >/tmp/mark"]});
    let first = fixture.run(request.clone())?;
    check!(first.warmth() == Warmth::Cold && first.stdout == "/tmp/*\n", first);
    wait_for("an idle container", || fixture.pools().iter().any(|pool| pool.size == 1))?;
    let second = fixture.run(request)?;
    check!(second.warmth() == Warmth::Pool && second.stdout == "/tmp/*\n", second);
    check!(second.isolation().contains(&Layer::Seccomp), second);
    fixture.shut_down();
    nothing_left(daemon, "after closing a pool")
}

fn hundred_runs(daemon: &mut Dockerd) -> Verdict {
    let fixture = Fixture::docker(Settings { pool: 2, ..settings(daemon) });
    let before = (daemon.docker(&["network", "ls", "-q"])?, daemon.docker(&["volume", "ls", "-q"])?);
    let run = |number: u32| {
        let fixture = fixture.clone();
        let request = json!({"command": ["echo", number.to_string()]});
        std::thread::spawn(move || fixture.run(request).map(|report| (number, report)))
    };
    for start in (0..100).step_by(4) {
        let runs: Vec<_> = (start..start + 4).map(run).collect();
        for run in runs {
            let (number, report) = run.join().map_err(|_| "a run panicked".to_owned())??;
            check!(report.status == Status::Succeeded && report.stdout == format!("{number}\n"), report);
        }
    }
    fixture.shut_down();
    nothing_left(daemon, "after a hundred runs")?;
    let after = (daemon.docker(&["network", "ls", "-q"])?, daemon.docker(&["volume", "ls", "-q"])?);
    check!(before == after, after);
    // Docker's own commands agree that nothing is left.
    let shims = daemon.docker(&["system", "df", "--format", "{{.Type}} {{.TotalCount}}"])?;
    check!(shims.contains("Containers 0") && shims.contains("Local Volumes 0"), shims);
    Ok(())
}

pub(crate) fn nothing_left(daemon: &Dockerd, when: &str) -> Verdict {
    let left = daemon.docker(&["ps", "-aq"])?;
    check!(left.is_empty(), (when, &left));
    Ok(())
}

pub(crate) fn wait_for(what: &str, condition: impl Fn() -> bool) -> Verdict {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        check!(Instant::now() < deadline, what);
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
