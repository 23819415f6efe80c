//! `belljar bench --against`: compares this binary with another one.
//!
//! Both run their own `bench --json` in short alternating slices: other, this, this, other, … Every slice
//! also measures the bare command, so that it is compared with the machine's state at that moment. A figure
//! is the median over a binary's slices; the change compares ratios to bare.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde::{Deserialize, Serialize};

use crate::args::BenchArgs;
use crate::error::{BenchError, quote_path};
use crate::machine::{MachineInfo, now};
use crate::progress::ProgressLine;
use crate::workload::WORKLOADS;

/// Variants that both binaries measure. Rows of other tools differ from machine to machine, so they are not
/// compared.
const VARIANTS: [&str; 4] = ["cold", "fork", "pool", "http"];
const BARE: &str = "bare";
/// Default number of rounds per slice: long enough for a median, short enough to alternate often.
const ROUNDS: u32 = 20;

/// The figures of both binaries. Field names are those of `--json`.
#[derive(Debug, Serialize)]
pub(crate) struct Comparison {
    pub(crate) this: PathBuf,
    pub(crate) other: PathBuf,
    pub(crate) date: String,
    pub(crate) machine: MachineInfo,
    /// Number of slices per binary.
    pub(crate) slices: u32,
    /// Number of rounds per slice.
    pub(crate) rounds: u32,
    pub(crate) debug_build: bool,
    pub(crate) rows: Vec<ComparedRow>,
    /// Workloads and slices that one of the binaries did not measure, with the reason.
    pub(crate) left_out: Vec<String>,
}

/// The comparison of one variant of one workload.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct ComparedRow {
    pub(crate) workload: &'static str,
    pub(crate) way: &'static str,
    /// Median of the bare command over all slices.
    pub(crate) bare_p50_ms: Option<f64>,
    pub(crate) other: Figure,
    pub(crate) this: Figure,
    /// Change of the ratio to bare, from the other binary to this one.
    pub(crate) change_percent: Option<f64>,
}

/// Medians over a binary's slices; absent when runs were not served the way that the row measures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Figure {
    pub(crate) p50_ms: Option<f64>,
    pub(crate) ratio: Option<f64>,
}

/// The fields read from a slice's JSON. Other versions may write more.
#[derive(Debug, Deserialize)]
struct SliceReport {
    workloads: Vec<SliceWorkload>,
    #[serde(default)]
    left_out: Vec<SliceAbsence>,
}

#[derive(Debug, Deserialize)]
struct SliceWorkload {
    name: String,
    rows: Vec<SliceRow>,
}

