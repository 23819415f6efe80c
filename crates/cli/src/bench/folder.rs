//! A temporary folder with the code of unsandboxed runs, removed when the benchmark ends.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{CliError, quote_path};

#[derive(Debug)]
pub(super) struct BenchFolder(PathBuf);

impl BenchFolder {
    pub(super) fn create() -> Result<Self, CliError> {
        let path = std::env::temp_dir().join(format!("belljar-bench-{}", std::process::id()));
        match fs::create_dir(&path) {
            Ok(()) => Ok(Self(path)),
            Err(error) => Err(CliError::host(format!(
                "cannot create {}: {error}; set TMPDIR to a writable folder",
                quote_path(&path)
            ))),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for BenchFolder {
    fn drop(&mut self) {
        // A failure leaves a few small files in the temporary folder, which is acceptable.
        let _removed = fs::remove_dir_all(&self.0);
    }
}
