//! Lock files: exact versions and files that a user's own tools resolved.
//!
//! A lock has *roots*, the packages that the project requires directly, and *pins* for these and everything
//! that they depend on. Roots are ordinary requirements, so all rules for requirements apply. A package from
//! a URL or repository also becomes a root, wherever it occurs in the lock: it is refused or allowed like a
//! declared one, and never taken from a registry by its name.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::manifest::{invalid_manifest, is_hash};
use super::requirement::normalize_name;
use super::{Error, PackageRegistry, Requirement, lock_npm};

/// Larger than the limits of manifests, because locks also list indirect dependencies.
const MAX_LOCK_BYTES: usize = 8 << 20;
const MAX_LOCK_ENTRIES: usize = 5_000;

type LockParser = fn(&'static str, &str) -> Result<LockFile, Error>;

/// Content of a lock file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockFile {
    /// Name of the file.
    pub file: &'static str,
    /// Registry of the packages.
    pub registry: PackageRegistry,
    /// Directly required packages, in exact versions.
    pub roots: Vec<Requirement>,
    /// Exact versions of all packages, with the hashes of their files if the lock has them.
    pub pins: Vec<Requirement>,
    /// npm packages by install path, as in `package-lock.json`, but without URLs.
    pub tree: Map<String, Value>,
}

impl LockFile {
    /// Parses a lock file by its file name.
    pub fn parse_file(file: &str, text: &str) -> Option<Result<Self, Error>> {
        let (file, read): (_, LockParser) = match file {
            "uv.lock" => ("uv.lock", parse_uv),
            "poetry.lock" => ("poetry.lock", parse_poetry),
            "pylock.toml" => ("pylock.toml", parse_pylock),
            "Pipfile.lock" => ("Pipfile.lock", parse_pipfile),
            "package-lock.json" => ("package-lock.json", lock_npm::parse_npm),
            "bun.lock" => ("bun.lock", lock_npm::parse_bun),
            _ => return None,
        };
        if text.len() > MAX_LOCK_BYTES {
            return Some(Err(invalid_manifest(file, "is larger than 8 MB")));
        }
        Some(read(file, text).and_then(|lock| match lock.pins.len() + lock.roots.len() > MAX_LOCK_ENTRIES {
            true => Err(invalid_manifest(file, "lists more than 5000 packages")),
            false => Ok(lock),
        }))
    }

    pub(super) fn new(file: &'static str, registry: PackageRegistry) -> Self {
        Self { file, registry, roots: Vec::new(), pins: Vec::new(), tree: Map::new() }
    }

    /// Adds a Python package.
    fn add(&mut self, package: LockedPackage) -> Result<(), Error> {
        let pin = package.requirement()?;
        if package.is_root || pin.direct_url.is_some() {
            self.roots.push(pin.clone());
        }
        if pin.direct_url.is_none() {
            self.pins.push(pin);
        }
        Ok(())
    }
}

/// A Python package in the common form of all these files.
#[derive(Default)]
struct LockedPackage {
    name: String,
    extras: Vec<String>,
    version: Option<String>,
    marker: Option<String>,
    hashes: Vec<String>,
    /// Source of the package, unless that is a registry.
    source_url: Option<String>,
    is_root: bool,
}

impl LockedPackage {
    fn requirement(&self) -> Result<Requirement, Error> {
        let extras =
            if self.extras.is_empty() { String::new() } else { format!("[{}]", self.extras.join(",")) };
        let which = match (&self.source_url, &self.version) {
            (Some(place), _) => format!(" @ {place} "),
            (None, Some(version)) => format!("=={version}"),
            (None, None) => String::new(),
        };
        let marker = self.marker.as_ref().map_or(String::new(), |marker| format!("; {marker}"));
        let mut requirement = Requirement::parse_python(&format!("{}{extras}{which}{marker}", self.name))?;
        if let Some(hash) = self.hashes.iter().find(|hash| !is_hash(hash)) {
            let why = "is not a supported hash; regenerate the lock file";
            return Err(super::requirement::invalid_requirement(hash, why));
        }
        requirement.hashes.clone_from(&self.hashes);
        Ok(requirement)
    }
}

fn parse_toml<T: DeserializeOwned>(file: &'static str, text: &str) -> Result<T, Error> {
    toml::from_str(text).map_err(|error| invalid_manifest(file, error.message()))
}

