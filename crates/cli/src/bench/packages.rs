//! Costs of packages: preparing them the first time, beside `pip install`, and running a program that imports
//! one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_engine::Engine;
use belljar_engine::admit::DEFAULT_TENANT;
use belljar_engine::limits::Limits;
use belljar_engine::outcome::Warmth;
use belljar_engine::packages::{PackageNeeds, PackageResolver, Progress as Steps};
use belljar_engine::plan::Image;
use belljar_engine::profile::Profiles;
use belljar_engine::provider::{DiscardSink, Provider};
use belljar_engine::report::Status;
use belljar_engine::request::{Dependencies, HostPaths, Request};
use belljar_engine::warm::{WarmPoolMode, WarmSettings};
use belljar_layers::ProviderLibraries;
use serde::Serialize;

use super::progress::ProgressLine;
use super::sample::{Sample, percentile};
use super::workload::{CodeSample, WORKLOADS};
use crate::config::Config;
use crate::env::Environment;
use crate::error::CliError;
use crate::os::{self, FoundLanguage};
use crate::wire;

/// Version bounds, so that the image's own packages do not count as installed.
const BIG: [&str; 2] = ["numpy>=1", "pandas>=1"];
const SMALL: &str = "requests>=2";
/// Runs before counting; after so many, warm interpreters have the packages imported.
const WARM_UP: usize = 20;
const RUNS: usize = 100;
const STREAK: usize = 10;

/// The measured costs of packages.
#[derive(Debug, Serialize)]
pub(super) struct PackageCosts {
    /// Milliseconds to install numpy and pandas as a layer, with all caches empty.
    pub(super) first_ms: f64,
    /// Milliseconds to install them as a layer, with the installer's cache filled.
    pub(super) ready_ms: f64,
    /// Milliseconds for `pip install --target` of both, with pip's cache filled; absent without pip.
    pub(super) pip_ms: Option<f64>,
    /// p50 of a warm run of a program that imports nothing.
    pub(super) plain_p50_ms: f64,
    /// p50 of a warm run of a new program that imports requests from a layer.
    pub(super) import_p50_ms: f64,
    /// The share of the import runs that were served from a pool.
    pub(super) import_share: f64,
}

/// The provider, environment and folder to build layers with.
struct PackageBench<'a> {
    provider: Arc<dyn Provider>,
    environment: &'a Environment,
    folder: &'a Path,
}

/// Measures all of them.
pub(super) fn measure_packages(
    folder: &Path,
    environment: &Environment,
    pause: Duration,
    progress: &mut ProgressLine,
) -> Result<PackageCosts, CliError> {
    let started = os::start_launcher()?;
    os::runtime()?.block_on(async {
        let host = started.connect(WarmSettings::default().with_mode(WarmPoolMode::Pool), None).await?;
        let maker = PackageBench { provider: host.provider(), environment, folder };
        let found = measure(&maker, python(&host.languages()), pause, progress).await;
        host.provider().shut_down().await;
        found
    })
}

async fn measure(
    maker: &PackageBench<'_>,
    python: Option<PathBuf>,
    pause: Duration,
    progress: &mut ProgressLine,
) -> Result<PackageCosts, CliError> {
    progress.show("packages: first install");
    let first = maker.time_install("first").await?;
    progress.show("packages: install again");
    // Drops the layers and the resolutions, but keeps the installer's cache.
    let kept = |name: &str| maker.folder.join(name).join("installers");
    let moved = fs::create_dir_all(maker.folder.join("again"));
    moved
        .and_then(|()| fs::rename(kept("first"), kept("again")))
        .map_err(|error| failed(&error.to_string()))?;
    let ready = maker.time_install("again").await?;
    progress.show("packages: pip");
    let pip = python.and_then(|python| time_pip(&python, maker.folder));
    let (plain, import) = maker.time_imports(pause, progress).await?;
    let median = |samples: &[Sample]| percentile(samples, 0.5).map_or(0.0, millis);
    let waited = import.iter().filter(|sample| sample.warmth == Some(Warmth::Pool)).count();
    Ok(PackageCosts {
        first_ms: millis(first),
        ready_ms: millis(ready),
        pip_ms: pip.map(millis),
        plain_p50_ms: median(&plain),
        import_p50_ms: median(&import),
        import_share: waited as f64 / import.len().max(1) as f64,
    })
}

