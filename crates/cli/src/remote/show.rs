//! Shows what a server answered: a table for people, JSON for programs.

use comfy_table::{Table, presets};
use serde_json::Value;

use crate::failure::Failure;
use crate::say;

/// Which fields a table shows, in their order.
pub(super) type Columns = &'static [&'static str];

/// One object.
pub(super) fn one(object: &Value) -> Result<u8, Failure> {
    say::answer(&format!("{object:#}"));
    Ok(0)
}

/// The objects under a name.
pub(super) fn list(answer: &Value, name: &str, columns: Columns, json: bool) -> Result<u8, Failure> {
    if json {
        say::answer(&answer.to_string());
        return Ok(0);
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(columns.iter().map(|column| column.to_uppercase()));
    for row in answer[name].as_array().into_iter().flatten() {
        table.add_row(columns.iter().map(|column| cell(&row[*column])));
    }
    say::answer(&table.to_string());
    if let Some(cursor) = answer["next_cursor"].as_str() {
        say::note(&format!("there are more: --cursor {cursor}"));
    }
    Ok(0)
}

/// Values come from tenants, so nothing in them may draw on the terminal.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.escape_debug().to_string(),
        other => other.to_string(),
    }
}
