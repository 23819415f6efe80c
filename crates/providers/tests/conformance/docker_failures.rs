//! Docker errors: daemon missing, access denied, daemon dying. Checks messages and leftovers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use belljar_providers::docker::Settings;
use serde_json::json;

use crate::docker::{DaemonCase, at, nothing_left, settings, wait_for};
use crate::dockerd::{Dockerd, IMAGE};
use crate::fixture::{Fixture, Verdict, check};

/// A user in no group.
const NOBODY: u32 = 65_534;

pub(crate) fn all() -> Vec<(&'static str, DaemonCase)> {
    vec![
        ("missing_parts_are_explained", explained),
        ("gpus_are_refused_with_a_reason_or_asked_of_docker", gpus),
        ("denied_users_get_a_remedy", denied),
        ("orphans_are_removed_and_others_are_not", orphans),
        ("a_run_survives_a_daemon_restart_with_a_clear_error", crash),
        ("a_daemon_crash_under_load_gives_clear_errors", load),
    ]
}

fn explained(daemon: &mut Dockerd) -> Verdict {
    let error = |settings| {
        let fixture = Fixture::docker(settings);
        let error = fixture.run(json!({"command": ["true"]})).err().unwrap_or_default();
        fixture.shut_down();
        error
    };
    let absent = error(at("unix:///nowhere/docker.sock".to_owned()));
    check!(absent.contains("no Docker daemon at unix:///nowhere/docker.sock; start Docker"), absent);
    let remote = error(at("tcp://192.0.2.1:2375".to_owned()));
    check!(remote.contains("is not a local socket"), remote);
    let image = error(Settings { image: "belljar/nope".to_owned(), ..settings(daemon) });
    check!(image.contains("find image belljar/nope") && image.contains("docker pull belljar/nope"), image);
    let runtime = error(Settings { runtime: Some("nope".to_owned()), ..settings(daemon) });
    check!(runtime.contains("Docker answered:") && runtime.contains("nope"), runtime);
    let self_test = |runtime: &str| {
        let settings = Settings { runtime: Some(runtime.to_owned()), ..settings(daemon) };
        let fixture = Fixture::docker(settings);
        let tested = fixture.self_test();
        fixture.shut_down();
        tested
    };
    let runtime = self_test("nope").err().unwrap_or_default();
    check!(
        runtime.contains("use runtime 'nope'") && runtime.contains("it knows: ") && runtime.contains("runc"),
        runtime
    );
    self_test("runc")?;
    nothing_left(daemon, "after refusals")
}

/// Without a GPU, Docker's own refusal shows that the request reached it.
fn gpus(daemon: &mut Dockerd) -> Verdict {
    let error = |settings: Settings| {
        let fixture = Fixture::docker(settings);
        let error = fixture.run(json!({"command": ["true"], "gpus": 2})).err().unwrap_or_default();
        fixture.shut_down();
        error
    };
    let off = error(settings(daemon));
    check!(
        off.contains("gpus: provider 'docker' gives programs no GPU") && off.contains("'gpus' is true"),
        off
    );
    let allowed = Settings { gpus: true, ..settings(daemon) };
    let gvisor = error(Settings { runtime: Some("runsc".to_owned()), ..allowed.clone() });
    check!(gvisor.contains("gpus: provider 'docker' gives programs no GPU"), gvisor);
    let absent = error(allowed.clone());
    check!(absent.contains("gpus: the Docker daemon has no runtime 'nvidia' (it has: "), absent);
    check!(absent.contains("install the NVIDIA Container Toolkit"), absent);
    daemon.kill();
    daemon.restart_with(&["--add-runtime=nvidia=runc"])?;
    let asked = error(allowed);
    check!(
        asked.contains("Docker answered:") && asked.contains("device driver") && asked.contains("gpu"),
        asked
    );
    let fixture = Fixture::docker(settings(daemon));
    let without = fixture.run(json!({"command": ["true"]}));
    fixture.shut_down();
    check!(without.is_ok(), without);
    daemon.kill();
    daemon.restart()?;
    nothing_left(daemon, "after refused GPUs")
}

