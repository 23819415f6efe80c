//! Host folders that an administrator allows. Symlinks are resolved once at startup, and a folder that is
//! mounted later must still be the same one.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use belljar_beneath::folder::identity;
use belljar_engine::host_storage::{HostFolder, HostStorageError};
use belljar_engine::plan::Mount;
use belljar_engine::provider::ProviderError;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::host_paths;

/// A host folder in the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFolderSpec {
    /// The name used in requests.
    pub name: String,
    /// The path.
    pub path: PathBuf,
    /// Whether it may be written.
    pub writable: bool,
    /// The tenants that may use it; all if empty.
    pub tenants: Vec<String>,
}

#[derive(Debug, Default)]
pub(super) struct HostFolders(BTreeMap<String, AllowedFolder>);

#[derive(Debug)]
struct AllowedFolder {
    folder: HostFolder,
    /// Kept open, so that the inode number cannot be reused.
    fd: OwnedFd,
}

impl HostFolders {
    /// Resolves and opens the folders. None may expose the data folder, or overlap another if either is
    /// writable.
    pub(super) fn open(specs: Vec<HostFolderSpec>, data: &Path) -> Result<Self, ProviderError> {
        let mut allowed: BTreeMap<String, AllowedFolder> = BTreeMap::new();
        for spec in specs {
            let wrong = |why: String| ProviderError::Invalid {
                field: "host_folders",
                message: format!("'{}' ({}) {why}", spec.name.escape_debug(), spec.path.display()),
            };
            let path = std::fs::canonicalize(&spec.path).map_err(|error| wrong(error.to_string()))?;
            if !path.is_dir() {
                return Err(wrong("is not a folder".to_owned()));
            }
            if overlap(&path, data) {
                return Err(wrong("would expose the data folder".to_owned()));
            }
            let clash = |other: &&AllowedFolder| {
                (spec.writable || other.folder.writable) && overlap(&path, &other.folder.path)
            };
            if let Some(other) = allowed.values().find(clash) {
                let other = other.folder.path.display();
                return Err(wrong(format!("overlaps {other}, and one of them is writable")));
            }
            let mount =
                Mount { source: path.clone(), destination: "/data".to_owned(), writable: spec.writable };
            host_paths::check_mount(&mount)?;
            let held = open(&path).map_err(|errno| wrong(errno.to_string()))?;
            let folder = HostFolder { path, writable: spec.writable, tenants: spec.tenants };
            allowed.insert(spec.name, AllowedFolder { folder, fd: held });
        }
        Ok(Self(allowed))
    }

    /// Returns the folder of that name, if it is still the one that was allowed.
    pub(super) fn find(&self, name: &str) -> Result<HostFolder, HostStorageError> {
        let allowed = self.0.get(name).ok_or(HostStorageError::Missing)?;
        let same = open(&allowed.folder.path).and_then(|now| Ok(identity(&now)? == identity(&allowed.fd)?));
        match same {
            Ok(true) => Ok(allowed.folder.clone()),
            Ok(false) | Err(_) => Err(HostStorageError::Changed(name.to_owned())),
        }
    }
}

fn overlap(one: &Path, other: &Path) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

fn open(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}
