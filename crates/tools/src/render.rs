//! Renders results as text for models: what happened, the head and tail of the output, and what to change.

use std::fmt::Write;

use belljar_engine::json_text::{Token, tokens};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::Error;
use crate::answer::{ResultArtifact, ToolAnswer, viewable_images};

/// Bytes shown from the head and the tail of an output stream.
const HEAD_BYTES: usize = 6_000;
const TAIL_BYTES: usize = 6_000;
/// Maximum number of findings shown, one line each.
const MAX_SHOWN_FINDINGS: usize = 10;
const MAX_VALUE_BYTES: usize = 8_000;

/// The fields of the result object that are rendered.
#[derive(Debug, Deserialize)]
struct ResultView {
    status: String,
    exit_code: Option<i64>,
    signal: Option<String>,
    limit: Option<String>,
    stdout: String,
    stderr: String,
    result: ReturnValueView,
    artifacts: Vec<ResultArtifact>,
    error: Option<String>,
    findings: Vec<FindingView>,
    dependencies: DependenciesView,
    duration_ms: f64,
}

#[derive(Debug, Deserialize)]
struct ReturnValueView {
    present: bool,
    #[serde(default)]
    value: Box<RawValue>,
}

#[derive(Debug, Deserialize)]
struct FindingView {
    severity: String,
    message: String,
    suggestion: String,
    line: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct DependenciesView {
    packages: Vec<String>,
}

/// Renders the answer for an execution, given its result object as JSON.
pub(crate) fn render_result(result: &str) -> Result<ToolAnswer, Error> {
    let unreadable = |error| Error::Backend(format!("cannot parse the result: {error}"));
    let seen: ResultView = serde_json::from_str(result).map_err(unreadable)?;
    let text = seen.text();
    let structured = serde_json::from_str(&quote_large_integers(result)).map_err(unreadable)?;
    Ok(ToolAnswer { text, images: viewable_images(seen.artifacts), structured: Some(structured) })
}

/// Largest integer such that it and all smaller ones are exact in a double, which clients parse numbers as.
const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

/// Turns integers that clients would round into strings.
fn quote_large_integers(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for token in tokens(json) {
        match token {
            Token::Number(number) if !is_safe(number) => {
                text.extend(["\"", number, "\""]);
            }
            token => text.push_str(token.text()),
        }
    }
    text
}

fn is_safe(number: &str) -> bool {
    number.contains(['.', 'e', 'E'])
        || number.trim_start_matches('-').parse::<u64>().is_ok_and(|digits| digits <= MAX_SAFE_INTEGER)
}

impl ResultView {
    fn text(&self) -> String {
        let mut text = self.headline();
        if let Some(error) = &self.error {
            append_line(&mut text, format_args!("Error: {error}"));
        }
        if self.result.present {
            append_line(
                &mut text,
                format_args!(
                    "main() returned: {}",
                    truncate_middle(self.result.value.get(), MAX_VALUE_BYTES, 0)
                ),
            );
        }
        append_stream(&mut text, "stdout", &self.stdout);
        append_stream(&mut text, "stderr", &self.stderr);
        if self.is_silent() {
            append_line(&mut text, format_args!("It printed nothing; print what you want to see."));
        }
        if !self.artifacts.is_empty() {
            let named: Vec<_> = self.artifacts.iter().map(ResultArtifact::describe).collect();
            append_line(&mut text, format_args!("Files: {}", named.join(", ")));
        }
        if !self.dependencies.packages.is_empty() {
            append_line(
                &mut text,
                format_args!(
                    "Packages: {}",
                    truncate_middle(&self.dependencies.packages.join(", "), 1_000, 0)
                ),
            );
        }
        self.append_hints(&mut text);
        text
    }

    fn is_silent(&self) -> bool {
        let nothing = self.stdout.is_empty() && self.stderr.is_empty();
        self.status == "succeeded" && nothing && !self.result.present && self.artifacts.is_empty()
    }

