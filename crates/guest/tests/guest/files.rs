//! Files: whole and partial access, folders, and everything that is not a regular file.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::Duration;

use belljar_guest::GuestError;
use belljar_guest::protocol::{FailureKind, FileKind, FileMetadata, WriteMode, WriteOptions};
use libtest_mimic::Trial;
use tokio::io::AsyncReadExt;

use crate::fixture::{GuestFixture, HAS_NAMESPACES, shell, trial, until};

pub(crate) fn trials() -> Vec<Trial> {
    let namespaces = *HAS_NAMESPACES;
    vec![
        trial("a_file_goes_in_and_out", a_file_goes_in_and_out),
        trial("a_part_is_read", a_part_is_read),
        trial("a_file_is_written_in_every_way", a_file_is_written_in_every_way),
        trial("atomic_writes_are_never_seen_partially", atomic_writes_are_never_seen_partially),
        trial("only_regular_files_are_accessible", only_regular_files_are_accessible),
        trial("errors_name_the_path", errors_name_the_path),
        trial("folders_are_listed_in_pages", folders_are_listed_in_pages),
        trial("things_are_moved", things_are_moved),
        trial("modes_are_set", modes_are_set),
        trial("trees_are_removed", trees_are_removed),
        trial("a_removal_can_be_stopped", a_removal_can_be_stopped),
        trial("swapped_paths_do_no_harm", swapped_paths_do_no_harm),
        trial("a_full_disk_is_reported", a_full_disk_is_reported).with_ignored_flag(!namespaces),
    ]
}

fn kind<T: std::fmt::Debug>(result: Result<T, GuestError>) -> FailureKind {
    result.unwrap_err().kind().unwrap()
}

async fn write(
    world: &GuestFixture,
    path: &str,
    options: WriteOptions,
    bytes: &[u8],
) -> Result<u64, GuestError> {
    let mut writer = world.guest.create_file(path, options).await?;
    writer.write(bytes).await?;
    writer.finish().await
}

async fn a_file_goes_in_and_out(world: GuestFixture) {
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|number| (number * 7) as u8).collect();
    assert_eq!(write(&world, "a/b/c.bin", WriteOptions::default(), &bytes).await.unwrap(), 3_000_000);
    assert!(std::fs::read(world.folder.path().join("a/b/c.bin")).unwrap() == bytes);
    assert!(world.read("a/b/c.bin").await.unwrap() == bytes);
    world.write("empty", b"").await;
    assert_eq!(world.read("empty").await.unwrap(), b"");
    let metadata = world.guest.stat("a/b/c.bin", true).await.unwrap();
    assert_eq!((metadata.kind, metadata.size, metadata.mode), (FileKind::File, 3_000_000, 0o644));
    assert!(!world.read("/proc/self/status").await.unwrap().is_empty());
}

async fn a_part_is_read(world: GuestFixture) {
    world.write("f", b"0123456789").await;
    for (offset, len, expected) in
        [(0, Some(4), "0123"), (7, None, "789"), (3, Some(0), ""), (9, Some(99), "9"), (u64::MAX, None, "")]
    {
        let (metadata, mut reader) = world.guest.read_file("f", offset, len).await.unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).await.unwrap();
        assert_eq!((metadata.size, text.as_str()), (10, expected));
    }
}

async fn a_file_is_written_in_every_way(world: GuestFixture) {
    let with = |mode| WriteOptions { mode, ..WriteOptions::default() };
    write(&world, "f", with(WriteMode::Create), b"one").await.unwrap();
    assert_eq!(kind(write(&world, "f", with(WriteMode::Create), b"two").await), FailureKind::Exists);
    write(&world, "f", with(WriteMode::Append), b" two").await.unwrap();
    write(&world, "f", with(WriteMode::At(1)), b"NE").await.unwrap();
    assert_eq!(world.read("f").await.unwrap(), b"oNE two");
    write(&world, "f", with(WriteMode::Replace), b"x").await.unwrap();
    assert_eq!(world.read("f").await.unwrap(), b"x");
    let options = WriteOptions { permissions: Some(0o750), ..with(WriteMode::Create) };
    write(&world, "tool", options.clone(), b"").await.unwrap();
    assert_eq!(world.guest.stat("tool", false).await.unwrap().mode, 0o750);
    let set_id = WriteOptions { permissions: Some(0o4755), ..options };
    assert_eq!(kind(write(&world, "other", set_id, b"").await), FailureKind::Invalid);
    let strict = WriteOptions { parents: false, ..WriteOptions::default() };
    assert_eq!(kind(write(&world, "no/such/f", strict, b"").await), FailureKind::NotFound);
}

