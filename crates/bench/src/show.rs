//! Prints a benchmark's results as text or JSON.

use std::io::{self, Write};

use belljar_engine::layer::Layer;
use belljar_engine::quantity::show_bytes;
use comfy_table::{CellAlignment, Table, presets};

use crate::figures::{NONE, listed, millis, percent, rate, ratio, wrapped};
use crate::packages::PackageCosts;
use crate::report::{BenchReport, Omission, VariantRow, WorkloadReport};
use crate::sandbox_costs::SandboxCosts;

const WIDTH: usize = 100;
const HEADER: [&str; 10] =
    ["", "", "p50", "p99", "to bare", "1 worker", "2 workers", "8 workers", "idle", "share"];

/// Writes the results as one line of JSON.
pub(crate) fn json(findings: &BenchReport, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, findings)?;
    writeln!(out)
}

/// Writes the table, its notes, and the machine that it was measured on.
pub(crate) fn text(findings: &BenchReport, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}\n", table(findings))?;
    for line in notes(findings) {
        writeln!(out, "{}", wrapped(&line, WIDTH))?;
    }
    writeln!(out, "\n{}", wrapped(&origin(findings), WIDTH))
}

fn table(findings: &BenchReport) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(HEADER);
    for (at, workload) in findings.workloads.iter().enumerate() {
        if at > 0 {
            table.add_row([""; HEADER.len()]);
        }
        for (at, row) in workload.rows.iter().enumerate() {
            table.add_row(cells(if at == 0 { workload.name } else { "" }, row));
        }
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    // Strip the padding, which would end up in every copy of the table.
    let lines = table.lines().map(|line| line.strip_prefix(' ').unwrap_or(&line).trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

fn cells(workload: &str, row: &VariantRow) -> [String; 10] {
    let figure = |value: Option<f64>, show: fn(f64) -> String| value.map_or_else(|| NONE.to_owned(), show);
    let throughput = |at: usize| figure(row.throughput.get(at).and_then(|cell| cell.per_second), rate);
    [
        workload.to_owned(),
        row.name.to_owned(),
        figure(row.p50_ms, millis),
        figure(row.p99_ms, millis),
        figure(row.ratio, ratio),
        throughput(0),
        throughput(1),
        throughput(2),
        row.idle.map_or_else(|| NONE.to_owned(), |idle| show_bytes(idle.memory_bytes)),
        figure(row.share, percent),
    ]
}

fn notes(findings: &BenchReport) -> Vec<String> {
    let mut notes = vec![
        "to bare: p50 divided by that of the same command without a sandbox. Workers: executions per \
         second. idle: memory of one idle sandbox. share: runs that were served the way that the row \
         measures."
            .to_owned(),
    ];
    if findings.debug_build {
        notes.push(
            "This is a debug build, which is slow by itself; measure with: cargo run --release -- bench"
                .into(),
        );
    }
    notes.extend(findings.living.as_ref().map(sandbox_cost_note));
    notes.extend(findings.packages.as_ref().map(packages));
    notes.extend(not_warm(&findings.workloads));
    notes.extend(all_rows(&findings.workloads).filter_map(|(workload, row)| emptied(workload, row)));
    notes.extend(findings.left_out.iter().map(|left_out| absence(left_out, findings.workloads.len())));
    let layers: Vec<_> = findings.layers.iter().map(|layer: &Layer| layer.name()).collect();
    notes.push(format!("Isolation layers of every sandboxed run ({}): {}.", layers.len(), layers.join(", ")));
    let rounds = findings.workloads.iter().map(|workload| format!("{} {}", workload.name, workload.rounds));
    notes.push(format!(
        "Rounds: {}; {} ms between two runs; {} s for each executions-per-second figure.",
        rounds.collect::<Vec<_>>().join(", "),
        findings.pause_ms,
        findings.seconds
    ));
    notes
}

fn sandbox_cost_note(found: &SandboxCosts) -> String {
    let idle = found.idle_bytes.map_or_else(|| NONE.to_owned(), show_bytes);
    format!(
        "Sandboxes over HTTP: create and run a first command in {} (p99 {}); upload a 10 MB file at {:.0} \
         MB/s and download it at {:.0} MB/s; an idle sandbox takes {idle}.",
        millis(found.first_command_p50_ms),
        millis(found.first_command_p99_ms),
        found.upload,
        found.download,
    )
}

fn packages(found: &PackageCosts) -> String {
    let beside = found.pip_ms.map_or_else(
        || "pip is not installed, so there is nothing to compare with".to_owned(),
        |pip| format!("pip install --target takes {}, so {}", millis(pip), ratio(found.ready_ms / pip)),
    );
    format!(
        "Packages: numpy and pandas are installed in {}, or in {} from the installer's cache ({beside}). A \
         new program that imports requests takes {}, one that imports nothing {} ({} of the former found a \
         warm interpreter).",
        millis(found.first_ms),
        millis(found.ready_ms),
        millis(found.import_p50_ms),
        millis(found.plain_p50_ms),
        percent(found.import_share),
    )
}

fn all_rows(workloads: &[WorkloadReport]) -> impl Iterator<Item = (&WorkloadReport, &VariantRow)> {
    workloads.iter().flat_map(|workload| workload.rows.iter().map(move |row| (workload, row)))
}

/// Explains rows without figures, whose runs were served another way.
fn not_warm(workloads: &[WorkloadReport]) -> Vec<String> {
    let empty: Vec<_> = all_rows(workloads).filter(|(_, row)| !row.has_figures()).collect();
    let count = |(workload, row): &(&WorkloadReport, &VariantRow)| {
        let (share, runs) = (row.share.unwrap_or_default(), workload.rounds);
        format!("{} {} {:.0} of {runs}", workload.name, row.name, share * runs as f64)
    };
    let counts: Vec<_> = empty.iter().map(count).collect();
    let mut notes = Vec::new();
    if !counts.is_empty() {
        notes.push(format!(
            "{NONE} Not warm, so no figures. Runs served the way that the row measures: {}.",
            listed(&counts)
        ));
    }
    let reasons = empty.iter().filter_map(|(workload, row)| {
        row.obstacle.as_ref().map(|why| format!("{} {}: {why}", workload.name, row.name))
    });
    notes.extend(reasons);
    notes
}

/// Notes a pool that workers emptied faster than it refilled.
fn emptied(workload: &WorkloadReport, row: &VariantRow) -> Option<String> {
    let served: Vec<_> = row.throughput.iter().filter_map(|cell| cell.served).collect();
    if row.name != "pool" || served.iter().all(|served| served.pool == served.runs()) {
        return None;
    }
    let shares: Vec<_> =
        served.iter().map(|served| percent(served.pool as f64 / served.runs() as f64)).collect();
    let workers: Vec<_> = row.throughput.iter().map(|cell| cell.workers.to_string()).collect();
    Some(format!(
        "{} pool: with {} workers, {} of the runs found a warm sandbox; the others started without one.",
        workload.name,
        listed(&workers),
        listed(&shares)
    ))
}

fn absence(left_out: &Omission, all: usize) -> String {
    let Omission { what, workloads, reason } = left_out;
    if workloads.len() >= all || workloads.contains(what) {
        return format!("Left out: {what} ({reason}).");
    }
    format!("Left out: {what} for {} ({reason}).", listed(workloads))
}

fn origin(findings: &BenchReport) -> String {
    let machine = &findings.machine;
    let mut parts = vec![findings.date.clone(), format!("belljar {}", findings.belljar)];
    parts.extend(machine.kernel.as_ref().map(|release| format!("Linux {release}")));
    let cpu = machine.cpu.as_deref().unwrap_or("unknown processor");
    parts.push(format!("{} × {cpu}", machine.cpus));
    parts.extend(machine.memory_bytes.map(show_bytes));
    parts.extend(
        machine.euid.map(|uid| if uid == 0 { "as root".to_owned() } else { format!("as user {uid}") }),
    );
    let mut versions: Vec<String> = Vec::new();
    for workload in findings.workloads.iter().filter(|workload| !workload.name.contains('+')) {
        versions.extend(workload.version.as_ref().map(|version| format!("{} {version}", workload.name)));
    }
    parts.extend(versions);
    parts.join(", ")
}
