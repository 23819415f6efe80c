//! Analysis is linear: twice the code takes at most about twice the steps, and never more than the budget.

use super::analyze::{AnalysisBudget, analyze_within_limits};
use super::hostile_tests::findings;
use super::*;
use crate::budget::TOO_COMPLEX;

/// Returns the steps that analysis takes, and whether the budget sufficed.
pub(super) fn steps(code: &str, language: PolicyLanguage) -> (u64, bool) {
    let allowance = AnalysisBudget::for_code(code.len());
    drop(analyze_within_limits(code, language, allowance.clone()));
    let budget = &allowance.budget;
    // The first refused step is the last one counted.
    assert!(budget.used() <= budget.limit() + 1);
    (budget.used(), !budget.is_spent())
}

type Generator = fn(usize) -> String;

/// Code that a naive analysis would fold, copy or look up far more often than its size suggests.
const PYTHON: &[(&str, Generator)] = &[
    ("chain of calls", |n| format!("x{}", ".a()".repeat(n))),
    ("chain of a module's calls", |n| format!("import os\nos{}", ".a()".repeat(n))),
    ("chain of text methods", |n| format!("'x'{}", ".lower()".repeat(n))),
    ("chain of formats", |n| format!("'x'{}", ".format('a')".repeat(n))),
    ("chain of subscripts", |n| format!("globals(){}", "['a']".repeat(n))),
    ("chain with arguments", |n| format!("x{}", ".a(y.b(), z.c())".repeat(n))),
    ("sum of texts", |n| format!("f({}'a')", "'a'+".repeat(n))),
    ("sum of names", |n| format!("x='a'\nf({}x)", "x+".repeat(n))),
    ("f-string with many holes", |n| format!("x='{}'\nf(f'{}')", "a".repeat(1_000), "{x}".repeat(n))),
    ("join of a long list", |n| format!("x='{}'\nf(''.join([{}]))", "a".repeat(1_000), "x,".repeat(n))),
    ("text that grows", |n| format!("x='ab'\n{}", "x+='abcdef'\n".repeat(n))),
    ("names bound between", |n| format!("f{}", "(a:=1)".repeat(n))),
    ("walrus before use", |n| format!("f({})", "(a:=a.b()),".repeat(n))),
    ("globals and imports", |n| {
        let names: Vec<_> = (0..n).map(|i| format!("g{i}")).collect();
        format!("def f():\n global {}\n{}", names.join(","), " import os\n".repeat(n))
    }),
];

const JAVASCRIPT: &[(&str, Generator)] = &[
    ("chain of calls", |n| format!("x{}", ".a()".repeat(n))),
    ("chain of toString", |n| format!("'x'{}", ".toString()".repeat(n))),
    ("chain of replace", |n| format!("'x'{}", ".replace('a','b')".repeat(n))),
    ("chain of optional calls", |n| format!("x{}", "?.a()".repeat(n))),
    ("chain of computed names", |n| format!("x{}", "['a']".repeat(n))),
    ("sum of texts", |n| format!("f({}'a')", "'a'+".repeat(n))),
    ("template with many holes", |n| format!("x='{}';f(`{}`)", "a".repeat(1_000), "${x}".repeat(n))),
    ("join of a long list", |n| format!("x='{}';f([{}].join(''))", "a".repeat(1_000), "x,".repeat(n))),
    ("loops inside loops", |n| format!("{}{{{}}}", "while(true)".repeat(n), "a();".repeat(n))),
];

const SHELL: &[(&str, Generator)] = &[
    ("one word of many variables", |n| format!("x={}\necho \"{}\"", "a".repeat(1_000), "$x".repeat(n))),
    ("substitutions side by side", |n| "echo $(echo a)\n".repeat(n)),
    ("wrappers", |n| "env nice nohup env nice nohup ls\n".repeat(n)),
];

