//! Installs JavaScript packages with bun, or else with npm. Install scripts are disabled, so no code of
//! packages runs. If a profile allows it, the scripts run in a separate step.

use std::collections::BTreeMap;
use std::path::Path;

use belljar_analysis::imports::{LockFile, Requirement};
use belljar_engine::packages::PackagesError;
use belljar_engine::plan::Image;
use serde_json::{Value, json};

use crate::installer_sandbox::{BuildStep, CacheMode, InstallStep, InstallerSandbox};
use crate::python::step_output;
use crate::request_lock::package_lock_json;
use crate::store::{ExactPackage, LayerScope};

/// Installs packages for one image.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JavaScript<'a> {
    pub(crate) sandbox: &'a InstallerSandbox,
    pub(crate) image: &'a Image,
    pub(crate) scope: &'a LayerScope,
    /// The request's own lock file.
    pub(crate) request_lock: Option<&'a LockFile>,
}

/// A resolved set: the packages, and the lock file from which exactly these are installed.
#[derive(Debug)]
pub(crate) struct ResolvedLock {
    pub(crate) packages: Vec<ExactPackage>,
    pub(crate) lock: String,
}

impl JavaScript<'_> {
    /// Returns `bun` or `npm`.
    pub(crate) fn installer(&self) -> &'static str {
        if self.sandbox.tools.bun.is_some() { "bun" } else { "npm" }
    }

    /// Resolves exact versions and hashes in a separate folder. Installs nothing.
    pub(crate) async fn resolve(
        &self,
        requirements: &[String],
        folder: &Path,
    ) -> Result<ResolvedLock, PackagesError> {
        let manifest = manifest(requirements);
        self.write(folder, "package.json", &manifest.to_string()).await?;
        if let Some(lock) = self.request_lock {
            self.write(folder, "package-lock.json", &package_lock_json(lock, &manifest)).await?;
        }
        let (words, name) = match self.installer() {
            "bun" => (
                &["install", "--lockfile-only", "--ignore-scripts", "--no-progress", "--no-summary"][..],
                "bun.lock",
            ),
            _ => (
                &["install", "--package-lock-only", "--ignore-scripts", "--no-audit", "--no-fund"][..],
                "package-lock.json",
            ),
        };
        self.run_installer(words, folder).await?;
        let lock = self.read(folder, name).await?;
        Ok(ResolvedLock { packages: parse_lock(name, &lock)?, lock })
    }

    /// Installs exactly what a lock file lists into a folder.
    pub(crate) async fn install(
        &self,
        requirements: &[String],
        lock: &str,
        folder: &Path,
    ) -> Result<(), PackagesError> {
        self.write(folder, "package.json", &manifest(requirements).to_string()).await?;
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
        self.run_installer(words, folder).await
    }

    /// Runs the install scripts of installed packages. They can only affect this folder.
    pub(crate) async fn build(&self, folder: &Path) -> Result<(), PackagesError> {
        let command = ["npm", "rebuild", "--foreground-scripts", "--offline"].map(str::to_owned).to_vec();
        let env = [
            ("NPM_CONFIG_CACHE", "/tmp/npm"),
            ("NPM_CONFIG_UPDATE_NOTIFIER", "false"),
            ("NPM_CONFIG_LOGLEVEL", "error"),
            // Newer versions of npm require approval for each package; here all are approved.
            ("NPM_CONFIG_DANGEROUSLY_ALLOW_ALL_SCRIPTS", "true"),
        ];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let what = "a package with install scripts";
        let build = BuildStep { what, command, env, folder: Some(folder), ..BuildStep::default() };
        let built = self.sandbox.build(self.image, build).await;
        built.map(drop).map_err(|error| {
            let advice = "npm runs install scripts, but is not installed: install it, or use a profile \
                          without build_packages";
            explain_missing_npm(error, advice)
        })
    }

    async fn run_installer(&self, words: &[&str], folder: &Path) -> Result<(), PackagesError> {
        let tool = self.sandbox.tools.bun.as_ref();
        let (program, name) = match tool {
            Some(bun) => (bun.sandbox_path(), "bun"),
            None => ("npm".to_owned(), "npm"),
        };
        // bun takes cached packages by name and version, and the request's lock file may have a different
        // hash for them.
        let fresh = name == "bun" && self.request_lock.is_some();
        let cache = if fresh { "/tmp/bun".to_owned() } else { InstallerSandbox::cache_path(name) };
        let variable = if name == "bun" { "BUN_INSTALL_CACHE_DIR" } else { "NPM_CONFIG_CACHE" };
        let env = BTreeMap::from([
            (variable.to_owned(), cache),
            ("NPM_CONFIG_UPDATE_NOTIFIER".to_owned(), "false".to_owned()),
            ("NPM_CONFIG_LOGLEVEL".to_owned(), "error".to_owned()),
        ]);
        let command =
            std::iter::once(program.as_str()).chain(words.iter().copied()).map(str::to_owned).collect();
        let (folder, cache) = (Some(folder), Some((name, CacheMode::Shared(self.scope))));
        let job = InstallStep { command, env, folder, tool, cache, download: true, ..InstallStep::default() };
        let done = self.sandbox.run(self.image, job).await;
        done.and_then(step_output).map(drop).map_err(|error| {
            let advice = "nothing here can install JavaScript packages: install bun (https://bun.sh) or npm; or run \
                          with --no-deps";
            explain_missing_npm(error, advice)
        })
    }

    /// Writes a file through a sandbox: the host never touches a folder in which an installer works.
    async fn write(&self, folder: &Path, name: &str, text: &str) -> Result<(), PackagesError> {
        let command = ["tee", name].map(str::to_owned).to_vec();
        let job =
            InstallStep { command, stdin: text.to_owned(), folder: Some(folder), ..InstallStep::default() };
        step_output(self.sandbox.run(self.image, job).await?).map(drop)
    }

    async fn read(&self, folder: &Path, name: &str) -> Result<String, PackagesError> {
        let command = ["cat", name].map(str::to_owned).to_vec();
        step_output(
            self.sandbox
                .run(self.image, InstallStep { command, folder: Some(folder), ..InstallStep::default() })
                .await?,
        )
    }
}

