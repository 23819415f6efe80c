//! Host folders that an administrator allows: links are resolved once, at the start, and what is shown later must still
//! be the very same folder.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use belljar_engine::places::{HostFolder, PlacesError};
use belljar_engine::plan::Mount;
use belljar_engine::provider::ProviderError;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::walk::identity;
use crate::native::paths;

/// A host folder, as an administrator writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFolderSpec {
    /// What requests call it.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Whether it may be written.
    pub writable: bool,
    /// Who may name it; everybody where this is empty.
    pub tenants: Vec<String>,
}

#[derive(Debug, Default)]
pub(super) struct HostFolders(BTreeMap<String, Allowed>);

#[derive(Debug)]
struct Allowed {
    folder: HostFolder,
    /// Held, so that no other folder can come to have its number.
    held: OwnedFd,
}

impl HostFolders {
    /// Resolves and holds them. None may show what is kept in the data folder, or lie where another can be written.
    pub(super) fn open(specs: Vec<HostFolderSpec>, data: &Path) -> Result<Self, ProviderError> {
        let mut allowed: BTreeMap<String, Allowed> = BTreeMap::new();
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
                return Err(wrong("would show the data folder".to_owned()));
            }
            let clash = |other: &&Allowed| {
                (spec.writable || other.folder.writable) && overlap(&path, &other.folder.path)
            };
            if let Some(other) = allowed.values().find(clash) {
                let other = other.folder.path.display();
                return Err(wrong(format!("and {other} lie in each other, and one can be written")));
            }
            let mount =
                Mount { source: path.clone(), destination: "/data".to_owned(), writable: spec.writable };
            paths::bind(&mount)?;
            let held = open(&path).map_err(|errno| wrong(errno.to_string()))?;
            let folder = HostFolder { path, writable: spec.writable, tenants: spec.tenants };
            allowed.insert(spec.name, Allowed { folder, held });
        }
        Ok(Self(allowed))
    }

    /// The folder of that name, if it is still the one that was allowed.
    pub(super) fn find(&self, name: &str) -> Result<HostFolder, PlacesError> {
        let allowed = self.0.get(name).ok_or(PlacesError::Missing)?;
        let same = open(&allowed.folder.path)
            .and_then(|now| Ok(identity(now.as_fd())? == identity(allowed.held.as_fd())?));
        match same {
            Ok(true) => Ok(allowed.folder.clone()),
            Ok(false) | Err(_) => Err(PlacesError::Changed(name.to_owned())),
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
