//! Builds a wheel from the sources of a Python package, step by step. Two steps run code of the package.
//! Those have no network, no registries and no caches, and their output is only read by trusted code in a
//! sandbox.
//!
//! ```text
//! list ─▶ fetch ─▶ unpack ─▶ requires ─▶ wheel ─▶ take
//! network  network    ·      untrusted  untrusted   ·
//! ```

use std::path::Path;

use belljar_analysis::imports::{PackageRegistry, Requirement};
use belljar_engine::packages::{PYTHON_LAYER, PackagesError};
use belljar_engine::plan::Mount;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::explain::end_of;
use crate::installer_sandbox::{BuildStep, InstallStep};
use crate::python::{ISOLATED_FLAG, Python, step_output};
use crate::store::LayerLease;

const SOURCES: &str = concat!(include_str!("probes/versions.py"), include_str!("probes/sources.py"));
const UNPACK: &str = include_str!("probes/unpack.py");
const BUILD: &str = include_str!("probes/build.py");
const WHEEL: &str = concat!(include_str!("probes/versions.py"), include_str!("probes/wheel.py"));
/// Where the folder with a build's output is mounted.
const BUILD_OUTPUT_DIR: &str = "/opt/belljar/left";
/// Maximum number of build requirements.
const MAX_REQUIRED: usize = 100;

/// A source archive, as the registry describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SourceArchive {
    pub(crate) name: String,
    pub(crate) version: String,
    url: String,
    pub(crate) hash: String,
}

/// The source archives of a package.
#[derive(Debug)]
pub(crate) struct SourceList {
    pub(crate) sources: Vec<SourceArchive>,
    /// Whether the package also has wheels.
    pub(crate) has_wheels: bool,
}

#[derive(Deserialize)]
struct SourceListReply {
    sources: Vec<SourceReplyEntry>,
    wheels: bool,
}

#[derive(Deserialize)]
struct SourceReplyEntry {
    version: String,
    url: String,
    hash: String,
}

/// The `[build-system]` table of a source tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BuildSystem {
    /// Packages that the build requires.
    pub(crate) requires: Vec<String>,
    backend: String,
    backend_path: Vec<String>,
}

impl Python<'_> {
    /// Lists the source archives of a package. Writes an empty wheel for each version to the folder, so that
    /// an installer can choose among them.
    pub(crate) async fn sources(&self, name: &str, folder: &Path) -> Result<SourceList, PackagesError> {
        let job = InstallStep {
            command: self.script(SOURCES, &["list", name]),
            folder: Some(folder),
            ..InstallStep::default()
        };
        let text = step_output(self.sandbox.run(self.image, InstallStep { download: true, ..job }).await?)?;
        let listing: SourceListReply = parse_output(&text)?;
        let sources = listing.sources.into_iter().map(|SourceReplyEntry { version, url, hash }| {
            SourceArchive { name: name.to_owned(), version, url, hash }
        });
        Ok(SourceList { sources: sources.collect(), has_wheels: listing.wheels })
    }

    /// Fetches an archive, checks its hash, unpacks it and reads its build system.
    pub(crate) async fn fetch_and_unpack(
        &self,
        sources: &SourceArchive,
        folder: &Path,
    ) -> Result<BuildSystem, PackagesError> {
        let command = self.script(SOURCES, &["fetch", &sources.url, &sources.hash]);
        let fetch = InstallStep { command, folder: Some(folder), download: true, ..InstallStep::default() };
        step_output(self.sandbox.run(self.image, fetch).await?)?;
        let unpack =
            InstallStep { command: self.script(UNPACK, &[]), folder: Some(folder), ..InstallStep::default() };
        let done = self.sandbox.run(self.image, unpack).await?;
        if !done.succeeded {
            return Err(build_failed(sources, &end_of(&done.stderr)));
        }
        BuildSystem::read(&parse_output::<String>(&done.stdout)?).map_err(|why| build_failed(sources, &why))
    }

    /// Returns the build requirements that the build backend adds. Runs code of the package.
    pub(crate) async fn dynamic_requirements(
        &self,
        sources: &SourceArchive,
        system: &BuildSystem,
        build_layer: Option<&LayerLease>,
        folder: &Path,
    ) -> Result<Vec<String>, PackagesError> {
        let output = self.hook("requires", sources, system, build_layer, folder).await?;
        let output: Vec<String> = serde_json::from_str(&output)
            .map_err(|_| build_failed(sources, "its build backend does not report its requirements"))?;
        parse_requirements(&output).map_err(|why| build_failed(sources, &why))
    }

    /// Builds the wheel. Runs code of the package.
    pub(crate) async fn wheel(
        &self,
        sources: &SourceArchive,
        system: &BuildSystem,
        build_layer: Option<&LayerLease>,
        folder: &Path,
    ) -> Result<(), PackagesError> {
        self.hook("wheel", sources, system, build_layer, folder).await.map(drop)
    }

    async fn hook(
        &self,
        hook: &str,
        sources: &SourceArchive,
        system: &BuildSystem,
        build_layer: Option<&LayerLease>,
        folder: &Path,
    ) -> Result<String, PackagesError> {
        let build = BuildStep {
            what: &format!("{} {}", sources.name, sources.version),
            command: self.script(BUILD, &[hook, PYTHON_LAYER]),
            stdin: json!({"backend": system.backend, "backend_path": system.backend_path}).to_string(),
            folder: Some(folder),
            mounts: build_layer
                .map(|build_layer| read_only_mount(build_layer.files(), PYTHON_LAYER))
                .into_iter()
                .collect(),
            ..BuildStep::default()
        };
        self.sandbox.build(self.image, build).await
    }

    /// Copies a build's output to another folder, if it is a wheel of this package.
    pub(crate) async fn copy_wheel(
        &self,
        sources: &SourceArchive,
        left: &Path,
        folder: &Path,
    ) -> Result<(), PackagesError> {
        let from = format!("{BUILD_OUTPUT_DIR}/wheel");
        let command = self.script(WHEEL, &["take", &sources.name, &sources.version, &from]);
        let mounts = vec![read_only_mount(left, BUILD_OUTPUT_DIR)];
        let job = InstallStep { command, folder: Some(folder), mounts, ..InstallStep::default() };
        let done = self.sandbox.run(self.image, job).await?;
        if done.succeeded { Ok(()) } else { Err(build_failed(sources, &end_of(&done.stderr))) }
    }

    /// Returns the hash of the one wheel in a folder.
    pub(crate) async fn hash(&self, folder: &Path) -> Result<String, PackagesError> {
        let command = self.script(WHEEL, &["hash", BUILD_OUTPUT_DIR]);
        let job = InstallStep {
            command,
            mounts: vec![read_only_mount(folder, BUILD_OUTPUT_DIR)],
            ..InstallStep::default()
        };
        parse_output(&step_output(self.sandbox.run(self.image, job).await?)?)
    }

    fn script(&self, script: &str, words: &[&str]) -> Vec<String> {
        let program = [self.interpreter.program.as_str(), ISOLATED_FLAG, "-c", script];
        program.iter().chain(words).map(|word| (*word).to_owned()).collect()
    }
}

