//! Checks every rule against its cases.

use super::*;

fn language(id: &str) -> PolicyLanguage {
    match &id[..3] {
        "PY-" => PolicyLanguage::Python,
        "JS-" => PolicyLanguage::JavaScript,
        "SH-" => PolicyLanguage::Shell,
        other => panic!("{other} is not a language"),
    }
}

fn rules() -> impl Iterator<Item = &'static PolicyRule> {
    RULES.iter().copied().flatten().copied().flatten()
}

/// Returns a policy that reports everything, with the lists of `ragflow`.
fn everything() -> Policy {
    Policy {
        default: Action::Warn,
        rules: std::collections::BTreeMap::new(),
        ..Policy::built_in("ragflow").unwrap()
    }
}

fn found(code: &str, language: PolicyLanguage) -> Vec<&'static str> {
    let verdict = check(code, language, &[everything()], &RunContext::default());
    verdict.findings.iter().map(|finding| finding.rule).collect()
}

#[test]
fn every_rule_matches_exactly_its_cases() {
    let mut wrong = Vec::new();
    for rule in rules() {
        assert!(!rule.matches.is_empty() && !rule.non_matches.is_empty(), "{} has no cases", rule.id);
        for case in rule.matches {
            let found = found(case, language(rule.id));
            if !found.contains(&rule.id) {
                wrong.push(format!("{} misses {case:.80?}, found {found:?}", rule.id));
            }
        }
        for case in rule.non_matches {
            if found(case, language(rule.id)).contains(&rule.id) {
                wrong.push(format!("{} matches {case:.80?}", rule.id));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn rule_ids_are_unique_and_at_least_sixty() {
    let ids: std::collections::HashSet<_> = rules().map(|rule| rule.id).collect();
    assert_eq!(ids.len(), rules().count());
    assert!(ids.len() >= 60);
}

fn refused(code: &str, language: PolicyLanguage, policy: &str) -> Option<String> {
    check(code, language, &[Policy::built_in(policy).unwrap()], &RunContext::default()).refusal()
}

/// Evasions that matching on words would miss.
#[test]
fn strict_catches_obfuscated_code() {
    use PolicyLanguage::{JavaScript, Python, Shell};
    for (language, code) in [
        (Python, "import os as o; o.system('x')"),
        (Python, "from subprocess import run as r\nr(['x'])"),
        (Python, "__import__('o'+'s').system('x')"),
        (Python, "import os\ngetattr(os, 'sys' 'tem')('x')"),
        (Python, "import builtins\nbuiltins.exec('x')"),
        (Python, "globals()['eval']('x')"),
        (Python, "import os\nos.__dict__['system']('x')"),
        (JavaScript, "require('child_' + 'process')"),
        (JavaScript, "process.binding('fs')"),
        (JavaScript, "globalThis['ev' + 'al']('x')"),
        (JavaScript, "new Function('x')"),
        (Shell, "$(echo cm0gLXJm | base64 -d | sh)"),
        (Shell, "eval \"$x\""),
    ] {
        assert!(refused(code, language, "strict").is_some(), "{code}");
    }
}

#[test]
fn shell_commands_in_other_languages_are_checked() {
    use PolicyLanguage::{JavaScript, Python};
    for (language, code) in [
        (Python, "import os\nos.system('rm -rf /')"),
        (Python, "import subprocess as s\ns.run(['rm', '-rf', '/'])"),
        (Python, "import subprocess\nsubprocess.run('dd if=/dev/zero of=/dev/sda', shell=True)"),
        (JavaScript, "require('child_process').execSync(`rm -rf ${'/'}`)"),
        (JavaScript, "require('child_process').spawn('rm', ['-rf', '/'])"),
    ] {
        assert!(refused(code, language, "balanced").is_some(), "{code}");
    }
    assert_eq!(refused("import os\nos.system('rm -rf build')", Python, "balanced"), None);
}

#[test]
fn ragflow_refuses_its_lists_without_false_positives() {
    use PolicyLanguage::{JavaScript, Python};
    for (language, code) in [
        (Python, "import os"),
        (Python, "from http.client import HTTPConnection"),
        (Python, "open('a')"),
        (JavaScript, "import fs from 'node:fs'"),
    ] {
        assert!(refused(code, language, "ragflow").is_some(), "{code}");
    }
    for code in ["1+2", "df.rename({})", "import re\nre.compile('a')", "xs.remove(1)"] {
        assert_eq!(refused(code, Python, "ragflow"), None, "{code}");
    }
}

#[test]
fn a_refusal_is_one_line_with_its_position() {
    let verdict = check(
        "x = 1\n\nimport os; os.system('a')",
        PolicyLanguage::Python,
        &[Policy::built_in("strict").unwrap()],
        &RunContext::default(),
    );
    assert_eq!(verdict.refusal().unwrap(), "Security validation failed: dangerous call 'os.system' (line 3)");
    let finding = serde_json::to_value(&verdict.findings[0]).unwrap();
    assert_eq!(
        finding,
        serde_json::json!({
            "rule": "PY-SHELL", "category": "process", "severity": "high",
            "message": "`os.system` runs a shell command", "line": 3, "column": 12,
            "suggestion": "do it in Python",
            "decided_by": "strict: categories.process = refuse",
        })
    );
}

/// Returns the dotted names in a text, such as `subprocess.run`.
fn dotted_names(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '.' || c == '_'));
    words.map(|word| word.trim_matches('.')).filter(|word| word.contains('.'))
}

#[test]
fn suggestions_for_refused_code_are_not_refused_themselves() {
    let strict = [Policy::built_in("strict").unwrap()];
    for (language, code) in
        rules().flat_map(|rule| rule.matches.iter().map(|code| (language(rule.id), *code)))
    {
        let findings = check(code, language, &strict, &RunContext::default()).findings;
        for finding in findings.iter().filter(|finding| finding.refused) {
            let PolicyFinding { rule, suggestion, .. } = finding;
            for needs_more in
                ["--network", "network access", "subprocess", "multiprocessing", "kill(", "download"]
            {
                assert!(!suggestion.contains(needs_more), "{rule}: {suggestion}");
            }
            for name in dotted_names(suggestion).filter(|_| language == PolicyLanguage::Python) {
                let (module, _) = name.rsplit_once('.').unwrap();
                let code = format!("import {module}\n{name}('1')");
                assert_eq!(refused(&code, language, "strict"), None, "{rule}: {suggestion}");
            }
        }
    }
}

#[test]
fn a_finding_names_what_was_assembled() {
    for (code, name) in [
        ("import os\ngetattr(os, 'sys' 'tem')", "system"),
        ("__import__('o' + 's')", "os"),
        ("exec(''.join(['a', '=', '1']))", "a=1"),
        ("eval(chr(49))", "1"),
        ("globals()['ev' + 'al']", "eval"),
    ] {
        let strict = [Policy::built_in("strict").unwrap()];
        let findings = check(code, PolicyLanguage::Python, &strict, &RunContext::default()).findings;
        let found = findings.iter().find(|finding| finding.rule == "PY-ASSEMBLED").unwrap();
        let message = format!("`{name}` is assembled from parts at run time");
        assert!(found.message.starts_with(&message), "{code}: {}", found.message);
    }
}

#[test]
fn every_policy_field_has_an_effect() {
    let code = "import os\nos.system('a')";
    let count = |policy: &Policy| {
        check(code, PolicyLanguage::Python, std::slice::from_ref(policy), &RunContext::default())
            .findings
            .len()
    };
    let off = Policy::default();
    assert_eq!(count(&off), 0);
    assert_eq!(count(&Policy { default: Action::Warn, ..off.clone() }), 1);
    assert_eq!(count(&Policy { categories: [(Category::Process, Action::Warn)].into(), ..off.clone() }), 1);
    let by_rule = Policy { rules: [("PY-SHELL".to_owned(), Action::Refuse)].into(), ..off.clone() };
    assert_eq!(count(&by_rule), 1);
    assert_eq!(count(&Policy { allow_modules: vec!["os".to_owned()], ..by_rule.clone() }), 0);
    let listed =
        Policy { default: Action::Warn, rules: [("PY-SHELL".to_owned(), Action::Allow)].into(), ..off };
    assert_eq!(count(&listed), 0);
    assert_eq!(count(&Policy { listed_modules: vec!["os".to_owned()], ..listed.clone() }), 1);
    assert_eq!(count(&Policy { listed_calls: vec!["os.system".to_owned()], ..listed }), 1);
}

/// Includes `extends` and `unread`, which only show in a configured policy or with broken code.
#[test]
fn every_configured_policy_field_has_an_effect() {
    let refused = |text: &str, code: &str| {
        let specs = toml::from_str(text).unwrap();
        let policy = Policies::with(specs).unwrap().get("own").unwrap();
        check(code, PolicyLanguage::Python, &[policy], &RunContext::default()).refusal().is_some()
    };
    let shell = "import os\nos.system('a')";
    assert!(!refused("[own]", shell));
    assert!(refused("[own]\nextends = 'strict'", shell));
    assert!(refused("[own]\ndefault = 'refuse'", shell));
    assert!(refused("[own.categories]\nprocess = 'refuse'", shell));
    assert!(refused("[own.rules]\nPY-SHELL = 'refuse'", shell));
    assert!(!refused("[own]\nextends = 'strict'\n[own.rules]\nPY-SHELL = 'warn'", shell));
    assert!(!refused("[own]\nextends = 'strict'\nallow_modules = ['os']", shell));
    let lists = "[own]\nextends = 'ragflow'\n";
    assert!(!refused(lists, "import json\njson.loads('1')"));
    assert!(refused(&format!("{lists}listed_modules = ['json']"), "import json"));
    assert!(refused(&format!("{lists}listed_calls = ['json.loads']"), "import json\njson.loads('1')"));
    assert!(!refused("[own]\ndefault = 'refuse'", "def f(:"));
    assert!(refused("[own]\nunread = 'refuse'", "def f(:"));
    let excused = "eval(x)  # belljar: allow PY-EVAL a calculator";
    assert!(refused("[own]\nextends = 'strict'", excused));
    assert!(!refused("[own]\nextends = 'strict'\ncomments = true", excused));
}

#[test]
fn the_strictest_of_several_policies_wins() {
    let policies = ["audit", "off", "strict"].map(|name| Policy::built_in(name).unwrap());
    let found = |policies: &[Policy]| {
        check("import os\nos.system('a')", PolicyLanguage::Python, policies, &RunContext::default()).findings
    };
    let all = found(&policies);
    assert_eq!(all.len(), 1);
    assert!(all[0].refused && all[0].decided_by.starts_with("strict: "));
    assert!(!found(&policies[..2])[0].refused);
}

#[test]
fn nested_code_is_checked() {
    use PolicyLanguage::{JavaScript, Python, Shell};
    for (language, code) in [
        (Shell, "python3 -c 'import shutil; shutil.rmtree(\"/\")'"),
        (Shell, "python3.12 - <<EOF\nimport shutil\nshutil.rmtree('/')\nEOF"),
        (Shell, "node -e \"require('fs').rmSync('/')\""),
        (Shell, "echo 'import os; os.system(\"rm -rf /\")' | python3"),
        (Python, "import os\nos.system(':(){ :|:& };:')"),
        (Python, "import subprocess\nsubprocess.run(['bash', '-c', 'rm -rf /'])"),
        (
            Python,
            "import subprocess\nsubprocess.run(['python3', '-c', 'import os; os.system(\"rm -rf /\")'])",
        ),
        (JavaScript, "require('child_process').exec('python3 -c \"import shutil; shutil.rmtree(\\'/\\')\"')"),
    ] {
        assert!(refused(code, language, "balanced").is_some(), "{code}");
    }
    assert_eq!(refused("python3 -c 'print(1)'", Shell, "balanced"), None);
}

#[test]
fn suppression_comments_need_a_reason_and_policy_consent() {
    let policy = Policy { default: Action::Refuse, comments: true, ..Policy::default() };
    let count = |policy: &Policy, code: &str| {
        check(code, PolicyLanguage::Python, std::slice::from_ref(policy), &RunContext::default())
            .findings
            .len()
    };
    let excused = "eval(x)  # belljar: allow PY-EVAL a calculator";
    assert_eq!(count(&policy, excused), 0);
    assert_eq!(count(&policy, "# belljar: allow PY-EVAL a calculator\neval(x)"), 0);
    assert_eq!(count(&policy, "eval(x)  # belljar: allow PY-EVAL"), 1);
    assert_eq!(count(&policy, "eval(x)  # belljar: allow PY-SHELL why not"), 1);
    assert_eq!(count(&Policy { comments: false, ..policy }, excused), 1);
}

#[test]
fn run_settings_decide_which_warnings_apply() {
    let balanced = Policy::built_in("balanced").unwrap();
    let found = |code: &str, context: &RunContext| {
        check(code, PolicyLanguage::Python, std::slice::from_ref(&balanced), context).findings
    };
    let request = "import requests\nrequests.get('http://a')";
    let warned = found(request, &RunContext::default());
    assert!(!warned[0].refused && warned[0].message.ends_with("; this run has no network"));
    assert!(found(request, &RunContext { network: NetworkAccess::Open, ..RunContext::default() }).is_empty());
    let write = "open('/data/x', 'w')";
    assert!(found(write, &RunContext::default())[0].message.ends_with("; this run cannot write there"));
    assert!(
        found(write, &RunContext { writable: vec!["/data".to_owned()], ..RunContext::default() }).is_empty()
    );
    assert_eq!(
        found(
            "open('/database/x', 'w')",
            &RunContext { writable: vec!["/data".to_owned()], ..RunContext::default() }
        )
        .len(),
        1
    );
}

/// Everyday code.
#[test]
fn balanced_allows_everyday_code() {
    use PolicyLanguage::{JavaScript, Python, Shell, TypeScript};
    for (language, code) in [
        (
            Python,
            "import numpy as np\nimport pandas as pd\ndf = pd.DataFrame({'a': np.arange(3)})\nprint(df.eval('a + 1').sum(), df.query('a > 1'))\ndf.to_csv('out.csv')",
        ),
        (
            Python,
            "from flask import Flask\napp = Flask(__name__)\n@app.route('/')\ndef index(): return 'ok'\nif __name__ == '__main__':\n    app.run()",
        ),
        (
            Python,
            "import torch, re, os, shutil\nmodel.eval()\nre.compile('a').match('b')\nos.makedirs('out', exist_ok=True)\nshutil.rmtree('out')\nwith open('/tmp/x', 'w') as f: f.write('a')",
        ),
        (Python, "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(1)'], check=True)\n"),
        (
            JavaScript,
            "const express = require('express');\nconst app = express();\napp.get('/', (req, res) => res.send('ok'));\nconst fs = require('fs');\nfs.rmSync('dist', { recursive: true, force: true });",
        ),
        (
            TypeScript,
            "import type { A } from 'fs';\ninterface B { eval: (x: string) => void }\nconst x: B = { eval: (x) => {} };\nx.eval('1');",
        ),
        (
            Shell,
            "#!/bin/bash\nset -euo pipefail\nrm -rf build && mkdir -p build\ncd build\ncmake .. -DA=1 > /dev/null 2>&1\nmake -j\"$(nproc)\"\nfind . -name '*.o' -delete\nfor f in *.txt; do cp \"$f\" /tmp/; done",
        ),
    ] {
        let verdict = check(code, language, &[Policy::built_in("balanced").unwrap()], &RunContext::default());
        assert_eq!(verdict.findings, [], "{code}");
    }
}

#[test]
fn a_refusal_is_not_lost_behind_warnings() {
    let code = format!("{}rm -rf /", "curl http://a\n".repeat(1_000));
    assert!(refused(&code, PolicyLanguage::Shell, "balanced").is_some());
}

/// `BELLJAR_WRITE_DOCS=1 cargo test -p belljar-analysis docs` regenerates the page.
#[test]
fn policy_docs_are_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/policy.md");
    if std::env::var_os("BELLJAR_WRITE_DOCS").is_some() {
        std::fs::create_dir_all(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs")).unwrap();
        std::fs::write(path, docs::page()).unwrap();
    }
    let page = std::fs::read_to_string(path).unwrap_or_default();
    assert!(page == docs::page(), "docs/policy.md is out of date; BELLJAR_WRITE_DOCS=1 regenerates it");
}

/// Names come from the code, which may contain anything, and messages are printed to terminals.
#[test]
fn messages_have_no_control_characters() {
    let hostile = "\u{1b}]0;x\u{7}\u{9b}2J\u{202e}\u{200b}\r\n";
    for (language, code) in [
        (PolicyLanguage::Python, format!("__import__('''{hostile}''')\ngetattr(os, 'a' + '''{hostile}''')")),
        (PolicyLanguage::JavaScript, format!("require(`{hostile}` + 'x')")),
        (PolicyLanguage::Shell, format!("'{hostile}' a; echo > '/etc/{hostile}'; sudo '{hostile}'")),
    ] {
        let findings = check(&code, language, &[everything()], &RunContext::default()).findings;
        assert!(!findings.is_empty(), "{code:?}");
        for finding in findings {
            assert!(
                finding.message.chars().chain(finding.subject.chars()).all(is_displayable),
                "{finding:?}"
            );
        }
    }
}
