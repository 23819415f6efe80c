//! PID 1: orphans, signals from inside, and the end of either side.

use std::time::Duration;

use belljar_guest::GuestError;
use belljar_guest::host::DisconnectReason;
use belljar_guest::protocol::{CommandEnding, GuestSettings};
use libtest_mimic::Trial;

use crate::fixture::{GuestFixture, HAS_NAMESPACES, run, shell, trial, until};

const ZOMBIES: &str = "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '";

pub(crate) fn trials() -> Vec<Trial> {
    let namespaces = *HAS_NAMESPACES;
    vec![
        trial("orphans_are_reaped", orphans_are_reaped),
        trial("a_storm_of_orphans_passes", a_storm_of_orphans_passes),
        trial("the_guest_cannot_be_killed_from_inside", the_guest_cannot_be_killed_from_inside)
            .with_ignored_flag(!namespaces),
        trial("programs_are_killed_before_the_guest", programs_are_killed_before_the_guest),
        trial("a_killed_guest_is_reported", a_killed_guest_is_reported),
        trial("the_guest_ends_with_its_host", the_guest_ends_with_its_host),
    ]
}

async fn orphans_are_reaped(world: GuestFixture) {
    world.shell("(sleep 0.05 &) ; (true &) ; exit 0").await;
    until("no zombie is left", async || world.shell(ZOMBIES).await.text() == "0").await;
}

async fn a_storm_of_orphans_passes(world: GuestFixture) {
    let storm = shell("i=0; while [ $i -lt 1500 ]; do (true &); i=$((i+1)); done; exit 9");
    let (storm, honest) = tokio::join!(run(&world.guest, storm), async {
        for code in 0..20 {
            assert_eq!(world.shell(&format!("exit {code}")).await.ending, Some(CommandEnding::Exited(code)));
        }
    });
    assert_eq!(storm.unwrap().ending, Some(CommandEnding::Exited(9)));
    let () = honest;
    until("no zombie is left", async || world.shell(ZOMBIES).await.text() == "0").await;
}

async fn the_guest_cannot_be_killed_from_inside(world: GuestFixture) {
    world.shell("kill -9 1; kill -STOP 1; kill -TERM 1; kill -CHLD 1").await;
    let sleeper = tokio::spawn({
        let guest = world.guest.clone();
        async move { run(&guest, shell("sleep 100")).await.unwrap() }
    });
    let sleeps = async || world.guest.processes().await.unwrap().iter().any(|one| one.ending.is_none());
    until("the sleeper runs", sleeps).await;
    world.shell("kill -9 -1").await;
    assert_eq!(sleeper.await.unwrap().ending, Some(CommandEnding::Signalled(9)));
    assert_eq!(world.shell("echo alive").await.text(), "alive");
}

async fn programs_are_killed_before_the_guest(world: GuestFixture) {
    let score = world.shell("cat /proc/self/oom_score_adj").await.text().parse::<i32>().unwrap();
    let own = async || -> i32 {
        if *HAS_NAMESPACES {
            return world.shell("sleep 0.2; cat /proc/1/oom_score_adj").await.text().parse().unwrap();
        }
        let path = format!("/proc/{}/oom_score_adj", world.child.id());
        std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
    };
    // While the guest starts a program, its own score is that of the program.
    until("programs have a higher score", async || score == (own().await + 300).min(1000)).await;
}

async fn a_killed_guest_is_reported(mut world: GuestFixture) {
    let guest = world.guest.clone();
    let running = tokio::spawn(async move { run(&guest, shell("sleep 100")).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    world.child.kill().unwrap();
    assert!(matches!(
        running.await.unwrap(),
        Err(GuestError::Gone(DisconnectReason::Ended | DisconnectReason::Line(_)))
    ));
    assert!(matches!(world.guest.stat("x", false).await, Err(GuestError::Gone(_))));
    assert!(matches!(world.guest.gone().await, DisconnectReason::Ended | DisconnectReason::Line(_)));
}

async fn the_guest_ends_with_its_host(world: GuestFixture) {
    let mut other = GuestFixture::start(GuestSettings::default()).await;
    let (guest, _) = (other.guest.clone(), world);
    let reader = guest.read_file("/proc/self/status", 0, None).await.unwrap().1;
    other.guest = GuestFixture::start(GuestSettings::default()).await.guest.clone();
    drop(guest);
    assert!(other.child.try_wait().unwrap().is_none(), "a stream keeps the guest alive");
    drop(reader);
    for _ in 0..2_000 {
        if let Some(status) = other.child.try_wait().unwrap() {
            assert_eq!(status.code(), Some(0));
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the guest is still running");
}