impl BuildSystem {
    /// Reads `pyproject.toml`; without a build system, the setuptools default of PEP 517 applies.
    fn read(text: &str) -> Result<Self, String> {
        let usual = |requires: Option<Vec<String>>| Self {
            requires: requires.unwrap_or_else(|| vec!["setuptools>=40.8.0".to_owned()]),
            backend: "setuptools.build_meta:__legacy__".to_owned(),
            backend_path: Vec::new(),
        };
        let written: PyprojectToml =
            toml::from_str(text).map_err(|error| format!("its pyproject.toml: {}", error.message()))?;
        let Some(system) = written.build_system else { return Ok(usual(None)) };
        let requires = parse_requirements(&system.requires)?;
        Ok(match system.build_backend {
            Some(backend) => Self { requires, backend, backend_path: system.backend_path },
            None => usual(Some(requires)),
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct PyprojectToml {
    build_system: Option<BuildSystemTable>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct BuildSystemTable {
    requires: Vec<String>,
    build_backend: Option<String>,
    #[serde(default)]
    backend_path: Vec<String>,
}

/// Parses package names. Rejects everything else that an installer would accept.
fn parse_requirements(texts: &[String]) -> Result<Vec<String>, String> {
    if texts.len() > MAX_REQUIRED {
        return Err(format!("its build requires more than {MAX_REQUIRED} packages"));
    }
    let checked = texts.iter().map(|text| match Requirement::parse(PackageRegistry::Pypi, text) {
        Ok(one) if one.direct_url.is_none() && one.hashes.is_empty() => Ok(one.to_string()),
        Ok(_) => Err(format!("its build requirement '{}' is a URL or path", text.escape_debug())),
        Err(error) => Err(error.to_string()),
    });
    checked.collect()
}

fn read_only_mount(source: &Path, destination: &str) -> Mount {
    Mount { source: source.to_owned(), destination: destination.to_owned(), writable: false }
}

pub(crate) fn build_failed(sources: &SourceArchive, why: &str) -> PackagesError {
    PackagesError::BuildFailed(format!("{} {} could not be built: {why}", sources.name, sources.version))
}

/// Parses the output of a trusted script.
fn parse_output<T: DeserializeOwned>(text: &str) -> Result<T, PackagesError> {
    serde_json::from_str(text)
        .map_err(|error| PackagesError::Host(format!("cannot parse the list of sources: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_systems_are_parsed() {
        let usual = BuildSystem::read("").unwrap();
        assert_eq!((usual.requires.len(), &*usual.backend), (1, "setuptools.build_meta:__legacy__"));
        let written = BuildSystem::read(
            "[build-system]\nrequires = [\"hatchling >= 1\"]\nbuild-backend = \"x.y\"\nbackend-path = [\".\"]\n[project]\nname = \"x\"\n",
        );
        let expected = BuildSystem {
            requires: vec!["hatchling>=1".to_owned()],
            backend: "x.y".to_owned(),
            backend_path: vec![".".to_owned()],
        };
        assert_eq!(written.unwrap(), expected);
        let half = BuildSystem::read("[build-system]\nrequires = [\"setuptools\"]\n").unwrap();
        assert_eq!((half.requires.len(), half.backend), (1, usual.backend));
        assert!(BuildSystem::read("[build-system\n").is_err());
    }

    /// An installer would interpret each of these as something other than a package.
    #[test]
    fn build_requirements_must_be_package_names() {
        for text in
            ["-r /opt/belljar/tools/.npmrc", "--index-url=http://x", "x @ file:///etc", "./x", "x\n-e ."]
        {
            assert!(parse_requirements(&[text.to_owned()]).is_err(), "{text}");
        }
        assert!(parse_requirements(&vec!["x".to_owned(); MAX_REQUIRED + 1]).is_err());
        assert_eq!(parse_requirements(&["Wheel".to_owned()]).unwrap(), ["wheel"]);
    }
}
