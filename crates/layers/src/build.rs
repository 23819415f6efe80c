//! From sources of a Python package to a wheel, step by step. Code of packages runs in two of the steps, and those have
//! neither network nor registries nor caches; whatever they leave is touched by no one but code of ours in a sandbox.
//!
//! ```text
//! list ─▶ fetch ─▶ unpack ─▶ requires ─▶ wheel ─▶ take
//! network  network    ·      its code   its code    ·
//! ```

use std::path::Path;

use belljar_analysis::imports::{Registry, Requirement};
use belljar_engine::packages::{PYTHON, PackagesError};
use belljar_engine::plan::Mount;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::explain::end_of;
use crate::python::{ALONE, Python, answer};
use crate::shelf::Held;
use crate::workshop::{Build, Job};

const SOURCES: &str = concat!(include_str!("probes/versions.py"), include_str!("probes/sources.py"));
const UNPACK: &str = include_str!("probes/unpack.py");
const BUILD: &str = include_str!("probes/build.py");
const WHEEL: &str = concat!(include_str!("probes/versions.py"), include_str!("probes/wheel.py"));
/// Where a folder is seen that a build has left.
const LEFT: &str = "/opt/belljar/left";
/// The most packages that a build may need.
const MAX_REQUIRED: usize = 100;

/// An archive with sources: all that is known of it before it is fetched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sources {
    pub(crate) name: String,
    pub(crate) version: String,
    url: String,
    pub(crate) hash: String,
}

/// Which sources of a package there are.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) sources: Vec<Sources>,
    /// Whether there are wheels, too.
    pub(crate) has_wheels: bool,
}

#[derive(Deserialize)]
struct Listing {
    sources: Vec<Entry>,
    wheels: bool,
}

#[derive(Deserialize)]
struct Entry {
    version: String,
    url: String,
    hash: String,
}

/// How sources say that they are built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct System {
    /// What has to be there for it.
    pub(crate) requires: Vec<String>,
    backend: String,
    backend_path: Vec<String>,
}

impl Python<'_> {
    /// The sources of a package. Into the folder goes an empty wheel for each version, so that an installer can choose.
    pub(crate) async fn sources(&self, name: &str, folder: &Path) -> Result<Listed, PackagesError> {
        let job =
            Job { command: self.script(SOURCES, &["list", name]), folder: Some(folder), ..Job::default() };
        let text = answer(self.workshop.run(self.image, Job { download: true, ..job }).await?)?;
        let listing: Listing = understood(&text)?;
        let sources = listing.sources.into_iter().map(|Entry { version, url, hash }| Sources {
            name: name.to_owned(),
            version,
            url,
            hash,
        });
        Ok(Listed { sources: sources.collect(), has_wheels: listing.wheels })
    }

    /// Fetches an archive, which must be what the registry says, unpacks it, and reads how it is built.
    pub(crate) async fn unpacked(&self, sources: &Sources, folder: &Path) -> Result<System, PackagesError> {
        let command = self.script(SOURCES, &["fetch", &sources.url, &sources.hash]);
        let fetch = Job { command, folder: Some(folder), download: true, ..Job::default() };
        answer(self.workshop.run(self.image, fetch).await?)?;
        let unpack = Job { command: self.script(UNPACK, &[]), folder: Some(folder), ..Job::default() };
        let done = self.workshop.run(self.image, unpack).await?;
        if !done.succeeded {
            return Err(failed(sources, &end_of(&done.stderr)));
        }
        System::read(&understood::<String>(&done.stdout)?).map_err(|why| failed(sources, &why))
    }

    /// What the build says that it needs beyond what is written. Runs code of the package.
    pub(crate) async fn required(
        &self,
        sources: &Sources,
        system: &System,
        bench: Option<&Held>,
        folder: &Path,
    ) -> Result<Vec<String>, PackagesError> {
        let said = self.hook("requires", sources, system, bench, folder).await?;
        let said: Vec<String> = serde_json::from_str(&said)
            .map_err(|_| failed(sources, "it does not say what it needs to be built"))?;
        named(&said).map_err(|why| failed(sources, &why))
    }

    /// Builds the wheel. Runs code of the package.
    pub(crate) async fn wheel(
        &self,
        sources: &Sources,
        system: &System,
        bench: Option<&Held>,
        folder: &Path,
    ) -> Result<(), PackagesError> {
        self.hook("wheel", sources, system, bench, folder).await.map(drop)
    }

    async fn hook(
        &self,
        hook: &str,
        sources: &Sources,
        system: &System,
        bench: Option<&Held>,
        folder: &Path,
    ) -> Result<String, PackagesError> {
        let build = Build {
            what: &format!("{} {}", sources.name, sources.version),
            command: self.script(BUILD, &[hook, PYTHON]),
            stdin: json!({"backend": system.backend, "backend_path": system.backend_path}).to_string(),
            folder: Some(folder),
            mounts: bench.map(|bench| shown(bench.files(), PYTHON)).into_iter().collect(),
            ..Build::default()
        };
        self.workshop.build(self.image, build).await
    }

    /// Takes what a build has left, if that is a wheel of this package, into a folder of its own.
    pub(crate) async fn take(
        &self,
        sources: &Sources,
        left: &Path,
        folder: &Path,
    ) -> Result<(), PackagesError> {
        let from = format!("{LEFT}/wheel");
        let command = self.script(WHEEL, &["take", &sources.name, &sources.version, &from]);
        let mounts = vec![shown(left, LEFT)];
        let job = Job { command, folder: Some(folder), mounts, ..Job::default() };
        let done = self.workshop.run(self.image, job).await?;
        if done.succeeded { Ok(()) } else { Err(failed(sources, &end_of(&done.stderr))) }
    }

    /// The hash of the one wheel in a folder.
    pub(crate) async fn hash(&self, folder: &Path) -> Result<String, PackagesError> {
        let command = self.script(WHEEL, &["hash", LEFT]);
        let job = Job { command, mounts: vec![shown(folder, LEFT)], ..Job::default() };
        understood(&answer(self.workshop.run(self.image, job).await?)?)
    }

    fn script(&self, script: &str, words: &[&str]) -> Vec<String> {
        let program = [self.interpreter.program.as_str(), ALONE, "-c", script];
        program.iter().chain(words).map(|word| (*word).to_owned()).collect()
    }
}

