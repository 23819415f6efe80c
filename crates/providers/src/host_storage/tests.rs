//! Folders as a tenant may leave them, tested as root and as other users.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use belljar_engine::host_storage::{HostStorage, HostStorageError, VolumeUsage};
use tempfile::TempDir;

use super::{DataFolder, HostFolderSpec};

const ID: &str = "vol_1";

fn disk() -> (TempDir, DataFolder) {
    let data = tempfile::tempdir().unwrap();
    let disk = DataFolder::open(data.path(), Vec::new()).unwrap();
    (data, disk)
}

/// Creates nested folders, deeper than the longest path allows.
fn deep(top: &Path, depth: usize) {
    use rustix::fs::{CWD, Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut folder = rustix::fs::openat(CWD, top, flags, Mode::empty()).unwrap();
    for _ in 0..depth {
        rustix::fs::mkdirat(&folder, "d", Mode::RWXU).unwrap();
        folder = rustix::fs::openat(&folder, "d", flags, Mode::empty()).unwrap();
    }
}

fn lock(path: &Path) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o0)).unwrap();
}

fn names(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

async fn measure(disk: &DataFolder, most: u64) -> VolumeUsage {
    disk.measure_volume(ID, most).await.unwrap().usage
}

#[tokio::test]
async fn a_volume_is_measured_and_removed_with_any_content() {
    let (data, disk) = disk();
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::write(elsewhere.path().join("precious"), vec![1; 1 << 20]).unwrap();
    disk.make_volume(ID).await.unwrap();
    assert!(matches!(disk.make_volume(ID).await, Err(HostStorageError::Exists)));
    let folder = disk.volume_folder(ID);
    assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(measure(&disk, 1 << 20).await, VolumeUsage::Bytes(0));

    std::fs::write(folder.join("file"), vec![1; 100 << 10]).unwrap();
    std::fs::hard_link(folder.join("file"), folder.join("again")).unwrap();
    symlink(elsewhere.path(), folder.join("out")).unwrap();
    std::fs::create_dir_all(folder.join("a/b")).unwrap();
    symlink("/", folder.join("a/b/root")).unwrap();
    let VolumeUsage::Bytes(bytes) = measure(&disk, u64::MAX).await else { panic!() };
    assert!(
        (100 << 10..160 << 10).contains(&bytes),
        "a file with two hard links counts once, symlinks do not count: {bytes}"
    );
    let over = measure(&disk, 50 << 10).await;
    assert!(over.excess_reason(50 << 10).is_some() && over.excess_reason(u64::MAX).is_none(), "{over:?}");

    disk.remove_volume(ID).await.unwrap();
    assert!(names(&data.path().join("volumes")).is_empty() && names(&data.path().join("removed")).is_empty());
    assert!(elsewhere.path().join("precious").exists());
    assert!(matches!(disk.measure_volume(ID, 0).await, Err(HostStorageError::Missing)));
    assert!(matches!(disk.remove_volume(ID).await, Err(HostStorageError::Missing)));
}

#[tokio::test]
async fn deep_folders_are_measured_and_removed() {
    let (data, disk) = disk();
    disk.make_volume(ID).await.unwrap();
    deep(&disk.volume_folder(ID), 5_000);
    let VolumeUsage::Bytes(bytes) = measure(&disk, u64::MAX).await else { panic!() };
    assert!(bytes >= 5_000 * 4096);
    disk.remove_volume(ID).await.unwrap();
    assert!(names(&data.path().join("removed")).is_empty());
}

#[tokio::test]
async fn locked_folders_are_unreadable_but_removable() {
    let (_data, disk) = disk();
    disk.make_volume(ID).await.unwrap();
    let inner = disk.volume_folder(ID).join("a/locked");
    std::fs::create_dir_all(inner.join("below")).unwrap();
    std::fs::write(inner.join("file"), "x").unwrap();
    lock(&inner.join("below"));
    lock(&inner);
    if !rustix::process::geteuid().is_root() {
        let measured = measure(&disk, u64::MAX).await;
        assert_eq!(measured, VolumeUsage::Unreadable);
        assert!(measured.excess_reason(u64::MAX).is_some(), "an unreadable volume counts as too large");
    }
    disk.remove_volume(ID).await.unwrap();
    assert!(!disk.volume_folder(ID).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_removed_while_a_process_writes() {
    let (_data, disk) = disk();
    disk.make_volume(ID).await.unwrap();
    let folder = disk.volume_folder(ID);
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY;
    let held = rustix::fs::open(&folder, flags, rustix::fs::Mode::empty()).unwrap();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let writer = std::thread::spawn(move || {
        let mut created = 0;
        while stopped.try_recv().is_err() {
            let name = format!("d{}", created % 64);
            created += u32::from(rustix::fs::mkdirat(&held, name, rustix::fs::Mode::RWXU).is_ok());
        }
        created
    });
    while names(&folder).len() < 64 {
        std::thread::yield_now();
    }
    measure(&disk, u64::MAX).await;
    // Whether removal succeeds is a race. Either way the volume can no longer be found.
    let _removed = disk.remove_volume(ID).await;
    assert!(!folder.exists());
    stop.send(()).unwrap();
    assert!(writer.join().unwrap() >= 64);
    disk.remove_unlisted(&[], &[]).await.unwrap();
    assert!(names(folder.parent().unwrap()).is_empty());
}

#[tokio::test]
async fn a_snapshot_is_complete_or_absent() {
    let (data, disk) = disk();
    let folder = data.path().join("snapshots");
    let bytes = vec![7; 1 << 20];
    assert_eq!(disk.write_snapshot("snap_1", Box::pin(&bytes[..]), 1 << 20).await.unwrap(), 1 << 20);
    let mut source = disk.read_snapshot("snap_1").await.unwrap();
    let mut back = Vec::new();
    tokio::io::AsyncReadExt::read_to_end(&mut source, &mut back).await.unwrap();
    assert!(back == bytes);
    let mode = std::fs::metadata(folder.join("snap_1.tar")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let refused = disk.write_snapshot("snap_2", Box::pin(&bytes[..]), (1 << 20) - 1).await;
    assert!(matches!(refused, Err(HostStorageError::TooLarge(_))));
    let broken = broken_source();
    assert!(matches!(disk.write_snapshot("snap_2", broken, 1 << 20).await, Err(HostStorageError::Source(_))));
    assert_eq!(names(&folder), ["snap_1.tar"], "failed writes leave no file");
    assert!(matches!(disk.read_snapshot("snap_2").await, Err(HostStorageError::Missing)));
    for name in ["", ".", "..", "../volumes", "a/b", "snap_1.tar", "A", "snap_1\0"] {
        assert!(matches!(disk.read_snapshot(name).await, Err(HostStorageError::Name(_))), "{name}");
    }
    disk.remove_snapshot("snap_1").await.unwrap();
    assert!(matches!(disk.remove_snapshot("snap_1").await, Err(HostStorageError::Missing)));
}

/// Returns a source that fails midway.
fn broken_source() -> belljar_engine::sandbox_handle::ByteSource<'static> {
    use tokio::io::AsyncReadExt;
    struct Broken;
    impl tokio::io::AsyncRead for Broken {
        fn poll_read(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
            _: &mut tokio::io::ReadBuf<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            std::task::Poll::Ready(Err(std::io::Error::other("gone")))
        }
    }
    Box::pin((&[1_u8; 100][..]).chain(Broken))
}

#[tokio::test]
async fn unknown_entries_are_removed_at_startup() {
    let (data, disk) = disk();
    for id in ["vol_1", "vol_2"] {
        disk.make_volume(id).await.unwrap();
        std::fs::write(disk.volume_folder(id).join("file"), "x").unwrap();
    }
    disk.write_snapshot("snap_1", Box::pin(&b"1"[..]), 1).await.unwrap();
    disk.write_snapshot("snap_2", Box::pin(&b"2"[..]), 1).await.unwrap();
    std::fs::write(data.path().join("snapshots/snap_1.part"), "half").unwrap();
    std::fs::create_dir_all(data.path().join("removed/vol_3/a")).unwrap();
    let known = (["vol_1".to_owned()], ["snap_1".to_owned()]);
    assert_eq!(disk.remove_unlisted(&known.0, &known.1).await.unwrap(), 4);
    assert_eq!(names(&data.path().join("volumes")), ["vol_1"]);
    assert_eq!(names(&data.path().join("snapshots")), ["snap_1.tar"]);
    assert!(names(&data.path().join("removed")).is_empty());
    assert!(disk.volume_folder("vol_1").join("file").exists());
}

#[tokio::test]
async fn a_replaced_host_folder_is_refused() {
    let (data, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let top = host.path();
    std::fs::create_dir_all(top.join("real/inner")).unwrap();
    symlink(top.join("real"), top.join("link")).unwrap();
    let spec = |name: &str, path: &Path, writable| HostFolderSpec {
        name: name.to_owned(),
        path: path.to_owned(),
        writable,
        tenants: Vec::new(),
    };
    let disk = DataFolder::open(data.path(), vec![spec("data", &top.join("link"), false)]).unwrap();
    let found = disk.host_folder("data").await.unwrap();
    assert_eq!(
        found.path,
        std::fs::canonicalize(top.join("real")).unwrap(),
        "symlinks are resolved at startup"
    );
    assert!(matches!(disk.host_folder("/etc").await, Err(HostStorageError::Missing)));
    std::fs::rename(top.join("real"), top.join("moved")).unwrap();
    std::fs::create_dir(top.join("real")).unwrap();
    assert!(
        matches!(disk.host_folder("data").await, Err(HostStorageError::Changed(_))),
        "another folder of the same name"
    );
    std::fs::remove_dir(top.join("real")).unwrap();
    symlink("/etc", top.join("real")).unwrap();
    assert!(matches!(disk.host_folder("data").await, Err(HostStorageError::Changed(_))), "a symlink");

    let refused = |specs: Vec<HostFolderSpec>| DataFolder::open(data.path(), specs).unwrap_err().to_string();
    let (outer, inner) = (top.join("moved"), top.join("moved/inner"));
    let nested = refused(vec![spec("a", &outer, true), spec("b", &inner, false)]);
    assert!(nested.contains("overlaps"), "{nested}");
    assert!(DataFolder::open(data.path(), vec![spec("a", &outer, false), spec("b", &inner, false)]).is_ok());
    assert!(refused(vec![spec("a", data.path(), false)]).contains("data folder"));
    assert!(refused(vec![spec("a", Path::new("/"), false)]).contains("data folder"));
    assert!(refused(vec![spec("a", Path::new("/usr/share"), true)]).contains("system folder"));
    assert!(refused(vec![spec("a", &top.join("none"), false)]).contains("No such file"));
}