async fn atomic_writes_are_never_seen_partially(world: GuestFixture) {
    let atomic = WriteOptions { atomic: true, ..WriteOptions::default() };
    world.write("f", b"old").await;
    world.guest.set_mode("f", 0o600).await.unwrap();
    let mut writer = world.guest.create_file("f", atomic.clone()).await.unwrap();
    writer.write(b"new").await.unwrap();
    assert_eq!(world.read("f").await.unwrap(), b"old");
    writer.finish().await.unwrap();
    assert_eq!(world.read("f").await.unwrap(), b"new");
    assert_eq!(world.guest.stat("f", false).await.unwrap().mode, 0o600);
    let mut given_up = world.guest.create_file("f", atomic.clone()).await.unwrap();
    given_up.write(b"never").await.unwrap();
    drop(given_up);
    until("the temporary file is gone", async || world.shell("ls -A").await.text() == "f").await;
    assert_eq!(world.read("f").await.unwrap(), b"new");
    let create = WriteOptions { mode: WriteMode::Create, ..atomic.clone() };
    assert_eq!(kind(write(&world, "f", create, b"").await), FailureKind::Exists);
    let append = WriteOptions { mode: WriteMode::Append, ..atomic };
    assert_eq!(kind(write(&world, "f", append, b"").await), FailureKind::Invalid);
}

async fn only_regular_files_are_accessible(world: GuestFixture) {
    world.shell("mkfifo pipe; mkdir folder; ln -s pipe link").await;
    for (path, expected) in [
        ("pipe", FailureKind::NotAFile),
        ("link", FailureKind::NotAFile),
        ("/dev/zero", FailureKind::NotAFile),
        ("/dev/tty", FailureKind::NotAFile),
        ("folder", FailureKind::IsADirectory),
    ] {
        assert_eq!(kind(world.read(path).await), expected, "{path}");
        for atomic in [false, true] {
            let options = WriteOptions { atomic, ..WriteOptions::default() };
            assert_eq!(kind(write(&world, path, options, b"x").await), expected, "{path}");
        }
    }
    assert_eq!(world.guest.stat("pipe", false).await.unwrap().kind, FileKind::Other);
    assert_eq!(world.guest.stat("/dev/zero", false).await.unwrap().kind, FileKind::Other);
}

async fn errors_name_the_path(world: GuestFixture) {
    world.write("f", b"").await;
    let read_failure = async |path: &str| match world.read(path).await {
        Err(GuestError::Failed(failure)) => (failure.kind, failure.subject),
        other => panic!("{other:?}"),
    };
    assert_eq!(read_failure("gone/x").await, (FailureKind::NotFound, "gone/x".to_owned()));
    assert_eq!(read_failure("f/x").await, (FailureKind::NotADirectory, "f/x".to_owned()));
    assert_eq!(read_failure("a\0b").await.0, FailureKind::Invalid);
    assert_eq!(read_failure(&"x".repeat(300)).await.0, FailureKind::Invalid);
    symlink("loop", world.folder.path().join("loop")).unwrap();
    assert_eq!(read_failure("loop").await.0, FailureKind::Io);
    let link = world.guest.stat("loop", false).await.unwrap();
    assert_eq!((link.kind, link.target.as_deref()), (FileKind::Link, Some("loop")));
}

