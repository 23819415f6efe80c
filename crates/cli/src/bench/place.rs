//! A temporary folder with the code of unsandboxed runs, removed when the benchmark ends.

use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, shown};

#[derive(Debug)]
pub(super) struct Place(PathBuf);

impl Place {
    pub(super) fn make() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("belljar-bench-{}", std::process::id()));
        match fs::create_dir(&path) {
            Ok(()) => Ok(Self(path)),
            Err(error) => Err(Failure::host(format!(
                "cannot create {}: {error}; set TMPDIR to a writable folder",
                shown(&path)
            ))),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A failure leaves a few small files in the temporary folder, which is acceptable.
        let _removed = fs::remove_dir_all(&self.0);
    }
}
