//! What an image has already: asked once of its interpreter, in a sandbox, and remembered until something there changes.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belljar_engine::language::Language;
use belljar_engine::packages::PackagesError;
use belljar_engine::plan::Image;
use serde::{Deserialize, Serialize};

use crate::memo::Memo;
use crate::shelf::Digest;
use crate::workshop::Workshop;

const PYTHON: &str = include_str!("probes/python.py");
const NODE: &str = include_str!("probes/node.js");
/// How long nobody looks whether something changed.
const MOMENT: Duration = Duration::from_secs(2);

/// An interpreter, as it sees itself from inside.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Interpreter {
    /// `cpython-3.12`, `node-22-127`.
    pub(crate) name: String,
    /// `3.12.1`.
    pub(crate) version: String,
    /// `x86_64-linux-gnu`.
    pub(crate) platform: String,
    /// Where it is, inside.
    pub(crate) program: String,
    /// Modules that it can import.
    pub(crate) modules: BTreeSet<String>,
    /// Packages that are installed for it, by their normal names.
    pub(crate) packages: BTreeSet<String>,
    /// How its own installer is called, where it has one.
    pub(crate) installer: Vec<String>,
    /// Folders in which it looks for modules.
    paths: Vec<String>,
}

/// Kept on disk, with what tells whether it still holds.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    interpreter: Interpreter,
    stamps: BTreeMap<String, (i64, i64)>,
}

/// All that were asked.
#[derive(Debug)]
pub(crate) struct Interpreters {
    folder: PathBuf,
    known: Memo<Interpreter>,
}

impl Interpreters {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder, known: Memo::new(MOMENT) }
    }

    /// The one that runs a language in an image.
    pub(crate) async fn of(
        &self,
        workshop: &Workshop,
        language: &'static Language,
        image: &Image,
    ) -> Result<Arc<Interpreter>, PackagesError> {
        let identity = workshop.provider.runtime(language, image).await.ok_or_else(|| {
            PackagesError::Host(format!("{} is not available here; {}", language.name, language.install))
        })?;
        let question = Digest::of("belljar interpreter 2", [language.name, identity.as_str()]);
        if let Some(known) = self.known.get(&question) {
            return Ok(known);
        }
        let file = self.folder.join(format!("{question}.json"));
        if let Some(kept) = read(&file).filter(|kept| kept.holds(image)) {
            return Ok(self.known.put(question, kept.interpreter));
        }
        let interpreter = ask(workshop, language, image).await?;
        let kept = Kept { stamps: stamps(&interpreter, image), interpreter };
        keep(&file, &kept);
        Ok(self.known.put(question, kept.interpreter))
    }
}

async fn ask(
    workshop: &Workshop,
    language: &'static Language,
    image: &Image,
) -> Result<Interpreter, PackagesError> {
    let code = if language.name == "python" { PYTHON } else { NODE };
    let done = workshop.ask(image, language.name, code).await?;
    serde_json::from_str(&done.stdout).map_err(|_| {
        let why = crate::explain::shortened(&done.stderr);
        PackagesError::Host(format!("{} does not say what it has: {why}", language.name))
    })
}

impl Kept {
    fn holds(&self, image: &Image) -> bool {
        self.stamps == stamps(&self.interpreter, image)
    }
}

/// When the folders of an image's modules last changed. They are the image's, which no tenant writes.
fn stamps(interpreter: &Interpreter, image: &Image) -> BTreeMap<String, (i64, i64)> {
    let root = match image {
        // Another image of the same name is another interpreter: nothing is to be looked at, and nothing is here.
        Image::Named(_) => return BTreeMap::new(),
        image => image.folder().unwrap_or(Path::new("/")),
    };
    let stamp = |path: &String| {
        let metadata = std::fs::metadata(root.join(path.trim_start_matches('/'))).ok()?;
        Some((path.clone(), (metadata.mtime(), metadata.mtime_nsec())))
    };
    interpreter.paths.iter().filter_map(stamp).collect()
}

fn read(file: &Path) -> Option<Kept> {
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

/// Best effort: without it the question is asked again next time.
fn keep(file: &Path, kept: &Kept) {
    let temporary = file.with_extension(format!("{}", std::process::id()));
    let written = file
        .parent()
        .map_or(Ok(()), std::fs::create_dir_all)
        .and_then(|()| std::fs::write(&temporary, serde_json::to_vec(kept).unwrap_or_default()))
        .and_then(|()| std::fs::rename(&temporary, file));
    if written.is_err() {
        let _removed = std::fs::remove_file(&temporary);
    }
}
