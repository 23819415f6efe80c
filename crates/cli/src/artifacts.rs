//! `--artifacts DIR`: saves artifacts below a folder of the user. The program chose their names, so they are
//! checked, and no link below the folder is followed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use belljar_beneath::InnerPath;
use belljar_engine::artifact::{MAX_ARTIFACT_DEPTH, is_artifact_path};
use belljar_engine::report::Report;

use crate::error::{CliError, quote_path};
use crate::os::UnpackFolder;

/// Permissions of a saved artifact.
const MODE: u32 = 0o644;

/// A folder for artifacts.
#[derive(Debug)]
pub(crate) struct ArtifactFolder {
    folder: UnpackFolder,
    path: PathBuf,
}

impl ArtifactFolder {
    /// Opens the folder, and creates it if it is missing.
    pub(crate) fn open(path: &Path) -> Result<Self, CliError> {
        let opened = fs::create_dir_all(path).and_then(|()| UnpackFolder::open(path));
        let folder = opened.map_err(|error| {
            CliError::invalid(format!("--artifacts: cannot open {}: {error}", quote_path(path)))
        })?;
        Ok(Self { folder, path: path.to_owned() })
    }

    /// Creates the file of an artifact, in place of an earlier one. In a batch, each line has a folder of its own,
    /// named by its index.
    pub(crate) fn create(&self, index: Option<u64>, name: &str) -> Result<File, CliError> {
        let path = index.map_or_else(|| name.to_owned(), |index| format!("{index}/{name}"));
        let created = match InnerPath::parse(path.as_bytes(), MAX_ARTIFACT_DEPTH + 2) {
            Ok(Some(inner)) if is_artifact_path(name) => self.folder.create_file(&inner).and_then(|file| {
                UnpackFolder::set_permissions(&file, MODE)?;
                Ok(file)
            }),
            _ => Err(io::Error::other("the name is not valid")),
        };
        created.map_err(|error| self.failed(name, &error))
    }

    /// Saves an artifact.
    pub(crate) fn save(&self, index: Option<u64>, name: &str, content: &[u8]) -> Result<(), CliError> {
        let written = self.create(index, name)?.write_all(content);
        written.map_err(|error| self.failed(name, &error))
    }

    /// Saves the artifacts of a report.
    pub(crate) fn save_all(&self, report: &Report) -> Result<(), CliError> {
        let saved =
            report.artifacts.iter().filter_map(|artifact| Some((&artifact.name, artifact.content.as_ref()?)));
        saved.into_iter().try_for_each(|(name, content)| self.save(report.index, name, content))
    }

    /// Returns an error for an artifact that cannot be saved.
    pub(crate) fn failed(&self, name: &str, error: &io::Error) -> CliError {
        let (name, path) = (name.escape_debug(), quote_path(&self.path));
        CliError::host(format!("--artifacts: cannot save '{name}' in {path}: {error}"))
    }

    /// Returns a note on the number of saved artifacts.
    pub(crate) fn note(&self, count: usize) -> String {
        format!("saved {} in {}", count_artifacts(count), quote_path(&self.path))
    }
}

/// Returns a number of artifacts in words.
pub(crate) fn count_artifacts(count: usize) -> String {
    if count == 1 { "1 artifact".to_owned() } else { format!("{count} artifacts") }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn artifacts_stay_below_the_folder() {
        let top = tempfile::tempdir().unwrap();
        let (made, outside) = (top.path().join("a/made"), top.path().join("outside"));
        fs::create_dir(&outside).unwrap();
        let folder = ArtifactFolder::open(&made).unwrap();
        folder.save(None, "plots/a.png", b"one").unwrap();
        folder.save(None, "plots/a.png", b"two").unwrap();
        folder.save(Some(7), "plots/a.png", b"seven").unwrap();
        assert_eq!(fs::read(made.join("plots/a.png")).unwrap(), b"two");
        assert_eq!(fs::read(made.join("7/plots/a.png")).unwrap(), b"seven");
        for name in ["../x", "/etc/x", "a/../../x", "a\nb", "", "."] {
            assert!(folder.save(None, name, b"x").is_err(), "{name:?}");
        }
        symlink(&outside, made.join("link")).unwrap();
        symlink(outside.join("file"), made.join("file")).unwrap();
        let _refused = folder.save(None, "link/x", b"x");
        folder.save(None, "file", b"x").unwrap();
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        assert!(fs::symlink_metadata(made.join("file")).unwrap().is_file());
    }
}
