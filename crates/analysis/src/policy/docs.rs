//! `docs/policy.md`, made from the table of rules.

use std::fmt::Write as _;

use super::{Policy, RULES, Rule};

const HEAD: &str = "\
# Policy: reading code before it runs

Belljar reads Python, JavaScript, TypeScript and shell before it runs them, on real syntax trees and with names resolved.
**This is not what confines code; the jail is.** Whoever wants to hide a call from a reader can. What it gives is an early,
exact answer: which line will fail here or is not wanted, why, and what to do instead.

    belljar check script.py
    belljar check --policy strict --json -c 'import os; os.system(\"ls\")'

Exit status: 0, or 126 where the policy refuses.

## Policies

| policy | what it does |
|---|---|
| `off` | reads nothing |
| `audit` | says everything, refuses nothing |
| `balanced` | refuses plain attacks (fork bombs, wiping `/`, raw disks); warns where this run's settings will make a call fail |
| `strict` | refuses processes, network, native and dynamic code, and what hides; warns of the rest |
| `ragflow` | refuses what RAGFlow's sandbox lists, on resolved names |

A policy is data: `default`, `categories`, `rules` (each `allow`, `warn_if_blocked`, `warn` or `refuse`), `allow_modules`,
`listed_modules`, `listed_calls`, and `comments`. The nearest word counts: an allowed module, the rule, its category, the
default. Where `comments` is set (in none of these: code that nobody trusts must not excuse itself), `# belljar: allow RULE
reason` on the line or the one above it excuses a finding; without a reason it does not.

Code longer than 256 KB, or nested deeper than 200 brackets, is not read, and a finding says so.
";

/// The page.
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    for (title, rules) in ["Python", "JavaScript and TypeScript", "Shell"].iter().zip(RULES) {
        let _ = write!(page, "\n## {title}\n");
        for rule in *rules {
            section(&mut page, rule);
        }
    }
    page
}

fn section(page: &mut String, rule: &Rule) {
    let refused: Vec<_> = Policy::NAMES
        .into_iter()
        .filter_map(|name| Policy::named(name).ok())
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
