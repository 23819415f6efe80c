//! Measures finding and resolving imports in a file of a thousand lines, and in the worst code that is
//! accepted.
//! `cargo run --release -p belljar-analysis --example imports_speed`
#![expect(clippy::print_stdout, reason = "prints its measurements")]

// `cargo bolero` instruments every target of the package, so every target must link bolero.
use bolero as _;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use belljar_analysis::imports::{
    ImportLanguage, PythonVersion, Resolver, ResolverSettings, SourceCode, detect,
};

const PYTHON: &str = "import numpy as np\nfrom sklearn.svm import SVC\n\ndef work(a, b=[1, 2], *, c=None):\n    \"\"\"Says what it does.\"\"\"\n    total = sum(x * a[i] for i, x in enumerate(b) if x > 0)\n    if total > 10 and c is not None:\n        return {'total': total, 'text': f'{total:.2f} of {c!r}'}\n    return [np.sqrt(v) for v in b]\n\n";
const TYPESCRIPT: &str = "import { debounce } from 'lodash';\nconst fs = require('fs');\n\nexport async function work<T extends object>(a: T[], b = 1): Promise<number> {\n  const total = a.filter((x) => x !== null).map((x) => Object.keys(x).length).reduce((p, q) => p + q, 0);\n  if (total > 10 && b) {\n    return total * (b + 1);\n  }\n  return a.length;\n}\n";

fn main() {
    for (name, part, language) in [
        ("python", PYTHON, ImportLanguage::Python),
        ("typescript", TYPESCRIPT, ImportLanguage::TypeScript),
        ("javascript", &without_types(TYPESCRIPT), ImportLanguage::JavaScript),
    ] {
        let code = part.repeat(100);
        let mut times: Vec<Duration> = (0..50).map(|_| measure(&code, language)).collect();
        times.sort();
        println!("{name}: {} lines, median {:?}, slowest {:?}", code.lines().count(), times[25], times[49]);
    }
    for open in ["(", "[", "{a:", "a+", "a.b", "x=>", "not ", "typeof ", "<a>", "f(", "a?b:", "`${", "a<"] {
        for language in [ImportLanguage::Python, ImportLanguage::JavaScript, ImportLanguage::TypeScript] {
            let took = measure(&open.repeat(49_000 / open.len().max(2)), language);
            println!("{open} nested, as {language:?}: {took:?}");
        }
    }
}

fn without_types(code: &str) -> String {
    code.replace("<T extends object>", "").replace(": T[]", "").replace(": Promise<number>", "")
}

fn measure(code: &str, language: ImportLanguage) -> Duration {
    let (local, settings) = (BTreeSet::new(), ResolverSettings::default());
    let start = Instant::now();
    let found = detect(SourceCode { code, language, python: PythonVersion::default(), local: &local });
    if let Ok(found) = found {
        Resolver::new(language.registry(), &settings).resolve(&found, &[]);
    }
    start.elapsed()
}