    fn headline(&self) -> String {
        let took = format!("{:.0} ms", self.duration_ms);
        match (self.status.as_str(), self.exit_code, &self.signal) {
            ("succeeded", ..) => format!("Succeeded in {took}."),
            ("failed", Some(code), _) => format!("Failed with exit code {code} after {took}."),
            ("failed", None, Some(signal)) => format!("Failed: killed by {signal} after {took}."),
            ("timed_out", ..) => format!("Timed out after {took}."),
            ("limit_exceeded", ..) => {
                let limit = self.limit.as_deref().unwrap_or("some");
                format!("Ended after {took}: {limit} limit exceeded.")
            }
            ("refused", ..) => "Refused by the policy before it ran.".to_owned(),
            (status, ..) => format!("{status} after {took}."),
        }
    }

    /// Appends what to change: a hint for the limit that ended the program, and findings.
    fn append_hints(&self, text: &mut String) {
        if let Some(hint) = self.limit_hint() {
            append_line(text, format_args!("To change: {hint}"));
        }
        // Minor findings only matter if something went wrong.
        let succeeded = self.status == "succeeded";
        let shown = self.findings.iter().filter(|finding| !(succeeded && finding.severity == "info"));
        let mut shown: Vec<_> = shown.collect();
        // Denials, which have no line, come first: they are more likely to be why the program failed.
        shown.sort_by_key(|finding| finding.line.is_some());
        for finding in shown.iter().take(MAX_SHOWN_FINDINGS) {
            append_line(text, format_args!("To change: {}", finding.line()));
        }
        if let Some(left_out @ 1..) = shown.len().checked_sub(MAX_SHOWN_FINDINGS) {
            append_line(text, format_args!("{left_out} more findings are left out."));
        }
    }

    fn limit_hint(&self) -> Option<&'static str> {
        match (self.status.as_str(), self.limit.as_deref()) {
            ("timed_out", _) => Some("do less at once, or pass a larger timeout_ms"),
            ("limit_exceeded", Some("memory")) => Some("use less memory: process the data in pieces"),
            ("limit_exceeded", Some("disk")) => {
                Some("write less, and remove files that are no longer needed")
            }
            ("limit_exceeded", Some("output")) => Some("print less"),
            ("limit_exceeded", Some("processes")) => Some("start fewer processes or threads"),
            _ => None,
        }
    }
}

impl FindingView {
    fn line(&self) -> String {
        let Self { message, suggestion, .. } = self;
        let line = self.line.map(|line| format!("line {line}: ")).unwrap_or_default();
        format!("{line}{message}; {suggestion}")
    }
}

/// Renders the findings of a policy, one line each.
pub(crate) fn render_findings(findings: &[belljar_engine::finding::Finding]) -> String {
    let mut text = String::new();
    for finding in findings.iter().take(MAX_SHOWN_FINDINGS) {
        let minded = FindingView {
            severity: String::new(),
            message: finding.message.clone(),
            suggestion: finding.suggestion.clone(),
            line: finding.line,
        };
        append_line(&mut text, format_args!("{}: {}", finding.severity, minded.line()));
    }
    text
}

fn append_stream(text: &mut String, name: &str, output: &str) {
    if !output.is_empty() {
        append_line(
            text,
            format_args!(
                "{name}:\n{}",
                truncate_middle(output.trim_end_matches('\n'), HEAD_BYTES, TAIL_BYTES)
            ),
        );
    }
}

fn append_line(text: &mut String, what: std::fmt::Arguments<'_>) {
    let start = if text.is_empty() { "" } else { "\n" };
    // Writing to a string cannot fail.
    let _ = write!(text, "{start}{what}");
}

