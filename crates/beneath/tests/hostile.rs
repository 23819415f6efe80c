//! Removal and measurement of trees that were made to mislead them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use belljar_beneath::folder::{Mounts, OPEN_FOLDER_FLAGS, names, open_subfolder};
use belljar_beneath::{
    FolderWalk, MeasureLimits, Removal, RemovalRules, TreeSize, Unlinked, measure, remove_tree, unlink,
};
use rustix::fs::{CWD, FileType, Mode, RenameFlags};
use rustix::io::Errno;
use tempfile::TempDir;

const RULES: [RemovalRules; 2] = [RemovalRules::LEFTOVERS, RemovalRules::AS_USER];
const NO_LIMITS: MeasureLimits = MeasureLimits { bytes: u64::MAX, entries: u64::MAX, depth: usize::MAX };

/// A folder `tree` next to a folder that must not be touched.
struct Fixture {
    folder: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("outside/inner")).unwrap();
        std::fs::write(folder.path().join("outside/inner/kept"), "kept").unwrap();
        std::fs::create_dir(folder.path().join("tree")).unwrap();
        Self { folder }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn open(&self) -> OwnedFd {
        open(self.folder.path())
    }

    fn is_outside_untouched(&self) -> bool {
        std::fs::read_to_string(self.at("outside/inner/kept")).is_ok_and(|text| text == "kept")
    }

    fn measure(&self, limits: MeasureLimits) -> TreeSize {
        let top = self.open();
        measure(|| open_subfolder(top.as_fd(), c"tree", Mounts::Refuse), limits).unwrap()
    }
}

fn open(path: &Path) -> OwnedFd {
    rustix::fs::openat(CWD, path, OPEN_FOLDER_FLAGS, Mode::empty()).unwrap()
}

/// Creates nested folders, deeper than the longest path and the number of open files allow.
fn deep(top: &Path, depth: usize) {
    let mut folder = open(top);
    for _ in 0..depth {
        rustix::fs::mkdirat(&folder, "deeper", Mode::RWXU).unwrap();
        folder = open_subfolder(folder.as_fd(), c"deeper", Mounts::Enter).unwrap();
    }
}

/// Runs work as a user who is not root. The kernel keeps user IDs for each thread.
fn as_user<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let user = rustix::process::Uid::from_raw(65_534);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            if rustix::process::geteuid().is_root() {
                rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            }
            work()
        });
        worker.join().unwrap()
    })
}

#[test]
fn entries_of_every_kind_are_removed_and_no_link_is_followed() {
    for rules in RULES {
        let fixture = Fixture::new();
        for name in ["tree", "tree/a", "tree/a/b"] {
            std::fs::create_dir_all(fixture.at(name)).unwrap();
            symlink(fixture.at("outside"), fixture.at(name).join("folder")).unwrap();
            symlink(fixture.at("outside/inner/kept"), fixture.at(name).join("file")).unwrap();
            symlink("..", fixture.at(name).join("up")).unwrap();
            let socket = std::os::unix::net::UnixListener::bind(fixture.at(name).join("socket"));
            drop(socket.unwrap());
            let folder = open(&fixture.at(name));
            rustix::fs::mknodat(&folder, "pipe", FileType::Fifo, Mode::RWXU, 0).unwrap();
            std::fs::hard_link(fixture.at("outside/inner/kept"), fixture.at(name).join("hard")).unwrap();
        }
        // A pipe without a writer does not block the measurement either.
        assert!(matches!(fixture.measure(NO_LIMITS), TreeSize::Bytes(_)));
        remove_tree(fixture.open(), "tree", rules).unwrap();
        assert!(!fixture.at("tree").exists() && fixture.is_outside_untouched());
        remove_tree(fixture.open(), "tree", rules).unwrap();
        symlink(fixture.at("outside"), fixture.at("tree")).unwrap();
        remove_tree(fixture.open(), "tree", rules).unwrap();
        assert!(!fixture.at("tree").is_symlink() && fixture.is_outside_untouched());
    }
}

