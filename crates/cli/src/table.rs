//! Tables without lines, as commands print them.

use std::time::{SystemTime, UNIX_EPOCH};

use comfy_table::{Row, Table, presets};

/// Creates a table without headings.
pub(crate) fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table
}

/// Creates a table with these headings.
pub(crate) fn table_with(headings: impl Into<Row>) -> Table {
    let mut table = plain_table();
    table.set_header(headings);
    table
}

/// Formats a table without leading and trailing blanks.
pub(crate) fn table_text(table: &Table) -> String {
    table.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>().join("\n")
}

/// Formats how long ago a Unix timestamp was.
pub(crate) fn format_age(at: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    match now.saturating_sub(at) {
        0..120 => "just now".to_owned(),
        seconds @ 120..7_200 => format!("{} minutes ago", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} hours ago", seconds / 3_600),
        seconds => format!("{} days ago", seconds / 86_400),
    }
}
