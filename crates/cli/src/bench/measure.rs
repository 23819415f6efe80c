//! The two measurements: latency of single runs, with all variants taking turns; and throughput of workers
//! that start their next run at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_engine::outcome::Warmth;
use tokio::task::JoinSet;

use super::args::BenchArgs;
use super::inside::Inside;
use super::outside::Outside;
use super::progress::Progress;
use super::sample::Sample;
use super::served::Served;
use super::workload::Workload;
use crate::failure::Failure;

/// A variant: one way to run a workload, and a row of the table.
#[derive(Debug, Clone)]
pub(super) enum Way {
    Outside(Arc<Outside>),
    Inside(Arc<Inside>),
    Served(Arc<Served>),
}

impl Way {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Outside(outside) => outside.name,
            Self::Inside(inside) => inside.name,
            Self::Served(_) => "http",
        }
    }

    pub(super) fn served(&self) -> Option<&Served> {
        match self {
            Self::Served(served) => Some(served),
            Self::Outside(_) | Self::Inside(_) => None,
        }
    }

    /// Returns how a run must have been served, according to its receipt, to count for this variant.
    pub(super) fn wanted(&self) -> Option<Warmth> {
        match self {
            Self::Outside(_) => None,
            Self::Inside(inside) => Some(inside.wanted),
            Self::Served(served) => Some(served.wanted),
        }
    }

    async fn once(&self, workload: &Workload) -> Result<Sample, Failure> {
        let piece = workload.piece();
        match self {
            Self::Outside(outside) => outside.once(0, &piece),
            Self::Inside(inside) => inside.once(&piece).await,
            Self::Served(served) => served.once(workload, &piece).await,
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

    fn go_on(&self, done: u32, since: Instant) -> bool {
        done < self.least || (done < self.most && since.elapsed() < self.time)
    }
}

/// Consecutive runs of one variant, like the requests of one client, before the next variant's turn.
const STREAK: u32 = 10;

/// Measures each variant in turns, so that a disturbance of the machine affects all of them alike.
pub(super) async fn latency(
    ways: &[Way],
    workload: &Workload,
    args: &BenchArgs,
    progress: &mut Progress,
) -> Result<Vec<Vec<Sample>>, Failure> {
    let pause = Duration::from_millis(args.pause);
    let mut samples = vec![Vec::new(); ways.len()];
    let rounds = args.rounds.map_or(USUAL, |rounds| Rounds { least: rounds, most: rounds, time: USUAL.time });
    for (phase, rounds) in [("warming up", WARM_UP), ("round", rounds)] {
        samples.iter_mut().for_each(Vec::clear);
        let (mut done, since) = (0, Instant::now());
        while rounds.go_on(done, since) {
            let streak = rounds.streak(done);
            done += streak;
            progress.show(&format!("{}: {phase} {done}", workload.name));
            for (way, samples) in ways.iter().zip(&mut samples) {
                // The first run of a streak is not counted: it finds the caches as another variant left them.
                for counted in 0..=streak {
                    let sample = way.once(workload).await?;
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
pub(super) async fn warm_again(way: &Way, workload: &Workload, args: &BenchArgs) -> Result<(), Failure> {
    for _ in 0..WARM_UP.most {
        way.once(workload).await?;
        tokio::time::sleep(Duration::from_millis(args.pause)).await;
    }
    Ok(())
}

/// The runs of workers that each start their next run when the last one has ended.
pub(super) struct Throughput {
    pub(super) samples: Vec<Sample>,
    pub(super) per_second: f64,
}

pub(super) async fn throughput(
    way: &Way,
    workload: &'static Workload,
    workers: usize,
    seconds: f64,
) -> Result<Throughput, Failure> {
    let started = Instant::now();
    let end = started + Duration::from_secs_f64(seconds);
    let samples = match way {
        Way::Outside(outside) => threads(outside, workload, workers, end)?,
        Way::Inside(_) | Way::Served(_) => tasks(way, workload, workers, end).await?,
    };
    let per_second = samples.len() as f64 / started.elapsed().as_secs_f64();
    Ok(Throughput { samples, per_second })
}

/// Runs one thread per worker, because waiting for a command blocks. The event loop is idle meanwhile.
fn threads(
    outside: &Outside,
    workload: &Workload,
    workers: usize,
    end: Instant,
) -> Result<Vec<Sample>, Failure> {
    let work = |worker| {
        let mut samples = Vec::new();
        while Instant::now() < end {
            samples.push(outside.once(worker, &workload.piece())?);
        }
        Ok(samples)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|worker| scope.spawn(move || work(worker))).collect();
        let lost = |_| Err(Failure::host("a worker of the benchmark panicked; please report it"));
        let ended = threads.into_iter().map(|thread| thread.join().unwrap_or_else(lost));
        ended.collect::<Result<Vec<_>, _>>().map(|samples| samples.concat())
    })
}

/// Runs one task per worker, on the single-threaded event loop that the command line uses.
async fn tasks(
    way: &Way,
    workload: &'static Workload,
    workers: usize,
    end: Instant,
) -> Result<Vec<Sample>, Failure> {
    let mut tasks = JoinSet::new();
    for _ in 0..workers {
        let way = way.clone();
        tasks.spawn(async move {
            let mut samples = Vec::new();
            while Instant::now() < end {
                samples.push(way.once(workload).await?);
            }
            Ok::<_, Failure>(samples)
        });
    }
    let mut all = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        let lost = |_| Failure::host("a worker of the benchmark panicked; please report it");
        all.extend(ended.map_err(lost)??);
    }
    Ok(all)
}
