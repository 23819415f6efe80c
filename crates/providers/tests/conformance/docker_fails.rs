//! Docker that is not there, may not be used, or goes away: what is said, and what is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use belljar_providers::docker::Settings;
use serde_json::json;

use crate::docker::{AloneCase, at, nothing_left, settings, wait_for};
use crate::dockerd::{Dockerd, IMAGE};
use crate::world::{Verdict, World, check};

/// Somebody who is in no group.
const NOBODY: u32 = 65_534;

pub(crate) fn all() -> Vec<(&'static str, AloneCase)> {
    vec![
        ("what_is_missing_is_explained", explained),
        ("who_may_not_use_it_is_told_how", denied),
        ("orphans_are_removed_and_others_are_not", orphans),
        ("a_daemon_that_dies_is_told_of_and_comes_back", crash),
        ("a_daemon_that_dies_amid_load_is_told_of_and_comes_back", load),
    ]
}

fn explained(daemon: &mut Dockerd) -> Verdict {
    let error = |settings| {
        let world = World::docker(settings);
        let error = world.run(json!({"command": ["true"]})).err().unwrap_or_default();
        world.shut_down();
        error
    };
    let absent = error(at("unix:///nowhere/docker.sock".to_owned()));
    check!(absent.contains("nobody answers at unix:///nowhere/docker.sock; start Docker"), absent);
    let remote = error(at("tcp://192.0.2.1:2375".to_owned()));
    check!(remote.contains("is not on this machine"), remote);
    let image = error(Settings { image: "belljar/nope".to_owned(), ..settings(daemon) });
    check!(image.contains("find image belljar/nope") && image.contains("docker pull belljar/nope"), image);
    let runtime = error(Settings { runtime: Some("nope".to_owned()), ..settings(daemon) });
    check!(runtime.contains("Docker says:") && runtime.contains("nope"), runtime);
    nothing_left(daemon, "after refusals")
}

/// What a process left that is no more goes when the next one comes; what somebody else has stays.
fn orphans(daemon: &mut Dockerd) -> Verdict {
    let create = |label: &str| daemon.docker(&["create", "--label", label, IMAGE, "true"]);
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let dead = create("dev.belljar.owner=another-boot/1/1/1")?;
    let stranger = create("somebody=else")?;
    let elsewhere = create(&format!("dev.belljar.owner={}/1/1/1", boot.trim()))?;
    let world = World::docker(settings(daemon));
    world.run(json!({"command": ["true"]}))?;
    world.shut_down();
    let left = daemon.docker(&["ps", "-aq", "--no-trunc"])?;
    let mut left: Vec<_> = left.lines().collect();
    left.sort_unstable();
    let mut expected = [stranger.as_str(), elsewhere.as_str()];
    expected.sort_unstable();
    check!(left == expected, (left, dead));
    Ok(())
}

/// As somebody who is not in the group of Docker's socket.
fn denied(daemon: &mut Dockerd) -> Verdict {
    let settings = settings(daemon);
    daemon.let_in();
    let unprivileged = std::thread::spawn(move || {
        // This thread's only, and inherited by those that it starts.
        let nobody = rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(NOBODY));
        nobody.map_err(|errno| format!("become nobody: {errno}"))?;
        let world = World::docker(settings);
        let denied = world.run(json!({"command": ["true"]})).err().unwrap_or_default();
        world.shut_down();
        Ok::<_, String>(denied)
    });
    let denied = unprivileged.join().map_err(|_| "it panicked".to_owned())??;
    check!(denied.contains("this user may not talk to unix://"), denied);
    check!(denied.contains("usermod -aG docker"), denied);
    Ok(())
}

/// Runs under way, runs that are being made and containers that wait, when the daemon dies: each is told of, and soon
/// all is as before.
fn load(daemon: &mut Dockerd) -> Verdict {
    let world = World::docker(Settings { pool: 2, ..settings(daemon) });
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let worker = |number: u32| {
        let (world, stop, done) = (world.clone(), Arc::clone(&stop), Arc::clone(&done));
        std::thread::spawn(move || {
            let mut errors = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                match world.run(json!({"command": ["echo", number.to_string()]})) {
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
    wait_for("somebody notices", || world.run(json!({"command": ["true"]})).is_err())?;
    let before = so_far();
    daemon.restart()?;
    wait_for("it works again", || so_far() >= before + 4)?;
    stop.store(true, Ordering::Relaxed);
    let mut errors = Vec::new();
    for worker in workers {
        errors.extend(worker.join().map_err(|_| "a worker panicked".to_owned())?);
    }
    let clear = |error: &&String| {
        ["went away", "nobody answers at unix://", "times in a row", "its container was ended"]
            .iter()
            .any(|words| error.contains(words))
    };
    let unclear = errors.iter().find(|error| !clear(error));
    check!(unclear.is_none() && !errors.is_empty(), unclear);
    world.shut_down();
    nothing_left(daemon, "after a crash amid load")
}

fn crash(daemon: &mut Dockerd) -> Verdict {
    let world = World::docker(Settings { pool: 1, ..settings(daemon) });
    let other = world.clone();
    let under_way = std::thread::spawn(move || other.run(json!({"command": ["sleep", "100"]})));
    wait_for("the run and one that waits", || {
        let up = daemon.docker(&["ps", "-q"]).unwrap_or_default().lines().count() == 2;
        up && world.pools().iter().any(|pool| pool.size == 1)
    })?;
    daemon.kill();
    let lost = under_way.join().map_err(|_| "a run panicked".to_owned())?.err().unwrap_or_default();
    check!(lost.contains("the sandbox was lost: Docker's daemon went away under it"), lost);
    let meanwhile = world.run(json!({"command": ["true"]})).err().unwrap_or_default();
    check!(meanwhile.contains("nobody answers at unix://"), meanwhile);
    daemon.restart()?;
    let again = world.run(json!({"command": ["echo", "back"]}))?;
    check!(again.stdout == "back\n", again);
    world.shut_down();
    nothing_left(daemon, "after a crash")
}
