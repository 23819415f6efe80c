//! Prints findings as text or JSON.

use std::io::Write as _;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};
use belljar_analysis::policy::{PolicyFinding, is_displayable};
use serde_json::{Value, json};

use super::CheckedSource;

/// Prints one JSON object for all sources.
pub(super) fn json(checked: &[CheckedSource]) {
    let refusal = checked.iter().find_map(|checked| checked.verdict.refusal());
    let status = if refusal.is_some() { "refused" } else { "passed" };
    let with_file = |checked: &CheckedSource| -> Vec<Value> {
        let file = |finding: &PolicyFinding| {
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

pub(super) fn text(checked: &[CheckedSource]) {
    let mut text = String::new();
    for CheckedSource { name, code, verdict } in checked {
        for finding in &verdict.findings {
            text.push_str(&excerpt(&escape_controls(name.chars()), code, finding));
            text.push_str("\n\n");
        }
    }
    text.push_str(&summary(checked));
    // A closed standard output is not a failure. Colors are dropped without a terminal, and if NO_COLOR is
    // set.
    let _ = writeln!(anstream::stdout().lock(), "{text}");
}

fn summary(checked: &[CheckedSource]) -> String {
    let refusals: Vec<_> =
        checked.iter().filter_map(|checked| Some((&checked.name, checked.verdict.refusal()?))).collect();
    let files = if checked.len() == 1 { String::new() } else { format!(" in {} files", checked.len()) };
    match (refusals.as_slice(), checked.iter().map(|checked| checked.verdict.findings.len()).sum::<usize>()) {
        ([(_, refusal)], _) if checked.len() == 1 => refusal.clone(),
        ([], 0) => format!("no findings{files}"),
        ([], 1) => format!("1 finding{files}; the code may run"),
        ([], count) => {
            format!("{count} findings{files}; the code may run")
        }
        (refusals, count) => {
            let names: Vec<_> = refusals.iter().map(|(name, _)| escape_controls(name.chars())).collect();
            format!("{count} findings{files}; refused: {}", names.join(", "))
        }
    }
}

/// Characters of a line to consider on each side of the finding; of those, a terminal's width is shown.
const CONTEXT_CHARS: usize = 200;

/// Formats a finding the way compilers format diagnostics.
fn excerpt(name: &str, code: &str, finding: &PolicyFinding) -> String {
    let level = if finding.refused { Level::ERROR.with_name("refused") } else { Level::WARNING };
    let (line, column) = (finding.line.unwrap_or(1) as usize, finding.column.unwrap_or(1) as usize);
    let source = code.split('\n').nth(line - 1).unwrap_or_default();
    let skipped = (column - 1).saturating_sub(CONTEXT_CHARS);
    let source = escape_controls(
        source.strip_suffix('\r').unwrap_or(source).chars().skip(skipped).take(2 * CONTEXT_CHARS),
    );
    let mut places = source.char_indices().map(|(at, c)| at..at + c.len_utf8()).skip(column - 1 - skipped);
    let place = places.next().unwrap_or(source.len()..source.len());
    let report = level
        .primary_title(finding.message.as_str())
        .id(finding.rule)
        .element(Snippet::source(&source).line_start(line).annotation(AnnotationKind::Primary.span(place)))
        .element(Level::HELP.message(finding.suggestion.as_str()))
        .element(Level::NOTE.message(finding.decided_by.as_str()));
    // The location line is written here, because the excerpt's own column is wrong when a long line was cut.
    let place = format!("\n{}--> {name}:{line}:{column}\n", " ".repeat(line.to_string().len()));
    Renderer::styled().render(&[report]).replacen('\n', &place, 1)
}

/// Replaces every character that could control the terminal.
fn escape_controls(text: impl Iterator<Item = char>) -> String {
    text.map(|c| if is_displayable(c) || c == '\t' { c } else { char::REPLACEMENT_CHARACTER }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(code: &str, column: u32) -> String {
        let finding = PolicyFinding {
            rule: "PY-EVAL",
            category: belljar_analysis::policy::Category::CodeExecution,
            severity: belljar_analysis::policy::Severity::High,
            message: "`eval` runs text as code".to_owned(),
            line: Some(1),
            column: Some(column),
            suggestion: "do without it".to_owned(),
            decided_by: "strict: rules.PY-EVAL = refuse".to_owned(),
            refused: true,
            subject: String::new(),
        };
        anstream::adapter::strip_str(&excerpt("a.py", code, &finding)).to_string()
    }

    /// Returns the source line, and the number of terminal columns before the caret.
    fn caret(code: &str, column: u32) -> (String, usize) {
        let text = plain(code, column);
        let mut lines = text.lines().skip_while(|line| !line.starts_with("1 |"));
        let source = lines.next().unwrap().to_owned();
        (source, lines.next().unwrap().find('^').unwrap() - 4)
    }

    #[test]
    fn the_caret_marks_the_column() {
        assert_eq!(caret("x; eval(y)", 4), ("1 | x; eval(y)".to_owned(), 3));
        assert_eq!(caret("漢字; eval(y)", 5), ("1 | 漢字; eval(y)".to_owned(), 6));
        assert_eq!(caret("\teval(y)\r\n", 2), ("1 |     eval(y)".to_owned(), 4));
        assert_eq!(caret("", 1).1, 0);
        assert_eq!(caret("x", 2).1, 1, "after the end");
        assert!(plain("x", 2).contains("--> a.py:1:2"));
    }

    #[test]
    fn a_long_line_is_cut_around_the_finding() {
        let code = format!("{}eval(y){}", "x".repeat(100_000), "z".repeat(100_000));
        let (source, at) = caret(&code, 100_001);
        assert!(
            source.chars().count() < 150
                && source[4..].chars().skip(at).collect::<String>().starts_with("eval"),
            "{source}"
        );
        assert!(plain(&code, 100_001).contains("--> a.py:1:100001"));
    }

    #[test]
    fn control_characters_in_code_are_escaped() {
        let text = plain("a\u{1b}]0;x\u{7}\u{9b}2J\u{202e}\u{200b}\u{8}eval(y)", 14);
        assert!(text.chars().all(|c| is_displayable(c) || c == '\n'), "{text:?}");
    }
}
