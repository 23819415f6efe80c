//! The two measurements: latency of single runs, with all variants taking turns; and throughput of workers
//! that start their next run at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_engine::outcome::Warmth;
use tokio::task::JoinSet;

use crate::args::BenchArgs;
use crate::command::CommandBench;
use crate::error::BenchError;
use crate::progress::ProgressLine;
use crate::sample::Sample;
use crate::sandboxed::SandboxBench;
use crate::server::BenchServer;
use crate::workload::Workload;

/// A variant: one way to run a workload, and a row of the table.
#[derive(Debug, Clone)]
pub(crate) enum Variant {
    Command(Arc<CommandBench>),
    Sandbox(Arc<SandboxBench>),
    Http(Arc<BenchServer>),
}

impl Variant {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Command(command) => command.name,
            Self::Sandbox(sandbox) => sandbox.name,
            Self::Http(_) => "http",
        }
    }

    pub(crate) fn served(&self) -> Option<&BenchServer> {
        match self {
            Self::Http(served) => Some(served),
            Self::Command(_) | Self::Sandbox(_) => None,
        }
    }

    /// Returns how a run must have been served, according to its receipt, to count for this variant.
    pub(crate) fn expected_warmth(&self) -> Option<Warmth> {
        match self {
            Self::Command(_) => None,
            Self::Sandbox(sandbox) => Some(sandbox.expected),
            Self::Http(served) => Some(served.expected),
        }
    }

    async fn run_once(&self, workload: &Workload) -> Result<Sample, BenchError> {
        let piece = workload.code_sample();
        match self {
            Self::Command(command) => command.run_once(0, &piece),
            Self::Sandbox(sandbox) => sandbox.run_once(&piece).await,
            Self::Http(served) => served.run_once(workload, &piece).await,
        }
    }
}

/// Warm-up rounds, which fill caches, spare jails and pools. A slow workload gets fewer.
const WARM_UP: Rounds = Rounds { least: 2, most: 10, time: Duration::from_secs(2) };
const USUAL: Rounds = Rounds { least: 10, most: 200, time: Duration::from_secs(8) };

/// As many rounds as fit into a time, within bounds.
struct Rounds {
    least: u32,
    most: u32,
    time: Duration,
}

impl Rounds {
    fn streak(&self, done: u32) -> u32 {
        STREAK.min(self.most - done)
    }

    fn continues(&self, done: u32, since: Instant) -> bool {
        done < self.least || (done < self.most && since.elapsed() < self.time)
    }
}

/// Consecutive runs of one variant, like the requests of one client, before the next variant's turn.
const STREAK: u32 = 10;

/// Measures each variant in turns, so that a disturbance of the machine affects all of them alike.
pub(crate) async fn latency(
    variants: &[Variant],
    workload: &Workload,
    args: &BenchArgs,
    progress: &mut ProgressLine,
) -> Result<Vec<Vec<Sample>>, BenchError> {
    let pause = Duration::from_millis(args.pause);
    let mut samples = vec![Vec::new(); variants.len()];
    let rounds = args.rounds.map_or(USUAL, |rounds| Rounds { least: rounds, most: rounds, time: USUAL.time });
    for (phase, rounds) in [("warming up", WARM_UP), ("round", rounds)] {
        samples.iter_mut().for_each(Vec::clear);
        let (mut done, since) = (0, Instant::now());
        while rounds.continues(done, since) {
            let streak = rounds.streak(done);
            done += streak;
            progress.show(&format!("{}: {phase} {done}", workload.name));
            for (variant, samples) in variants.iter().zip(&mut samples) {
                // The first run of a streak is not counted: it finds the caches as another variant left them.
                for counted in 0..=streak {
                    let sample = variant.run_once(workload).await?;
                    samples.extend((counted > 0).then_some(sample));
                    // In this pause the launcher cleans up and prepares the next spare jail, as between the
                    // requests of an agent.
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }
    Ok(samples)
}

/// Runs the workload uncounted: warm sandboxes may have been evicted while other variants were measured.
pub(crate) async fn warm_up(
    variant: &Variant,
    workload: &Workload,
    args: &BenchArgs,
) -> Result<(), BenchError> {
    for _ in 0..WARM_UP.most {
        variant.run_once(workload).await?;
        tokio::time::sleep(Duration::from_millis(args.pause)).await;
    }
    Ok(())
}

/// The runs of workers that each start their next run when the last one has ended.
pub(crate) struct Throughput {
    pub(crate) samples: Vec<Sample>,
    pub(crate) per_second: f64,
}

pub(crate) async fn throughput(
    variant: &Variant,
    workload: &'static Workload,
    workers: usize,
    seconds: f64,
) -> Result<Throughput, BenchError> {
    let started = Instant::now();
    let end = started + Duration::from_secs_f64(seconds);
    let samples = match variant {
        Variant::Command(command) => threads(command, workload, workers, end)?,
        Variant::Sandbox(_) | Variant::Http(_) => tasks(variant, workload, workers, end).await?,
    };
    let per_second = samples.len() as f64 / started.elapsed().as_secs_f64();
    Ok(Throughput { samples, per_second })
}

/// Runs one thread per worker, because waiting for a command blocks. The event loop is idle meanwhile.
fn threads(
    command: &CommandBench,
    workload: &Workload,
    workers: usize,
    end: Instant,
) -> Result<Vec<Sample>, BenchError> {
    let work = |worker| {
        let mut samples = Vec::new();
        while Instant::now() < end {
            samples.push(command.run_once(worker, &workload.code_sample())?);
        }
        Ok(samples)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|worker| scope.spawn(move || work(worker))).collect();
        let lost = |_| Err(BenchError::machine("a worker of the benchmark panicked; please report it"));
        let ended = threads.into_iter().map(|thread| thread.join().unwrap_or_else(lost));
        ended.collect::<Result<Vec<_>, _>>().map(|samples| samples.concat())
    })
}

/// Runs one task per worker, on the single-threaded event loop that the command line uses.
async fn tasks(
    variant: &Variant,
    workload: &'static Workload,
    workers: usize,
    end: Instant,
) -> Result<Vec<Sample>, BenchError> {
    let mut tasks = JoinSet::new();
    for _ in 0..workers {
        let variant = variant.clone();
        tasks.spawn(async move {
            let mut samples = Vec::new();
            while Instant::now() < end {
                samples.push(variant.run_once(workload).await?);
            }
            Ok::<_, BenchError>(samples)
        });
    }
    let mut all = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        let lost = |_| BenchError::machine("a worker of the benchmark panicked; please report it");
        all.extend(ended.map_err(lost)??);
    }
    Ok(all)
}
