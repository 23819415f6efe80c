//! What people and programs see of findings.

use std::fmt::Write as _;
use std::io::Write as _;

use belljar_analysis::policy::Finding;
use serde_json::{Value, json};

use super::Checked;

/// One object, whatever was read.
pub(super) fn json(checked: &[Checked]) {
    let refusal = checked.iter().find_map(|checked| checked.verdict.refusal());
    let status = if refusal.is_some() { "refused" } else { "passed" };
    let with_file = |checked: &Checked| -> Vec<Value> {
        let file = |finding: &Finding| {
            let mut object = json!(finding);
            object["file"] = checked.name.as_str().into();
            object
        };
        checked.verdict.findings.iter().map(file).collect()
    };
    let findings: Vec<Value> = checked.iter().flat_map(with_file).collect();
    let object = json!({"status": status, "error": refusal, "files": checked.len(), "findings": findings});
    crate::say::answer(&object.to_string());
}

pub(super) fn text(checked: &[Checked]) {
    let mut text = String::new();
    for Checked { name, code, verdict } in checked {
        for finding in &verdict.findings {
            excerpt(&mut text, &harmless(name), code, finding);
        }
    }
    text.push_str(&summary(checked));
    // Nobody listening is no reason to fail; colours are dropped where no terminal is, and where NO_COLOR says so.
    let _ = writeln!(anstream::stdout().lock(), "{text}");
}

fn summary(checked: &[Checked]) -> String {
    let refusals: Vec<_> =
        checked.iter().filter_map(|checked| Some((&checked.name, checked.verdict.refusal()?))).collect();
    let files = if checked.len() == 1 { String::new() } else { format!(" in {} files", checked.len()) };
    match (refusals.as_slice(), checked.iter().map(|checked| checked.verdict.findings.len()).sum::<usize>()) {
        ([(_, refusal)], _) if checked.len() == 1 => refusal.clone(),
        ([], 0) => format!("nothing found{files}"),
        ([], 1) => format!("1 finding{files}; it would run"),
        ([], count) => {
            format!("{count} findings{files}; {} would run", if checked.len() == 1 { "it" } else { "they" })
        }
        (refusals, count) => {
            let names: Vec<_> = refusals.iter().map(|(name, _)| harmless(name)).collect();
            format!("{count} findings{files}; refused: {}", names.join(", "))
        }
    }
}

/// The longest piece of a line that is shown.
const MAX_WIDTH: usize = 120;

fn excerpt(text: &mut String, name: &str, code: &str, finding: &Finding) {
    let (colour, word) = if finding.refused { ("\x1b[1;31m", "refused") } else { ("\x1b[1;33m", "warning") };
    let Finding { rule, message, suggestion, decided_by, .. } = finding;
    let (line, column) = (finding.line.unwrap_or(1), finding.column.unwrap_or(1));
    let message = harmless(message);
    let number = line.to_string();
    let blank = " ".repeat(number.len());
    // A long line is shown around the place.
    let column_index = column as usize - 1;
    let skipped = if column_index < MAX_WIDTH { 0 } else { column_index - MAX_WIDTH / 2 };
    let source = code.lines().nth(line as usize - 1).unwrap_or_default();
    let source = harmless(&source.chars().skip(skipped).take(MAX_WIDTH).collect::<String>());
    let caret = " ".repeat(column_index - skipped);
    let _ = write!(
        text,
        "{colour}{word}[{rule}]\x1b[0m\x1b[1m: {message}\x1b[0m\n{blank}--> {name}:{line}:{column}\n{blank} |\n\
         {number} | {source}\n{blank} | {caret}{colour}^\x1b[0m\n{blank} = help: {suggestion}\n{blank} = note: {decided_by}\n\n"
    );
}

/// Code cannot draw on the terminal; each character keeps its width, so that the caret stays in place.
fn harmless(line: &str) -> String {
    let shown = |c: char| match c {
        '\t' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    line.chars().map(shown).collect()
}