async fn folders_are_listed_in_pages(world: GuestFixture) {
    let mut expected: Vec<String> = (0..600).map(|number| format!("file-{number}")).collect();
    expected.sort();
    for name in &expected {
        std::fs::write(world.folder.path().join(name), name).unwrap();
    }
    let (mut names, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = world.guest.list("", after, 250).await.unwrap();
        names.extend(page.entries.into_iter().map(|entry| (entry.name, entry.metadata)));
        pages += 1;
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(pages, 3);
    assert!(names.iter().map(|(name, _)| name).eq(&expected));
    assert!(names.iter().all(|(name, FileMetadata { size, .. })| *size == name.len() as u64));
    assert_eq!(kind(world.guest.list("", None, 0).await), FailureKind::Invalid);
    assert_eq!(kind(world.guest.list("file-1", None, 9).await), FailureKind::NotADirectory);
    world.shell("mkdir long; cd long; t=$(head -c 4000 /dev/zero | tr '\\0' x); i=0; while [ $i -lt 200 ]; do ln -s $t $i; i=$((i+1)); done").await;
    let page = world.guest.list("long", None, 200).await.unwrap();
    assert!(!page.entries.is_empty() && page.next.is_some(), "long names make short pages");
}

async fn things_are_moved(world: GuestFixture) {
    world.write("a", b"a").await;
    world.write("b", b"b").await;
    assert_eq!(kind(world.guest.rename("a", "b", false).await), FailureKind::Exists);
    world.guest.rename("a", "b", true).await.unwrap();
    assert_eq!(world.read("b").await.unwrap(), b"a");
    assert_eq!(kind(world.guest.rename("a", "c", true).await), FailureKind::NotFound);
    world.guest.make_folder("x/y/z", true, None).await.unwrap();
    world.guest.make_folder("x/y/z", true, None).await.unwrap();
    assert_eq!(kind(world.guest.make_folder("x/y/z", false, None).await), FailureKind::Exists);
    assert_eq!(kind(world.guest.make_folder("b/z", true, None).await), FailureKind::NotADirectory);
    world.guest.rename("x", "moved", false).await.unwrap();
    assert_eq!(world.guest.stat("moved/y/z", false).await.unwrap().kind, FileKind::Directory);
}

async fn modes_are_set(world: GuestFixture) {
    world.write("f", b"").await;
    world.guest.set_mode("f", 0o700).await.unwrap();
    let mode = std::fs::metadata(world.folder.path().join("f")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
    assert_eq!(kind(world.guest.set_mode("f", 0o4755).await), FailureKind::Invalid);
    world.guest.make_folder("d", false, Some(0o1777)).await.unwrap();
    assert_eq!(world.guest.stat("d", false).await.unwrap().mode, 0o1777);
}

async fn trees_are_removed(world: GuestFixture) {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("kept"), "").unwrap();
    symlink(outside.path(), world.folder.path().join("link")).unwrap();
    world.guest.make_folder("tree/in/ner", true, None).await.unwrap();
    symlink(outside.path(), world.folder.path().join("tree/in/link")).unwrap();
    assert_eq!(kind(world.guest.remove("tree", false).await), FailureKind::NotEmpty);
    world.guest.remove("tree", true).await.unwrap();
    world.guest.remove("link", true).await.unwrap();
    assert!(outside.path().join("kept").exists());
    assert_eq!(kind(world.guest.remove("tree", true).await), FailureKind::NotFound);
    // Deeper than the maximum path length, and than one descriptor for each level would allow.
    let dig = "i=0; while [ $i -lt 1500 ]; do mkdir ddddd && cd ddddd; i=$((i+1)); done; touch end";
    world.shell(&format!("mkdir deep; cd deep; {dig}")).await;
    world.guest.remove("deep", true).await.unwrap();
    world.shell("mkdir wide; cd wide; seq 1 3000 | xargs touch; mkdir $(seq 4000 4200); touch 4100/x").await;
    world.guest.remove("wide", true).await.unwrap();
    assert_eq!(world.shell("ls -A").await.text(), "");
}

async fn a_removal_can_be_stopped(world: GuestFixture) {
    world.shell("mkdir wide; cd wide; seq 1 60000 | xargs touch").await;
    let removal = world.guest.remove("wide", true);
    assert!(tokio::time::timeout(Duration::from_millis(1), removal).await.is_err());
    let left = async || world.shell("ls wide | wc -l").await.text().parse::<u32>().unwrap();
    let first = left().await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(left().await, first);
    assert!(first > 0);
}

async fn swapped_paths_do_no_harm(world: GuestFixture) {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("kept"), "kept").unwrap();
    let swap = format!(
        "mkdir real; mkfifo real/f; ln -s {} link; while :; do mkdir -p t/sub; touch t/sub/f; \
         mv t/sub t/away; mv link t/sub; rm -rf t/away; mv t/sub link; \
         mv real/f x 2>/dev/null; echo hi > real/f; rm real/f; mkfifo real/f; done",
        outside.path().display()
    );
    world.guest.start(shell(&swap)).await.unwrap();
    for _ in 0..300 {
        let _any = world.read("real/f").await;
        let _any =
            write(&world, "t/sub/new", WriteOptions { parents: false, ..Default::default() }, b"x").await;
        let _any = world.guest.remove("t", true).await;
        let _any = world.guest.list("t", None, 10).await;
    }
    assert_eq!(std::fs::read(outside.path().join("kept")).unwrap(), b"kept");
    assert_eq!(world.shell("echo alive").await.text(), "alive");
}

async fn a_full_disk_is_reported(world: GuestFixture) {
    let ran =
        world.shell("mkdir small && mount -t tmpfs -o size=256k small small && cd small && mkdir d").await;
    assert_eq!(ran.stderr, b"");
    let bytes = vec![1; 4 << 20];
    for atomic in [false, true] {
        let options = WriteOptions { atomic, ..WriteOptions::default() };
        assert_eq!(kind(write(&world, "small/f", options, &bytes).await), FailureKind::NoSpace);
    }
    assert_eq!(
        world.guest.rename("small/d", "d", true).await.unwrap_err().kind(),
        Some(FailureKind::OtherFileSystem)
    );
}
