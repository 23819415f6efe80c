//! The results of a benchmark. Field names are those of `--json`.

use std::path::PathBuf;

use belljar_engine::layer::Layer;
use belljar_engine::outcome::Warmth;
use serde::Serialize;

use crate::args::BenchArgs;
use crate::idle_memory::IdleMemory;
use crate::machine::{MachineInfo, now};
use crate::measure::{Throughput, Variant};
use crate::packages::PackageCosts;
use crate::sample::{Sample, WarmthCounts, percentile};
use crate::sandbox_costs::SandboxCosts;

/// The results of one benchmark.
#[derive(Debug, Serialize)]
pub(crate) struct BenchReport {
    pub(crate) belljar: &'static str,
    /// Whether this is a debug build, whose own share of each run is far too slow.
    pub(crate) debug_build: bool,
    pub(crate) date: String,
    pub(crate) machine: MachineInfo,
    pub(crate) pause_ms: u64,
    pub(crate) seconds: f64,
    pub(crate) workloads: Vec<WorkloadReport>,
    /// Costs of sandboxes, if a server was measured.
    pub(crate) living: Option<SandboxCosts>,
    /// Costs of packages, if measured.
    pub(crate) packages: Option<PackageCosts>,
    /// Isolation layers in force in every sandboxed run; a run with different ones ends the benchmark.
    pub(crate) layers: Vec<Layer>,
    pub(crate) left_out: Vec<Omission>,
}

/// The results of one workload, one row per variant.
#[derive(Debug, Serialize)]
pub(crate) struct WorkloadReport {
    pub(crate) name: &'static str,
    pub(crate) program: PathBuf,
    pub(crate) version: Option<String>,
    pub(crate) rounds: usize,
    pub(crate) rows: Vec<VariantRow>,
}

/// The results of one variant. Figures are absent when most runs were not served the way that the row
/// measures.
#[derive(Debug, Serialize)]
pub(crate) struct VariantRow {
    pub(crate) name: &'static str,
    /// The command executed, for variants that run a command.
    pub(crate) command: Option<Vec<String>>,
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
    /// Its p50 divided by the p50 of the bare command.
    pub(crate) ratio: Option<f64>,
    pub(crate) throughput: Vec<WorkerThroughput>,
    pub(crate) idle: Option<IdleMemory>,
    /// How the runs behind p50 and p99 were served, according to their receipts.
    pub(crate) served: Option<WarmthCounts>,
    /// The share of those runs that were served the way that the row measures.
    pub(crate) share: Option<f64>,
    /// Why nothing was warm, if the provider knows.
    pub(crate) obstacle: Option<String>,
}

/// Executions per second with a given number of workers.
#[derive(Debug, Serialize)]
pub(crate) struct WorkerThroughput {
    pub(crate) workers: usize,
    pub(crate) per_second: Option<f64>,
    pub(crate) runs: usize,
    pub(crate) served: Option<WarmthCounts>,
}

/// A variant missing from the table.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Omission {
    pub(crate) what: &'static str,
    /// The workloads that it is missing for.
    pub(crate) workloads: Vec<&'static str>,
    pub(crate) reason: String,
}

impl BenchReport {
    pub(crate) fn new(args: &BenchArgs) -> Self {
        Self {
            belljar: env!("CARGO_PKG_VERSION"),
            debug_build: cfg!(debug_assertions),
            date: now(),
            machine: MachineInfo::read(),
            pause_ms: args.pause,
            seconds: args.seconds,
            workloads: Vec::new(),
            living: None,
            packages: None,
            layers: Vec::new(),
            left_out: Vec::new(),
        }
    }

    /// Records a missing variant; one reason shared by several workloads is listed once.
    pub(crate) fn record_omission(&mut self, what: &'static str, workload: &'static str, reason: String) {
        match self.left_out.iter_mut().find(|known| known.what == what && known.reason == reason) {
            Some(known) => known.workloads.push(workload),
            None => self.left_out.push(Omission { what, workloads: vec![workload], reason }),
        }
    }
}

impl VariantRow {
    /// Creates a row with its times and no throughput yet.
    pub(crate) fn new(variant: &Variant, samples: &[Sample], bare: &[Sample]) -> Self {
        let served = variant.expected_warmth().map(|wanted| (WarmthCounts::count(samples), wanted));
        let share = served.map(|(served, wanted)| served.share(wanted));
        // Below one half, the median itself may be a run that was served another way.
        let meant = share.is_none_or(|share| share >= 0.5);
        let at = |samples: &[Sample], share| {
            percentile(samples, share).filter(|_| meant).map(|time| time.as_secs_f64() * 1e3)
        };
        let p50_ms = at(samples, 0.5);
        Self {
            name: variant.name(),
            command: match variant {
                Variant::Command(command) => Some(command.words.clone()),
                Variant::Sandbox(_) | Variant::Http(_) => None,
            },
            p50_ms,
            p99_ms: at(samples, 0.99),
            ratio: p50_ms.zip(at(bare, 0.5)).map(|(own, bare)| own / bare),
            throughput: Vec::new(),
            idle: None,
            served: served.map(|(served, _)| served),
            share,
            obstacle: None,
        }
    }

    /// Returns whether its runs were served the way that it measures.
    pub(crate) fn has_figures(&self) -> bool {
        self.p50_ms.is_some()
    }
}

impl WorkerThroughput {
    pub(crate) fn new(variant: &Variant, workers: usize, measured: &Throughput) -> Self {
        let wanted = variant.expected_warmth();
        let served = wanted.map(|_| WarmthCounts::count(&measured.samples));
        // A pool emptied faster than it refills falls back to forks: still warm, and the counts show it.
        let meant = match (wanted, served) {
            (Some(Warmth::Pool | Warmth::Fork), Some(served)) => served.share(Warmth::Cold) <= 0.5,
            _ => true,
        };
        let per_second = meant.then_some(measured.per_second);
        Self { workers, per_second, runs: measured.samples.len(), served }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_omission_is_listed_once() {
        let mut findings = BenchReport::new(&crate::tests::args());
        findings.record_omission("bwrap", "python", "not installed".to_owned());
        findings.record_omission("bwrap", "bash", "not installed".to_owned());
        findings.record_omission("docker", "bash", "not installed".to_owned());
        let found: Vec<_> =
            findings.left_out.iter().map(|out| (out.what, out.workloads.as_slice())).collect();
        assert_eq!(found, [("bwrap", ["python", "bash"].as_slice()), ("docker", &["bash"])]);
    }
}
