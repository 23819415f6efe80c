//! Tests the benchmark's rows with a provider that runs nothing and claims any warmth.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use belljar_engine::layer::Layer;
use belljar_engine::outcome::{Ending, Kernel, Outcome, Receipt, Warmth};
use belljar_engine::plan::{CodeSource, Program};
use belljar_engine::provider::Stream;
use belljar_engine::testing::FakeProvider;

use crate::args::BenchArgs;
use crate::error::BenchError;
use crate::measure::{Variant, latency, throughput};
use crate::progress::ProgressLine;
use crate::report::{BenchReport, VariantRow, WorkerThroughput, WorkloadReport};
use crate::runtime;
use crate::sandboxed::{ExpectedLayers, SandboxBench};
use crate::show;
use crate::workload::WORKLOADS;

/// A provider that answers `print(6 * N)` and claims these warmths in turns.
#[derive(Debug, Clone, Copy)]
struct Claims {
    warmths: &'static [Warmth],
    layers: &'static [Layer],
    factor: u64,
}

fn claims(warmths: &'static [Warmth]) -> Claims {
    Claims { warmths, layers: Layer::MANDATORY, factor: 6 }
}

impl Claims {
    fn provider(self) -> FakeProvider {
        let next = AtomicUsize::new(0);
        FakeProvider::new("claims", move |_, task, sink, _| {
            let Program::Code { source: CodeSource::Text { code, .. }, .. } = &task.program else {
                panic!("no code")
            };
            let digits: String =
                code[code.find('*').unwrap()..].chars().filter(char::is_ascii_digit).collect();
            let answer = self.factor * digits.parse::<u64>().unwrap();
            let warm = self.warmths[next.fetch_add(1, Ordering::Relaxed) % self.warmths.len()];
            let isolation = self.layers.to_vec();
            let receipt = Receipt { isolation, warm, ..Receipt::new("claims", Kernel::Host) };
            Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                sink.output(Stream::Stdout, format!("{answer}\n").as_bytes());
                Ok(Outcome::new(Ending::Exited(0), Duration::ZERO, receipt))
            })
        })
    }
}

pub(crate) fn args() -> BenchArgs {
    BenchArgs {
        rounds: Some(8),
        seconds: 0.02,
        pause: 0,
        only: Vec::new(),
        http: false,
        docker: false,
        packages: false,
        against: None,
        slices: 5,
        quiet: true,
        json: false,
    }
}

fn variant(claims: Claims, wanted: Warmth, layers: &ExpectedLayers) -> Variant {
    Variant::Sandbox(Arc::new(SandboxBench::new(
        Arc::new(claims.provider()),
        &WORKLOADS[0],
        wanted,
        Arc::clone(layers),
    )))
}

/// Measures a row beside a first one that counts as bare.
fn row(variant: &Variant) -> Result<VariantRow, BenchError> {
    let bare = self::variant(claims(&[Warmth::Cold]), Warmth::Cold, &ExpectedLayers::default());
    runtime()?.block_on(async {
        let variants = [bare, variant.clone()];
        let samples = latency(&variants, &WORKLOADS[0], &args(), &mut ProgressLine::new(true)).await?;
        let mut row = VariantRow::new(variant, &samples[1], &samples[0]);
        let measured = throughput(variant, &WORKLOADS[0], 2, 0.02).await?;
        row.throughput.push(WorkerThroughput::new(variant, 2, &measured));
        Ok(row)
    })
}

fn shown(rows: Vec<VariantRow>) -> String {
    let mut findings = BenchReport::new(&args());
    let python = WorkloadReport { name: "python", program: PathBuf::new(), version: None, rounds: 8, rows };
    findings.workloads.push(python);
    let mut out = Vec::new();
    show::text(&findings, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn a_mostly_warm_row_has_figures_and_counts_other_runs() {
    let mostly = claims(&[Warmth::Pool, Warmth::Pool, Warmth::Pool, Warmth::Fork]);
    let row = row(&variant(mostly, Warmth::Pool, &ExpectedLayers::default())).unwrap();
    assert!(row.has_figures() && row.ratio.is_some());
    let served = row.served.unwrap();
    assert_eq!((served.pool, served.fork, served.cold, row.share), (6, 2, 0, Some(0.75)));
    let cell = &row.throughput[0];
    assert!(cell.per_second.is_some_and(|rate| rate > 0.0) && cell.runs == cell.served.unwrap().runs());
    let text = shown(vec![row]);
    assert!(text.contains("75%") && text.contains("found a warm sandbox"), "{text}");
    assert!(!text.contains("Not warm, so no figures"), "{text}");
}

#[test]
fn cold_runs_give_no_figures_in_a_warm_row() {
    let row = row(&variant(claims(&[Warmth::Cold]), Warmth::Pool, &ExpectedLayers::default())).unwrap();
    assert_eq!((row.p50_ms, row.p99_ms, row.ratio, row.share), (None, None, None, Some(0.0)));
    assert_eq!(row.throughput[0].per_second, None);
    let text = shown(vec![VariantRow { obstacle: Some("no zygote starts".to_owned()), ..row }]);
    assert!(text.contains("python pool 0 of 8"), "{text}");
    assert!(text.contains("python pool: no zygote starts"), "{text}");
}

#[test]
fn runs_with_different_layers_are_not_compared() {
    let layers = ExpectedLayers::default();
    row(&variant(claims(&[Warmth::Cold]), Warmth::Cold, &layers)).unwrap();
    let fewer = Claims { layers: &Layer::MANDATORY[1..], ..claims(&[Warmth::Fork]) };
    let message = row(&variant(fewer, Warmth::Fork, &layers)).unwrap_err().to_string();
    assert!(message.contains("other isolation layers than the first run (pid_ns)"), "{message}");
}

#[test]
fn a_wrong_answer_ends_the_benchmark() {
    let wrong = Claims { factor: 7, ..claims(&[Warmth::Cold]) };
    let message = row(&variant(wrong, Warmth::Cold, &ExpectedLayers::default())).unwrap_err().to_string();
    assert!(message.starts_with("python in a sandbox: its output is not what"), "{message}");
}

#[test]
fn the_widest_table_fits_a_hundred_columns() {
    let cell = |workers| WorkerThroughput { workers, per_second: Some(12_345.6), runs: 1, served: None };
    let row = VariantRow {
        name: "d. exec",
        command: None,
        p50_ms: Some(12_345.6),
        p99_ms: Some(12_345.6),
        ratio: Some(1234.5),
        throughput: [1, 2, 8].map(cell).into(),
        idle: Some(crate::idle_memory::IdleMemory { sandboxes: 1, memory_bytes: 123 << 20 | 1 }),
        served: None,
        share: Some(1.0),
        obstacle: None,
    };
    let mut findings = BenchReport::new(&args());
    let program = PathBuf::from("/usr/bin/python3");
    let name = "python+pandas";
    findings.workloads.push(WorkloadReport { name, program, version: None, rounds: 8, rows: vec![row] });
    let mut out = Vec::new();
    show::text(&findings, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
    }
}
