//! Finds fast installers (uv, bun) on this machine.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Where installers are mounted in a sandbox.
pub(crate) const TOOLS_DIR: &str = "/opt/belljar/tools";

/// A program of this machine that is mounted into installer sandboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstallerTool {
    /// The program's name.
    pub name: &'static str,
    /// The program's path, with symlinks resolved.
    pub path: PathBuf,
}

impl InstallerTool {
    /// Returns the path in the sandbox.
    pub(crate) fn sandbox_path(&self) -> String {
        format!("{TOOLS_DIR}/{}", self.name)
    }
}

/// The installers found on this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstallerTools {
    /// Installs Python packages; without it, the interpreter's own pip does.
    pub uv: Option<InstallerTool>,
    /// Installs JavaScript packages; without it, the image's npm does.
    pub bun: Option<InstallerTool>,
}

impl InstallerTools {
    /// Searches `PATH` and the folders in which uv and bun install themselves.
    pub fn find(path: Option<&std::ffi::OsStr>, home: Option<&Path>) -> Self {
        let mut folders: Vec<PathBuf> =
            path.map(|path| std::env::split_paths(path).collect()).unwrap_or_default();
        let own = [".local/bin", ".cargo/bin", ".bun/bin"];
        folders.extend(home.into_iter().flat_map(|home| own.map(|folder| home.join(folder))));
        let find = |name: &'static str| {
            let found = folders.iter().filter(|folder| folder.is_absolute()).find_map(|folder| {
                std::fs::canonicalize(folder.join(name)).ok().filter(|real| is_program(real))
            });
            found.map(|path| InstallerTool { name, path })
        };
        Self { uv: find("uv"), bun: find("bun") }
    }
}

/// Returns whether the file is an ELF binary. The wrapper script of a version manager would not work in a
/// sandbox.
fn is_program(path: &Path) -> bool {
    let mut magic = [0; 4];
    path.is_file()
        && File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok()
        && magic == *b"\x7fELF"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapper_scripts_are_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let (shims, real) = (folder.path().join("shims"), folder.path().join("real"));
        for place in [&shims, &real] {
            std::fs::create_dir(place).unwrap();
        }
        std::fs::write(shims.join("uv"), "#!/bin/sh\n").unwrap();
        std::fs::write(real.join("uv"), b"\x7fELF...").unwrap();
        let path = std::env::join_paths([&shims, &real]).unwrap();
        let tools = InstallerTools::find(Some(&path), None);
        assert_eq!(tools.uv.unwrap().path, real.join("uv").canonicalize().unwrap());
        assert_eq!(tools.bun, None);
    }
}