/// Containers of a dead process are removed when the next one starts; all others stay.
fn orphans(daemon: &mut Dockerd) -> Verdict {
    let create = |label: &str| daemon.docker(&["create", "--label", label, IMAGE, "true"]);
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let dead = create("dev.belljar.owner=another-boot/1/1/1")?;
    let stranger = create("somebody=else")?;
    let elsewhere = create(&format!("dev.belljar.owner={}/1/1/1", boot.trim()))?;
    let fixture = Fixture::docker(settings(daemon));
    fixture.run(json!({"command": ["true"]}))?;
    fixture.shut_down();
    let left = daemon.docker(&["ps", "-aq", "--no-trunc"])?;
    let mut left: Vec<_> = left.lines().collect();
    left.sort_unstable();
    let mut expected = [stranger.as_str(), elsewhere.as_str()];
    expected.sort_unstable();
    check!(left == expected, (left, dead));
    Ok(())
}

/// Runs as a user outside the group of Docker's socket.
fn denied(daemon: &mut Dockerd) -> Verdict {
    let settings = settings(daemon);
    daemon.open_folder();
    let unprivileged = std::thread::spawn(move || {
        // Applies to this thread and the threads it starts.
        let nobody = rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(NOBODY));
        nobody.map_err(|errno| format!("become nobody: {errno}"))?;
        let fixture = Fixture::docker(settings);
        let denied = fixture.run(json!({"command": ["true"]})).err().unwrap_or_default();
        fixture.shut_down();
        Ok::<_, String>(denied)
    });
    let denied = unprivileged.join().map_err(|_| "the thread panicked".to_owned())??;
    check!(denied.contains("this user may not access unix://"), denied);
    check!(denied.contains("usermod -aG docker"), denied);
    Ok(())
}

/// The daemon dies while runs execute, containers start and containers wait in the pool: each run gets a
/// clear error, and the provider recovers.
fn load(daemon: &mut Dockerd) -> Verdict {
    let fixture = Fixture::docker(Settings { pool: 2, ..settings(daemon) });
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let worker = |number: u32| {
        let (fixture, stop, done) = (fixture.clone(), Arc::clone(&stop), Arc::clone(&done));
        std::thread::spawn(move || {
            let mut errors = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                match fixture.run(json!({"command": ["echo", number.to_string()]})) {
                    Ok(report) if report.stdout == format!("{number}\n") => {
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(report) => errors.push(format!("{report:?}")),
                    Err(error) => {
                        errors.push(error);
                        std::thread::sleep(Duration::from_millis(50));
                    }
                }
            }
            errors
        })
    };
    let workers: Vec<_> = (0..4).map(worker).collect();
    let so_far = || done.load(Ordering::Relaxed);
    wait_for("load", || so_far() >= 4)?;
    daemon.kill();
    wait_for("a run fails", || fixture.run(json!({"command": ["true"]})).is_err())?;
    let before = so_far();
    daemon.restart()?;
    wait_for("runs succeed again", || so_far() >= before + 4)?;
    stop.store(true, Ordering::Relaxed);
    let mut errors = Vec::new();
    for worker in workers {
        errors.extend(worker.join().map_err(|_| "a worker panicked".to_owned())?);
    }
    let clear = |error: &&String| {
        ["disconnected", "no Docker daemon at unix://", "times in a row", "the container was killed"]
            .iter()
            .any(|words| error.contains(words))
    };
    let unclear = errors.iter().find(|error| !clear(error));
    check!(unclear.is_none() && !errors.is_empty(), unclear);
    fixture.shut_down();
    nothing_left(daemon, "after a crash under load")
}

fn crash(daemon: &mut Dockerd) -> Verdict {
    let fixture = Fixture::docker(Settings { pool: 1, ..settings(daemon) });
    let other = fixture.clone();
    let under_way = std::thread::spawn(move || other.run(json!({"command": ["sleep", "100"]})));
    wait_for("the run and an idle container", || {
        let up = daemon.docker(&["ps", "-q"]).unwrap_or_default().lines().count() == 2;
        up && fixture.pools().iter().any(|pool| pool.size == 1)
    })?;
    daemon.kill();
    let lost = under_way.join().map_err(|_| "a run panicked".to_owned())?.err().unwrap_or_default();
    check!(lost.contains("the sandbox was lost: the Docker daemon became unreachable"), lost);
    let meanwhile = fixture.run(json!({"command": ["true"]})).err().unwrap_or_default();
    check!(meanwhile.contains("no Docker daemon at unix://"), meanwhile);
    daemon.restart()?;
    let again = fixture.run(json!({"command": ["echo", "back"]}))?;
    check!(again.stdout == "back\n", again);
    fixture.shut_down();
    nothing_left(daemon, "after a crash")
}
