//! `belljar bench`: measures how fast runs are on this machine, beside the same commands without a sandbox
//! and beside other tools, in one table.
//!
//! ```text
//! for each workload:  launchers → engines → probe → all variants in turns → rows: times, then throughput
//! ```
//!
//! Runs are measured at the engine: in this process, from the request to the report. No time is asserted.

mod against;
mod args;
mod docker;
mod figures;
mod findings;
mod idle;
mod inside;
mod living;
mod machine;
mod measure;
mod outside;
mod packages;
mod place;
mod progress;
mod rivals;
mod sample;
mod served;
mod show;
mod show_against;
#[cfg(test)]
mod tests;
mod workload;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use belljar_engine::outcome::Warmth;

pub(crate) use args::BenchArgs;

use crate::config::Config;
use crate::env::Environment;
use crate::failure::Failure;
use crate::os::{self, FoundLanguage, Interrupts, Started};
use crate::say;
use belljar_engine::warm::{WarmSettings, Warming};
use belljar_providers::settings::DockerSettings;
use docker::InDocker;
use findings::{Cell, Findings, Row, WorkloadFinding};
use inside::{Inside, Layers};
use measure::{Way, latency, throughput, warm_again};
use outside::Outside;
use place::Place;
use progress::Progress;
use served::Served;
use workload::{WORKLOADS, Workload};

const WORKERS: [usize; 3] = [1, 2, 8];
/// Time for a pool to refill, so that its idle memory can be measured.
const SETTLING: Duration = Duration::from_millis(300);
const CANCELLED: u8 = 130;

/// Measures and shows the table.
pub(crate) fn run(args: &BenchArgs, environment: &Environment, config: &Config) -> Result<u8, Failure> {
    if let Some(other) = &args.against {
        let comparison = against::compare(args, other)?;
        return print(|out| match args.json {
            true => show_against::json(&comparison, out),
            false => show_against::text(&comparison, out),
        });
    }
    let place = Place::make()?;
    let layers = Layers::default();
    let mut bench = Bench {
        args,
        docker: args.docker.then(|| config.providers.docker().unwrap_or_default()),
        place: place.path(),
        progress: Progress::new(args.quiet),
        findings: Findings::new(args),
    };
    let chosen =
        |workload: &&Workload| args.only.is_empty() || args.only.iter().any(|name| name == workload.name);
    for workload in WORKLOADS.iter().filter(chosen) {
        if !bench.workload(workload, &layers)? {
            drop(bench);
            say::note("the benchmark was canceled");
            return Ok(CANCELLED);
        }
    }
    if args.packages {
        let pause = Duration::from_millis(args.pause);
        let found = packages::look(&place.path().join("packages"), environment, pause, &mut bench.progress)?;
        bench.findings.packages = Some(found);
    }
    let Bench { mut findings, progress, .. } = bench;
    // Erase the progress line before the table is printed.
    drop(progress);
    if findings.workloads.is_empty() {
        let reasons: Vec<_> =
            findings.left_out.iter().map(|out| format!("{}: {}", out.what, out.reason)).collect();
        return Err(Failure::host(format!("nothing to measure: {}", reasons.join("; "))));
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
) -> Result<u8, Failure> {
    match write(&mut anstream::stdout().lock()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::host(format!("write to standard output: {error}")))
        }
        _ => Ok(0),
    }
}

/// A benchmark in progress.
struct Bench<'a> {
    args: &'a BenchArgs,
    /// Docker settings, if Docker is measured.
    docker: Option<DockerSettings>,
    place: &'a Path,
    progress: Progress,
    findings: Findings,
}