impl System {
    /// Reads `pyproject.toml`; without one it is as it always was.
    fn read(text: &str) -> Result<Self, String> {
        let usual = |requires: Option<Vec<String>>| Self {
            requires: requires.unwrap_or_else(|| vec!["setuptools>=40.8.0".to_owned()]),
            backend: "setuptools.build_meta:__legacy__".to_owned(),
            backend_path: Vec::new(),
        };
        let written: Written =
            toml::from_str(text).map_err(|error| format!("its pyproject.toml: {}", error.message()))?;
        let Some(system) = written.build_system else { return Ok(usual(None)) };
        let requires = named(&system.requires)?;
        Ok(match system.build_backend {
            Some(backend) => Self { requires, backend, backend_path: system.backend_path },
            None => usual(Some(requires)),
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Written {
    build_system: Option<WrittenSystem>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct WrittenSystem {
    requires: Vec<String>,
    build_backend: Option<String>,
    #[serde(default)]
    backend_path: Vec<String>,
}

/// Names of packages and nothing else: an installer takes more than that.
fn named(texts: &[String]) -> Result<Vec<String>, String> {
    if texts.len() > MAX_REQUIRED {
        return Err(format!("it needs more than {MAX_REQUIRED} packages to be built"));
    }
    let checked = texts.iter().map(|text| match Requirement::parse(Registry::Pypi, text) {
        Ok(one) if one.direct.is_none() && one.hashes.is_empty() => Ok(one.to_string()),
        Ok(_) => Err(format!("'{}', which it needs to be built, is an address", text.escape_debug())),
        Err(error) => Err(error.to_string()),
    });
    checked.collect()
}

fn shown(source: &Path, destination: &str) -> Mount {
    Mount { source: source.to_owned(), destination: destination.to_owned(), writable: false }
}

pub(crate) fn failed(sources: &Sources, why: &str) -> PackagesError {
    PackagesError::BuildFailed(format!("{} {} could not be built: {why}", sources.name, sources.version))
}

/// What code of ours printed.
fn understood<T: DeserializeOwned>(text: &str) -> Result<T, PackagesError> {
    serde_json::from_str(text)
        .map_err(|error| PackagesError::Host(format!("the answer about sources is not understood: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_sources_are_built() {
        let usual = System::read("").unwrap();
        assert_eq!((usual.requires.len(), &*usual.backend), (1, "setuptools.build_meta:__legacy__"));
        let written = System::read(
            "[build-system]\nrequires = [\"hatchling >= 1\"]\nbuild-backend = \"x.y\"\nbackend-path = [\".\"]\n[project]\nname = \"x\"\n",
        );
        let expected = System {
            requires: vec!["hatchling>=1".to_owned()],
            backend: "x.y".to_owned(),
            backend_path: vec![".".to_owned()],
        };
        assert_eq!(written.unwrap(), expected);
        let half = System::read("[build-system]\nrequires = [\"setuptools\"]\n").unwrap();
        assert_eq!((half.requires.len(), half.backend), (1, usual.backend));
        assert!(System::read("[build-system\n").is_err());
    }

    /// Each of these is a word that an installer understands, and does something else for.
    #[test]
    fn a_build_needs_packages_and_nothing_else() {
        for text in
            ["-r /opt/belljar/tools/.npmrc", "--index-url=http://x", "x @ file:///etc", "./x", "x\n-e ."]
        {
            assert!(named(&[text.to_owned()]).is_err(), "{text}");
        }
        assert!(named(&vec!["x".to_owned(); MAX_REQUIRED + 1]).is_err());
        assert_eq!(named(&["Wheel".to_owned()]).unwrap(), ["wheel"]);
    }
}