#[test]
fn only_the_name_of_an_entry_is_accepted() {
    let fixture = Fixture::new();
    let tree = open(&fixture.at("tree"));
    for name in ["", ".", "..", "../outside", "a/b", "/", "outside/"] {
        for rules in RULES {
            assert_eq!(remove_tree(&tree, name, rules), Err(Errno::INVAL), "{name}");
        }
    }
    assert!(fixture.is_outside_untouched());
}

#[test]
fn deep_trees_are_removed_and_measured() {
    for rules in RULES {
        let fixture = Fixture::new();
        deep(&fixture.at("tree"), 1_100);
        let TreeSize::Bytes(bytes) = fixture.measure(NO_LIMITS) else { panic!() };
        assert!(bytes >= 1_100 * 4096);
        assert_eq!(fixture.measure(MeasureLimits { depth: 1_099, ..NO_LIMITS }), TreeSize::TooMany);
        assert!(matches!(fixture.measure(MeasureLimits { depth: 1_100, ..NO_LIMITS }), TreeSize::Bytes(_)));
        remove_tree(fixture.open(), "tree", rules).unwrap();
        assert!(!fixture.at("tree").exists());
    }
}

#[test]
fn the_number_of_entries_is_bounded() {
    let fixture = Fixture::new();
    for name in 0..200 {
        std::fs::write(fixture.at("tree").join(name.to_string()), "").unwrap();
    }
    assert_eq!(fixture.measure(MeasureLimits { entries: 199, ..NO_LIMITS }), TreeSize::TooMany);
    let few = RemovalRules { max_entries: 100, ..RemovalRules::LEFTOVERS };
    assert_eq!(remove_tree(fixture.open(), "tree", few), Err(Errno::DQUOT));
    assert_eq!(names(open(&fixture.at("tree")).as_fd(), usize::MAX).unwrap().len(), 100);
}

#[test]
fn a_step_is_short() {
    let fixture = Fixture::new();
    for name in 0..1_000 {
        std::fs::write(fixture.at("tree").join(name.to_string()), "").unwrap();
    }
    let top = fixture.open();
    let mut removal = Removal::new(top.as_fd(), "tree", RemovalRules::AS_USER).unwrap();
    let mut steps = 0;
    while removal.step().unwrap() {
        steps += 1;
    }
    assert!(steps > 10, "{steps}");
}

/// Folders without permissions, as a user whom permissions stop.
#[test]
fn locked_folders_are_removed_by_the_host_only() {
    let fixture = Fixture::new();
    std::fs::set_permissions(fixture.folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let folder = fixture.folder.path();
    as_user(|| {
        let top = open(folder);
        let locked = folder.join("mine/locked");
        std::fs::create_dir_all(locked.join("inner")).unwrap();
        std::fs::write(locked.join("inner/file"), "x").unwrap();
        for path in [locked.join("inner"), locked, folder.join("mine")] {
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o0)).unwrap();
        }
        std::fs::set_permissions(folder.join("mine"), PermissionsExt::from_mode(0o700)).unwrap();
        let open_top = || open_subfolder(top.as_fd(), c"mine", Mounts::Refuse);
        assert_eq!(measure(open_top, NO_LIMITS), Ok(TreeSize::Unreadable));
        std::fs::set_permissions(folder.join("mine"), PermissionsExt::from_mode(0o0)).unwrap();
        assert_eq!(remove_tree(&top, "mine", RemovalRules::AS_USER), Err(Errno::ACCESS));
        remove_tree(&top, "mine", RemovalRules::LEFTOVERS).unwrap();
        assert!(!folder.join("mine").exists());
        // A file that may not be unlinked ends the removal: `tree` belongs to another user.
        assert!(remove_tree(&top, "outside", RemovalRules::LEFTOVERS).is_err());
    });
    assert!(fixture.is_outside_untouched());
}

