//! Finds out what an image already has. Its interpreter is asked once, in a sandbox; the answer is cached
//! until the image changes.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belljar_beneath::ContentDigest;
use belljar_engine::language::Language;
use belljar_engine::packages::PackagesError;
use belljar_engine::plan::Image;
use serde::{Deserialize, Serialize};

use crate::installer_sandbox::InstallerSandbox;
use crate::ttl_cache::TtlCache;

const PYTHON: &str = include_str!("probes/python.py");
const NODE: &str = include_str!("probes/node.js");
/// How long a cached answer is used without checking for changes.
const RECHECK_INTERVAL: Duration = Duration::from_secs(2);

/// An interpreter of an image, as it describes itself in a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageInterpreter {
    /// `cpython-3.12`, `node-22-127`.
    pub(crate) name: String,
    /// `3.12.1`.
    pub(crate) version: String,
    /// `x86_64-linux-gnu`.
    pub(crate) platform: String,
    /// Path in the sandbox.
    pub(crate) program: String,
    /// Importable modules.
    pub(crate) modules: BTreeSet<String>,
    /// Installed packages, by normalized name.
    pub(crate) packages: BTreeSet<String>,
    /// Command of its own installer; empty if it has none.
    pub(crate) installer: Vec<String>,
    /// Folders that it searches for modules.
    paths: Vec<String>,
}

/// The cached answer on disk, with the timestamps that validate it.
#[derive(Debug, Serialize, Deserialize)]
struct CachedInterpreter {
    interpreter: ImageInterpreter,
    stamps: BTreeMap<String, (i64, i64)>,
}

/// A cache of image interpreters.
#[derive(Debug)]
pub(crate) struct InterpreterCache {
    folder: PathBuf,
    known: TtlCache<ImageInterpreter>,
}

impl InterpreterCache {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder, known: TtlCache::new(RECHECK_INTERVAL) }
    }

    /// Returns the interpreter that runs a language in an image.
    pub(crate) async fn get(
        &self,
        sandbox: &InstallerSandbox,
        language: &'static Language,
        image: &Image,
    ) -> Result<Arc<ImageInterpreter>, PackagesError> {
        let identity = sandbox.provider.runtime_identity(language, image).await.ok_or_else(|| {
            PackagesError::Host(format!("{} is not available here; {}", language.name, language.install))
        })?;
        let digest = ContentDigest::from_parts("belljar interpreter 2", [language.name, identity.as_str()]);
        if let Some(known) = self.known.get(&digest) {
            return Ok(known);
        }
        let file = self.folder.join(format!("{digest}.json"));
        if let Some(cached) = read_cache(&file).filter(|cached| cached.is_current(image)) {
            return Ok(self.known.put(digest, cached.interpreter));
        }
        let interpreter = query_interpreter(sandbox, language, image).await?;
        let cached = CachedInterpreter { stamps: stamps(&interpreter, image), interpreter };
        write_cache(&file, &cached);
        Ok(self.known.put(digest, cached.interpreter))
    }
}

async fn query_interpreter(
    sandbox: &InstallerSandbox,
    language: &'static Language,
    image: &Image,
) -> Result<ImageInterpreter, PackagesError> {
    let code = if language.name == "python" { PYTHON } else { NODE };
    let done = sandbox.run_script(image, language.name, code).await?;
    serde_json::from_str(&done.stdout).map_err(|_| {
        let why = crate::explain::shortened(&done.stderr);
        PackagesError::Host(format!("cannot query {}: {why}", language.name))
    })
}

impl CachedInterpreter {
    fn is_current(&self, image: &Image) -> bool {
        self.stamps == stamps(&self.interpreter, image)
    }
}

/// Returns when the image's module folders last changed. No tenant can write them.
fn stamps(interpreter: &ImageInterpreter, image: &Image) -> BTreeMap<String, (i64, i64)> {
    let root = match image {
        // A changed image has another name and so another cache entry, and its folders are not on this
        // machine.
        Image::Named(_) => return BTreeMap::new(),
        image => image.folder().unwrap_or(Path::new("/")),
    };
    let stamp = |path: &String| {
        let metadata = std::fs::metadata(root.join(path.trim_start_matches('/'))).ok()?;
        Some((path.clone(), (metadata.mtime(), metadata.mtime_nsec())))
    };
    interpreter.paths.iter().filter_map(stamp).collect()
}

fn read_cache(file: &Path) -> Option<CachedInterpreter> {
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

/// Writes the cache entry. On failure, the interpreter is asked again next time.
fn write_cache(file: &Path, cached: &CachedInterpreter) {
    let temporary = file.with_extension(format!("{}", std::process::id()));
    let written = file
        .parent()
        .map_or(Ok(()), std::fs::create_dir_all)
        .and_then(|()| std::fs::write(&temporary, serde_json::to_vec(cached).unwrap_or_default()))
        .and_then(|()| std::fs::rename(&temporary, file));
    if written.is_err() {
        let _removed = std::fs::remove_file(&temporary);
    }
}
