//! File change notifications.

use belljar_guest::host::FileWatch;
use belljar_guest::protocol::{ChangeKind, FailureKind, FileChange, GuestSettings};
use libtest_mimic::Trial;

use crate::fixture::{GuestFixture, trial, trial_with, until};

pub(crate) fn trials() -> Vec<Trial> {
    let few = GuestSettings { queued_changes: 16, ..GuestSettings::default() };
    vec![
        trial("changes_are_reported", changes_are_reported),
        trial("new_folders_are_watched", new_folders_are_watched),
        trial_with("too_many_changes_overflow", few, too_many_changes_overflow),
        trial("a_watch_ends_with_its_folder", a_watch_ends_with_its_folder),
    ]
}

/// Returns the next change of a kind.
async fn next(watch: &mut FileWatch, wanted: impl Fn(ChangeKind) -> bool) -> FileChange {
    loop {
        let change = watch.next().await.unwrap().expect("a change");
        if wanted(change.kind) {
            return change;
        }
    }
}

async fn changes_are_reported(world: GuestFixture) {
    let mut watch = world.guest.watch("", false).await.unwrap();
    world.shell("echo a > f; chmod 600 f; mv f g; rm g").await;
    assert_eq!(
        next(&mut watch, |_| true).await,
        FileChange { kind: ChangeKind::Created, path: "f".into(), directory: false }
    );
    assert_eq!(next(&mut watch, |kind| kind == ChangeKind::Modified).await.path, "f");
    assert_eq!(next(&mut watch, |kind| kind == ChangeKind::Attributes).await.path, "f");
    let from = next(&mut watch, |kind| matches!(kind, ChangeKind::MovedFrom(_))).await;
    let to = next(&mut watch, |kind| matches!(kind, ChangeKind::MovedTo(_))).await;
    assert_eq!((from.path.as_str(), to.path.as_str()), ("f", "g"));
    let (ChangeKind::MovedFrom(one), ChangeKind::MovedTo(other)) = (from.kind, to.kind) else { panic!() };
    assert_eq!(one, other);
    assert_eq!(next(&mut watch, |kind| kind == ChangeKind::Removed).await.path, "g");
    assert_eq!(world.guest.watch("gone", false).await.unwrap_err().kind(), Some(FailureKind::NotFound));
}

async fn new_folders_are_watched(world: GuestFixture) {
    world.shell("mkdir -p old/inner").await;
    let mut watch = world.guest.watch("", true).await.unwrap();
    world.shell("echo a > old/inner/f").await;
    assert_eq!(next(&mut watch, |kind| kind == ChangeKind::Created).await.path, "old/inner/f");
    world.shell("mkdir -p new/a/b; echo a > new/a/b/f").await;
    let mut seen = Vec::new();
    while seen.last().is_none_or(|path| path != "new/a/b/f") {
        seen.push(next(&mut watch, |kind| kind == ChangeKind::Created).await.path);
    }
    assert!(
        ["new", "new/a", "new/a/b"].iter().all(|folder| seen.iter().any(|path| path == folder)),
        "{seen:?}"
    );
    // Entries that are both listed and reported may come twice, but none is missed.
    let mut until_seen = async |wanted: &str| while next(&mut watch, |_| true).await.path != wanted {};
    world.shell("mv new moved; echo b > moved/a/late").await;
    until_seen("moved/a/late").await;
    let outside = tempfile::tempdir().unwrap();
    let elsewhere = outside.path().display();
    world.shell(&format!("mv moved {elsewhere}/out; echo c > {elsewhere}/out/a/unseen; touch marker")).await;
    until_seen("marker").await;
    world.shell(&format!("mv {elsewhere}/out back; echo d > back/a/b/again")).await;
    until_seen("back/a/b/again").await;
}

async fn too_many_changes_overflow(world: GuestFixture) {
    let mut watch = world.guest.watch("", false).await.unwrap();
    // More changes than fit in the window and the queue.
    world.shell("seq 1 9000 | xargs touch").await;
    next(&mut watch, |kind| kind == ChangeKind::Overflow).await;
    let reading = tokio::spawn(async move { while next(&mut watch, |_| true).await.path != "after" {} });
    until("changes are reported again", async || {
        world.shell("touch after").await;
        reading.is_finished()
    })
    .await;
}

async fn a_watch_ends_with_its_folder(world: GuestFixture) {
    world.shell("mkdir d").await;
    let mut watch = world.guest.watch("d", true).await.unwrap();
    world.shell("touch d/f; rm -r d").await;
    next(&mut watch, |kind| kind == ChangeKind::Gone).await;
    assert_eq!(watch.next().await.unwrap(), None);
}