/// Replaces the error with advice if the image has no npm.
fn explain_missing_npm(error: PackagesError, advice: &str) -> PackagesError {
    match error {
        PackagesError::Host(why) if why.contains("execute npm: ENOENT") => {
            PackagesError::Host(advice.to_owned())
        }
        other => other,
    }
}

/// Converts requirements like `lodash@^4` and `@a/b` to a `package.json`.
fn manifest(requirements: &[String]) -> Value {
    let pair = |text: &String| {
        let (name, version) = match text.char_indices().skip(1).find(|(_, c)| *c == '@') {
            Some((at, _)) => (&text[..at], &text[at + 1..]),
            None => (text.as_str(), ""),
        };
        (name.to_owned(), Value::from(if version.is_empty() { "*" } else { version }))
    };
    let dependencies: serde_json::Map<String, Value> = requirements.iter().map(pair).collect();
    json!({"name": "layer", "private": true, "dependencies": dependencies})
}

/// Parses the packages of a lock file that an installer wrote.
fn parse_lock(file: &str, text: &str) -> Result<Vec<ExactPackage>, PackagesError> {
    let lock = LockFile::parse_file(file, text).ok_or_else(|| unparsable_lock(file))?;
    let lock = lock.map_err(|error| unparsable_lock(&error.to_string()))?;
    if lock.roots.iter().any(|root| root.direct_url.is_some())
        || lock.pins.iter().any(|pin| pin.hashes.is_empty())
    {
        return Err(PackagesError::Unresolvable("the registry provides no hash for a package".to_owned()));
    }
    let package =
        |pin: Requirement| ExactPackage { name: pin.name, version: pin.version, hashes: pin.hashes };
    Ok(deduplicated(lock.pins.into_iter().map(package).collect()))
}

/// Removes duplicates: a package may be installed several times, in folders of other packages.
fn deduplicated(mut packages: Vec<ExactPackage>) -> Vec<ExactPackage> {
    packages.sort();
    packages.dedup();
    packages
}

fn unparsable_lock(what: &str) -> PackagesError {
    PackagesError::Host(format!("cannot parse the installer's lock file: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests() {
        let value = manifest(&["lodash@^4".to_owned(), "@scope/name".to_owned(), "@a/b@1.2".to_owned()]);
        assert_eq!(value["dependencies"], json!({"lodash": "^4", "@scope/name": "*", "@a/b": "1.2"}));
    }

    #[test]
    fn lock_files() {
        let bun = r#"{ "lockfileVersion": 1, "workspaces": {}, "packages": { "@a/b": ["@a/b@1.0.0", "", { "x": "a,}" }, "sha512-x=="], "c": ["c@2.0.0", "", {}, "sha512-y"], }, }"#;
        let packages = parse_lock("bun.lock", bun).unwrap();
        assert_eq!((packages[0].name.as_str(), packages[0].version.as_str()), ("@a/b", "1.0.0"));
        assert_eq!(packages[1].hashes, ["sha512-y"]);
        let npm = r#"{"lockfileVersion": 3, "packages": {"": {"name": "layer"}, "node_modules/c": {"version": "2.0.0", "integrity": "sha512-y"}, "node_modules/d/node_modules/@a/b": {"version": "1.0.0", "integrity": "sha512-x"}}}"#;
        let packages = parse_lock("package-lock.json", npm).unwrap();
        assert_eq!(packages.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["@a/b", "c"]);
        assert!(
            parse_lock(
                "package-lock.json",
                r#"{"lockfileVersion": 3, "packages": {"node_modules/c": {"version": "2.0.0"}}}"#
            )
            .is_err()
        );
        assert!(parse_lock("bun.lock", "[]").is_err());
    }
}
