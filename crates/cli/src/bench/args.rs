//! What `belljar bench` was told.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, value_parser};

use super::workload::WORKLOADS;

const EXAMPLES: &str = "\
Examples:
  belljar bench                                         everything, in about a minute
  belljar bench --only python,bash                      two workloads
  belljar bench --rounds 1000 --seconds 5               finer percentiles, steadier rates
  belljar bench --http --only python                    a server, over kept connections
  belljar bench --docker --only python                  provider 'docker' beside Docker itself
  belljar bench --packages --only python                packages as layers, beside pip install
  belljar bench --against ./belljar-0.1                 another binary and this one, in turns
  belljar bench --pause 0                               a client that never waits
  belljar bench --json > bench.json                     for programs

Close what else is busy on this machine first. Exit status: 0, 130 cancelled, 125 when nothing could
be measured (the message says why).";

/// `belljar bench`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    /// Rounds, each way once in each [default: what fits into 5 seconds a workload, 10 to 200]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=100_000))]
    pub(super) rounds: Option<u32>,
    /// How long each cell of executions per second is measured
    #[arg(long, value_name = "S", default_value_t = 0.5, value_parser = seconds)]
    pub(super) seconds: f64,
    /// Milliseconds between two runs of a round
    #[arg(long, value_name = "MS", default_value_t = 5, value_parser = value_parser!(u64).range(0..=10_000))]
    pub(super) pause: u64,
    /// Only these workloads, with commas between them
    #[arg(long, value_name = "W", value_delimiter = ',', value_parser = names())]
    pub(super) only: Vec<String>,
    /// Also over HTTP: a server of its own, and what its sandboxes cost
    #[arg(long)]
    pub(super) http: bool,
    /// Also in Docker: containers that wait, beside 'docker exec' and 'docker run' in the same image
    #[arg(long)]
    pub(super) docker: bool,
    /// Also packages: until they are ready, beside pip, and what an import costs (needs a registry)
    #[arg(long)]
    pub(super) packages: bool,
    /// Compare with another belljar binary: both are measured in short slices, in turns
    #[arg(long, value_name = "BINARY", conflicts_with_all = ["docker", "packages"])]
    pub(super) against: Option<PathBuf>,
    /// Slices of each binary and workload
    #[arg(long, value_name = "N", default_value_t = 5, requires = "against", value_parser = value_parser!(u32).range(1..=1_000))]
    pub(super) slices: u32,
    /// No progress on standard error
    #[arg(long)]
    pub(super) quiet: bool,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

fn names() -> PossibleValuesParser {
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
    fn a_cell_has_a_sensible_length() {
        assert_eq!(seconds("0.2"), Ok(0.2));
        for wrong in ["0", "-1", "nan", "inf", "1s", "601"] {
            assert!(seconds(wrong).unwrap_err().contains("not between"), "{wrong}");
        }
    }
}
