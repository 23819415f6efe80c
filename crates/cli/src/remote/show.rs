//! Prints a server's response: a table for people, JSON for programs.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use belljar_engine::json_text::{Token, tokens};
use belljar_engine::quantity::show_bytes;
use serde_json::Value;

use crate::error::CliError;
use crate::say;
use crate::table::{table_text, table_with};

/// The fields that a table shows, in order.
pub(super) type Columns = &'static [&'static str];

/// Suffix of fields that are sizes.
const BYTES: &str = "_bytes";
/// Fields that are times, in milliseconds since 1970.
const MOMENTS: &[&str] = &["created", "expires", "last_used", "ready", "revoked", "disabled"];

/// Prints one object.
pub(crate) fn print_object(object: &Value) -> Result<u8, CliError> {
    say::answer(&format!("{object:#}"));
    Ok(0)
}

/// Indents JSON. A parsed value would lose digits of its numbers.
pub(super) fn indent(json: &str) -> String {
    let (mut text, mut depth) = (String::with_capacity(json.len() * 2), 0_usize);
    let mut after_open = false;
    for token in tokens(json) {
        let closes = matches!(token, Token::Punctuation("]" | "}"));
        depth -= usize::from(closes && depth > 0);
        if after_open != closes {
            new_line(&mut text, depth);
        }
        text.push_str(token.text());
        after_open = matches!(token, Token::Punctuation("[" | "{"));
        depth += usize::from(after_open);
        match token {
            Token::Punctuation(",") => new_line(&mut text, depth),
            Token::Punctuation(":") => text.push(' '),
            _ => {}
        }
    }
    text
}

fn new_line(text: &mut String, depth: usize) {
    text.push('\n');
    text.extend(std::iter::repeat_n("  ", depth));
}

/// Prints the objects of a list.
pub(super) fn print_list(answer: &Value, name: &str, columns: Columns, json: bool) -> Result<u8, CliError> {
    if json {
        say::answer(&answer.to_string());
        return Ok(0);
    }
    let titles = columns.iter().map(|column| column.trim_end_matches(BYTES).to_uppercase());
    let mut table = table_with(titles);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    for row in answer[name].as_array().into_iter().flatten() {
        table.add_row(columns.iter().map(|column| cell(column, &row[*column], now)));
    }
    say::answer(&table_text(&table));
    if let Some(cursor) = answer["next_cursor"].as_str() {
        say::note(&format!("there are more results; continue with --cursor {cursor}"));
    }
    Ok(0)
}

/// Formats a value for a table. Values come from tenants, so they are escaped.
fn cell(column: &str, value: &Value, now: Duration) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => say::printable(text),
        Value::Array(values) => values.iter().map(|value| cell("", value, now)).collect::<Vec<_>>().join(","),
        Value::Number(number) => match number.as_u64() {
            Some(bytes) if column.ends_with(BYTES) => show_bytes(bytes),
            Some(at) if MOMENTS.contains(&column) => format_time(Duration::from_millis(at), now),
            _ => number.to_string(),
        },
        Value::Object(fields) => {
            let present = fields.iter().filter(|(_, value)| !value.is_null());
            let shown =
                present.map(|(name, value)| format!("{}={}", say::printable(name), cell(name, value, now)));
            shown.collect::<Vec<_>>().join(" ")
        }
        Value::Bool(value) => value.to_string(),
    }
}

fn format_time(at: Duration, now: Duration) -> String {
    match at.checked_sub(now) {
        Some(left) => format!("in {}", format_duration(left)),
        None => format!("{} ago", format_duration(now.saturating_sub(at))),
    }
}

/// Formats a duration roughly.
pub(super) fn format_duration(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3_600 => format!("{}m", seconds / 60),
        seconds @ 3_600..172_800 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn indented_json_looks_like_any_other_and_keeps_its_digits() {
        let value = json!({"a": [1, {"b": "x, {y}"}, [], {}], "c": null, "d": {"e": -0.5}});
        assert_eq!(indent(&value.to_string()), format!("{value:#}"));
        assert_eq!(indent("[123456789012345678901234567890]"), "[\n  123456789012345678901234567890\n]");
        assert_eq!((indent("{}"), indent("1")), ("{}".to_owned(), "1".to_owned()));
    }

    #[test]
    fn cells_are_human_readable() {
        let now = Duration::from_secs(1_000_000);
        let shown = |column, value| cell(column, &value, now);
        assert_eq!(shown("created", json!(999_700_000)), "5m ago");
        assert_eq!(shown("expires", json!(1_043_200_000)), "in 12h");
        assert_eq!(shown("ready", json!(999_700_000)), "5m ago");
        assert_eq!(shown("error", json!("Docker's \"runsc\" \u{1b}[2J")), "Docker's \"runsc\" \\u{1b}[2J");
        assert_eq!(shown("used_bytes", json!(1 << 20)), "1 MB");
        assert_eq!(shown("scopes", json!(["run", "admin"])), "run,admin");
        assert_eq!(shown("quotas", json!({"concurrency": 4, "sandboxes": null})), "concurrency=4");
        assert_eq!(shown("exit_code", json!(-1)), "-1");
        assert_eq!(shown("label", json!({"\u{9b}a": "\u{1b}[2J"})), "\\u{9b}a=\\u{1b}[2J");
    }
}
