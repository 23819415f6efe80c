//! JavaScript's packages: by bun where it is found, by npm otherwise. Without their scripts, so no package's code runs.

use std::collections::BTreeMap;
use std::path::Path;

use belljar_engine::packages::PackagesError;
use belljar_engine::plan::Image;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::python::answer;
use crate::shelf::{Package, Scope};
use crate::workshop::{Job, Workshop};

/// Installs for one image.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JavaScript<'a> {
    pub(crate) workshop: &'a Workshop,
    pub(crate) image: &'a Image,
    pub(crate) scope: &'a Scope,
}

/// What was resolved: the packages, and the lock file from which exactly these are installed.
#[derive(Debug)]
pub(crate) struct Locked {
    pub(crate) packages: Vec<Package>,
    pub(crate) lock: String,
}

impl JavaScript<'_> {
    /// `bun` or `npm`.
    pub(crate) fn installer(&self) -> &'static str {
        if self.workshop.tools.bun.is_some() { "bun" } else { "npm" }
    }

    /// Exact versions and hashes, in a folder of its own. Nothing is installed.
    pub(crate) async fn resolve(
        &self,
        requirements: &[String],
        folder: &Path,
    ) -> Result<Locked, PackagesError> {
        self.write(folder, "package.json", &manifest(requirements)).await?;
        let (words, lock) = match self.installer() {
            "bun" => (
                &["install", "--lockfile-only", "--ignore-scripts", "--no-progress", "--no-summary"][..],
                "bun.lock",
            ),
            _ => (
                &["install", "--package-lock-only", "--ignore-scripts", "--no-audit", "--no-fund"][..],
                "package-lock.json",
            ),
        };
        self.installing(words, folder).await?;
        let lock = self.read(folder, lock).await?;
        let packages = match self.installer() {
            "bun" => locked_by_bun(&lock)?,
            _ => locked_by_npm(&lock)?,
        };
        Ok(Locked { packages, lock })
    }

    /// Puts exactly what a lock file says into a folder.
    pub(crate) async fn install(
        &self,
        requirements: &[String],
        lock: &str,
        folder: &Path,
    ) -> Result<(), PackagesError> {
        self.write(folder, "package.json", &manifest(requirements)).await?;
        let (words, name) = match self.installer() {
            "bun" => (
                &[
                    "install",
                    "--frozen-lockfile",
                    "--ignore-scripts",
                    "--backend",
                    "copyfile",
                    "--no-progress",
                    "--no-summary",
                ][..],
                "bun.lock",
            ),
            _ => (&["ci", "--ignore-scripts", "--no-audit", "--no-fund"][..], "package-lock.json"),
        };
        self.write(folder, name, lock).await?;
        self.installing(words, folder).await
    }

    async fn installing(&self, words: &[&str], folder: &Path) -> Result<(), PackagesError> {
        let tool = self.workshop.tools.bun.as_ref();
        let (program, name) = match tool {
            Some(bun) => (bun.inside(), "bun"),
            None => ("npm".to_owned(), "npm"),
        };
        let cache = Workshop::cache(name);
        let variable = if name == "bun" { "BUN_INSTALL_CACHE_DIR" } else { "NPM_CONFIG_CACHE" };
        let env = BTreeMap::from([
            (variable.to_owned(), cache),
            ("NPM_CONFIG_UPDATE_NOTIFIER".to_owned(), "false".to_owned()),
            ("NPM_CONFIG_LOGLEVEL".to_owned(), "error".to_owned()),
        ]);
        let command =
            std::iter::once(program.as_str()).chain(words.iter().copied()).map(str::to_owned).collect();
        let (folder, cache) = (Some(folder), Some((name, self.scope)));
        let job = Job { command, env, folder, tool, cache, download: true, ..Job::default() };
        let done = self.workshop.run(self.image, job).await?;
        answer(done).map(drop).map_err(|error| self.advised(error))
    }

    fn advised(&self, error: PackagesError) -> PackagesError {
        match error {
            PackagesError::Unresolvable(why) if self.installer() == "npm" && why.contains("No such file") => {
                PackagesError::Host(
                    "nothing here can install JavaScript packages: install bun (https://bun.sh) or npm; or run with --no-deps"
                        .to_owned(),
                )
            }
            other => other,
        }
    }

    /// The host touches nothing in a folder where an installer works: files come and go through the sandbox.
    async fn write(&self, folder: &Path, name: &str, text: &str) -> Result<(), PackagesError> {
        let command = ["tee", name].map(str::to_owned).to_vec();
        let job = Job { command, stdin: text.to_owned(), folder: Some(folder), ..Job::default() };
        answer(self.workshop.run(self.image, job).await?).map(drop)
    }

    async fn read(&self, folder: &Path, name: &str) -> Result<String, PackagesError> {
        let command = ["cat", name].map(str::to_owned).to_vec();
        answer(self.workshop.run(self.image, Job { command, folder: Some(folder), ..Job::default() }).await?)
    }
}

