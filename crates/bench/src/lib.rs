//! The command `belljar bench`: measures how fast runs are on this machine, beside the same commands without a sandbox
//! and beside other tools, in one table.
//!
//! ```text
//! for each workload:  launchers → engines → probe → all variants in turns → rows: times, then throughput
//! ```
//!
//! Runs are measured at the engine: in this process, from the request to the report. No time is asserted.

#![cfg(target_os = "linux")]

mod args;
mod command;
mod comparison;
mod docker;
mod error;
mod figures;
mod folder;
mod idle_memory;
mod machine;
mod measure;
mod other_tools;
mod packages;
mod progress;
mod report;
mod sample;
mod sandbox_costs;
mod sandboxed;
mod server;
mod show;
mod show_comparison;
#[cfg(test)]
mod tests;
mod workload;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use belljar_engine::outcome::Warmth;
use belljar_engine::packages::PackageResolver;
use belljar_engine::provider::Provider;
use belljar_engine::warm::{WarmPoolMode, WarmSettings};
use belljar_providers::native::{LanguageState, Native, SpawnedLauncher};
use belljar_providers::settings::DockerSettings;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

use crate::command::CommandBench;
use crate::docker::DockerVariants;
use crate::folder::BenchFolder;
use crate::measure::{Variant, latency, throughput, warm_up};
use crate::progress::ProgressLine;
use crate::report::{BenchReport, VariantRow, WorkerThroughput, WorkloadReport};
use crate::sandboxed::{ExpectedLayers, SandboxBench};
use crate::server::BenchServer;
use crate::workload::{WORKLOADS, Workload};

pub use args::BenchArgs;
pub use error::BenchError;

const WORKERS: [usize; 3] = [1, 2, 8];
/// Time for a pool to refill, so that its idle memory can be measured.
const SETTLING: Duration = Duration::from_millis(300);

/// Creates a package resolver over a provider, with layers in a folder. It has the default settings and not
/// this machine's own, so that figures of two machines are comparable.
pub type PackagesFactory<'a> = &'a dyn Fn(Arc<dyn Provider>, PathBuf) -> Arc<dyn PackageResolver>;

/// Measures and shows the table. Returns `false` if it was interrupted.
///
/// # Errors
/// Says why nothing could be measured.
pub fn run(
    args: &BenchArgs,
    docker: Option<DockerSettings>,
    packages: PackagesFactory<'_>,
) -> Result<bool, BenchError> {
    if let Some(other) = &args.against {
        let comparison = comparison::compare(args, other)?;
        return print(|out| match args.json {
            true => show_comparison::json(&comparison, out),
            false => show_comparison::text(&comparison, out),
        });
    }
    let place = BenchFolder::create()?;
    let layers = ExpectedLayers::default();
    let mut bench = Bench {
        args,
        docker: args.docker.then(|| docker.unwrap_or_default()),
        place: place.path(),
        progress: ProgressLine::new(args.quiet),
        findings: BenchReport::new(args),
    };
    let chosen =
        |workload: &&Workload| args.only.is_empty() || args.only.iter().any(|name| name == workload.name);
    for workload in WORKLOADS.iter().filter(chosen) {
        if !bench.workload(workload, &layers)? {
            return Ok(false);
        }
    }
    if args.packages {
        let pause = Duration::from_millis(args.pause);
        let found =
            packages::measure_packages(&place.path().join("packages"), packages, pause, &mut bench.progress)?;
        bench.findings.packages = Some(found);
    }
    let Bench { mut findings, progress, .. } = bench;
    // Erase the progress line before the table is printed.
    drop(progress);
    if findings.workloads.is_empty() {
        let reasons: Vec<_> =
            findings.left_out.iter().map(|out| format!("{}: {}", out.what, out.reason)).collect();
        return Err(BenchError::machine(format!("nothing to measure: {}", reasons.join("; "))));
    }
    findings.layers = layers.get().cloned().unwrap_or_default();
    print(|out| match args.json {
        true => show::json(&findings, out),
        false => show::text(&findings, out),
    })
}