#[test]
fn a_moved_folder_does_not_lead_out() {
    let fixture = Fixture::new();
    std::fs::create_dir_all(fixture.at("tree/a/b")).unwrap();
    let mut walk = FolderWalk::new(open(&fixture.at("tree")), Mounts::Refuse);
    walk.down(CString::from(c"a")).unwrap();
    walk.down(CString::from(c"b")).unwrap();
    assert_eq!(walk.depth(), 2);
    std::fs::rename(fixture.at("tree/a/b"), fixture.at("outside/b")).unwrap();
    assert_eq!(walk.up(), Err(Errno::STALE));

    let mut walk = FolderWalk::new(open(&fixture.at("tree")), Mounts::Enter);
    symlink(fixture.at("outside"), fixture.at("tree/link")).unwrap();
    for name in [c"link", c"link/inner", c"nothing"] {
        assert!(walk.down(name.to_owned()).is_err(), "{name:?}");
    }
    walk.down(CString::from(c"a")).unwrap();
    assert_eq!(walk.up(), Ok(Some(CString::from(c"a"))));
    assert_eq!(walk.up(), Ok(None));
}

#[test]
fn mount_points_are_refused() {
    let root = open(Path::new("/"));
    assert_eq!(open_subfolder(root.as_fd(), c"proc", Mounts::Refuse).unwrap_err(), Errno::XDEV);
    assert!(open_subfolder(root.as_fd(), c"proc", Mounts::Enter).is_ok());
    for mounts in [Mounts::Refuse, Mounts::Enter] {
        assert_eq!(open_subfolder(root.as_fd(), c"..", mounts).unwrap_err(), Errno::INVAL);
    }
}

/// A process exchanges a folder of the tree with one outside, again and again.
#[test]
fn swapped_folders_do_not_lead_out() {
    for rules in RULES {
        let fixture = Fixture::new();
        symlink(fixture.at("outside"), fixture.at("tree/link")).unwrap();
        let (top, done) = (fixture.open(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    // A link to the outside takes the place of a folder that is being walked.
                    let _ = rustix::fs::mkdirat(&top, "tree", Mode::RWXU);
                    let _ = rustix::fs::mkdirat(&top, "tree/a", Mode::RWXU);
                    let _ = rustix::fs::mkdirat(&top, "tree/a/own", Mode::RWXU);
                    let _ = rustix::fs::symlinkat(fixture.at("outside"), &top, "tree/link");
                    let swap = RenameFlags::EXCHANGE;
                    let _ = rustix::fs::renameat_with(&top, "tree/a", &top, "tree/link", swap);
                    let _ = rustix::fs::renameat(&top, "tree/a/own", &top, "elsewhere");
                    let _ = rustix::fs::renameat(&top, "elsewhere", &top, "tree/back");
                }
            });
            let begun = std::time::Instant::now();
            while begun.elapsed().as_millis() < 300 {
                // Whether it succeeds is a race.
                let _ = remove_tree(&top, "tree", rules);
                let _ = measure(|| open_subfolder(top.as_fd(), c"tree", Mounts::Refuse), NO_LIMITS);
            }
            done.store(true, Ordering::Relaxed);
        });
        assert!(fixture.is_outside_untouched());
        remove_tree(&top, "tree", rules).unwrap();
        assert!(!fixture.at("tree").exists());
    }
}

#[test]
fn unlink_tells_folders_with_entries_apart() {
    let fixture = Fixture::new();
    let top = fixture.open();
    std::fs::write(fixture.at("tree/file"), "").unwrap();
    assert_eq!(unlink(&top, "tree"), Ok(Unlinked::Folder));
    assert_eq!(unlink(open(&fixture.at("tree")), "file"), Ok(Unlinked::Gone));
    assert_eq!(unlink(&top, "tree"), Ok(Unlinked::Gone));
    assert_eq!(unlink(&top, "tree"), Err(Errno::NOENT));
}
