//! Disks of sandboxes in files: each is an ext4 file system in an unnamed file, mounted from a loop device.
//!
//! ```text
//! unnamed sparse file ─▶ mkfs.ext4 ─▶ loop device with autoclear ─▶ detached mount ─▶ launcher ─▶ jail
//! ```
//!
//! Nothing of it has a name, so nothing remains of it: the kernel removes the loop device with the last mount, and
//! the file with the loop device, also after a `kill -9` of all processes. A disk is mounted once, before a tenant
//! uses it, and its file is never opened again. Creating one blocks, so the launcher does not do it.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use thiserror::Error;

use crate::launcher::ids::map::{NamespaceIds, parse_id_map};
use crate::spec::INNER_INIT_UID;
use crate::sys;

const MKFS: [&str; 3] = ["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4", "/usr/bin/mkfs.ext4"];
const LOOP_CONTROL: &str = "/dev/loop-control";
const BLOCK_BYTES: u32 = 4_096;
/// Maximum attempts to get a loop device that no other process takes at the same time.
const LOOP_ATTEMPTS: usize = 64;

/// Why there is no disk.
#[derive(Debug, Error)]
pub enum DiskFileError {
    /// A step failed.
    #[error("{step}: {errno}")]
    Step {
        /// The step.
        step: &'static str,
        /// The errno.
        errno: Errno,
    },
    /// The file system could not be created.
    #[error("mkfs.ext4: {0}")]
    Mkfs(String),
}

/// A disk in a file.
#[derive(Debug)]
pub struct DiskFile {
    /// The file, which has no name.
    pub file: File,
    /// The mount, attached nowhere.
    pub mount: OwnedFd,
}

/// Returns why this process cannot create disks in files, and what to do, or `None` if it can.
pub fn obstacle() -> Option<String> {
    let map = |path| parse_id_map(&std::fs::read_to_string(path).unwrap_or_default());
    if !rustix::process::geteuid().is_root() || map("/proc/self/uid_map") != NamespaceIds::All {
        return Some("belljar does not run as root of this machine".to_owned());
    }
    if mkfs_program().is_none() {
        return Some("mkfs.ext4 is missing; install e2fsprogs (apt-get install e2fsprogs)".to_owned());
    }
    if let Err(errno) = open_device(LOOP_CONTROL) {
        return Some(format!("{LOOP_CONTROL} cannot be opened ({errno}); load the kernel module 'loop'"));
    }
    let opened = rustix::mount::fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC);
    opened.err().map(|errno| format!("ext4 cannot be mounted here ({errno})"))
}

/// Returns whether this kernel is too old for an overlay over mounts with mapped ids.
pub fn lacks_mapped_layers() -> bool {
    let system = rustix::system::uname();
    let mut numbers =
        system.release().to_str().unwrap_or_default().split(['.', '-', '+']).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) < (5, 19),
        _ => true,
    }
}

/// Creates a disk of this size in a folder of the host that tenants cannot reach.
///
/// # Errors
/// Names the step that failed.
pub fn create(folder: impl AsFd, bytes: u64) -> Result<DiskFile, DiskFileError> {
    let failed = |step| move |errno| DiskFileError::Step { step, errno };
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, ".", flags, Mode::RUSR | Mode::WUSR);
    let file = File::from(file.map_err(failed("create an unnamed file in the data folder"))?);
    rustix::fs::ftruncate(&file, bytes).map_err(failed("set the size of the file"))?;
    make_file_system(&file, bytes)?;
    let (device, path) = attach_loop_device(&file).map_err(failed("attach a loop device"))?;
    let mount = mount_device(&path).map_err(failed("mount the loop device"))?;
    // From here on, the device disappears with the mount.
    drop(device);
    Ok(DiskFile { file, mount })
}

fn mkfs_program() -> Option<&'static str> {
    MKFS.into_iter().find(|path| Path::new(path).exists())
}

