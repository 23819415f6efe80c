//! Formats findings as SARIF 2.1.0, which code scanners and editors read.

use belljar_analysis::policy::{PolicyFinding, PolicyRule, RULES, Severity};
use serde_json::{Value, json};

use super::CheckedSource;

pub(super) fn show(checked: &[CheckedSource]) {
    crate::say::answer(&log(checked).to_string());
}

fn log(checked: &[CheckedSource]) -> Value {
    let found = |checked: &CheckedSource| -> Vec<Value> {
        checked.verdict.findings.iter().map(|finding| result(&checked.name, finding)).collect()
    };
    let results: Vec<Value> = checked.iter().flat_map(found).collect();
    let rules: Vec<Value> = rules().map(rule).collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {"name": "belljar", "version": env!("CARGO_PKG_VERSION"), "rules": rules}},
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    })
}

fn rules() -> impl Iterator<Item = &'static PolicyRule> {
    RULES.iter().copied().flatten().copied().flatten()
}

fn rule(rule: &PolicyRule) -> Value {
    let level = match rule.severity {
        Severity::Info => "note",
        Severity::Low | Severity::Medium => "warning",
        Severity::High | Severity::Critical => "error",
    };
    json!({
        "id": rule.id,
        "shortDescription": {"text": rule.message.replace("{}", "…")},
        "help": {"text": rule.suggestion},
        "defaultConfiguration": {"level": level},
        "properties": {"tags": [rule.category.as_str()], "severity": rule.severity.as_str()},
    })
}

fn result(file: &str, finding: &PolicyFinding) -> Value {
    let PolicyFinding { rule: id, message, suggestion, decided_by, refused, .. } = finding;
    let (line, column) = (finding.line.unwrap_or(1), finding.column.unwrap_or(1));
    json!({
        "ruleId": id,
        "ruleIndex": rules().position(|rule| rule.id == *id),
        "level": if *refused { "error" } else { "warning" },
        "message": {"text": format!("{message}; {suggestion} ({decided_by})")},
        "locations": [{"physicalLocation": {
            "artifactLocation": {"uri": uri(file)},
            "region": {"startLine": line, "startColumn": column},
        }}],
    })
}

/// Escapes a path as a URI reference.
fn uri(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-~".contains(&byte);
    let escaped = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    path.bytes().map(escaped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_analysis::policy::{Policy, PolicyLanguage, RunContext, check};

    /// Checks the fields that the standard requires of a log, a run, a tool, a rule and a result, and their
    /// values.
    #[test]
    fn the_log_has_the_fields_that_sarif_requires() {
        let strict = [Policy::built_in("strict").unwrap()];
        let code = "import os\nos.system('ls')  # é\n".to_owned();
        let verdict = check(&code, PolicyLanguage::Python, &strict, &RunContext::default());
        let log = log(&[CheckedSource { name: "a folder/é.py".to_owned(), code, verdict }]);
        assert_eq!(log["version"], "2.1.0");
        let run = &log["runs"][0];
        assert_eq!(run["columnKind"], "unicodeCodePoints");
        let driver = &run["tool"]["driver"];
        assert_eq!(driver["name"], "belljar");
        let rules = driver["rules"].as_array().unwrap();
        let levels = ["none", "note", "warning", "error"];
        for rule in rules {
            assert!(rule["id"].is_string() && rule["shortDescription"]["text"].is_string(), "{rule}");
            assert!(levels.contains(&rule["defaultConfiguration"]["level"].as_str().unwrap()), "{rule}");
        }
        let results = run["results"].as_array().unwrap();
        assert!(!results.is_empty());
        for result in results {
            assert!(result["message"]["text"].is_string(), "{result}");
            assert!(levels.contains(&result["level"].as_str().unwrap()), "{result}");
            let index = usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap();
            assert_eq!(rules[index]["id"], result["ruleId"]);
            let place = &result["locations"][0]["physicalLocation"];
            assert_eq!(place["artifactLocation"]["uri"], "a%20folder/%C3%A9.py");
            assert!(place["region"]["startLine"].as_u64().unwrap() >= 1);
            assert!(place["region"]["startColumn"].as_u64().unwrap() >= 1);
        }
    }
}
