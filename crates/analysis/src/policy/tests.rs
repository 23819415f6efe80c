//! Goes over the table: every rule has cases, and they hold.

use super::*;

fn language(id: &str) -> Language {
    match &id[..3] {
        "PY-" => Language::Python,
        "JS-" => Language::JavaScript,
        "SH-" => Language::Shell,
        other => panic!("{other} is no language"),
    }
}

fn rules() -> impl Iterator<Item = &'static Rule> {
    RULES.iter().copied().flatten()
}

/// Says everything, and knows the lists of `ragflow`.
fn everything() -> Policy {
    Policy {
        default: Action::Warn,
        rules: std::collections::BTreeMap::new(),
        ..Policy::named("ragflow").unwrap()
    }
}

fn found(code: &str, language: Language) -> Vec<&'static str> {
    let verdict = check(code, language, &everything(), &Context::default());
    verdict.findings.iter().map(|finding| finding.rule).collect()
}

#[test]
fn every_rule_finds_its_cases_and_leaves_the_others() {
    let mut wrong = Vec::new();
    for rule in rules() {
        assert!(!rule.matches.is_empty() && !rule.leaves.is_empty(), "{} has no cases", rule.id);
        for case in rule.matches {
            let found = found(case, language(rule.id));
            if !found.contains(&rule.id) {
                wrong.push(format!("{} misses {case:.80?}, found {found:?}", rule.id));
            }
        }
        for case in rule.leaves {
            if found(case, language(rule.id)).contains(&rule.id) {
                wrong.push(format!("{} minds {case:.80?}", rule.id));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn ids_are_unique_and_there_are_enough() {
    let ids: std::collections::HashSet<_> = rules().map(|rule| rule.id).collect();
    assert_eq!(ids.len(), rules().count());
    assert!(ids.len() >= 60);
}
