//! A separate home folder for each test: a bare interpreter, the installers to use, and empty caches.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Answer, belljar, finish};
use crate::index::Index;

/// A set of installers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kit {
    /// uv and bun.
    Fast,
    /// pip and npm.
    Usual,
}

#[derive(Debug)]
pub(crate) struct PackageFixture {
    home: tempfile::TempDir,
}

pub(crate) fn all_tests() -> bool {
    std::env::var("BELLJAR_TEST_ALL").is_ok_and(|all| all == "1")
}

/// Returns the folder that `./test` installs installers to.
fn installers() -> Option<PathBuf> {
    let folder = Path::new(&std::env::var_os("BELLJAR_TEST_PACKAGES")?).join("installers");
    ["uv", "bun"].iter().all(|name| folder.join(name).is_file()).then_some(folder)
}

impl PackageFixture {
    pub(crate) fn new(kit: Kit) -> Result<Self, String> {
        let home = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).map_err(|error| error.to_string())?;
        let venv = home.path().join("venv");
        let made = Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(&venv).status();
        if !made.is_ok_and(|status| status.success()) {
            return Err("python3 -m venv does not work here".to_owned());
        }
        if kit == Kit::Fast {
            let installers = installers().ok_or("uv and bun are not installed; ./test installs them")?;
            for name in ["uv", "bun"] {
                std::os::unix::fs::symlink(installers.join(name), venv.join("bin").join(name))
                    .map_err(|error| error.to_string())?;
            }
        }
        Ok(Self { home })
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.home.path().to_owned()
    }

    pub(crate) fn site_packages(&self) -> PathBuf {
        let lib = self.home.path().join("venv/lib");
        let version = std::fs::read_dir(&lib).expect("a folder").flatten().next().expect("a version");
        version.path().join("site-packages")
    }

    /// Returns a command for the binary with this home and these installers, and this machine's registries.
    pub(crate) fn command(&self) -> Command {
        let mut command = belljar();
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", self.home.path().join("venv/bin").display());
        command.env("PATH", path).env("XDG_CACHE_HOME", self.home.path().join("cache"));
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Answer {
        finish(self.command().args(["run", "--json"]).args(arguments))
    }

    /// Runs with the same registries behind a proxy that does not answer.
    pub(crate) fn offline(&self, arguments: &[&str]) -> Answer {
        let mut command = self.command();
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"] {
            command.env(name, "http://ann:secret@127.0.0.1:9");
        }
        command.env("NO_PROXY", "").env("no_proxy", "").env("UV_HTTP_RETRIES", "0").env("PIP_RETRIES", "0");
        finish(command.args(["run", "--json"]).args(arguments))
    }

    /// Runs with local packages in addition to the registry's.
    pub(crate) fn with_links(&self, arguments: &[&str]) -> Answer {
        let mut command = self.command();
        command
            .env("PIP_FIND_LINKS", self.home.path().join("links"))
            .env("UV_FIND_LINKS", self.home.path().join("links"));
        finish(command.args(["run", "--json"]).args(arguments))
    }

    /// Returns a command with local packages and no registry, which resolves requirements anew in every run.
    pub(crate) fn with_only_links(&self) -> Command {
        let mut command = self.command();
        for name in ["PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX"] {
            command.env_remove(name);
        }
        let links = self.home.path().join("links");
        command
            .env("PIP_NO_INDEX", "1")
            .env("UV_NO_INDEX", "1")
            .env("DEPENDENCY_CACHE_TTL_HOURS", "0.000001");
        command.env("PIP_FIND_LINKS", &links).env("UV_FIND_LINKS", links);
        command
    }

    /// Creates a wheel in `links`, with these files and requirements.
    pub(crate) fn make_wheel(&self, name: &str, version: &str, needs: &[&str], files: &[(&str, &str)]) {
        let links = self.home.path().join("links");
        std::fs::create_dir_all(&links).expect("a folder");
        let script = "import json, sys, zipfile\n\
            wheel, name, version, needs, files = sys.argv[1], sys.argv[2], sys.argv[3], *map(json.loads, sys.argv[4:])\n\
            info = f'{name}-{version}.dist-info/'\n\
            files = dict(files)\n\
            files[info + 'METADATA'] = f'Metadata-Version: 2.1\\nName: {name.replace(chr(95), chr(45))}\\nVersion: {version}\\n' + ''.join(f'Requires-Dist: {one}\\n' for one in needs)\n\
            files[info + 'WHEEL'] = 'Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n'\n\
            files[info + 'RECORD'] = ''.join(one + ',,\\n' for one in [*files, info + 'RECORD'])\n\
            with zipfile.ZipFile(wheel, 'w') as file:\n\
            \x20   for path, text in files.items(): file.writestr(path, text)\n";
        let wheel = links.join(format!("{name}-{version}-py3-none-any.whl"));
        let (needs, files) = (serde_json::json!(needs).to_string(), serde_json::json!(files).to_string());
        let made = Command::new("python3")
            .args(["-c", script])
            .arg(wheel)
            .args([name, version, &needs, &files])
            .status();
        assert!(made.is_ok_and(|status| status.success()));
    }

    /// Runs with the usual registries and local packages, where packages may be built.
    pub(crate) fn building(&self, index: &Index, arguments: &[&str]) -> Answer {
        let mut command = self.command();
        command
            .env("BELLJAR_CONFIG", &index.config)
            .env("PIP_FIND_LINKS", self.home.path().join("links"))
            .env("UV_FIND_LINKS", self.home.path().join("links"));
        finish(command.args(["run", "--json", "--profile", "builds"]).args(arguments))
    }

    /// Creates sources with a module in C.
    pub(crate) fn make_native_package(&self) {
        let setup = "from setuptools import setup, Extension\n\
            setup(name='bell-native', version='0.0.1', ext_modules=[Extension('bell_native', ['bell.c'])])\n";
        let code = "#include <Python.h>\n\
            static PyObject *answer(PyObject *self, PyObject *none) { return PyLong_FromLong(42); }\n\
            static PyMethodDef methods[] = {{\"answer\", answer, METH_NOARGS, \"\"}, {0}};\n\
            static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, \"bell_native\", \"\", -1, methods};\n\
            PyMODINIT_FUNC PyInit_bell_native(void) { return PyModule_Create(&module); }\n";
        self.pack("bell_native-0.0.1", &[("setup.py", setup), ("bell.c", code)]);
    }

    /// Packs sources into `links`.
    fn pack(&self, name: &str, files: &[(&str, &str)]) {
        let (links, source) = (self.home.path().join("links"), self.home.path().join(name));
        std::fs::create_dir_all(&links).expect("a folder");
        std::fs::create_dir_all(&source).expect("a folder");
        for (file, text) in files {
            std::fs::write(source.join(file), text).expect("a file");
        }
        let packed = Command::new("tar")
            .args(["-czf"])
            .arg(links.join(format!("{name}.tar.gz")))
            .arg("-C")
            .arg(self.home.path())
            .arg(name)
            .status();
        assert!(packed.is_ok_and(|status| status.success()));
    }

    fn layers_folder(&self) -> PathBuf {
        self.home.path().join("cache/belljar/layers")
    }

    pub(crate) fn layers(&self) -> Vec<PathBuf> {
        entries(&self.layers_folder().join("layers"))
    }

    /// Returns the folder of the installers' caches.
    pub(crate) fn installers(&self) -> PathBuf {
        self.layers_folder().join("installers")
    }

    /// Counts the entries of the staging directory.
    pub(crate) fn staged(&self) -> usize {
        entries(&self.layers_folder().join("staging")).len()
    }

    /// Creates a source distribution whose `setup.py` leaves traces everywhere and reports what it sees of
    /// the host.
    pub(crate) fn make_evil_packages(&self) {
        let touched = self.home.path().join("links/touched");
        let setup = format!(
            "import os\ntry: open({:?}, 'w').close()\nexcept OSError: pass\nfrom setuptools import \
             setup\nsetup(name='bell-evil', version='0.0.1', py_modules=['bell_evil'])\n",
            touched.display().to_string()
        );
        let about = "Metadata-Version: 2.1\nName: bell-evil\nVersion: 0.0.1\n";
        self.pack("bell_evil-0.0.1", &[("setup.py", &setup), ("bell_evil.py", ""), ("PKG-INFO", about)]);
    }

    /// Creates a wheel whose modules have names of the standard library's, and leave a trace when they are
    /// imported.
    pub(crate) fn make_shadowing_wheel(&self) {
        let links = self.home.path().join("links");
        std::fs::create_dir_all(&links).expect("a folder");
        let script = "import sys, zipfile\n\
            trace = \"open('/workspace/ran', 'w').close(); raise SystemExit(0)\"\n\
            info = 'bell_shadow-0.0.1.dist-info/'\n\
            files = {info + 'METADATA': 'Metadata-Version: 2.1\\nName: bell-shadow\\nVersion: 0.0.1\\n',\n\
            \x20        info + 'WHEEL': 'Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n'}\n\
            files |= {name + '.py': trace for name in ('concurrent', 'hashlib', 'json', 'shutil', 'subprocess', 'pip')}\n\
            files[info + 'RECORD'] = ''.join(name + ',,\\n' for name in [*files, info + 'RECORD'])\n\
            with zipfile.ZipFile(sys.argv[1], 'w') as wheel:\n\
            \x20   for name, text in files.items(): wheel.writestr(name, text)\n";
        let wheel = links.join("bell_shadow-0.0.1-py3-none-any.whl");
        let made = Command::new("python3").args(["-c", script]).arg(wheel).status();
        assert!(made.is_ok_and(|status| status.success()));
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| !path.ends_with("lock")).collect()
}
