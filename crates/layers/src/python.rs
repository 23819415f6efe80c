//! Installs Python packages with uv, or else with the interpreter's own pip. Only wheels are installed, so no
//! code of packages runs. Source archives are built into wheels separately (`build`).

use std::path::{Path, PathBuf};

use belljar_analysis::imports::{PackageRegistry, Requirement};
use belljar_engine::packages::PackagesError;
use belljar_engine::plan::{Image, Mount};
use serde::Deserialize;

use crate::explain::{is_unreachable, shortened};
use crate::installer_sandbox::{CacheMode, InstallStep, InstallerSandbox, StepResult};
use crate::interpreter::ImageInterpreter;
use crate::store::{ExactPackage, LayerScope};

const COMPILE: &str = include_str!("probes/compile.py");
/// Writes the constraints to a file and passes the requirements on.
const WITH_CONSTRAINTS: &str = "import subprocess, sys\n\
    constraints, _, wanted = sys.stdin.read().partition('\\f')\n\
    open('/tmp/constraints.txt', 'w').write(constraints)\n\
    command = sys.argv[1:] + ['-c', '/tmp/constraints.txt']\n\
    sys.exit(subprocess.run(command, input=wanted, text=True).returncode)\n";
const WORKSPACE: &str = "/workspace";
/// Where wheels that do not come from the registry are mounted.
const WHEELS_DIR: &str = "/opt/belljar/offered";
/// Isolated mode: keeps trusted scripts from importing from the working folder, which contains packages.
pub(crate) const ISOLATED_FLAG: &str = "-I";

/// Installs packages for one interpreter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Python<'a> {
    pub(crate) sandbox: &'a InstallerSandbox,
    pub(crate) image: &'a Image,
    pub(crate) interpreter: &'a ImageInterpreter,
    pub(crate) scope: &'a LayerScope,
    pub(crate) local_wheels: Option<&'a LocalWheels>,
}

/// Wheels that were built here, offered in addition to the registry. The installer uses a private cache for
/// them.
#[derive(Debug)]
pub(crate) struct LocalWheels {
    /// Folders with the wheels.
    pub(crate) folders: Vec<PathBuf>,
    /// The installer's cache; discarded afterwards.
    pub(crate) cache: PathBuf,
}

/// The result of resolving.
#[derive(Debug)]
pub(crate) enum ResolveOutcome {
    /// The resolved set.
    Resolved(Vec<ExactPackage>),
    /// No set exists, possibly because of packages without a wheel for this interpreter.
    MissingWheels { names: Vec<MissingWheel>, why: PackagesError },
}

/// A package without a wheel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MissingWheel {
    pub(crate) name: String,
    /// Whether the installer reports it explicitly; otherwise it is only mentioned in a conflict.
    pub(crate) is_explicit: bool,
}

