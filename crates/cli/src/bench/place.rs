//! A folder for the code of runs outside, which goes when the benchmark is over.

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
                "cannot make {}: {error}; set TMPDIR to a folder that can be written",
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
        // A few small files at worst, where temporary ones are expected.
        let _removed = fs::remove_dir_all(&self.0);
    }
}