/// Creates a file system without a journal, because it is never mounted a second time. Its root belongs to PID 1 of
/// the jail by the ids inside, which the launcher maps.
fn make_file_system(file: &File, bytes: u64) -> Result<(), DiskFileError> {
    let failed = |why: &dyn std::fmt::Display| DiskFileError::Mkfs(why.to_string());
    let program = mkfs_program().ok_or_else(|| failed(&"not found; install e2fsprogs"))?;
    let input = file.try_clone().map_err(|error| failed(&error))?;
    let owner = format!("root_owner={INNER_INIT_UID}:{INNER_INIT_UID},nodiscard,lazy_itable_init=1");
    let made = Command::new(program)
        .args(["-q", "-F", "-m", "0", "-I", "256", "-O", "^has_journal,^resize_inode"])
        .args(["-b", &BLOCK_BYTES.to_string(), "-N", &inodes(bytes).to_string(), "-E", &owner])
        .arg("/proc/self/fd/0")
        .env_clear()
        .stdin(Stdio::from(input))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| failed(&error))?;
    if made.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&made.stderr);
    Err(failed(&said.trim().chars().take(500).collect::<String>()))
}

/// Returns the number of inodes of a disk of this size, like that of a disk in memory.
pub(crate) fn inodes(bytes: u64) -> u64 {
    (bytes / BYTES_PER_INODE).max(1_024)
}

/// The usual ratio of disk file systems. More inodes would let kernel memory, and the time that Landlock
/// needs to walk up from a deep directory, grow out of proportion to the disk.
const BYTES_PER_INODE: u64 = 16 << 10;

fn open_device(path: &str) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(CWD, path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())
}

/// Attaches a loop device that detaches itself at its last use. Returns it with its path.
fn attach_loop_device(file: &File) -> Result<(OwnedFd, String), Errno> {
    let control = open_device(LOOP_CONTROL)?;
    for _ in 0..LOOP_ATTEMPTS {
        let path = format!("/dev/loop{}", sys::free_loop_device(control.as_fd())?);
        let device = open_device(&path)?;
        match sys::configure_loop_device(device.as_fd(), file.as_raw_fd(), BLOCK_BYTES) {
            Ok(()) => return Ok((device, path)),
            // Another process took it.
            Err(Errno::BUSY) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::BUSY)
}

/// Returns a mount of the device that is attached nowhere. It disappears with its last descriptor.
fn mount_device(path: &str) -> Result<OwnedFd, Errno> {
    let context = rustix::mount::fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(&context, "source", path)?;
    // The file reads as zeros, so there is nothing to initialize, and the file stays sparse.
    rustix::mount::fsconfig_set_flag(&context, "noinit_itable")?;
    rustix::mount::fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_its_size_and_leaves_nothing() {
        if obstacle().is_some() {
            return;
        }
        let folder = rustix::fs::open("/tmp", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let DiskFile { file, mount } = create(&folder, 64 << 20).unwrap();
        let disk = rustix::fs::fstatfs(&mount).unwrap();
        let bytes = disk.f_blocks * disk.f_bsize as u64;
        assert!(((60 << 20)..=(64 << 20)).contains(&bytes), "{bytes}");
        assert_eq!(disk.f_files, 4_096);
        let allocated = rustix::fs::fstat(&file).unwrap().st_blocks * 512;
        assert!(allocated < 4 << 20, "the file is sparse: {allocated}");
        let stat = rustix::fs::fstat(&file).unwrap();
        assert_eq!(stat.st_nlink, 0, "it has no name");
        drop(mount);
        // The kernel detaches the device when the last user of the file system is gone.
        let backs = || backed_devices(stat.st_dev, stat.st_ino);
        while backs() {
            std::thread::yield_now();
        }
    }

    /// Returns whether a loop device uses a file.
    fn backed_devices(dev: u64, inode: u64) -> bool {
        (0..256).any(|number| {
            let Ok(device) = open_device(&format!("/dev/loop{number}")) else { return false };
            sys::loop_device_file(device.as_fd()) == Ok((dev, inode))
        })
    }
}
