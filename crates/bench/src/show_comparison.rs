//! Prints the comparison of two binaries as text or JSON.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};

use crate::comparison::{ComparedRow, Comparison};
use crate::error::quote_path;
use crate::figures::{NONE, millis, ratio, wrapped};

const WIDTH: usize = 100;
const HEADER: [&str; 8] = ["", "", "bare", "other", "to bare", "this", "to bare", "change"];

/// Writes one line of JSON.
pub(crate) fn json(comparison: &Comparison, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, comparison)?;
    writeln!(out)
}

/// Writes the table and its notes.
pub(crate) fn text(comparison: &Comparison, out: &mut impl Write) -> io::Result<()> {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(HEADER);
    let mut last = "";
    for row in &comparison.rows {
        table.add_row(cells(if row.workload == last { "" } else { row.workload }, row));
        last = row.workload;
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for line in table.lines() {
        writeln!(out, "{}", line.strip_prefix(' ').unwrap_or(&line).trim_end())?;
    }
    writeln!(out)?;
    for note in notes(comparison) {
        writeln!(out, "{}", wrapped(&note, WIDTH))?;
    }
    Ok(())
}

fn cells(workload: &str, row: &ComparedRow) -> [String; 8] {
    let figure = |value: Option<f64>, show: fn(f64) -> String| value.map_or_else(|| NONE.to_owned(), show);
    [
        workload.to_owned(),
        row.way.to_owned(),
        figure(row.bare_p50_ms, millis),
        figure(row.other.p50_ms, millis),
        figure(row.other.ratio, ratio),
        figure(row.this.p50_ms, millis),
        figure(row.this.ratio, ratio),
        figure(row.change_percent, |change| format!("{change:+.1}%")),
    ]
}

fn notes(comparison: &Comparison) -> Vec<String> {
    let mut notes = vec![
        format!("other: {}. this: {}.", quote_path(&comparison.other), quote_path(&comparison.this)),
        format!(
            "p50s and ratios are medians over {} alternating slices of {} rounds each. change: how much \
             this binary's ratio to bare differs from the other's; above zero, this binary is slower.",
            comparison.slices, comparison.rounds
        ),
    ];
    if comparison.debug_build {
        notes.push("This is a debug build, which is slow by itself; compare release builds.".to_owned());
    }
    notes.extend(comparison.left_out.iter().map(|reason| format!("Left out: {reason}.")));
    notes.push(format!("{}, {} processors", comparison.date, comparison.machine.cpus));
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::Figure;

    #[test]
    fn a_row_shows_both_binaries_and_dashes_for_missing_figures() {
        let row = ComparedRow {
            workload: "python",
            way: "pool",
            bare_p50_ms: Some(12.0),
            other: Figure { p50_ms: Some(2.0), ratio: Some(1.0 / 6.0) },
            this: Figure { p50_ms: Some(2.2), ratio: Some(1.1 / 6.0) },
            change_percent: Some(10.0),
        };
        let expected = ["python", "pool", "12.00 ms", "2.00 ms", "1/6.0", "2.20 ms", "1/5.5", "+10.0%"];
        assert_eq!(cells("python", &row), expected);
        let empty = ComparedRow { this: Figure::default(), change_percent: None, ..row };
        assert_eq!(cells("", &empty)[5..], [NONE, NONE, NONE]);
    }
}
