//! Generates `docs/policy.md` from the table of rules.

use std::fmt::Write as _;

use super::{Policy, PolicyRule, RULES};

const HEAD: &str = "\
# Policy: checking code before it runs

Belljar analyzes Python, JavaScript, TypeScript and shell code before it runs, on real syntax trees and with resolved names.
**A policy does not confine code; the jail does.** Code can hide a call from static analysis. What a policy gives is an
early, exact answer: which line will fail or is unwanted, why, and what to do instead.

    belljar check script.py
    belljar check src tests --sarif > findings.sarif
    belljar check --policy strict --json -c 'import os; os.system(\"ls\")'
    belljar run --policy strict script.py

The exit status is 0, or 126 if the policy refuses the code. Every run is checked in the same way before it starts: code,
accompanying files, commands with their arguments and input (`sh -c`, `python -c`, `node -e`, standard input), and the
commands of a sandbox. Input that a program receives while it runs is not checked. Refused code does not run at all: its
status is `refused`, with one line in `error` and all details in `findings`. Warnings are returned with the result.
`POST /v1/check` takes the same object as `POST /v1/executions` and only checks it.

## Policies

| policy | what it does |
|---|---|
| `off` | checks nothing |
| `audit` | reports everything, refuses nothing |
| `balanced` | refuses obvious attacks (fork bombs, wiping `/`, raw disks); warns where the run's settings will make a call fail |
| `strict` | refuses processes, network access, native and dynamic code, introspection and obfuscation; warns about the rest |
| `ragflow` | refuses what RAGFlow's sandbox lists, on resolved names |

A policy is data, and `belljar.toml` can define more:

    [policies.house]
    extends = \"strict\"                 # default: off
    default = \"warn\"                   # allow, warn_if_blocked, warn or refuse
    unread = \"refuse\"                  # code that is too long, nested too deeply or invalid
    allow_modules = [\"socket\"]         # always allowed
    listed_modules = [\"telnetlib\"]     # matched by *-LISTED-MODULE
    listed_calls = [\"os.getlogin\"]     # matched by *-LISTED-CALL
    comments = false
    categories.network = \"warn\"
    rules.PY-EVAL = \"refuse\"

    [profiles.agents]
    policy = \"house\"

The most specific entry applies: an allowed module, the rule, `unread`, its category, the default. A request chooses a policy;
otherwise its profile's policy applies, or `balanced`. The policy of a profile, or the one that an administrator sets for a
tenant (`belljar tenant policy ada strict`), is a floor: all of them are applied and the strictest action counts, so a
request can be stricter but never more lenient. In a sandbox, the policy with which it was opened is also a floor.

If `comments` is set, `# belljar: allow RULE reason` on the line or the one above it suppresses a finding; the reason is
required. No built-in policy sets it, because untrusted code must not excuse itself.

Code longer than 256 KB, or with brackets nested deeper than 200 levels, is not analyzed, and a finding says so; `strict` and
`ragflow` refuse such code, `balanced` does not.

On real code (the standard library of Python 3.11 with its tests, Django, Flask, Requests, Rich, SymPy, Express, lodash,
axios, TypeScript), `balanced` refuses none of 16,934 files. Fewer than one in a hundred of them cannot be analyzed, and a
finding says so: bundles of more than 256 KB, and test files with intentional errors.
";

/// Returns the page.
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    for (title, rules) in ["Python", "JavaScript and TypeScript", "Shell"].iter().zip(RULES) {
        let _ = write!(page, "\n## {title}\n");
        for rule in rules.iter().copied().flatten() {
            section(&mut page, rule);
        }
    }
    page
}

fn section(page: &mut String, rule: &PolicyRule) {
    let refused: Vec<_> = Policy::NAMES
        .into_iter()
        .filter_map(Policy::built_in)
        .filter(|policy| policy.refuses(rule))
        .map(|policy| format!("`{}`", policy.name))
        .collect();
    let refused = if refused.is_empty() { "no built-in policy".to_owned() } else { refused.join(", ") };
    let _ = write!(
        page,
        "\n### {}\n\n{}, {}. {}.\nSuggestion: {}. Refused by: {refused}.\n",
        rule.id,
        rule.category.as_str(),
        rule.severity.as_str(),
        capital(&rule.message.replace("{}", "…")),
        rule.suggestion,
    );
    let shown = |page: &mut String, title: &str, cases: &[&str]| {
        if let Some(case) = cases.iter().find(|case| case.len() < 200) {
            let indented = case.replace('\n', "\n    ");
            let _ = write!(page, "\n{title}:\n\n    {indented}\n");
        }
    };
    shown(page, "Matched", rule.matches);
    shown(page, "Not matched", rule.non_matches);
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}
