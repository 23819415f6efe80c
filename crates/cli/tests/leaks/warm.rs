//! The leak test for warm runs: after one batch of all kinds, the host is in the same state as before.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};

use super::mixed::PATIENCE;
use crate::common;
use crate::common::host::{Snapshot, alive_with, left_after};

const RUNS: usize = 600;
/// Number of runs with `./test --all`.
const MANY_RUNS: usize = 20_000;

/// Name, language, code, limits and allowed endings. `TOKEN` is replaced by a token by which processes are
/// found.
type Kind = (&'static str, &'static str, &'static str, Value, &'static [&'static str]);

fn kinds() -> Vec<Kind> {
    let none = || json!({});
    let short = || json!({"timeout_ms": 300});
    vec![
        ("success", "python", "print('fine')", none(), &["succeeded"]),
        ("success", "javascript", "console.log('fine')", none(), &["succeeded"]),
        ("failure", "python", "raise ValueError", none(), &["failed"]),
        ("failure", "javascript", "throw new Error('x')", none(), &["failed"]),
        ("signal", "python", "import os; os.kill(os.getpid(), 11)", none(), &["failed"]),
        ("artifacts", "python", "open('artifacts/a.txt', 'w').write('a')", none(), &["succeeded"]),
        ("time-out", "python", "while True: pass", short(), &["timed_out"]),
        ("time-out", "javascript", "setInterval(() => {}, 1000)", short(), &["timed_out"]),
        (
            "memory",
            "python",
            "x = 'x' * 10**9",
            json!({"memory_bytes": 64 << 20}),
            &["limit_exceeded", "failed"],
        ),
        (
            "disk",
            "python",
            "open('f', 'wb').write(b'x' * 10**7)",
            json!({"disk_bytes": 4 << 20}),
            &["limit_exceeded"],
        ),
        (
            "daemon",
            "python",
            "import subprocess; subprocess.Popen(['sh', '-c', 'sleep 300', 'TOKEN'], start_new_session=True)",
            none(),
            &["succeeded"],
        ),
        (
            "forks",
            "python",
            "import os\nwhile True: os.fork()",
            json!({"timeout_ms": 300, "processes": 16}),
            &["timed_out", "limit_exceeded", "failed"],
        ),
        (
            "flood",
            "python",
            "while True: print('x' * 1000)",
            json!({"timeout_ms": 300, "output_bytes": 4096}),
            &["timed_out"],
        ),
        ("exec", "python", "import os; os.execv('/bin/true', ['true'])", none(), &["succeeded"]),
    ]
}

/// Selects the kind of a run: most are ordinary, every fourth is of a special kind.
fn kind_of(number: usize, kinds: &[Kind]) -> &Kind {
    if number.is_multiple_of(4) { &kinds[number / 4 % kinds.len()] } else { &kinds[number % 2] }
}

pub(crate) fn warm_runs() -> Result<(), String> {
    common::run(["--", "true"]);
    let runs = if std::env::var("BELLJAR_TEST_ALL").is_ok_and(|all| all == "1") { MANY_RUNS } else { RUNS };
    let before = Snapshot::take();
    let token = format!("warmleaktest{}", std::process::id());
    let kinds = kinds();
    let mut lines = String::new();
    for number in 0..runs {
        let (_, language, code, limits, _) = kind_of(number, &kinds);
        let line = json!({"language": language, "code": code.replace("TOKEN", &token), "limits": limits, "policy": "off"});
        writeln!(lines, "{line}").map_err(|error| error.to_string())?;
    }
    let file = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
    std::fs::write(file.path(), lines).map_err(|error| error.to_string())?;
    let mut command = common::belljar();
    command.args(["run", "--quiet", "--jobs", "6", "--batch"]).arg(file.path()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let results = BufReader::new(child.stdout.take().ok_or("no output")?);
    let mut counts = BTreeMap::<String, usize>::new();
    let mut wrong = Vec::new();
    for line in results.lines() {
        let result: Value = serde_json::from_str(&line.map_err(|error| error.to_string())?)
            .map_err(|error| error.to_string())?;
        let (name, language, _, _, endings) = kind_of(result["index"].as_u64().unwrap_or(0) as usize, &kinds);
        let status = result["status"].as_str().unwrap_or("none");
        *counts.entry(format!("warm {}", result["receipt"]["warm"])).or_default() += 1;
        if !endings.contains(&status) && wrong.len() < 5 {
            wrong.push(format!("{language} {name}: {result}"));
        }
    }
    child.wait().map_err(|error| error.to_string())?;
    println!("{runs} runs: {counts:?}");
    let total: usize = counts.values().sum();
    let cold = counts.get("warm false").copied().unwrap_or(0);
    if !wrong.is_empty() || total != runs || cold * 2 > runs {
        return Err(format!("{total} of {runs} answered, {cold} cold; {}", wrong.join("\n")));
    }
    let alive = alive_with(&token, PATIENCE);
    let left = left_after(&before, PATIENCE);
    if alive.is_empty() && left.is_empty() {
        Ok(())
    } else {
        Err(format!("left behind: {alive:#?} {left:#?}"))
    }
}
