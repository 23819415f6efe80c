//! Measures policy checks of small programs, of whole directories, and of the worst code that is accepted.
//! `cargo run --release -p belljar-analysis --example policy_speed [FOLDER…]`
#![expect(clippy::print_stdout, reason = "prints its measurements")]

// `cargo bolero` instruments every target of the package, so every target must link bolero.
use bolero as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belljar_analysis::policy::{Policy, PolicyLanguage, RunContext, check};

const SMALL: [(&str, PolicyLanguage); 3] = [
    ("import math\nprint(sum(math.sqrt(n) for n in range(100)))\n", PolicyLanguage::Python),
    ("const fs = require('fs');\nconsole.log(fs.readdirSync('.').length);\n", PolicyLanguage::JavaScript),
    ("set -e\nfor f in *.txt; do wc -l \"$f\"; done\n", PolicyLanguage::Shell),
];

fn main() {
    let balanced = Policy::built_in("balanced");
    let policies: Vec<Policy> = balanced.into_iter().collect();
    for (code, language) in SMALL {
        let times = sorted(2_000, || timed(code, language, &policies));
        println!("small {language:?}: median {:?}, p99 {:?}", times[1_000], times[1_980]);
    }
    for folder in std::env::args().skip(1) {
        let (mut files, mut bytes, mut took, mut slowest) =
            (0, 0, Duration::ZERO, (Duration::ZERO, PathBuf::new()));
        each(Path::new(&folder), &mut |path, language| {
            let Ok(code) = std::fs::read(path) else { return };
            let code = String::from_utf8_lossy(&code);
            let time = timed(&code, language, &policies);
            (files, bytes, took) = (files + 1, bytes + code.len(), took + time);
            if time > slowest.0 {
                slowest = (time, path.to_owned());
            }
        });
        let rate = bytes as f64 / 1e6 / took.as_secs_f64();
        println!("{folder}: {files} files, {bytes} bytes, {took:?}: {rate:.1} MB/s; slowest {slowest:?}");
    }
    for (open, close) in [
        ("(", ")"),
        ("(a=", ")"),
        ("a?(", "):0"),
        ("$(", ")"),
        ("{ ", "; }"),
        ("a<b<", ""),
        ("`${", "}`"),
        ("if a; then ", "; fi"),
    ] {
        for language in [
            PolicyLanguage::Python,
            PolicyLanguage::JavaScript,
            PolicyLanguage::TypeScript,
            PolicyLanguage::Shell,
        ] {
            let one = format!("{}1{}\n", open.repeat(150), close.repeat(150));
            let code = one.repeat((250 << 10) / one.len());
            println!("{open} nested, as {language:?}: {:?}", timed(&code, language, &policies));
        }
    }
}

fn timed(code: &str, language: PolicyLanguage, policies: &[Policy]) -> Duration {
    let start = Instant::now();
    std::hint::black_box(check(code, language, policies, &RunContext::default()));
    start.elapsed()
}

fn sorted(count: usize, mut work: impl FnMut() -> Duration) -> Vec<Duration> {
    let mut times: Vec<_> = (0..count).map(|_| work()).collect();
    times.sort();
    times
}

fn each(folder: &Path, act: &mut dyn FnMut(&Path, PolicyLanguage)) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        let language = match extension {
            _ if path.is_symlink() => None,
            _ if path.is_dir() => {
                each(&path, act);
                None
            }
            Some("py") => Some(PolicyLanguage::Python),
            Some("js" | "mjs" | "cjs") => Some(PolicyLanguage::JavaScript),
            Some("ts") => Some(PolicyLanguage::TypeScript),
            Some("sh" | "bash") => Some(PolicyLanguage::Shell),
            _ => None,
        };
        if let Some(language) = language {
            act(&path, language);
        }
    }
}
