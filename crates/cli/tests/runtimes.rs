//! Finding interpreters: behind a version manager's shim, and in a virtual environment; nothing else of the
//! host is seen.
#![cfg(target_os = "linux")]

mod common;
mod expect;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use common::{Answer, belljar, finish};
use expect::{Expect, skip};

const SYSTEM_PYTHON: &str = "/usr/bin/python3";
const SHOW: &str =
    "import os, sys\nprint(sys.executable)\nprint(os.listdir(sys.argv[1] if sys.argv[1:] else '/'))";

/// Creates a folder outside `/tmp`, whose parents contain files that a sandbox must not see.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

fn run_with_path(home: &Path, first: &Path, code: &str) -> Answer {
    let path = format!("{}:/usr/bin:/bin", first.display());
    let cache = home.join("cache");
    finish(belljar().env("PATH", path).env("XDG_CACHE_HOME", cache).args(["run", "--json", "-c", code]))
}

/// Creates a version manager: a shim script that finds the real interpreter, whose prefix lies beside a
/// secret file.
fn version_manager(home: &Path) -> std::io::Result<()> {
    let bin = home.join("versions/3/bin");
    std::fs::create_dir_all(&bin)?;
    std::fs::create_dir_all(home.join("shims"))?;
    std::fs::copy(std::fs::canonicalize(SYSTEM_PYTHON)?, bin.join("python3"))?;
    std::fs::write(home.join("versions/secret"), "not for anybody inside")?;
    let shim = home.join("shims/python3");
    let log = home.join("asked");
    let script =
        format!("#!/bin/sh\necho asked >> {}\nexec {}/python3 \"$@\"\n", log.display(), bin.display());
    std::fs::write(&shim, script)?;
    std::fs::set_permissions(&shim, std::fs::Permissions::from_mode(0o755))
}

#[test]
fn a_shim_is_resolved_and_only_the_prefix_is_visible() {
    if !Path::new(SYSTEM_PYTHON).exists() {
        return skip("shims", "no /usr/bin/python3");
    }
    let home = folder();
    let home = std::fs::canonicalize(home.path()).expect("a real path");
    version_manager(&home).expect("a version manager");
    let parent = home.join("versions");
    let code = SHOW.replace("sys.argv[1] if sys.argv[1:] else '/'", &format!("'{}'", parent.display()));
    let expected = format!("{}/versions/3/bin/python3\n['3']\n", home.display());
    run_with_path(&home, &home.join("shims"), &code).printed(&expected);
    // The shim is resolved once, not in every run.
    run_with_path(&home, &home.join("shims"), &code).printed(&expected);
    let asked = std::fs::read_to_string(home.join("asked")).unwrap_or_default();
    assert_eq!(asked.lines().count(), 1, "{asked}");
}

#[test]
fn a_broken_shim_is_skipped() {
    if !Path::new(SYSTEM_PYTHON).exists() {
        return skip("shims", "no /usr/bin/python3");
    }
    let home = folder();
    let shim = home.path().join("python3");
    std::fs::write(&shim, "#!/bin/sh\nexit 1\n").expect("a script");
    std::fs::set_permissions(&shim, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    run_with_path(home.path(), home.path(), "import sys; print(sys.executable)")
        .printed("/usr/bin/python3\n");
}