impl Python<'_> {
    /// Returns `uv` or `pip`.
    pub(crate) fn installer(&self) -> Result<&'static str, PackagesError> {
        match (&self.sandbox.tools.uv, self.interpreter.installer.is_empty()) {
            (Some(_), _) => Ok("uv"),
            (None, false) => Ok("pip"),
            (None, true) => Err(PackagesError::Host(
                "nothing here can install Python packages: install uv (https://docs.astral.sh/uv), or pip for the \
                 interpreter; or run with --no-deps"
                    .to_owned(),
            )),
        }
    }

    /// Resolves exact versions and hashes. Installs nothing and runs no code of packages.
    pub(crate) async fn resolve(
        &self,
        requirements: &[(String, Vec<String>)],
        constraints: &str,
    ) -> Result<ResolveOutcome, PackagesError> {
        let text = requirements.iter().map(requirement_line).collect::<Vec<_>>().join("\n");
        let by_uv = self.installer()? == "uv";
        let done = match by_uv {
            true => {
                let words = [
                    "pip",
                    "compile",
                    "-",
                    "--generate-hashes",
                    "--no-header",
                    "--no-annotate",
                    "--no-strip-extras",
                ];
                self.uv(&words, text, constraints, None).await?
            }
            false => {
                let words = ["install", "--dry-run", "--ignore-installed", "--report", "/tmp/report.json"];
                self.pip(&words, text, constraints, None).await?
            }
        };
        let names = missing_wheels(&done.stderr);
        match step_output(done) {
            Ok(text) if by_uv => parse_uv_output(&text).map(ResolveOutcome::Resolved),
            Ok(text) => parse_pip_report(&text).map(ResolveOutcome::Resolved),
            Err(why @ PackagesError::Unresolvable(_)) if !names.is_empty() => {
                Ok(ResolveOutcome::MissingWheels { names, why })
            }
            Err(error) => Err(error),
        }
    }

    /// Installs exactly these packages into a folder.
    pub(crate) async fn install(
        &self,
        packages: &[ExactPackage],
        folder: &Path,
    ) -> Result<(), PackagesError> {
        let lines: Vec<String> = packages
            .iter()
            .map(|one| requirement_line(&(format!("{}=={}", one.name, one.version), one.hashes.clone())))
            .collect();
        let (text, words) = (lines.join("\n"), ["--target", WORKSPACE, "--require-hashes", "--no-deps"]);
        let done = match self.installer()? {
            "uv" => {
                let words = [&["pip", "install", "--link-mode", "copy", "-r", "-"][..], &words].concat();
                // If uv's cache has everything, the registry is not needed: it was just queried to resolve.
                let cached = [&words[..], &["--offline"]].concat();
                match self.uv(&cached, text.clone(), "", Some(folder)).await? {
                    done if done.succeeded => done,
                    _ => self.uv(&words, text, "", Some(folder)).await?,
                }
            }
            _ => {
                let words = [&["install", "--no-compile"][..], &words].concat();
                self.pip(&words, text, "", Some(folder)).await?
            }
        };
        step_output(done)?;
        self.compile(folder).await
    }

    async fn uv(
        &self,
        words: &[&str],
        stdin: String,
        constraints: &str,
        folder: Option<&Path>,
    ) -> Result<StepResult, PackagesError> {
        let Some(uv) = &self.sandbox.tools.uv else { return Err(not_available("uv")) };
        let program = uv.sandbox_path();
        let fixed = [
            "--only-binary",
            ":all:",
            "--python",
            &self.interpreter.program,
            "--no-python-downloads",
            "--color",
            "never",
        ];
        let cache = InstallerSandbox::cache_path("uv");
        // Only constraints need the wrapper script, which writes them to a file.
        let before = [self.interpreter.program.as_str(), ISOLATED_FLAG, "-c", WITH_CONSTRAINTS];
        let before = before.into_iter().filter(|_| !constraints.is_empty());
        let command = before.chain([program.as_str()]).chain(words.iter().copied()).chain(fixed);
        let command = command.chain(["--no-progress", "--cache-dir", &cache]).map(str::to_owned);
        let command = command.chain(self.find_links_arguments()).collect();
        let stdin = if constraints.is_empty() { stdin } else { format!("{constraints}\x0c{stdin}") };
        let job = InstallStep {
            command,
            stdin,
            folder,
            tool: Some(uv),
            cache: Some(("uv", self.cache_mode())),
            mounts: self.wheel_mounts(),
            download: true,
            ..InstallStep::default()
        };
        self.sandbox.run(self.image, job).await
    }

    /// pip reads no requirements from stdin and writes its report to a file; a short wrapper script does
    /// both.
    async fn pip(
        &self,
        words: &[&str],
        stdin: String,
        constraints: &str,
        folder: Option<&Path>,
    ) -> Result<StepResult, PackagesError> {
        let script = "import subprocess, sys\n\
            constraints, _, wanted = sys.stdin.read().partition('\\f')\n\
            open('/tmp/list.txt', 'w').write(wanted)\n\
            open('/tmp/constraints.txt', 'w').write(constraints)\n\
            lists = ['-r', '/tmp/list.txt', '-c', '/tmp/constraints.txt']\n\
            done = subprocess.run(sys.argv[1:] + lists, stdout=sys.stderr)\n\
            report = '/tmp/report.json'\n\
            if done.returncode == 0 and report in sys.argv: print(open(report).read())\n\
            sys.exit(done.returncode)\n";
        let cache = InstallerSandbox::cache_path("pip");
        let fixed = [
            "--only-binary",
            ":all:",
            "--no-input",
            "--cache-dir",
            &cache,
            "--disable-pip-version-check",
            "--no-warn-script-location",
        ];
        let program = [self.interpreter.program.as_str(), ISOLATED_FLAG, "-c", script];
        let installer = self.interpreter.installer.iter().map(String::as_str);
        let command = program
            .into_iter()
            .chain(installer)
            .chain(words.iter().copied())
            .chain(fixed)
            .map(str::to_owned)
            .chain(self.find_links_arguments())
            .collect();
        let stdin = format!("{constraints}\x0c{stdin}");
        let job = InstallStep {
            command,
            stdin,
            folder,
            cache: Some(("pip", self.cache_mode())),
            mounts: self.wheel_mounts(),
            download: true,
            ..InstallStep::default()
        };
        self.sandbox.run(self.image, job).await
    }

    fn cache_mode(&self) -> CacheMode<'_> {
        self.local_wheels.map_or(CacheMode::Shared(self.scope), |offer| CacheMode::Temporary(&offer.cache))
    }

    fn wheel_mounts(&self) -> Vec<Mount> {
        let folders = self.local_wheels.iter().flat_map(|offer| &offer.folders).enumerate();
        let mount = |(number, source): (usize, &PathBuf)| Mount {
            source: source.clone(),
            destination: format!("{WHEELS_DIR}/{number}"),
            writable: false,
        };
        folders.map(mount).collect()
    }

    /// `--find-links` overrides the environment variable, so configured links are repeated here.
    fn find_links_arguments(&self) -> Vec<String> {
        let Some(offer) = self.local_wheels else { return Vec::new() };
        let configured = self.sandbox.registries.env.get("UV_FIND_LINKS").map_or("", String::as_str);
        let configured = configured.split(',').filter(|place| !place.is_empty()).map(str::to_owned);
        let own = (0..offer.folders.len()).map(|number| format!("{WHEELS_DIR}/{number}"));
        configured.chain(own).flat_map(|place| ["--find-links".to_owned(), place]).collect()
    }

    /// Compiles modules once: layers are read-only, so Python would otherwise compile at every import. The
    /// bytecode is cached by source hash.
    async fn compile(&self, folder: &Path) -> Result<(), PackagesError> {
        let cache = InstallerSandbox::cache_path("bytecode");
        let target = belljar_engine::packages::PYTHON_LAYER;
        let command =
            [self.interpreter.program.as_str(), ISOLATED_FLAG, "-c", COMPILE, WORKSPACE, target, &cache]
                .map(str::to_owned)
                .to_vec();
        let cache = Some(("bytecode", CacheMode::Shared(self.scope)));
        let done = self
            .sandbox
            .run(self.image, InstallStep { command, folder: Some(folder), cache, ..InstallStep::default() })
            .await?;
        match done.succeeded {
            true => Ok(()),
            false => Err(PackagesError::Host(format!("compiling modules: {}", shortened(&done.stderr)))),
        }
    }
}