/// `lodash@^4` and `@a/b` as a `package.json`.
fn manifest(requirements: &[String]) -> String {
    let pair = |text: &String| {
        let (name, version) = match text.char_indices().skip(1).find(|(_, c)| *c == '@') {
            Some((at, _)) => (&text[..at], &text[at + 1..]),
            None => (text.as_str(), ""),
        };
        (name.to_owned(), Value::from(if version.is_empty() { "*" } else { version }))
    };
    let dependencies: serde_json::Map<String, Value> = requirements.iter().map(pair).collect();
    json!({"name": "layer", "private": true, "dependencies": dependencies}).to_string()
}

#[derive(Deserialize)]
struct BunLock {
    packages: BTreeMap<String, Vec<Value>>,
}

/// bun's lock is JSON with commas before closing brackets.
fn locked_by_bun(text: &str) -> Result<Vec<Package>, PackagesError> {
    let lock: BunLock = serde_json::from_str(&without_trailing_commas(text))
        .map_err(|error| unexpected(&error.to_string()))?;
    let package = |entry: &Vec<Value>| {
        let exact = entry.first()?.as_str()?;
        let at = exact.rfind('@').filter(|at| *at > 0)?;
        let hash =
            entry.iter().rev().find_map(|value| value.as_str().filter(|text| text.starts_with("sha512-")))?;
        Some(Package {
            name: exact[..at].to_owned(),
            version: exact[at + 1..].to_owned(),
            hashes: vec![hash.to_owned()],
        })
    };
    let all: Option<Vec<Package>> = lock.packages.values().map(package).collect();
    all.map(once).ok_or_else(no_hash)
}

fn without_trailing_commas(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut in_string, mut escaped) = (false, false);
    for c in text.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            '}' | ']' if !in_string => {
                let kept = out.trim_end().len();
                if out[..kept].ends_with(',') {
                    out.truncate(kept - 1);
                }
            }
            _ => {}
        }
        out.push(c);
    }
    out
}

#[derive(Deserialize)]
struct NpmLock {
    packages: BTreeMap<String, NpmPackage>,
}

#[derive(Deserialize)]
struct NpmPackage {
    #[serde(default)]
    version: String,
    integrity: Option<String>,
    name: Option<String>,
}

fn locked_by_npm(text: &str) -> Result<Vec<Package>, PackagesError> {
    let lock: NpmLock = serde_json::from_str(text).map_err(|error| unexpected(&error.to_string()))?;
    let package = |(path, entry): (String, NpmPackage)| {
        let name = path.rsplit("node_modules/").next().unwrap_or(&path).to_owned();
        Some(Package {
            name: entry.name.unwrap_or(name),
            version: entry.version,
            hashes: vec![entry.integrity?],
        })
    };
    let installed = lock.packages.into_iter().filter(|(path, _)| !path.is_empty());
    let all: Option<Vec<Package>> = installed.map(package).collect();
    all.map(once).ok_or_else(no_hash)
}

/// A package may be there several times, in folders of others.
fn once(mut packages: Vec<Package>) -> Vec<Package> {
    packages.sort();
    packages.dedup();
    packages
}

fn no_hash() -> PackagesError {
    PackagesError::Unresolvable("the registry gives no hash of a package".to_owned())
}

fn unexpected(what: &str) -> PackagesError {
    PackagesError::Host(format!("the installer's lock file is not understood: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests() {
        let text = manifest(&["lodash@^4".to_owned(), "@scope/name".to_owned(), "@a/b@1.2".to_owned()]);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["dependencies"], json!({"lodash": "^4", "@scope/name": "*", "@a/b": "1.2"}));
    }

    #[test]
    fn lock_files() {
        let bun = r#"{ "lockfileVersion": 1, "packages": { "@a/b": ["@a/b@1.0.0", "", { "x": "a,}" }, "sha512-x=="], "c": ["c@2.0.0", "", {}, "sha512-y"], }, }"#;
        let packages = locked_by_bun(bun).unwrap();
        assert_eq!((packages[0].name.as_str(), packages[0].version.as_str()), ("@a/b", "1.0.0"));
        assert_eq!(packages[1].hashes, ["sha512-y"]);
        let npm = r#"{"packages": {"": {"name": "layer"}, "node_modules/c": {"version": "2.0.0", "integrity": "sha512-y"}, "node_modules/d/node_modules/@a/b": {"version": "1.0.0", "integrity": "sha512-x"}}}"#;
        let packages = locked_by_npm(npm).unwrap();
        assert_eq!(packages.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["@a/b", "c"]);
        assert!(locked_by_npm(r#"{"packages": {"node_modules/c": {"version": "2.0.0"}}}"#).is_err());
        assert!(locked_by_bun("[]").is_err());
    }
}
