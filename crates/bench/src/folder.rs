//! A temporary folder with the code of unsandboxed runs, removed when the benchmark ends.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{BenchError, quote_path};

#[derive(Debug)]
pub(crate) struct BenchFolder(PathBuf);

impl BenchFolder {
    pub(crate) fn create() -> Result<Self, BenchError> {
        let path = std::env::temp_dir().join(format!("belljar-bench-{}", std::process::id()));
        match fs::create_dir(&path) {
            Ok(()) => Ok(Self(path)),
            Err(error) => Err(BenchError::machine(format!(
                "cannot create {}: {error}; set TMPDIR to a writable folder",
                quote_path(&path)
            ))),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for BenchFolder {
    fn drop(&mut self) {
        // A failure leaves a few small files in the temporary folder, which is acceptable.
        let _removed = fs::remove_dir_all(&self.0);
    }
}