/// Truncates text to its head and tail, and says how much was left out.
pub(crate) fn truncate_middle(text: &str, head: usize, tail: usize) -> String {
    if text.len() <= head + tail {
        return text.to_owned();
    }
    let (first, last) = (text.floor_char_boundary(head), text.ceil_char_boundary(text.len() - tail));
    format!("{}\n[… {} bytes left out …]\n{}", &text[..first], last - first, &text[last..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn result() -> Value {
        json!({
            "status": "succeeded", "exit_code": 0, "signal": null, "limit": null, "stdout": "", "stderr": "",
            "result": {"present": false, "value": null}, "artifacts": [], "error": null, "findings": [],
            "dependencies": {"packages": []}, "duration_ms": 1.9
        })
    }

    fn text(changes: Value) -> String {
        let mut result = result();
        for (name, value) in changes.as_object().unwrap() {
            result[name] = value.clone();
        }
        render_result(&result.to_string()).unwrap().text
    }

    #[test]
    fn answers_say_what_happened_and_what_to_change() {
        assert_eq!(text(json!({})), "Succeeded in 2 ms.\nIt printed nothing; print what you want to see.");
        assert_eq!(text(json!({"stdout": "42\n"})), "Succeeded in 2 ms.\nstdout:\n42");
        let failed = json!({"status": "failed", "exit_code": 1, "error": "NameError: name 'x' is not defined",
            "findings": [{"severity": "warning", "message": "no network", "suggestion": "ask for it", "line": 3}]});
        assert_eq!(
            text(failed),
            "Failed with exit code 1 after 2 ms.\nError: NameError: name 'x' is not defined\n\
             To change: line 3: no network; ask for it"
        );
        let minor = json!([{"severity": "info", "message": "a call", "suggestion": "none", "line": 1},
            {"severity": "info", "message": "no module", "suggestion": "name it", "line": null}]);
        let failed = text(json!({"status": "failed", "exit_code": 1, "findings": minor}));
        assert!(
            failed.ends_with("after 2 ms.\nTo change: no module; name it\nTo change: line 1: a call; none"),
            "{failed}"
        );
        let succeeded = text(json!({"stdout": "42\n", "findings": minor}));
        assert_eq!(succeeded, "Succeeded in 2 ms.\nstdout:\n42");
        let many = vec![json!({"severity": "warning", "message": "m", "suggestion": "s", "line": 1}); 12];
        let many = text(json!({"findings": many}));
        assert!(many.ends_with("To change: line 1: m; s\n2 more findings are left out."), "{many}");
        let over = json!({"status": "limit_exceeded", "exit_code": null, "limit": "memory"});
        assert!(text(over).ends_with("To change: use less memory: process the data in pieces"));
    }

    #[test]
    fn large_integers_are_exact_in_text_and_strings_in_structured_content() {
        let returned = r#"{"n":9007199254740992,"m":[-9007199254740991,0.5,1e300,"9007199254740993"]}"#;
        let value = result().to_string().replace("\"value\":null", &format!("\"value\":{returned}"));
        let answer = render_result(&value.replace("\"present\":false", "\"present\":true")).unwrap();
        assert!(answer.text.contains(&format!("main() returned: {returned}")), "{}", answer.text);
        let safe =
            json!({"n": "9007199254740992", "m": [-9007199254740991_i64, 0.5, 1e300, "9007199254740993"]});
        assert_eq!(answer.structured.unwrap()["result"]["value"], safe);
    }

    #[test]
    fn long_output_keeps_head_and_tail() {
        let long = format!("begin {} end", "ü".repeat(20_000));
        let text = text(json!({"stdout": long}));
        assert!(text.contains("begin ü") && text.ends_with("ü end") && text.contains(" bytes left out"));
        assert!(text.len() < HEAD_BYTES + TAIL_BYTES + 100);
    }

    #[test]
    fn images_are_shown_and_other_files_named() {
        let artifacts = json!([
            {"name": "plot.png", "mime_type": "image/png", "size": 3, "content_base64": "AAAA"},
            {"name": "a.csv", "mime_type": "text/csv", "size": 3, "content_base64": "AAAA"},
            {"name": "big.png", "mime_type": "image/png", "size": 9, "content_base64": null, "url": "/v1/x"}
        ]);
        let mut result = result();
        result["artifacts"] = artifacts;
        let answer = render_result(&result.to_string()).unwrap();
        assert_eq!(answer.images.len(), 1);
        assert!(answer.text.contains("plot.png (image/png, 3 bytes), a.csv"), "{}", answer.text);
        assert!(answer.text.contains("big.png (image/png, 9 bytes, at /v1/x)"), "{}", answer.text);
    }
}
