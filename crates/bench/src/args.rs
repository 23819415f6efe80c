//! Arguments of `belljar bench`.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, value_parser};

use crate::workload::WORKLOADS;

const EXAMPLES: &str = "\
Examples:
  belljar bench                                         all workloads, in about a minute
  belljar bench --only python,bash                      only two workloads
  belljar bench --rounds 1000 --seconds 5               finer percentiles, steadier rates
  belljar bench --http --only python                    also over HTTP, through a server
  belljar bench --docker --only python                  also provider 'docker', beside plain Docker
  belljar bench --packages --only python                also package layers, beside pip install
  belljar bench --against ./belljar-0.1                 compare this binary with another one
  belljar bench --pause 0                               no pause between runs
  belljar bench --json > bench.json                     machine-readable output

Stop other busy programs first. Exit status: 0 on success, 130 canceled, 125 when nothing could be
measured (the message says why).";

/// Arguments of `belljar bench`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchArgs {
    /// Rounds to measure; each round runs every variant once [default: what fits into 5 seconds per workload,
    /// 10 to 200]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=100_000))]
    pub(crate) rounds: Option<u32>,
    /// Seconds to measure each executions-per-second figure
    #[arg(long, value_name = "S", default_value_t = 0.5, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Milliseconds between two runs of a round
    #[arg(long, value_name = "MS", default_value_t = 5, value_parser = value_parser!(u64).range(0..=10_000))]
    pub(crate) pause: u64,
    /// Comma-separated workloads to measure
    #[arg(long, value_name = "W", value_delimiter = ',', value_parser = workload_names())]
    pub(crate) only: Vec<String>,
    /// Also measure over HTTP, through a temporary server, and the cost of its sandboxes
    #[arg(long)]
    pub(crate) http: bool,
    /// Also measure Docker: warm containers, beside 'docker exec' and 'docker run' with the same image
    #[arg(long)]
    pub(crate) docker: bool,
    /// Also measure packages: install time beside pip, and import time (needs a package registry)
    #[arg(long)]
    pub(crate) packages: bool,
    /// Compare with another belljar binary; both are measured in short alternating slices
    #[arg(long, value_name = "BINARY", conflicts_with_all = ["docker", "packages"])]
    pub(crate) against: Option<PathBuf>,
    /// Number of slices per binary and workload
    #[arg(long, value_name = "N", default_value_t = 5, requires = "against", value_parser = value_parser!(u32).range(1..=1_000))]
    pub(crate) slices: u32,
    /// Do not show progress on standard error
    #[arg(long)]
    pub(crate) quiet: bool,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub json: bool,
}

fn workload_names() -> PossibleValuesParser {
    PossibleValuesParser::new(WORKLOADS.iter().map(|workload| workload.name))
}

fn seconds(text: &str) -> Result<f64, String> {
    let wrong = || format!("'{text}' is not between 0.01 and 600 seconds");
    text.parse().ok().filter(|seconds| (0.01..=600.0).contains(seconds)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_must_be_in_range() {
        assert_eq!(seconds("0.2"), Ok(0.2));
        for wrong in ["0", "-1", "nan", "inf", "1s", "601"] {
            assert!(seconds(wrong).unwrap_err().contains("not between"), "{wrong}");
        }
    }
}