#[derive(Debug, Deserialize)]
struct SliceRow {
    name: String,
    p50_ms: Option<f64>,
    ratio: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct SliceAbsence {
    what: String,
    reason: String,
}

/// Measures both binaries in turns.
pub(crate) fn compare(args: &BenchArgs, other: &Path) -> Result<Comparison, BenchError> {
    let this = std::env::current_exe()
        .map_err(|error| BenchError::machine(format!("cannot find the path of this binary: {error}")))?;
    let other = other
        .canonicalize()
        .map_err(|error| BenchError::Argument(format!("--against {}: {error}", quote_path(other))))?;
    let mut progress = ProgressLine::new(args.quiet);
    let mut comparison = Comparison {
        this,
        other,
        date: now(),
        machine: MachineInfo::read(),
        slices: args.slices,
        rounds: args.rounds.unwrap_or(ROUNDS),
        debug_build: cfg!(debug_assertions),
        rows: Vec::new(),
        left_out: Vec::new(),
    };
    let chosen = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    for workload in WORKLOADS.iter().filter(|workload| chosen(workload.name)) {
        comparison.workload(workload.name, args, &mut progress)?;
    }
    if comparison.rows.is_empty() {
        return Err(BenchError::machine(format!("nothing to compare: {}", comparison.left_out.join("; "))));
    }
    Ok(comparison)
}

impl Comparison {
    fn workload(
        &mut self,
        workload: &'static str,
        args: &BenchArgs,
        progress: &mut ProgressLine,
    ) -> Result<(), BenchError> {
        let (mut of_other, mut of_this) = (Vec::new(), Vec::new());
        for number in 0..self.slices {
            progress.show(&format!("{workload}: slice {} of {}", number + 1, self.slices));
            // The first binary affects the machine for the second, so the order alternates.
            let mut turns = [(&self.other, &mut of_other), (&self.this, &mut of_this)];
            if number % 2 == 1 {
                turns.reverse();
            }
            for (binary, slices) in turns {
                match measure_slice(binary, workload, self.rounds, args)? {
                    Slice::Measured(rows) => slices.push(rows),
                    Slice::NotMeasurable(reason) => {
                        self.left_out.push(format!("{workload}: {reason}"));
                        return Ok(());
                    }
                    // The other slices still count; one failure must not cost the whole comparison.
                    Slice::Failed(reason) => {
                        self.left_out.push(format!("{workload}, slice {}: {reason}", number + 1));
                    }
                }
            }
        }
        self.rows.extend(compare_rows(workload, &of_other, &of_this));
        Ok(())
    }
}

/// What one slice of one binary gave.
enum Slice {
    Measured(Vec<SliceRow>),
    /// The binary leaves this workload out on this machine.
    NotMeasurable(String),
    Failed(String),
}

/// Measures one slice.
fn measure_slice(binary: &Path, workload: &str, rounds: u32, args: &BenchArgs) -> Result<Slice, BenchError> {
    let failed = |why: &str| BenchError::machine(format!("{} bench: {why}", quote_path(binary)));
    let mut command = Command::new(binary);
    command.args(["bench", "--json", "--quiet", "--seconds", "0.01", "--only", workload]);
    command.args(["--rounds", &rounds.to_string(), "--pause", &args.pause.to_string()]);
    command.args(args.http.then_some("--http"));
    let output = command.stdin(Stdio::null()).output().map_err(|error| failed(&error.to_string()))?;
    if !output.status.success() {
        let reason = error_message(&output);
        return Ok(if reason.contains("nothing to measure") {
            Slice::NotMeasurable(reason)
        } else {
            Slice::Failed(format!("{} failed: {reason}", quote_path(binary)))
        });
    }
    let slice: SliceReport = serde_json::from_slice(&output.stdout)
        .map_err(|error| failed(&format!("unexpected JSON output: {error}")))?;
    let absent = slice.left_out.into_iter().find(|absence| absence.what == workload);
    Ok(match slice.workloads.into_iter().find(|found| found.name == workload) {
        Some(found) => Slice::Measured(found.rows),
        None => {
            Slice::NotMeasurable(absent.map_or_else(|| "not measured".to_owned(), |absence| absence.reason))
        }
    })
}

/// Returns the error of a failed `bench --json`: it is JSON on stdout, or the last line on stderr.
fn error_message(output: &Output) -> String {
    #[derive(Deserialize)]
    struct Printed {
        error: PrintedError,
    }
    #[derive(Deserialize)]
    struct PrintedError {
        message: String,
    }
    if let Ok(printed) = serde_json::from_slice::<Printed>(&output.stdout) {
        return printed.error.message;
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    stderr.lines().last().map_or_else(|| output.status.to_string(), str::to_owned)
}

/// Builds one row for each variant that a binary has figures for.
fn compare_rows(
    workload: &'static str,
    of_other: &[Vec<SliceRow>],
    of_this: &[Vec<SliceRow>],
) -> Vec<ComparedRow> {
    let both = || of_other.iter().chain(of_this);
    let bare_p50_ms = median(both().flatten().filter(|row| row.name == BARE).filter_map(|row| row.p50_ms));
    let row = |way: &'static str| {
        let figure = |slices: &[Vec<SliceRow>]| {
            let rows = || slices.iter().flatten().filter(|row| row.name == way);
            Figure {
                p50_ms: median(rows().filter_map(|row| row.p50_ms)),
                ratio: median(rows().filter_map(|row| row.ratio)),
            }
        };
        let (other, this) = (figure(of_other), figure(of_this));
        let change = |(old, new): (f64, f64)| (new / old - 1.0) * 100.0;
        let change_percent = other.ratio.zip(this.ratio).map(change);
        ComparedRow { workload, way, bare_p50_ms, other, this, change_percent }
    };
    let measured = |way: &&str| both().flatten().any(|row| row.name == **way);
    VARIANTS.into_iter().filter(measured).map(row).collect()
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        even if even % 2 == 0 => Some(f64::midpoint(values[middle - 1], values[middle])),
        _ => Some(values[middle]),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    use super::*;

    fn rows(json: &str) -> Vec<SliceRow> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn medians() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), Some(2.5));
        assert_eq!(median(std::iter::empty()), None);
    }

    #[test]
    fn the_error_of_a_failed_slice_is_read_from_either_stream() {
        let output = |stdout: &str, stderr: &str| Output {
            status: ExitStatus::from_raw(125 << 8),
            stdout: stdout.as_bytes().to_vec(),
            stderr: stderr.as_bytes().to_vec(),
        };
        let json = r#"{"error":{"code":"setup_failed","message":"the pool stayed empty"}}"#;
        assert_eq!(error_message(&output(json, "")), "the pool stayed empty");
        assert_eq!(error_message(&output("", "warning\nbelljar: error: no")), "belljar: error: no");
        assert_eq!(error_message(&output("", "")), "exit status: 125");
    }

    #[test]
    fn the_change_compares_ratios() {
        let old = rows(
            r#"[{"name":"bare","p50_ms":10.0,"ratio":1.0},{"name":"cold","p50_ms":20.0,"ratio":2.0,"share":1.0},
                {"name":"bwrap","p50_ms":30.0,"ratio":3.0}]"#,
        );
        // The machine was twice as slow for the new binary, and nothing else changed; its pool served no run.
        let new = rows(
            r#"[{"name":"bare","p50_ms":20.0,"ratio":1.0},{"name":"cold","p50_ms":40.0,"ratio":2.0},
                {"name":"pool","p50_ms":null,"ratio":null}]"#,
        );
        let compared = compare_rows("python", &[old], &[new]);
        let ways: Vec<_> = compared.iter().map(|row| row.way).collect();
        assert_eq!(ways, ["cold", "pool"]);
        assert_eq!((compared[0].bare_p50_ms, compared[0].change_percent), (Some(15.0), Some(0.0)));
        assert_eq!(compared[0].this, Figure { p50_ms: Some(40.0), ratio: Some(2.0) });
        assert_eq!((compared[1].this, compared[1].change_percent), (Figure::default(), None));
    }
}