impl PackageBench<'_> {
    fn library(&self, name: &str) -> Arc<ProviderLibraries> {
        let warnings = Arc::new(|_: &belljar_layers::store::StoreWarning| ());
        let (provider, folder) = (Arc::clone(&self.provider), self.folder.join(name));
        // The default settings and not this machine's own, so that figures of two machines are comparable.
        Arc::new(wire::libraries(provider, folder, &Config::without_files(), self.environment, warnings))
    }

    /// Measures how long it takes until the big packages can be imported.
    async fn time_install(&self, name: &str) -> Result<Duration, CliError> {
        let library = self.library(name);
        let packages = BIG.map(str::to_owned);
        let needs = PackageNeeds {
            tenant: DEFAULT_TENANT,
            image: &Image::Host,
            language: None,
            detect: false,
            code: None,
            files: &[],
            has_host_workspace: false,
            packages: &packages,
            profile_packages: &[],
            allow_build: false,
        };
        let started = Instant::now();
        library.prepare(needs, &mut SilentProgress).await.map_err(|error| failed(&error.to_string()))?;
        Ok(started.elapsed())
    }

    /// Measures runs without and with an import, in turns.
    async fn time_imports(
        &self,
        pause: Duration,
        progress: &mut ProgressLine,
    ) -> Result<(Vec<Sample>, Vec<Sample>), CliError> {
        let engine = Engine::new(Arc::clone(&self.provider), Profiles::built_in(), Limits::CEILING)
            .with_packages(self.library("again"));
        let (mut plain, mut import) = (Vec::new(), Vec::new());
        for (name, runs) in [("warming up", WARM_UP), ("runs", RUNS)] {
            progress.show(&format!("packages: {name}"));
            (plain, import) = (Vec::new(), Vec::new());
            while plain.len() < runs {
                for (samples, package) in [(&mut plain, None), (&mut import, Some(SMALL))] {
                    // The first run of a streak is not counted: it finds the caches as the other program left
                    // them.
                    for counted in 0..=STREAK {
                        let sample = run_once(&engine, package).await?;
                        samples.extend((counted > 0).then_some(sample));
                        tokio::time::sleep(pause).await;
                    }
                }
            }
        }
        Ok((plain, import))
    }
}

async fn run_once(engine: &Engine, package: Option<&str>) -> Result<Sample, CliError> {
    let CodeSample { code, answer } = WORKLOADS[0].code_sample();
    let code = if package.is_some() { format!("import requests\n{code}") } else { code };
    let dependencies = Dependencies {
        packages: package.into_iter().map(str::to_owned).collect(),
        ..Dependencies::default()
    };
    let request =
        Request { language: Some("python".to_owned()), code: Some(code), dependencies, ..Request::default() };
    let started = Instant::now();
    let admitted = engine.admit(request, HostPaths::default())?;
    let never = Box::pin(std::future::pending());
    let report = engine.execute("bench".to_owned(), admitted, &mut DiscardSink, never).await?;
    let took = started.elapsed();
    match report.status {
        Status::Succeeded if report.stdout == answer => Ok(Sample { took, warmth: Some(report.warmth()) }),
        _ => Err(failed(report.error.as_deref().unwrap_or("a run printed an unexpected output"))),
    }
}

/// Ignores installation progress.
struct SilentProgress;

impl Steps for SilentProgress {
    fn report(&mut self, _: &str) {}
}

fn python(languages: &[FoundLanguage]) -> Option<PathBuf> {
    languages.iter().find(|found| found.language.name == "python")?.program.clone()
}

/// Measures the second of two installs with pip, each into its own folder.
fn time_pip(python: &Path, folder: &Path) -> Option<Duration> {
    let mut took = None;
    for name in ["pip-first", "pip-again"] {
        let mut command = Command::new(python);
        command.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"]);
        command.arg(folder.join(name)).args(BIG).env("PIP_CACHE_DIR", folder.join("pip-cache"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        os::set_own_process_group(&mut command);
        let started = Instant::now();
        if !command.status().is_ok_and(|status| status.success()) {
            return None;
        }
        took = Some(started.elapsed());
    }
    took
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn failed(why: &str) -> CliError {
    CliError::host(format!("benchmark of packages: {why}"))
}
