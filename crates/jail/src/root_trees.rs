//! Root trees, built once by the launcher and shared by all jails with the same root.
//!
//! A tree is a small read-only tmpfs with host directories mounted in it, by bind mount or overlay. The mount
//! namespace of a jail starts as a copy, in which the jail's own mounts cover the empty directories.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use belljar_model::layer::Layer;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};

use crate::fault;
use crate::spec::{RootEntry, RootTree};
use crate::step::{Step, StepFailed, step};
use crate::sys;

/// Mount point of the host's root in the launcher's root.
pub(crate) const HOST_ROOT: &str = "/host";
const TREES: &str = "/trees";
/// An empty directory: an overlay without an upper layer needs two lower directories.
const EMPTY_DIR: &str = "/empty";
const OVERLAY_MAGIC: rustix::fs::FsWord = 0x794c_7630;
/// Maximum number of built trees. Beyond it, all are discarded and rebuilt as needed.
const MAX_BUILT: usize = 16;
/// Maximum number of entries of a tree. Each takes a mount, and all other runs wait meanwhile.
const MAX_ENTRIES: usize = 256;
/// Maximum number of registered trees; more than one client keeps at a time.
const MAX_REGISTERED: usize = 256;

const DEVICE_ATTRIBUTES: u64 = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC;

fn mount_attributes() -> u64 {
    let attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    if fault::is_left_out(Layer::ReadOnlyRoot) { attributes } else { attributes | libc::MOUNT_ATTR_RDONLY }
}

/// A built tree.
#[derive(Debug)]
pub(crate) struct BuiltRoot {
    /// Its number in launcher requests.
    pub(crate) number: u64,
    pub(crate) tree: RootTree,
    /// Path at which it is mounted.
    pub(crate) path: String,
}

/// Registered and built trees.
#[derive(Debug, Default)]
pub(crate) struct RootTrees {
    registered: BTreeMap<u64, RootTree>,
    built: BTreeMap<u64, Rc<BuiltRoot>>,
    next: u64,
}

impl RootTrees {
    /// Registers a tree by its number. Forgets the oldest one if there are too many.
    pub(crate) fn register(&mut self, number: u64, tree: RootTree) {
        self.registered.insert(number, tree);
        if self.registered.len() > MAX_REGISTERED {
            self.registered.pop_first();
        }
    }

    /// Returns the tree with this number, and builds it the first time.
    pub(crate) fn get_or_build(&mut self, number: u64) -> Result<Rc<BuiltRoot>, StepFailed> {
        if let Some(root) = self.built.get(&number) {
            return Ok(Rc::clone(root));
        }
        let unknown = || StepFailed::new(Step::Root, "that was never registered", Errno::NOENT);
        let tree = self.registered.get(&number).ok_or_else(unknown)?.clone();
        if tree.len() > MAX_ENTRIES {
            let what = format!("with {} entries; the most is {MAX_ENTRIES}", tree.len());
            return Err(StepFailed::new(Step::Root, what, Errno::TOOBIG));
        }
        if self.built.len() >= MAX_BUILT {
            self.discard_all();
        }
        self.next += 1;
        let path = format!("{TREES}/{}", self.next);
        build(&path, &tree).inspect_err(|_| unmount_tree(&path))?;
        let root = Rc::new(BuiltRoot { number, tree, path });
        self.built.insert(number, Rc::clone(&root));
        Ok(root)
    }

    fn discard_all(&mut self) {
        for root in std::mem::take(&mut self.built).into_values() {
            unmount_tree(&root.path);
        }
    }
}

fn unmount_tree(path: &str) {
    // Running jails have their own copies. Lazily unmounted mounts disappear with the last of them.
    let _unmounted = rustix::mount::unmount(path, UnmountFlags::DETACH);
    let _removed = rustix::fs::rmdir(path);
}

fn build(path: &str, tree: &RootTree) -> Result<(), StepFailed> {
    step(Step::Root, "", || {
        rustix::fs::mkdir(path, Mode::from_raw_mode(0o755))?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount("tmpfs", path, "tmpfs", flags, Some(c"mode=0755,size=16m,nr_inodes=4096"))
    })?;
    for entry in tree {
        let name = entry_path(entry);
        step(Step::Root, name, || create_entry(path, entry))?;
    }
    step(Step::Root, "", || {
        let root = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        sys::mount_setattr(root.as_fd(), false, mount_attributes(), None)
    })
}

fn entry_path(entry: &RootEntry) -> &str {
    match entry {
        RootEntry::Dir { path }
        | RootEntry::Link { path, .. }
        | RootEntry::File { path, .. }
        | RootEntry::Bind { path, .. }
        | RootEntry::Image { path, .. }
        | RootEntry::Packages { path, .. }
        | RootEntry::Device { path, .. } => path,
        RootEntry::Lower { .. } => "/",
    }
}

fn create_entry(root: &str, entry: &RootEntry) -> Result<(), Errno> {
    match entry {
        RootEntry::Dir { path } => create_dirs(root, path),
        RootEntry::Link { path, target } => {
            create_dirs(root, parent(path))?;
            rustix::fs::symlink(target, format!("{root}{path}"))
        }
        RootEntry::File { path, content } => {
            create_dirs(root, parent(path))?;
            write_file(&format!("{root}{path}"), content)
        }
        RootEntry::Bind { source, path } => bind(root, source, path),
        // Every jail mounts an overlay over an image, and the kernel allows only two levels.
        RootEntry::Image { source, path } if is_overlay(source)? => bind(root, source, path),
        RootEntry::Image { source, path } | RootEntry::Packages { source, path } => {
            mount_hiding_source(root, source, path)
        }
        // Mounted by each jail.
        RootEntry::Lower { .. } => Ok(()),
        RootEntry::Device { source, path, number } => bind_device(root, source, path, *number),
    }
}

