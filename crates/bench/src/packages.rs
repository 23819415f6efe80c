//! Costs of packages: preparing them the first time, beside `pip install`, and running a program that imports
//! one.

use std::fs;
use std::os::unix::process::CommandExt;
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
use belljar_providers::native::{LanguageState, Native, SpawnedLauncher};
use serde::Serialize;

use crate::error::BenchError;
use crate::progress::ProgressLine;
use crate::sample::{Sample, percentile};
use crate::workload::{CodeSample, WORKLOADS};
use crate::{PackagesFactory, runtime};

/// Version bounds, so that the image's own packages do not count as installed.
const BIG: [&str; 2] = ["numpy>=1", "pandas>=1"];
const SMALL: &str = "requests>=2";
/// Runs before counting; after so many, warm interpreters have the packages imported.
const WARM_UP: usize = 20;
const RUNS: usize = 100;
const STREAK: usize = 10;

/// The measured costs of packages.
#[derive(Debug, Serialize)]
pub(crate) struct PackageCosts {
    /// Milliseconds to install numpy and pandas as a layer, with all caches empty.
    pub(crate) first_ms: f64,
    /// Milliseconds to install them as a layer, with the installer's cache filled.
    pub(crate) ready_ms: f64,
    /// Milliseconds for `pip install --target` of both, with pip's cache filled; absent without pip.
    pub(crate) pip_ms: Option<f64>,
    /// p50 of a warm run of a program that imports nothing.
    pub(crate) plain_p50_ms: f64,
    /// p50 of a warm run of a new program that imports requests from a layer.
    pub(crate) import_p50_ms: f64,
    /// The share of the import runs that were served from a pool.
    pub(crate) import_share: f64,
}

/// The provider and the folder to build layers with.
struct PackageBench<'a> {
    provider: Arc<dyn Provider>,
    packages: PackagesFactory<'a>,
    folder: &'a Path,
}

/// Measures all of them.
pub(crate) fn measure_packages(
    folder: &Path,
    packages: PackagesFactory<'_>,
    pause: Duration,
    progress: &mut ProgressLine,
) -> Result<PackageCosts, BenchError> {
    let launcher = SpawnedLauncher::start()?;
    runtime()?.block_on(async {
        let warm = WarmSettings::default().with_mode(WarmPoolMode::Pool);
        let native = Arc::new(Native::connect(launcher, warm).await?);
        let python = python(&native.languages());
        let bench = PackageBench { provider: native, packages, folder };
        let costs = measure(&bench, python, pause, progress).await;
        bench.provider.shut_down().await;
        costs
    })
}

async fn measure(
    bench: &PackageBench<'_>,
    python: Option<PathBuf>,
    pause: Duration,
    progress: &mut ProgressLine,
) -> Result<PackageCosts, BenchError> {
    progress.show("packages: first install");
    let first = bench.time_install("first").await?;
    progress.show("packages: install again");
    // Drops the layers and the resolutions, but keeps the installer's cache.
    let kept = |name: &str| bench.folder.join(name).join("installers");
    let moved = fs::create_dir_all(bench.folder.join("again"));
    moved
        .and_then(|()| fs::rename(kept("first"), kept("again")))
        .map_err(|error| failed(&error.to_string()))?;
    let ready = bench.time_install("again").await?;
    progress.show("packages: pip");
    let pip = python.and_then(|python| time_pip(&python, bench.folder));
    let (plain, import) = bench.time_imports(pause, progress).await?;
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
    fn library(&self, name: &str) -> Arc<dyn PackageResolver> {
        (self.packages)(Arc::clone(&self.provider), self.folder.join(name))
    }

    /// Measures how long it takes until the big packages can be imported.
    async fn time_install(&self, name: &str) -> Result<Duration, BenchError> {
        let library = self.library(name);
        let packages = BIG.map(str::to_owned);
        let needs = PackageNeeds { packages: &packages, ..PackageNeeds::new(DEFAULT_TENANT, &Image::Host) };
        let started = Instant::now();
        library.prepare(needs, &mut SilentProgress).await.map_err(|error| failed(&error.to_string()))?;
        Ok(started.elapsed())
    }

    /// Measures runs without and with an import, in turns.
    async fn time_imports(
        &self,
        pause: Duration,
        progress: &mut ProgressLine,
    ) -> Result<(Vec<Sample>, Vec<Sample>), BenchError> {
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

async fn run_once(engine: &Engine, package: Option<&str>) -> Result<Sample, BenchError> {
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

fn python(languages: &[LanguageState]) -> Option<PathBuf> {
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
        command.process_group(0);
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

fn failed(why: &str) -> BenchError {
    BenchError::machine(format!("benchmark of packages: {why}"))
}
