//! `docs/policy.md`, made from the table of rules.

use std::fmt::Write as _;

use super::{Policy, RULES, Rule};

const HEAD: &str = "\
# Policy: reading code before it runs

Belljar reads Python, JavaScript, TypeScript and shell before it runs them, on real syntax trees and with names resolved.
**This is not what confines code; the jail is.** Whoever wants to hide a call from a reader can. What it gives is an early,
exact answer: which line will fail here or is not wanted, why, and what to do instead.

    belljar check script.py
    belljar check src tests --sarif > findings.sarif
    belljar check --policy strict --json -c 'import os; os.system(\"ls\")'
    belljar run --policy strict script.py

Exit status: 0, or 126 where the policy refuses. Every run is read the same way before it starts, wherever it comes from: code,
files that come along, commands with what they are given (`sh -c`, `python -c`, `node -e`, standard input), and the commands
of a living sandbox. What a program is sent while it runs is not. What is refused has the status `refused`, one line in
`error` and all in `findings`; nothing of it ran. Warnings come with the result. `POST /v1/check` takes the same object as
`POST /v1/executions` and runs nothing.

## Policies

| policy | what it does |
|---|---|
| `off` | reads nothing |
| `audit` | says everything, refuses nothing |
| `balanced` | refuses plain attacks (fork bombs, wiping `/`, raw disks); warns where this run's settings will make a call fail |
| `strict` | refuses processes, network, native and dynamic code, and what hides; warns of the rest |
| `ragflow` | refuses what RAGFlow's sandbox lists, on resolved names |

A policy is data, and `belljar.toml` may have more of them:

    [policies.house]
    extends = \"strict\"                 # off unless said otherwise
    default = \"warn\"                   # allow, warn_if_blocked, warn or refuse
    unread = \"refuse\"                  # code that is too long, nested too deep or not understood
    allow_modules = [\"socket\"]         # nothing is said about these
    listed_modules = [\"telnetlib\"]     # what *-LISTED-MODULE finds
    listed_calls = [\"os.getlogin\"]     # what *-LISTED-CALL finds
    comments = false
    categories.network = \"warn\"
    rules.PY-EVAL = \"refuse\"

    [profiles.agents]
    policy = \"house\"

The nearest word counts: an allowed module, the rule, `unread`, its category, the default. A request chooses a policy; else its
profile does, else it is `balanced`. What a profile names, or an administrator for a tenant (`belljar tenant policy ada strict`),
is a floor: all of them are applied and the strictest word counts, so a request can ask for more and never for less. Inside a living
sandbox, the policy with which it was opened is such a floor as well. Where `comments` is set (in none of these: code that nobody trusts must not excuse itself), `# belljar: allow RULE
reason` on the line or the one above it excuses a finding; without a reason it does not.

Code longer than 256 KB, or nested deeper than 200 brackets, is not read, and a finding says so; `strict` and `ragflow` refuse
it, `balanced` does not.

Held against real code (the standard library of Python 3.11 with its tests, Django, Flask, Requests, Rich, SymPy, Express, lodash,
axios, TypeScript), `balanced` refuses none of 16,934 files. Less than one in a hundred of them it does not read or not understand,
and says so: bundles of more than 256 KB, and files that are wrong on purpose, for tests.
";

/// The page.
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

fn section(page: &mut String, rule: &Rule) {
    let refused: Vec<_> = Policy::NAMES
        .into_iter()
        .filter_map(Policy::built_in)
        .filter(|policy| policy.refuses(rule))
        .map(|policy| format!("`{}`", policy.name))
        .collect();
    let refused = if refused.is_empty() { "no built-in policy".to_owned() } else { refused.join(", ") };
    let _ = write!(
        page,
        "\n### {}\n\n{}, {}. {}.\nInstead: {}. Refused by: {refused}.\n",
        rule.id,
        rule.category.word(),
        rule.severity.word(),
        capital(&rule.message.replace("{}", "…")),
        rule.suggestion,
    );
    let shown = |page: &mut String, title: &str, cases: &[&str]| {
        if let Some(case) = cases.iter().find(|case| case.len() < 200) {
            let indented = case.replace('\n', "\n    ");
            let _ = write!(page, "\n{title}:\n\n    {indented}\n");
        }
    };
    shown(page, "Found", rule.matches);
    shown(page, "Left alone", rule.leaves);
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}