fn not_available(tool: &str) -> PackagesError {
    PackagesError::Host(format!("{tool} is not available"))
}

fn requirement_line((requirement, hashes): &(String, Vec<String>)) -> String {
    let hashes = hashes.iter().map(|hash| format!(" --hash={hash}"));
    std::iter::once(requirement.clone()).chain(hashes).collect()
}

/// Returns a step's output, or the reason why it failed.
pub(crate) fn step_output(done: StepResult) -> Result<String, PackagesError> {
    if done.succeeded {
        return Ok(done.stdout);
    }
    let said = format!("{}\n{}", done.stderr, done.stdout);
    if is_unreachable(&said) {
        return Err(PackagesError::Host(format!(
            "the registry could not be reached: {}; check the network and the configuration of pip, uv or \
             npm, or run with --no-deps",
            shortened(&done.stderr)
        )));
    }
    Err(PackagesError::Unresolvable(shortened(if done.stderr.trim().is_empty() {
        &done.stdout
    } else {
        &done.stderr
    })))
}

/// Extracts the packages without a wheel from an installer's messages.
fn missing_wheels(said: &str) -> Vec<MissingWheel> {
    let after = |mark: &'static str| said.split(mark).skip(1);
    let uv = after("Wheels are required for `").filter_map(|rest| rest.split('`').next());
    let pip = after("No matching distribution found for ").filter_map(|rest| rest.lines().next());
    let conflict = said.contains("ResolutionImpossible");
    let others = after(" depends on ").filter(|_| conflict).filter_map(|rest| rest.lines().next());
    let mut lacks: Vec<MissingWheel> = Vec::new();
    for (text, is_said) in uv.chain(pip).map(|text| (text, true)).chain(others.map(|text| (text, false))) {
        let end = text.find(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c));
        let Ok(requirement) = Requirement::parse(PackageRegistry::Pypi, &text[..end.unwrap_or(text.len())])
        else {
            continue;
        };
        if lacks.iter().all(|known| known.name != requirement.name) {
            lacks.push(MissingWheel { name: requirement.name, is_explicit: is_said });
        }
    }
    lacks
}