/// Code whose texts or lookups grow faster than the code; the linear budget stops the analysis.
const MULTIPLYING: &[(PolicyLanguage, &str, Generator)] = &[
    (PolicyLanguage::Python, "replace that multiplies", |n| {
        format!("x='{}'\n{}", "a".repeat(1_000), "x=x.replace('a',x)\n".repeat(n))
    }),
    (PolicyLanguage::Python, "text that doubles", |n| format!("x='ab'\n{}", "x=x+x\n".repeat(n))),
    (PolicyLanguage::Python, "a long text as every argument", |n| {
        format!("x='{}'\n{}", "a".repeat(9_000), "f(x,x,x)\n".repeat(n))
    }),
    (PolicyLanguage::Python, "scopes inside scopes", |n| {
        format!("{}[{}]", "lambda:".repeat(n), "a,".repeat(n))
    }),
    (PolicyLanguage::JavaScript, "replace that multiplies", |n| {
        format!("x='{}';{}", "a".repeat(1_000), "x=x.replaceAll('a',x);".repeat(n))
    }),
    (PolicyLanguage::JavaScript, "text that doubles", |n| format!("x='ab';{}", "x=x+x;".repeat(n))),
    (PolicyLanguage::JavaScript, "names of the global object", |n| {
        format!("x='{}';{}", "self.".repeat(2_000), "window[x];".repeat(n))
    }),
    (PolicyLanguage::JavaScript, "scopes inside scopes", |n| {
        format!("{}[{}]", "a=>".repeat(n), "b,".repeat(n))
    }),
    (PolicyLanguage::JavaScript, "chain of concat", |n| format!("'x'{}", ".concat('a')".repeat(n))),
    (PolicyLanguage::Shell, "many words of one variable", |n| {
        format!("x={}\necho {}", "a".repeat(1_000), "$x ".repeat(n))
    }),
    (PolicyLanguage::Shell, "text that doubles", |n| format!("x=ab\n{}", "x=\"$x$x\"\n".repeat(n))),
    (PolicyLanguage::Shell, "text that turns around", |n| {
        format!("echo {}{}", "a".repeat(n), "|rev".repeat(n))
    }),
    (PolicyLanguage::Shell, "aliases", |n| format!("alias a='{}'\n{}", "b ".repeat(1_000), "a\n".repeat(n))),
];

fn linear(language: PolicyLanguage, generators: &[(&str, Generator)]) {
    for (name, generate) in generators {
        for n in [250, 1_000] {
            let ((one, _), (two, _)) = (steps(&generate(n), language), steps(&generate(2 * n), language));
            // The extra allows for constant parts and rounding.
            assert!(two <= one * 2 + one / 5 + 20_000, "{name} {language:?}: {one} steps, then {two}");
        }
    }
}

#[test]
fn multiplying_text_stops_at_the_budget() {
    for (language, name, generate) in MULTIPLYING {
        let code = generate(2_000);
        let allowance = AnalysisBudget::for_code(code.len());
        drop(analyze_within_limits(&code, *language, allowance.clone()));
        let (used, limit) = (allowance.budget.used(), allowance.budget.limit());
        assert!(used <= limit + 1 && limit <= 20_000 + 128 * code.len() as u64, "{name}: {used} of {limit}");
    }
}

#[test]
fn python_analysis_is_linear() {
    linear(PolicyLanguage::Python, PYTHON);
}

#[test]
fn javascript_analysis_is_linear() {
    linear(PolicyLanguage::JavaScript, JAVASCRIPT);
    linear(PolicyLanguage::TypeScript, JAVASCRIPT);
}

#[test]
fn shell_analysis_is_linear() {
    linear(PolicyLanguage::Shell, SHELL);
}

/// Chains take a few steps per link and do not exhaust the budget.
#[test]
fn chains_take_a_few_steps_per_link() {
    for (language, generators) in
        [(PolicyLanguage::Python, &PYTHON[..6]), (PolicyLanguage::JavaScript, &JAVASCRIPT[..5])]
    {
        for (name, generate) in generators {
            let code = generate(4_000);
            let (steps, enough) = steps(&code, language);
            assert!(enough && steps <= 16 * code.len() as u64, "{name} {language:?}: {steps} steps");
        }
    }
}

#[test]
fn code_above_its_budget_is_always_reported_as_too_complex() {
    let python = format!("x='{}'\n{}", "a".repeat(9_000), "open(x,x,x)\n".repeat(2_000));
    let javascript = format!("x='{}';{}", "a".repeat(9_000), "f(x,x,x);".repeat(2_000));
    let shell = format!("x={}\n{}", "a".repeat(9_000), "echo $x $x $x\n".repeat(2_000));
    for (code, language) in [
        (python, PolicyLanguage::Python),
        (javascript, PolicyLanguage::JavaScript),
        (shell, PolicyLanguage::Shell),
    ] {
        let first = findings(&code, language);
        let said = |finding: &PolicyFinding| finding.message == format!("not read: {TOO_COMPLEX}");
        assert!(first.iter().any(said), "{language:?} {first:?}");
        assert_eq!(first, findings(&code, language));
        let strict = [Policy::built_in("strict").unwrap()];
        let refusal = check(&code, language, &strict, &RunContext::default()).refusal().unwrap();
        assert!(refusal.contains(TOO_COMPLEX), "{refusal}");
    }
}

/// Facts found before the budget is exhausted are kept, and long chains are still folded.
#[test]
fn facts_found_before_exhaustion_are_kept() {
    let long = format!("import os\ngetattr(os, {}'m')('ls')", "'s'+'y'+'s'+'t'+'e'+".to_owned());
    let far = format!("import os\nx{}\nos.system('ls')", ".a()".repeat(8_000));
    let late = "f((o := __import__('os')), o.system('ls'))".to_owned();
    for code in [long, far, late] {
        let found = findings(&code, PolicyLanguage::Python);
        assert!(found.iter().any(|finding| finding.rule == "PY-SHELL"), "{code:.80} {found:?}");
    }
}
