//! Questions to the user at a terminal. An empty answer selects the default in brackets.

use std::io::{self, BufRead, Write};

use belljar_engine::catalog::{self, ProviderSettings};
use serde_json::{Value, json};

use crate::error::CliError;
use crate::os::hide_typing;
use crate::provider::parse_setting;
use crate::provider_kinds::{KINDS, NATIVE, ProviderKind};
use crate::say;

/// Asks for the provider.
pub(super) fn kind(usual: Option<&str>) -> Result<&'static ProviderKind, CliError> {
    let usual = usual.filter(|name| ProviderKind::find(name).is_ok()).unwrap_or(NATIVE);
    say::note("which provider should run sandboxes?");
    for (number, kind) in (1..).zip(KINDS) {
        say::note(&format!("  {number}  {:<10} {}", kind.name, kind.what));
    }
    loop {
        let answer = line(&format!("number or name [{usual}]: "))?;
        let by_number = answer.parse::<usize>().ok().and_then(|number| KINDS.get(number.checked_sub(1)?));
        match (answer.as_str(), by_number) {
            ("", _) => return Ok(ProviderKind::find(usual)?),
            (_, Some(kind)) => return Ok(kind),
            (name, None) => match ProviderKind::find(name) {
                Ok(kind) => return Ok(kind),
                Err(error) => say::note(&error.to_string()),
            },
        }
    }
}

/// Asks for a setting; null keeps its current value.
pub(super) fn setting(name: &str, property: &Value, now: Option<&Value>) -> Result<Value, CliError> {
    let secret = property["writeOnly"] == true;
    let usual = now.or_else(|| property.get("default")).filter(|value| !value.is_null());
    let shown = display_usual(usual, secret);
    if let Some(description) = property["description"].as_str() {
        say::note(&format!("{name}: {}", description.replace('\n', " ")));
    }
    loop {
        let question = format!("{name} [{shown}]: ");
        let answer = if secret { hidden_line(&question)? } else { line(&question)? };
        if answer.is_empty() {
            return Ok(Value::Null);
        }
        let value = parse_setting(property, &answer);
        // Checks the one setting against its own part of the schema.
        let alone = ProviderSettings::from_iter([(name.to_owned(), value.clone())]);
        match catalog::check_settings(&json!({"properties": {name: property}}), &alone) {
            Ok(()) => return Ok(value),
            Err(error) => say::note(&error.to_string()),
        }
    }
}

/// Formats the value that an empty answer selects.
fn display_usual(usual: Option<&Value>, secret: bool) -> String {
    match usual {
        None => "none".to_owned(),
        Some(_) if secret => "unchanged".to_owned(),
        Some(Value::String(text)) => say::printable(text),
        Some(other) => other.to_string(),
    }
}

fn hidden_line(question: &str) -> Result<String, CliError> {
    let hidden = hide_typing();
    let answer = line(question);
    drop(hidden);
    say::end_line();
    answer
}

fn line(question: &str) -> Result<String, CliError> {
    let failed = |error: io::Error| CliError::host(format!("cannot ask: {error}"));
    let mut stderr = io::stderr().lock();
    stderr.write_all(question.as_bytes()).and_then(|()| stderr.flush()).map_err(failed)?;
    drop(stderr);
    let mut answer = String::new();
    match io::stdin().lock().read_line(&mut answer).map_err(failed)? {
        0 => Err(CliError::invalid("no answer; nothing was written")),
        _ => Ok(answer.trim().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_as_they_are_typed() {
        let text = json!("Docker's \"default\" \u{1b}[2J");
        assert_eq!(display_usual(Some(&text), false), "Docker's \"default\" \\u{1b}[2J");
        assert_eq!(display_usual(Some(&text), true), "unchanged");
        assert_eq!(display_usual(Some(&json!(4)), false), "4");
        assert_eq!(display_usual(None, false), "none");
    }
}