/// Parses uv's output: `name==version \` followed by one line per hash.
fn parse_uv_output(text: &str) -> Result<Vec<ExactPackage>, PackagesError> {
    let mut packages: Vec<ExactPackage> = Vec::new();
    for line in text.lines().map(|line| line.trim().trim_end_matches('\\').trim()) {
        if let Some(hash) = line.strip_prefix("--hash=") {
            if let Some(last) = packages.last_mut() {
                last.hashes.push(hash.to_owned());
            }
        } else if !line.is_empty() && !line.starts_with(['#', '-']) {
            let (name, version) = line.split_once("==").ok_or_else(|| unparsable_output(line))?;
            // Extras are already resolved, and a remaining marker applies to this interpreter.
            let name = name.split('[').next().unwrap_or(name).trim().to_owned();
            let version = version.split(';').next().unwrap_or(version).trim().to_owned();
            packages.push(ExactPackage { name, version, hashes: Vec::new() });
        }
    }
    require_hashes(packages)
}

#[derive(Deserialize)]
struct PipReport {
    install: Vec<PipInstall>,
}

#[derive(Deserialize)]
struct PipInstall {
    metadata: PipMetadata,
    download_info: PipDownload,
}

#[derive(Deserialize)]
struct PipMetadata {
    name: String,
    version: String,
}

#[derive(Deserialize)]
struct PipDownload {
    #[serde(default)]
    archive_info: PipArchive,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PipArchive {
    hashes: std::collections::BTreeMap<String, String>,
}

/// Parses pip's report.
fn parse_pip_report(text: &str) -> Result<Vec<ExactPackage>, PackagesError> {
    let report: PipReport =
        serde_json::from_str(text).map_err(|error| unparsable_output(&error.to_string()))?;
    let package = |chosen: PipInstall| ExactPackage {
        name: chosen.metadata.name,
        version: chosen.metadata.version,
        hashes: chosen
            .download_info
            .archive_info
            .hashes
            .iter()
            .map(|(kind, hash)| format!("{kind}:{hash}"))
            .collect(),
    };
    require_hashes(report.install.into_iter().map(package).collect())
}

/// Refuses packages without a hash: their content could not be verified.
fn require_hashes(packages: Vec<ExactPackage>) -> Result<Vec<ExactPackage>, PackagesError> {
    match packages.iter().find(|package| package.hashes.is_empty()) {
        Some(package) => {
            Err(PackagesError::Unresolvable(format!("the registry provides no hash for {}", package.name)))
        }
        None => Ok(packages),
    }
}

fn unparsable_output(what: &str) -> PackagesError {
    PackagesError::Host(format!("cannot parse the installer's output: {}", shortened(what)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_wheels_are_parsed_from_installer_messages() {
        let lack = |name: &str, is_said| MissingWheel { name: name.to_owned(), is_explicit: is_said };
        let uv = "  cause: Because docopt has no usable wheels …\n\nhint: Wheels are required for `doc_opt` because building \
                  from source is disabled\n\nhint: Wheels are required for `hdfs` because\n";
        assert_eq!(missing_wheels(uv), [lack("doc-opt", true), lack("hdfs", true)]);
        let pip = "ERROR: No matching distribution found for docopt>=0.6 (from hdfs)\n";
        assert_eq!(missing_wheels(pip), [lack("docopt", true)]);
        let conflict = "The conflict is caused by:\n    hdfs 2.7.0 depends on docopt\n    hdfs 2.6.0 depends on docopt\n\
                        ERROR: ResolutionImpossible: for help\n";
        assert_eq!(missing_wheels(conflict), [lack("docopt", false)]);
        assert!(missing_wheels("nothing of that\nNo matching distribution found for -r x\n").is_empty());
    }

    #[test]
    fn uv_and_pip_output_is_parsed() {
        let text = "idna==3.10 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\nrequests[socks]==2.1 ; python_version < '4' \\\n    --hash=sha256:cc\n";
        let packages = parse_uv_output(text).unwrap();
        assert_eq!(
            (packages[0].name.as_str(), packages[0].version.as_str(), packages[0].hashes.len()),
            ("idna", "3.10", 2)
        );
        assert_eq!((packages[1].name.as_str(), packages[1].version.as_str()), ("requests", "2.1"));
        assert!(parse_uv_output("six==1.0\n").is_err() && parse_uv_output("six @ https://x\n").is_err());
        let text = r#"{"install": [{"metadata": {"name": "six", "version": "1.17.0"}, "download_info": {"archive_info": {"hashes": {"sha256": "aa"}}}}]}"#;
        assert_eq!(parse_pip_report(text).unwrap()[0].hashes, ["sha256:aa"]);
    }
}