#[derive(Deserialize)]
struct Uv {
    #[serde(default)]
    package: Vec<UvPackage>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct UvPackage {
    name: String,
    version: Option<String>,
    #[serde(default)]
    source: BTreeMap<String, Value>,
    #[serde(default)]
    dependencies: Vec<UvEdge>,
    #[serde(default)]
    resolution_markers: Vec<String>,
    sdist: Option<UvFile>,
    #[serde(default)]
    wheels: Vec<UvFile>,
}

#[derive(Deserialize, Clone)]
struct UvEdge {
    name: String,
    version: Option<String>,
    marker: Option<String>,
    #[serde(default)]
    extra: Vec<String>,
}

#[derive(Deserialize)]
struct UvFile {
    hash: Option<String>,
}

impl UvPackage {
    /// Returns whether this is the project itself, which is not installed as a package.
    fn is_project(&self) -> bool {
        ["virtual", "editable"].iter().any(|kind| self.source.contains_key(*kind))
    }

    fn to_locked_package(&self) -> LockedPackage {
        // If a package has several versions, markers say which one applies.
        let markers: Vec<_> = self.resolution_markers.iter().map(|one| format!("({one})")).collect();
        let files = self.wheels.iter().chain(&self.sdist);
        let place = self.source.iter().find(|(kind, _)| *kind != "registry");
        LockedPackage {
            name: self.name.clone(),
            version: self.version.clone(),
            marker: Some(markers.join(" or ")).filter(|_| !markers.is_empty()),
            hashes: files.filter_map(|file| file.hash.clone()).collect(),
            source_url: place
                .map(|(kind, place)| format!("{kind}+{}", place.as_str().unwrap_or(kind)))
                .map(as_url),
            ..LockedPackage::default()
        }
    }
}

/// Formats a source as one word with a colon, as a URL has it.
fn as_url(place: String) -> String {
    let place: String = place.chars().filter(|c| !c.is_whitespace() && !c.is_control()).collect();
    if place.contains(':') { place } else { format!("file:{place}") }
}

fn parse_uv(file: &'static str, text: &str) -> Result<LockFile, Error> {
    let read: Uv = parse_toml(file, text)?;
    let mut lock = LockFile::new(file, PackageRegistry::Pypi);
    let (projects, packages): (Vec<_>, Vec<_>) = read.package.iter().partition(|one| one.is_project());
    for package in &packages {
        lock.add(package.to_locked_package())?;
    }
    // The first of several entries wins.
    let reversed = || packages.iter().rev();
    let names: HashMap<_, _> = reversed().map(|one| (one.name.as_str(), one)).collect();
    let versions: HashMap<_, _> =
        reversed().map(|one| ((one.name.as_str(), one.version.as_deref()), one)).collect();
    for edge in projects.into_iter().flat_map(|project| &project.dependencies) {
        // Maps instead of scans: a lock may have thousands of packages and as many edges.
        let exact = edge.version.as_ref().map(|version| (edge.name.as_str(), Some(version.as_str())));
        let found = match exact {
            Some(exact) => versions.get(&exact),
            None => names.get(edge.name.as_str()),
        };
        let Some(package) = found else { continue };
        // Packages from elsewhere are roots already.
        let LockedPackage { name, version, hashes, source_url: None, .. } = package.to_locked_package()
        else {
            continue;
        };
        let UvEdge { marker, extra, .. } = edge.clone();
        let root = LockedPackage { name, version, hashes, marker, extras: extra, ..LockedPackage::default() };
        lock.roots.push(root.requirement()?);
    }
    Ok(lock)
}

#[derive(Deserialize)]
struct Poetry {
    #[serde(default)]
    package: Vec<PoetryPackage>,
}

#[derive(Deserialize)]
struct PoetryPackage {
    name: String,
    version: String,
    #[serde(default)]
    optional: bool,
    category: Option<String>,
    groups: Option<Vec<String>>,
    markers: Option<Value>,
    #[serde(default)]
    files: Vec<UvFile>,
    #[serde(default)]
    dependencies: BTreeMap<String, Value>,
    source: Option<PoetrySource>,
}

impl PoetryPackage {
    /// Returns whether the project needs the package at run time, not only for development.
    fn is_main(&self) -> bool {
        let grouped = self.groups.as_ref().map(|groups| groups.iter().any(|group| group == "main"));
        let main = grouped.unwrap_or_else(|| self.category.as_ref().is_none_or(|one| one == "main"));
        main && !self.optional
    }
}

#[derive(Deserialize)]
struct PoetrySource {
    #[serde(rename = "type")]
    kind: String,
    url: String,
}

/// Parses a `poetry.lock`. It does not list direct requirements, so the roots are the packages that no other
/// package needs.
fn parse_poetry(file: &'static str, text: &str) -> Result<LockFile, Error> {
    let read: Poetry = parse_toml(file, text)?;
    let mains = read.package.iter().filter(|one| one.is_main());
    let edges = mains.flat_map(|one| one.dependencies.keys().map(move |name| (one, normalize_name(name))));
    let needed: BTreeSet<String> =
        edges.filter(|(one, name)| normalize_name(&one.name) != *name).map(|(_, name)| name).collect();
    let mut lock = LockFile::new(file, PackageRegistry::Pypi);
    for one in read.package {
        let marker = match &one.markers {
            Some(Value::Object(groups)) => groups.get("main").and_then(Value::as_str),
            markers => markers.as_ref().and_then(Value::as_str),
        };
        let root = one.is_main() && !needed.contains(&normalize_name(&one.name));
        let place = one.source.filter(|source| source.kind != "legacy");
        lock.add(LockedPackage {
            is_root: root,
            name: one.name,
            version: Some(one.version),
            marker: marker.map(str::to_owned),
            hashes: one.files.into_iter().filter_map(|file| file.hash).collect(),
            source_url: place.map(|source| as_url(format!("{}+{}", source.kind, source.url))),
            ..LockedPackage::default()
        })?;
    }
    Ok(lock)
}

#[derive(Deserialize)]
struct Pylock {
    #[serde(default)]
    packages: Vec<PylockPackage>,
}

#[derive(Deserialize)]
struct PylockPackage {
    name: String,
    version: Option<String>,
    marker: Option<String>,
    vcs: Option<Value>,
    directory: Option<Value>,
    archive: Option<Value>,
    sdist: Option<PylockFile>,
    #[serde(default)]
    wheels: Vec<PylockFile>,
}

#[derive(Deserialize)]
struct PylockFile {
    #[serde(default)]
    hashes: BTreeMap<String, String>,
}

/// Parses a `pylock.toml`. Every package is a root, with its marker, except those only for groups and extras.
fn parse_pylock(file: &'static str, text: &str) -> Result<LockFile, Error> {
    let read: Pylock = parse_toml(file, text)?;
    let mut lock = LockFile::new(file, PackageRegistry::Pypi);
    for one in read.packages {
        let apart = |marker: &String| marker.contains("dependency_groups") || marker.contains("extras");
        if one.marker.as_ref().is_some_and(apart) {
            continue;
        }
        let place = one.vcs.or(one.directory).or(one.archive);
        let known =
            |(kind, hash): (String, String)| Some(format!("{kind}:{hash}")).filter(|one| is_hash(one));
        let hashes = one.wheels.into_iter().chain(one.sdist).flat_map(|file| file.hashes).filter_map(known);
        lock.add(LockedPackage {
            is_root: true,
            name: one.name,
            version: one.version,
            marker: one.marker,
            hashes: hashes.collect(),
            source_url: place.map(|place| as_url(source_url(&place).to_owned())),
            ..LockedPackage::default()
        })?;
    }
    Ok(lock)
}

fn source_url(place: &Value) -> &str {
    ["url", "path"].iter().find_map(|key| place.get(key)?.as_str()).unwrap_or("elsewhere")
}

#[derive(Deserialize)]
struct Pipfile {
    #[serde(default)]
    default: BTreeMap<String, PipfilePackage>,
}

#[derive(Deserialize)]
struct PipfilePackage {
    version: Option<String>,
    markers: Option<String>,
    #[serde(default)]
    hashes: Vec<String>,
    #[serde(default)]
    extras: Vec<String>,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

fn parse_pipfile(file: &'static str, text: &str) -> Result<LockFile, Error> {
    let read: Pipfile =
        serde_json::from_str(text).map_err(|error| invalid_manifest(file, &error.to_string()))?;
    let mut lock = LockFile::new(file, PackageRegistry::Pypi);
    for (name, one) in read.default {
        let elsewhere = ["git", "hg", "svn", "bzr", "file", "path"];
        let place = elsewhere.iter().find_map(|kind| Some((kind, one.rest.get(*kind)?)));
        let version = one.version.as_deref().map(|version| version.trim_start_matches("==").to_owned());
        lock.add(LockedPackage {
            is_root: true,
            name,
            extras: one.extras,
            version,
            marker: one.markers,
            hashes: one.hashes,
            source_url: place
                .map(|(kind, place)| as_url(format!("{kind}+{}", place.as_str().unwrap_or(kind)))),
        })?;
    }
    Ok(lock)
}

#[cfg(test)]
#[path = "lock_tests.rs"]
mod tests;
