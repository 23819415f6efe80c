//! Installers on this machine: the fast ones where they are found.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Where tools are put into a sandbox.
pub(crate) const TOOLS: &str = "/opt/belljar/tools";

/// A program on this machine that is put into the sandboxes of installs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tool {
    /// Its name.
    pub name: &'static str,
    /// Where it is, without any link on the way.
    pub path: PathBuf,
}

impl Tool {
    /// Where it is inside.
    pub(crate) fn inside(&self) -> String {
        format!("{TOOLS}/{}", self.name)
    }
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tools {
    /// Installs Python's packages; without it that is up to the interpreter's own pip.
    pub uv: Option<Tool>,
    /// Installs JavaScript's packages; without it that is up to the image's npm.
    pub bun: Option<Tool>,
}

impl Tools {
    /// Looks where programs are, and where these two install themselves.
    pub fn find(path: Option<&std::ffi::OsStr>, home: Option<&Path>) -> Self {
        let mut folders: Vec<PathBuf> =
            path.map(|path| std::env::split_paths(path).collect()).unwrap_or_default();
        let own = [".local/bin", ".cargo/bin", ".bun/bin"];
        folders.extend(home.into_iter().flat_map(|home| own.map(|folder| home.join(folder))));
        let find = |name: &'static str| {
            let found = folders.iter().filter(|folder| folder.is_absolute()).find_map(|folder| {
                std::fs::canonicalize(folder.join(name)).ok().filter(|real| is_program(real))
            });
            found.map(|path| Tool { name, path })
        };
        Self { uv: find("uv"), bun: find("bun") }
    }
}

/// A binary; a version manager's stand-in would not work elsewhere.
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
    fn scripts_that_stand_in_are_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let (shims, real) = (folder.path().join("shims"), folder.path().join("real"));
        for place in [&shims, &real] {
            std::fs::create_dir(place).unwrap();
        }
        std::fs::write(shims.join("uv"), "#!/bin/sh\n").unwrap();
        std::fs::write(real.join("uv"), b"\x7fELF...").unwrap();
        let path = std::env::join_paths([&shims, &real]).unwrap();
        let tools = Tools::find(Some(&path), None);
        assert_eq!(tools.uv.unwrap().path, real.join("uv").canonicalize().unwrap());
        assert_eq!(tools.bun, None);
    }
}