/// Creates what an entry needs in the upper layer of a writable root: a directory, link or file, or the mount point of
/// what is mounted later. `/dev` is mounted as a whole.
pub(crate) fn create_in_upper_layer(upper: &str, entry: &RootEntry) -> Result<(), Errno> {
    match entry {
        RootEntry::Lower { .. } => Ok(()),
        entry if entry_path(entry).starts_with("/dev/") => create_dirs(upper, "/dev"),
        RootEntry::Dir { path }
        | RootEntry::Bind { path, .. }
        | RootEntry::Image { path, .. }
        | RootEntry::Packages { path, .. } => create_dirs(upper, path),
        RootEntry::Link { .. } | RootEntry::File { .. } => create_entry(upper, entry),
        RootEntry::Device { .. } => Err(Errno::INVAL),
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// Creates directories in the tree itself: a tree lists its directories before anything is mounted over them.
fn create_dirs(root: &str, path: &str) -> Result<(), Errno> {
    let mut here = root.to_owned();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        here = format!("{here}/{part}");
        match rustix::fs::mkdir(&here, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            // In a bound directory the kernel reports "read-only" before it reports "exists".
            Err(Errno::ROFS) if std::path::Path::new(&here).is_dir() => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn write_file(path: &str, content: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o644))?;
    let mut rest = content;
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest)?;
        rest = &rest[written..];
    }
    Ok(())
}

/// Opens a path on the host without following symbolic links, which the caller has already resolved.
pub(crate) fn open_host(source: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat2(CWD, format!("{HOST_ROOT}{source}"), flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

/// Returns a detached copy of a mount and its submounts, for attaching elsewhere.
pub(crate) fn detached(source: &OwnedFd) -> Result<OwnedFd, Errno> {
    clone_mount(source, OpenTreeFlags::AT_RECURSIVE)
}

/// Returns a detached copy of a mount without its submounts. The kernel permits this only to the owner of all
/// these mounts.
pub(crate) fn detached_without_submounts(source: &OwnedFd) -> Result<OwnedFd, Errno> {
    clone_mount(source, OpenTreeFlags::empty())
}

fn clone_mount(source: &OwnedFd, how: OpenTreeFlags) -> Result<OwnedFd, Errno> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    rustix::mount::open_tree(source, "", flags | how)
}

fn bind(root: &str, source: &str, path: &str) -> Result<(), Errno> {
    let opened = open_host(source)?;
    let target = format!("{root}{path}");
    if rustix::fs::fstat(&opened)?.st_mode & libc::S_IFMT == libc::S_IFDIR {
        create_dirs(root, path)?;
    } else {
        create_dirs(root, parent(path))?;
        match write_file(&target, b"") {
            // In a bound directory the file must exist, and must not be a link: moving a mount follows no
            // links.
            Err(Errno::ROFS) => {}
            written => written?,
        }
    }
    let tree = detached(&opened)?;
    sys::mount_setattr(tree.as_fd(), true, mount_attributes(), None)?;
    rustix::mount::move_mount(&tree, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// Returns a detached read-only mount of a directory of packages, for a jail that runs already.
pub(crate) fn detached_packages(source: &str) -> Result<OwnedFd, Errno> {
    const PLACE: &str = "/attached";
    let place = format!("{TREES}{PLACE}");
    let mounted = mount_hiding_source(TREES, source, PLACE).and_then(|()| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mount = detached_without_submounts(&rustix::fs::open(&place, flags, Mode::empty())?)?;
        sys::mount_setattr(mount.as_fd(), false, mount_attributes(), None)?;
        Ok(mount)
    });
    unmount_tree(&place);
    mounted
}

/// Mounts a directory through an overlay. A bind mount would reveal the host path in `/proc/self/mountinfo`;
/// an overlay shows only the path that the launcher passed. Falls back to a bind mount if the kernel rejects
/// the overlay.
fn mount_hiding_source(root: &str, source: &str, path: &str) -> Result<(), Errno> {
    create_dirs(root, path)?;
    rustix::process::fchdir(open_host(source)?)?;
    let laid = mount_overlay(&format!("{root}{path}"));
    rustix::process::chdir("/")?;
    laid.or_else(|_| bind(root, source, path))
}

fn is_overlay(source: &str) -> Result<bool, Errno> {
    Ok(rustix::fs::fstatfs(open_host(source)?)?.f_type == OVERLAY_MAGIC)
}

/// Mounts an overlay of the current directory at `target`.
fn mount_overlay(target: &str) -> Result<(), Errno> {
    let options = CString::new(format!("userxattr,lowerdir=.:{EMPTY_DIR}")).map_err(|_| Errno::INVAL)?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("overlay", target, "overlay", flags, Some(options.as_c_str()))
}

fn bind_device(root: &str, source: &str, path: &str, number: (u32, u32)) -> Result<(), Errno> {
    let opened = open_host(source)?;
    let stat = rustix::fs::fstat(&opened)?;
    let found = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    if FileType::from_raw_mode(stat.st_mode) != FileType::CharacterDevice || found != number {
        return Err(Errno::NODEV);
    }
    let target = format!("{root}{path}");
    create_dirs(root, parent(path))?;
    write_file(&target, b"")?;
    let tree = detached(&opened)?;
    sys::mount_setattr(tree.as_fd(), false, DEVICE_ATTRIBUTES, None)?;
    rustix::mount::move_mount(&tree, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// Creates the directories of the launcher's own root.
pub(crate) fn create_launcher_dirs() -> Result<(), Errno> {
    [TREES, EMPTY_DIR]
        .into_iter()
        .try_for_each(|folder| rustix::fs::mkdir(folder, Mode::from_raw_mode(0o755)))
}