impl Bench<'_> {
    /// Measures one workload; `false` if it was interrupted.
    fn workload(&mut self, workload: &'static Workload, layers: &Layers) -> Result<bool, Failure> {
        let wanted: &[Warmth] =
            if workload.warms { &[Warmth::Cold, Warmth::Fork, Warmth::Pool] } else { &[Warmth::Cold] };
        // One launcher per variant, so that none keeps anything warm for another; started before any thread
        // exists.
        let started = wanted.iter().map(|wanted| Ok((*wanted, os::launch()?)));
        let started = started.collect::<Result<Vec<_>, Failure>>()?;
        // The single-threaded event loop of `run`, also for 8 workers: a multi-threaded one reached no higher
        // rate, because the launcher and the programs are what uses the processors.
        os::runtime()?.block_on(async {
            let mut interrupts = Interrupts::listen()?;
            let (languages, insides) = connect(started, workload, layers).await?;
            let measured = tokio::select! {
                biased;
                () = interrupts.next() => Ok(false),
                measured = self.measure(workload, languages, &insides) => measured.map(|()| true),
            };
            for inside in &insides {
                inside.engine().shut_down().await;
            }
            measured
        })
    }

    async fn measure(
        &mut self,
        workload: &'static Workload,
        languages: Vec<FoundLanguage>,
        insides: &[Arc<Inside>],
    ) -> Result<(), Failure> {
        let Some(program) = self.program(workload, languages) else { return Ok(()) };
        // The first variant is cold. For a warm interpreter, /proc would show how its zygote was started.
        let control = Outside::control(&insides[0].probe().await?, workload, self.place)?;
        if !self.can_import(workload, &control, &program) {
            return Ok(());
        }
        let in_docker = self.in_docker(&control, workload).await;
        let (rivals, absent) = rivals::find(&control, workload, self.docker.is_none());
        for (what, reason) in absent {
            self.findings.leave_out(what, workload.name, reason);
        }
        let mut ways = vec![Way::Outside(Arc::new(control))];
        ways.extend(insides.iter().cloned().map(Way::Inside));
        if self.args.http {
            ways.push(Way::Served(Arc::new(Served::start(self.place, workload)?)));
        }
        ways.extend(rivals.into_iter().map(Arc::new).map(Way::Outside));
        ways.extend(in_docker.iter().flat_map(InDocker::ways));
        let measured = self.rows(workload, program, &ways).await;
        if let Some(docker) = in_docker {
            docker.pool.engine().shut_down().await;
        }
        measured
    }

    /// Prepares the Docker variants, if they are wanted and work.
    async fn in_docker(&mut self, control: &Outside, workload: &'static Workload) -> Option<InDocker> {
        let settings = self.docker.as_ref()?;
        let found = InDocker::find(settings, control, workload).await;
        found.map_err(|why| self.findings.leave_out("docker", workload.name, why)).ok()
    }

    async fn rows(
        &mut self,
        workload: &'static Workload,
        program: PathBuf,
        ways: &[Way],
    ) -> Result<(), Failure> {
        let samples = latency(ways, workload, self.args, &mut self.progress).await?;
        let mut rows = Vec::new();
        for (way, own) in ways.iter().zip(&samples) {
            let row = Row::new(way, own, &samples[0]);
            rows.push(self.complete(row, way, workload).await?);
        }
        if let (None, Some(served)) = (&self.findings.living, ways.iter().find_map(Way::served)) {
            self.findings.living = Some(living::look(served, &mut self.progress).await?);
        }
        let version = version(&program);
        let rounds = samples[0].len();
        self.findings.workloads.push(WorkloadFinding { name: workload.name, program, version, rounds, rows });
        Ok(())
    }

    /// Returns the host's interpreter for the workload's language, or records why there is none.
    fn program(&mut self, workload: &Workload, languages: Vec<FoundLanguage>) -> Option<PathBuf> {
        let found = languages.into_iter().find(|found| found.language.name == workload.language)?;
        if found.program.is_none() {
            let install = found.language.install;
            self.findings.leave_out(workload.name, workload.name, format!("install it with: {install}"));
        }
        found.program
    }

    fn can_import(&mut self, workload: &Workload, control: &Outside, program: &Path) -> bool {
        let Err(why) = (if workload.modules.is_empty() { Ok(()) } else { control.trial(&workload.piece()) })
        else {
            return true;
        };
        let install = format!("{} -m pip install {}", program.display(), workload.modules.join(" "));
        self.findings.leave_out(
            workload.name,
            workload.name,
            format!("{why}; install the modules with: {install}"),
        );
        false
    }

    /// Measures idle memory and throughput of a row. A row without valid times needs neither.
    async fn complete(
        &mut self,
        mut row: Row,
        way: &Way,
        workload: &'static Workload,
    ) -> Result<Row, Failure> {
        if let (true, Some(Warmth::Fork | Warmth::Pool)) = (row.holds(), way.wanted()) {
            warm_again(way, workload, self.args).await?;
        }
        if let (Way::Inside(inside), Some(Warmth::Pool)) = (way, way.wanted()) {
            tokio::time::sleep(SETTLING).await;
            let pools = inside.engine().pools().await;
            row.idle = idle::look(&pools);
            row.obstacle = pools.into_iter().find_map(|pool| pool.obstacle);
        }
        if !row.holds() {
            return Ok(row);
        }
        for workers in WORKERS {
            self.progress.show(&format!("{}: {} with {workers} workers", workload.name, row.name));
            let measured = throughput(way, workload, workers, self.args.seconds).await?;
            row.throughput.push(Cell::new(way, workers, &measured));
        }
        Ok(row)
    }
}

async fn connect(
    started: Vec<(Warmth, Started)>,
    workload: &'static Workload,
    layers: &Layers,
) -> Result<(Vec<FoundLanguage>, Vec<Arc<Inside>>), Failure> {
    let (mut languages, mut insides) = (Vec::new(), Vec::new());
    for (wanted, started) in started {
        let warming = match wanted {
            Warmth::Pool => Warming::Pool,
            Warmth::Fork => Warming::Fork,
            Warmth::Cold => Warming::Off,
        };
        let host = started.connect(WarmSettings::default().with_mode(warming), None).await?;
        if languages.is_empty() {
            languages = host.languages();
        }
        insides.push(Arc::new(Inside::new(host.provider(), workload, wanted, Arc::clone(layers))));
    }
    Ok((languages, insides))
}

/// Returns the first version number that a program prints for `--version`.
fn version(program: &Path) -> Option<String> {
    let output = outside::bounded(Command::new(program).arg("--version")).ok()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let start = said.find(|c: char| c.is_ascii_digit())?;
    Some(said[start..].chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect())
}
