//! An image whose own Python installs packages: it receives no credentials, and writes to no shared cache.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::expect::skip;
use crate::fixture::{Kit, PackageFixture};
use crate::index::Index;

/// A fake Python for an image. It answers version queries, and when asked to install, writes its input to its
/// cache.
const PYTHON: &str = r#"#!/bin/sh
for cache in /opt/belljar/cache/*; do
  if [ -d "$cache" ]; then
    { env; cat /opt/belljar/tools/* /opt/belljar/tools/.[a-z]*; } > "$cache/stolen" 2>&1
    exit 1
  fi
done
echo '{"name": "cpython-3.12", "version": "3.12.1", "platform": "x86_64-linux-gnu", "program": "/usr/bin/python3",
  "modules": [], "packages": [], "installer": ["/usr/bin/python3", "-m", "pip"], "paths": []}'
"#;

fn make_image(fixture: &PackageFixture, busybox: &Path) -> PathBuf {
    let root = fixture.folder().join("image");
    for folder in ["bin", "usr/bin"] {
        std::fs::create_dir_all(root.join(folder)).expect("a folder");
    }
    std::fs::copy(busybox, root.join("bin/busybox")).expect("a file");
    for name in ["sh", "env", "cat"] {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).expect("a link");
    }
    let python = root.join("usr/bin/python3");
    std::fs::write(&python, PYTHON).expect("a file");
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).expect("our own");
    root
}

/// Returns every file of that name below a folder.
fn all_named(folder: &Path, name: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir() && !path.is_symlink());
    let below = folders.iter().flat_map(|folder| all_named(folder, name));
    files.into_iter().filter(|path| path.ends_with(name)).chain(below).collect()
}

#[test]
fn an_images_own_python_gets_no_credentials_and_no_shared_cache() {
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].map(Path::new);
    let Some(busybox) = busybox.into_iter().find(|path| path.exists()) else {
        return skip("an image of its own", "busybox is not installed");
    };
    let fixture = fixture!(Kit::Usual);
    let index = Index::new(&fixture);
    let image = make_image(&fixture, busybox);
    std::fs::write(fixture.folder().join(".npmrc"), "//npm.example/:_authToken=secret\n").expect("a file");
    let install = |image: &str| {
        let mut command = index.command(&fixture);
        command.env("HOME", fixture.folder()).args([
            "run",
            "--json",
            "--language",
            "python",
            "--image",
            image,
        ]);
        command.args(["--dep", "bell-tool", "-c", "1"]).output().expect("the binary starts")
    };
    let failed = install(image.to_str().expect("a path"));
    let stolen = all_named(&fixture.installers(), "stolen");
    assert_eq!(stolen.len(), 1, "it was asked to install: {failed:?}");
    let told = std::fs::read_to_string(&stolen[0]).expect("a file");
    let secrets: Vec<&str> = told.lines().filter(|line| line.contains("secret")).collect();
    assert_eq!(secrets, [""; 0], "no credentials are passed on");
    assert!(told.contains("PIP_INDEX_URL=http://127.0.0.1:"), "the registry's URL is passed on: {told}");
    // The host's pip has a separate cache.
    let installed = install("host");
    assert!(installed.status.success(), "{installed:?}");
    let scope = stolen[0].parent().and_then(Path::parent).expect("the folder of a scope");
    let hosts = std::fs::read_dir(scope).expect("a folder").flatten().map(|entry| entry.path());
    let hosts: Vec<PathBuf> = hosts.filter(|path| path.ends_with("pip")).collect();
    assert_eq!(hosts.len(), 1, "image `host` keeps what it downloads");
    assert_eq!(all_named(&hosts[0], "stolen"), Vec::<PathBuf>::new());
}
