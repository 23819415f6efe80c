//! `belljar tenant usage`: what a tenant uses, as tables.

use std::time::Duration;

use belljar_engine::quantity::{show_bytes, show_duration};
use serde_json::Value;

use crate::say;
use crate::table::{table_text, table_with};

/// The unit of a figure.
#[derive(Clone, Copy)]
enum Unit {
    Count,
    Bytes,
    Millis,
    Seconds,
}

/// The name of a field and its unit.
type Figure = (&'static str, Unit);

/// Rows of the first table: a title, the figure, and its quota if there is one.
const ROWS: &[(&str, Figure, Option<Figure>)] = &[
    ("running executions", ("running_executions", Unit::Count), Some(("concurrency", Unit::Count))),
    ("queued executions", ("queued_executions", Unit::Count), None),
    ("sandboxes", ("sandboxes", Unit::Count), Some(("sandboxes", Unit::Count))),
    ("memory limits", ("memory_bytes", Unit::Bytes), Some(("memory_bytes", Unit::Bytes))),
    ("cpu time today", ("cpu_ms_today", Unit::Millis), Some(("cpu_seconds_per_day", Unit::Seconds))),
    ("volumes and snapshots", ("disk_bytes", Unit::Bytes), Some(("disk_bytes", Unit::Bytes))),
    ("stored executions", ("stored_executions", Unit::Count), None),
    ("their results", ("stored_bytes", Unit::Bytes), None),
    ("keys", ("keys", Unit::Count), None),
];

/// Prints what a tenant uses now and owns, then its usage per day.
pub(super) fn print_usage(usage: &Value) {
    let mut table = table_with(["NOW", "USED", "QUOTA"]);
    for (title, (used, unit), quota) in ROWS {
        let quota = quota.map_or_else(String::new, |(name, unit)| figure(&usage["quotas"][name], unit));
        table.add_row([(*title).to_owned(), figure(&usage[used], *unit), quota]);
    }
    say::answer(&table_text(&table));
    let days = usage["days"].as_array().map(Vec::as_slice).unwrap_or_default();
    if days.is_empty() {
        return;
    }
    let mut table = table_with(["DAY", "EXECUTIONS", "CPU"]);
    for day in days {
        let date = say::printable(day["day"].as_str().unwrap_or_default());
        table.add_row([date, figure(&day["executions"], Unit::Count), figure(&day["cpu_ms"], Unit::Millis)]);
    }
    say::answer(&format!("\n{}", table_text(&table)));
}

/// Describes what is deleted with a tenant.
pub(super) fn describe_tenant(name: &str, usage: &Value) -> String {
    let objects = [
        ("stored executions", "stored_executions"),
        ("sandboxes", "sandboxes"),
        ("volumes", "volumes"),
        ("snapshots", "snapshots"),
        ("keys", "keys"),
    ];
    let owned = objects.map(|(title, field)| format!("{title}: {}", figure(&usage[field], Unit::Count)));
    format!("tenant '{}' with everything it owns ({})", name.escape_debug(), owned.join(", "))
}

fn figure(value: &Value, unit: Unit) -> String {
    match (value.as_u64(), unit) {
        (None, _) => "none".to_owned(),
        (Some(count), Unit::Count) => count.to_string(),
        (Some(bytes), Unit::Bytes) => show_bytes(bytes),
        (Some(millis), Unit::Millis) => show_duration(Duration::from_millis(millis)),
        (Some(seconds), Unit::Seconds) => show_duration(Duration::from_secs(seconds)),
    }
}
