//! Code that attacks the analysis itself: deeply nested, very long or growing. Random input is in
//! `fuzz_tests`.

use std::collections::BTreeMap;

use super::*;

const LANGUAGES: [PolicyLanguage; 4] =
    [PolicyLanguage::Python, PolicyLanguage::JavaScript, PolicyLanguage::TypeScript, PolicyLanguage::Shell];

/// Returns a policy that reports everything.
fn everything() -> [Policy; 1] {
    [Policy {
        default: Action::Warn,
        rules: BTreeMap::new(),
        unread: Action::Warn,
        ..Policy::built_in("ragflow").unwrap()
    }]
}

/// Analyzes code, and checks that it neither takes too long nor makes a parser fail.
pub(super) fn findings(code: &str, language: PolicyLanguage) -> Vec<PolicyFinding> {
    let findings = check(code, language, &everything(), &RunContext::default()).findings;
    for bad in ["not read: takes too long", "not read: the parser failed"] {
        assert!(findings.iter().all(|finding| finding.message != bad), "{bad}: {language:?} {code:.200?}");
    }
    findings
}

fn unread(findings: &[PolicyFinding]) -> bool {
    findings.iter().any(|finding| finding.message.starts_with("not read"))
}

/// Runs on a stack as small as a server thread's.
fn on_a_small_stack(work: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().stack_size(2 << 20).spawn(work).unwrap().join().unwrap();
}

/// Text that opens a level, and text that closes it.
pub(super) const NESTS: &[(&str, &str)] = &[
    ("(", ")"),
    ("[", "]"),
    ("{", "}"),
    ("-", ""),
    ("!", ""),
    ("a.", ""),
    ("a+", ""),
    ("f(", ")"),
    ("if a:", ""),
    ("not ", ""),
    ("a=>", ""),
    ("(a=", ")"),
    ("(a=>", ")"),
    ("(a,", ")"),
    ("({a:", "})"),
    ("([", "])"),
    ("async(", ")"),
    ("a?(", "):0"),
    ("a?b:", ""),
    ("a<b<", ""),
    ("a<(", ")"),
    ("<a>", "</a>"),
    ("`${", "}`"),
    ("lambda:", ""),
    ("lambda x=", ":0"),
    ("f'{", "}'"),
    ("[x for x in ", "]"),
    ("\"(", ""),
    ("$(", ")"),
    ("\"$(", ")\""),
    ("$((", "))"),
    ("${a:-", "}"),
    ("`", ""),
    ("{ ", "; }"),
    ("( ", ")"),
    ("((", "))"),
    ("if ", ""),
    ("if a; then ", "; fi"),
    ("while a; do ", "; done"),
    ("case a in a) ", ";; esac"),
    ("case a in (a) ", ";; esac"),
    ("for a in a; do ", "; done"),
    ("until a; do ", "; done"),
    ("function f { ", "; }"),
    ("f() ( ", ")"),
    ("coproc ", ""),
    ("await ", ""),
    ("yield ", ""),
    ("match a:", ""),
    ("async for a in ", ""),
    ("a if b else ", ""),
    ("function*(){", "}"),
    ("class{a=", "}"),
    ("<T>(", ")"),
    ("f() { ", "; }"),
    ("a | ", ""),
    ("a && ", ""),
    ("! ", ""),
    ("[[ ", " ]]"),
    ("<(", ")"),
    ("x=(", ")"),
    ("if(a)", ""),
    ("\\", ""),
    ("'", ""),
];

#[test]
fn nested_code_is_fast_on_a_small_stack() {
    on_a_small_stack(|| {
        for language in LANGUAGES {
            for (open, close) in NESTS {
                for levels in [20, 190] {
                    findings(&format!("{}1{}", open.repeat(levels), close.repeat(levels)), language);
                }
                findings(&open.repeat(10_000 / open.len()), language);
            }
        }
    });
}

#[test]
fn oversized_code_is_reported_as_unread() {
    on_a_small_stack(|| {
        for language in LANGUAGES {
            for open in ["(", "[", "{", "f(", "$(", "-"] {
                assert!(
                    unread(&findings(&open.repeat((1 << 20) / open.len()), language)),
                    "{open} {language:?}"
                );
            }
            assert!(unread(&findings(&"x ".repeat(5 << 20), language)));
            assert!(unread(&findings(&"(".repeat(250_000), language)));
        }
    });
}

/// A few bytes that grow into a deep or long text before they are executed.
#[test]
fn growing_text_is_bounded() {
    on_a_small_stack(|| {
        let doubled =
            |line: &str, start: &str, end: &str| format!("{start}\n{}{end}", format!("{line}\n").repeat(20));
        let python = doubled("x = x + x", "import os\nx = '(('", "os.system(x)");
        let often = doubled("x = x + x", "import os\nx = 'ls;'", &"os.system(x)\n".repeat(2_000));
        let script = doubled("x = x + x", "const c = require('child_process'); let x = '(('", "c.exec(x)");
        let shell = doubled("x=\"$x$x\"", "x='(('", "eval \"$x\"");
        findings(&python, PolicyLanguage::Python);
        findings(&script, PolicyLanguage::JavaScript);
        findings(&shell, PolicyLanguage::Shell);
        findings(&often, PolicyLanguage::Python);
    });
    let deep = format!("import os\nos.system('{}')", "(".repeat(400));
    assert!(unread(&findings(&deep, PolicyLanguage::Python)));
    let nested = (0..8).fold("ls".to_owned(), |code, _| format!("eval {}", quoted(&code)));
    assert!(unread(&findings(&nested, PolicyLanguage::Shell)));
}

fn quoted(code: &str) -> String {
    format!("'{}'", code.replace('\'', "'\\''"))
}

/// Counting columns from the start of the line for each finding would take minutes.
#[test]
fn many_findings_on_one_long_line_are_fast() {
    let code = format!("é = 0; {}", "eval(x);".repeat(20_000));
    let found = findings(&code, PolicyLanguage::Python);
    assert_eq!(found.len(), MAX_FINDINGS);
    let columns: Vec<u32> = found.iter().filter_map(|finding| finding.column).collect();
    assert!(columns.starts_with(&[8, 8, 16]), "{columns:?}");
}

/// A parser that backtracks at every level shows it when the innermost construct is unclosed.
#[test]
fn unclosed_constructs_are_fast() {
    for inner in ["function f() ", "f() ", "case a in a) ", "((", "$(", "if a"] {
        for open in ["(", "((", "$(", "$((", "( "] {
            for levels in [8, 16, 100] {
                findings(&format!("{}{inner}", open.repeat(levels)), PolicyLanguage::Shell);
            }
        }
    }
}
