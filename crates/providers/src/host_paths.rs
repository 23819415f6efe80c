//! Host folders named by users: which may be mounted, and which are refused.

use std::path::{Path, PathBuf};

use belljar_engine::plan::Mount;
use belljar_engine::provider::ProviderError;
use belljar_jail::spec::HostBind;

/// Folders that cannot be a host workspace themselves; folders below them can.
const BROAD_FOLDERS: &[&str] =
    &["/", "/home", "/media", "/mnt", "/opt", "/root", "/run", "/srv", "/tmp", "/var"];
/// System folders: neither they nor anything below them may be mounted writable.
const SYSTEM_FOLDERS: &[&str] = &[
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/sbin", "/sys", "/usr",
];

/// Checks a host workspace and returns its real path.
pub(crate) fn check_host_workspace(path: &Path) -> Result<String, ProviderError> {
    let wrong = |why: &str| refuse("workspace", path, why);
    let metadata = std::fs::symlink_metadata(path).map_err(|error| wrong(&error.to_string()))?;
    if metadata.is_symlink() {
        return Err(wrong("is a symbolic link; name the folder itself"));
    }
    if !metadata.is_dir() {
        return Err(wrong("is not a folder"));
    }
    let real = real_path("workspace", path)?;
    match protection_reason(&real, home().as_deref()) {
        Some(why) => Err(wrong(why)),
        None => utf8_path("workspace", &real),
    }
}

/// Checks a mount and returns it with its real path.
pub(crate) fn check_mount(mount: &Mount) -> Result<HostBind, ProviderError> {
    let wrong = |why: &str| refuse("mount", &mount.source, why);
    let metadata = std::fs::symlink_metadata(&mount.source).map_err(|error| wrong(&error.to_string()))?;
    if metadata.is_symlink() {
        return Err(wrong("is a symbolic link; name what it points to"));
    }
    if !metadata.is_dir() && !metadata.is_file() {
        return Err(wrong("is neither a folder nor a regular file"));
    }
    let real = real_path("mount", &mount.source)?;
    match protection_reason(&real, home().as_deref()).filter(|_| mount.writable || real == Path::new("/")) {
        Some(why) => Err(wrong(why)),
        None => Ok(HostBind {
            source: utf8_path("mount", &real)?,
            destination: mount.destination.clone(),
            writable: mount.writable,
        }),
    }
}

fn home() -> Option<PathBuf> {
    std::env::var_os("HOME").map(PathBuf::from)
}

fn protection_reason(real: &Path, home: Option<&Path>) -> Option<&'static str> {
    if BROAD_FOLDERS.iter().any(|folder| real == Path::new(folder))
        || SYSTEM_FOLDERS.iter().any(|folder| real.starts_with(folder))
    {
        return Some("is a system folder; use a separate folder");
    }
    if home.is_some_and(|home| home.starts_with(real)) {
        return Some("is a home folder; use a folder below it");
    }
    None
}

fn real_path(field: &'static str, path: &Path) -> Result<PathBuf, ProviderError> {
    std::fs::canonicalize(path).map_err(|error| refuse(field, path, &error.to_string()))
}

/// Returns a path as UTF-8, which launcher requests require.
pub(crate) fn utf8_path(field: &'static str, path: &Path) -> Result<String, ProviderError> {
    path.to_str().map(str::to_owned).ok_or_else(|| refuse(field, path, "is not valid UTF-8"))
}

fn refuse(field: &'static str, path: &Path, why: &str) -> ProviderError {
    ProviderError::Invalid { field, message: format!("'{}' {why}", path.display()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_folders_are_refused() {
        let home = Path::new("/home/ann");
        for path in [
            "/",
            "/usr",
            "/usr/local/src",
            "/etc",
            "/home",
            "/home/ann",
            "/tmp",
            "/proc/1",
            "/var",
            "/dev/shm",
        ] {
            assert!(protection_reason(Path::new(path), Some(home)).is_some(), "{path}");
        }
        for path in ["/home/ann/work", "/tmp/x", "/var/lib/data", "/srv/x"] {
            assert!(protection_reason(Path::new(path), Some(home)).is_none(), "{path}");
        }
    }

    #[test]
    fn links_are_refused() {
        let folder = std::env::temp_dir().join(format!("belljar-paths-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("real")).unwrap();
        std::os::unix::fs::symlink(folder.join("real"), folder.join("link")).unwrap();
        assert!(check_host_workspace(&folder.join("real")).is_ok());
        assert!(
            check_host_workspace(&folder.join("link")).unwrap_err().to_string().contains("symbolic link")
        );
        assert!(check_host_workspace(&folder.join("none")).unwrap_err().to_string().contains("No such file"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
