//! The folder with the bootstrap that puts Python layers on `sys.path`. It is mounted next to them and
//! contains nothing else.

use std::path::{Path, PathBuf};

use belljar_beneath::{ContentDigest, StoreFolder, random_name};
use belljar_engine::packages::{PYTHON_BOOTSTRAP, PYTHON_SITE_FOLDER, PackageLayer, PackagesError};
use rustix::fs::Mode;

use crate::store::LayerStoreError;

/// Python imports a module of this name at startup.
const BOOTSTRAP_FILE: &str = "sitecustomize.py";
/// Larger than the bootstrap will ever be.
const MAX_BYTES: u64 = 64 << 10;

/// Returns the bootstrap's folder as a layer. Writes it if it is missing or was changed.
pub(crate) fn layer(layers: &Path) -> Result<PackageLayer, PackagesError> {
    Ok(PackageLayer { source: write_bootstrap(layers)?, destination: PYTHON_SITE_FOLDER })
}

fn write_bootstrap(layers: &Path) -> Result<PathBuf, LayerStoreError> {
    let name = ContentDigest::from_parts("belljar bootstrap 1", [PYTHON_BOOTSTRAP]).to_string();
    let folder = StoreFolder::open_top(layers)?.open_or_create("site")?.open_or_create(&name)?;
    if folder.read(BOOTSTRAP_FILE, MAX_BYTES)?.as_deref() != Some(PYTHON_BOOTSTRAP.as_bytes()) {
        // Written under a temporary name and renamed: another process may mount the folder at any time.
        let half = random_name()?;
        folder.write(&half, PYTHON_BOOTSTRAP.as_bytes(), Mode::from_raw_mode(0o644))?;
        let moved = rustix::fs::renameat(&folder, &half, &folder, BOOTSTRAP_FILE);
        moved.map_err(|errno| folder.error("write", BOOTSTRAP_FILE, errno))?;
    }
    // Programs run as a different user.
    for (path, mode) in [(".", 0o755), (BOOTSTRAP_FILE, 0o644)] {
        let changed =
            rustix::fs::chmodat(&folder, path, Mode::from_raw_mode(mode), rustix::fs::AtFlags::empty());
        changed.map_err(|errno| folder.error("change the mode of", path, errno))?;
    }
    Ok(folder.path().to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_bootstrap_is_written_once_and_rewritten_if_changed() {
        let top = tempfile::tempdir().unwrap();
        std::fs::set_permissions(top.path(), PermissionsExt::from_mode(0o700)).unwrap();
        let first = layer(top.path()).unwrap();
        let file = first.source.join(BOOTSTRAP_FILE);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), PYTHON_BOOTSTRAP);
        assert_eq!(std::fs::metadata(&first.source).unwrap().permissions().mode() & 0o777, 0o755);
        std::fs::write(&file, "import evil\n").unwrap();
        assert_eq!(layer(top.path()).unwrap(), first);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), PYTHON_BOOTSTRAP);
        assert_eq!(std::fs::read_dir(&first.source).unwrap().count(), 1);
    }
}
