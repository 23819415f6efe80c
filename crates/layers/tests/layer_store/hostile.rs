//! Malicious files that a compromised installer might leave in a stage. None of them becomes a layer.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use belljar_layers::store::{LayerBounds, LayerStoreError};
use rustix::fs::{CWD, FileType, Mode};

use crate::common::{StoreFixture, count, fill, recipe};

type Make = fn(&Path);

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn node(path: &Path, kind: FileType) {
    let mode = Mode::RUSR | Mode::WUSR;
    // Devices need privileges that a test may lack; a pipe is the fallback.
    if rustix::fs::mknodat(CWD, path, kind, mode, rustix::fs::makedev(1, 3)).is_err() {
        rustix::fs::mknodat(CWD, path, FileType::Fifo, mode, 0).unwrap();
    }
}

const HOSTILE: [(&str, Make); 22] = [
    ("a link to a host file", |top| symlink("/etc/passwd", top.join("x")).unwrap()),
    ("a link that climbs out", |top| symlink("../x", top.join("x")).unwrap()),
    ("a link that climbs out from below", |top| symlink("../../x", top.join("pkg/x")).unwrap()),
    ("a link that climbs after it went down", |top| symlink("sub/../../..", top.join("pkg/x")).unwrap()),
    ("links that leave together", |top| {
        symlink("../..", top.join("pkg/sub/up")).unwrap();
        symlink("up/../../etc", top.join("pkg/sub/out")).unwrap();
    }),
    ("a link without end", |top| symlink("a/".repeat(1_500), top.join("x")).unwrap()),
    ("a pipe", |top| node(&top.join("x"), FileType::Fifo)),
    ("a character device", |top| node(&top.join("x"), FileType::CharacterDevice)),
    ("a block device", |top| node(&top.join("x"), FileType::BlockDevice)),
    ("a socket", |top| drop(UnixListener::bind(top.join("x")).unwrap())),
    ("setuid", |top| chmod(&top.join("bin/tool"), 0o4755)),
    ("setgid", |top| chmod(&top.join("bin/tool"), 0o2755)),
    ("a setgid folder", |top| chmod(&top.join("bin"), 0o2755)),
    ("a sticky folder", |top| chmod(&top.join("bin"), 0o1777)),
    ("a setgid top", |top| chmod(top, 0o2755)),
    ("two names in the layer", |top| fs::hard_link(top.join("bin/tool"), top.join("x")).unwrap()),
    ("a name outside of the layer", |top| {
        fs::hard_link(top.join("bin/tool"), top.join("../../../../elsewhere")).unwrap();
    }),
    ("too deep", |top| {
        let mut deep = top.to_owned();
        for _ in 0..70 {
            deep.push("d");
            fs::create_dir(&deep).unwrap();
        }
    }),
    ("a long path", |top| {
        let deep = (0..12).fold(top.to_owned(), |deep, _| deep.join("d".repeat(200)));
        fs::create_dir_all(deep).unwrap();
    }),
    ("too much", |top| fs::write(top.join("x"), vec![0; 2 << 20]).unwrap()),
    ("too much that is not there", |top| fs::File::create(top.join("x")).unwrap().set_len(1 << 40).unwrap()),
    ("too much of many", |top| {
        for number in 0..20 {
            fs::write(top.join(number.to_string()), vec![0; 100 << 10]).unwrap();
        }
    }),
];

#[tokio::test]
async fn hostile_entries_are_refused() {
    let bounds = LayerBounds { layer_bytes: 1 << 20, ..LayerBounds::default() };
    for (what, make) in HOSTILE {
        let fixture = StoreFixture::new();
        let store = fixture.open_with(bounds);
        let stage = store.stage().unwrap();
        fill(&stage, "a");
        make(stage.files());
        let error = store.publish(stage, recipe("a")).await.unwrap_err();
        assert!(
            matches!(error, LayerStoreError::NotAllowed { .. } | LayerStoreError::TooLarge { .. }),
            "{what}: {error}"
        );
        assert_eq!(count(&fixture.path().join("layers")), 0, "{what}");
        assert!(fixture.is_tidy(), "{what}");
    }
}

#[tokio::test]
async fn file_capabilities_are_refused() {
    let fixture = StoreFixture::new();
    let store = fixture.open();
    let stage = store.stage().unwrap();
    fill(&stage, "a");
    // cap_net_raw+ep, version 2.
    let value = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let path = stage.files().join("bin/tool");
    if rustix::fs::setxattr(&path, "security.capability", &value, rustix::fs::XattrFlags::empty()).is_err() {
        println!("skipped: needs root, to give a file capabilities");
        return;
    }
    let error = store.publish(stage, recipe("a")).await.unwrap_err();
    assert!(matches!(error, LayerStoreError::NotAllowed { .. }), "{error}");
}

/// Files on a mount below the stage would not be those that were hashed.
#[tokio::test]
async fn another_file_system_is_not_entered() {
    let fixture = StoreFixture::new();
    let store = fixture.open();
    let stage = store.stage().unwrap();
    fill(&stage, "a");
    let at = stage.files().join("pkg");
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "mode=755", "tmpfs"])
        .arg(&at)
        .output();
    if !mounted.is_ok_and(|mounted| mounted.status.success()) {
        println!("skipped: needs root to mount");
        return;
    }
    fs::write(at.join("mine"), "").unwrap();
    let refused = store.publish(stage, recipe("a")).await;
    // Removing the stage did not remove anything on the mount either.
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mut mounts = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    let below = mounts.find(|at| Path::new(at).starts_with(fixture.path())).unwrap();
    let kept = Path::new(below).join("mine").exists();
    let _ = std::process::Command::new("umount").arg("-l").arg(below).status();
    assert!(matches!(refused, Err(LayerStoreError::NotAllowed { .. })), "{refused:?}");
    assert!(kept);
}

/// A tree deeper than any descriptor or stack limit is still removed, but not the targets of links.
#[tokio::test]
async fn a_very_deep_stage_is_removed() {
    let fixture = StoreFixture::new();
    let store = fixture.open();
    let outside = fixture.folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("mine"), "").unwrap();
    let stage = store.stage().unwrap();
    let mut folder = rustix::fs::open(stage.files(), rustix::fs::OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..5_000 {
        rustix::fs::mkdirat(&folder, "d", Mode::RWXU).unwrap();
        rustix::fs::symlinkat(&outside, &folder, "l").unwrap();
        let inner = rustix::fs::openat(&folder, "d", rustix::fs::OFlags::DIRECTORY, Mode::empty()).unwrap();
        rustix::fs::fchmod(&folder, Mode::empty()).unwrap();
        folder = inner;
    }
    drop(stage);
    assert!(fixture.is_tidy());
    assert!(outside.join("mine").exists());
}