/// Writes to standard output; a closed pipe is not a failure.
fn print(
    write: impl FnOnce(&mut anstream::AutoStream<io::StdoutLock<'static>>) -> io::Result<()>,
) -> Result<bool, BenchError> {
    match write(&mut anstream::stdout().lock()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(BenchError::machine(format!("write to standard output: {error}")))
        }
        _ => Ok(true),
    }
}

/// Creates the event loop: single-threaded, as that of `run`.
fn runtime() -> Result<Runtime, BenchError> {
    let built = Builder::new_current_thread().enable_all().build();
    built.map_err(|error| BenchError::machine(format!("start the event loop: {error}")))
}

/// A benchmark in progress.
struct Bench<'a> {
    args: &'a BenchArgs,
    /// Docker settings, if Docker is measured.
    docker: Option<DockerSettings>,
    place: &'a Path,
    progress: ProgressLine,
    findings: BenchReport,
}

impl Bench<'_> {
    /// Measures one workload; `false` if it was interrupted.
    fn workload(&mut self, workload: &'static Workload, layers: &ExpectedLayers) -> Result<bool, BenchError> {
        let wanted: &[Warmth] =
            if workload.can_be_warm { &[Warmth::Cold, Warmth::Fork, Warmth::Pool] } else { &[Warmth::Cold] };
        // One launcher per variant, so that none keeps anything warm for another; started before any thread
        // exists.
        let started = wanted.iter().map(|wanted| Ok((*wanted, SpawnedLauncher::start()?)));
        let started = started.collect::<Result<Vec<_>, BenchError>>()?;
        // The single-threaded event loop of `run`, also for 8 workers: a multi-threaded one reached no higher
        // rate, because the launcher and the programs are what uses the processors.
        runtime()?.block_on(async {
            let listen = |kind| {
                signal(kind).map_err(|error| BenchError::machine(format!("listen for interrupts: {error}")))
            };
            let (mut interrupt, mut terminate) =
                (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
            let (languages, sandboxes) = connect(started, workload, layers).await?;
            let measured = tokio::select! {
                biased;
                _ = interrupt.recv() => Ok(false),
                _ = terminate.recv() => Ok(false),
                measured = self.measure(workload, languages, &sandboxes) => measured.map(|()| true),
            };
            for sandbox in &sandboxes {
                sandbox.engine().shut_down().await;
            }
            measured
        })
    }

    async fn measure(
        &mut self,
        workload: &'static Workload,
        languages: Vec<LanguageState>,
        sandboxes: &[Arc<SandboxBench>],
    ) -> Result<(), BenchError> {
        let Some(program) = self.program(workload, languages) else { return Ok(()) };
        // The first variant is cold. For a warm interpreter, /proc would show how its zygote was started.
        let control = CommandBench::control(&sandboxes[0].probe().await?, workload, self.place)?;
        if !self.can_import(workload, &control, &program) {
            return Ok(());
        }
        let in_docker = self.in_docker(&control, workload).await;
        let (tools, absent) = other_tools::find(&control, workload, self.docker.is_none());
        for (what, reason) in absent {
            self.findings.record_omission(what, workload.name, reason);
        }
        let mut variants = vec![Variant::Command(Arc::new(control))];
        variants.extend(sandboxes.iter().cloned().map(Variant::Sandbox));
        if self.args.http {
            variants.push(Variant::Http(Arc::new(BenchServer::start(self.place, workload)?)));
        }
        variants.extend(tools.into_iter().map(Arc::new).map(Variant::Command));
        variants.extend(in_docker.iter().flat_map(DockerVariants::variants));
        let measured = self.rows(workload, program, &variants).await;
        if let Some(docker) = in_docker {
            docker.pool.engine().shut_down().await;
        }
        measured
    }

    /// Prepares the Docker variants, if they are wanted and work.
    async fn in_docker(
        &mut self,
        control: &CommandBench,
        workload: &'static Workload,
    ) -> Option<DockerVariants> {
        let settings = self.docker.as_ref()?;
        let found = DockerVariants::prepare(settings, control, workload).await;
        found.map_err(|why| self.findings.record_omission("docker", workload.name, why)).ok()
    }

    async fn rows(
        &mut self,
        workload: &'static Workload,
        program: PathBuf,
        variants: &[Variant],
    ) -> Result<(), BenchError> {
        let samples = latency(variants, workload, self.args, &mut self.progress).await?;
        let mut rows = Vec::new();
        for (variant, own) in variants.iter().zip(&samples) {
            let row = VariantRow::new(variant, own, &samples[0]);
            rows.push(self.complete(row, variant, workload).await?);
        }
        if let (None, Some(served)) = (&self.findings.living, variants.iter().find_map(Variant::served)) {
            self.findings.living = Some(sandbox_costs::measure_sandboxes(served, &mut self.progress).await?);
        }
        let version = version(&program);
        let rounds = samples[0].len();
        self.findings.workloads.push(WorkloadReport { name: workload.name, program, version, rounds, rows });
        Ok(())
    }

    /// Returns the host's interpreter for the workload's language, or records why there is none.
    fn program(&mut self, workload: &Workload, languages: Vec<LanguageState>) -> Option<PathBuf> {
        let found = languages.into_iter().find(|found| found.language.name == workload.language)?;
        if found.program.is_none() {
            let install = found.language.install;
            self.findings.record_omission(
                workload.name,
                workload.name,
                format!("install it with: {install}"),
            );
        }
        found.program
    }

    fn can_import(&mut self, workload: &Workload, control: &CommandBench, program: &Path) -> bool {
        let Err(why) =
            (if workload.modules.is_empty() { Ok(()) } else { control.try_once(&workload.code_sample()) })
        else {
            return true;
        };
        let install = format!("{} -m pip install {}", program.display(), workload.modules.join(" "));
        self.findings.record_omission(
            workload.name,
            workload.name,
            format!("{why}; install the modules with: {install}"),
        );
        false
    }

    /// Measures idle memory and throughput of a row. A row without valid times needs neither.
    async fn complete(
        &mut self,
        mut row: VariantRow,
        variant: &Variant,
        workload: &'static Workload,
    ) -> Result<VariantRow, BenchError> {
        if let (true, Some(Warmth::Fork | Warmth::Pool)) = (row.has_figures(), variant.expected_warmth()) {
            warm_up(variant, workload, self.args).await?;
        }
        if let (Variant::Sandbox(sandbox), Some(Warmth::Pool)) = (variant, variant.expected_warmth()) {
            tokio::time::sleep(SETTLING).await;
            let pools = sandbox.engine().pools().await;
            row.idle = idle_memory::measure_idle(&pools);
            row.obstacle = pools.into_iter().find_map(|pool| pool.obstacle);
        }
        if !row.has_figures() {
            return Ok(row);
        }
        for workers in WORKERS {
            self.progress.show(&format!("{}: {} with {workers} workers", workload.name, row.name));
            let measured = throughput(variant, workload, workers, self.args.seconds).await?;
            row.throughput.push(WorkerThroughput::new(variant, workers, &measured));
        }
        Ok(row)
    }
}

async fn connect(
    started: Vec<(Warmth, SpawnedLauncher)>,
    workload: &'static Workload,
    layers: &ExpectedLayers,
) -> Result<(Vec<LanguageState>, Vec<Arc<SandboxBench>>), BenchError> {
    let (mut languages, mut sandboxes) = (Vec::new(), Vec::new());
    for (wanted, started) in started {
        let warming = match wanted {
            Warmth::Pool => WarmPoolMode::Pool,
            Warmth::Fork => WarmPoolMode::Fork,
            Warmth::Cold => WarmPoolMode::Off,
        };
        let native = Native::connect(started, WarmSettings::default().with_mode(warming)).await?;
        if languages.is_empty() {
            languages = native.languages();
        }
        sandboxes.push(Arc::new(SandboxBench::new(Arc::new(native), workload, wanted, Arc::clone(layers))));
    }
    Ok((languages, sandboxes))
}

/// Returns the first version number that a program prints for `--version`.
fn version(program: &Path) -> Option<String> {
    let output = command::output_with_timeout(Command::new(program).arg("--version")).ok()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let start = said.find(|c: char| c.is_ascii_digit())?;
    Some(said[start..].chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect())
}
