//! Ordinary code is not refused: the standard library of the host's Python and, in the second test tier, all
//! of it plus popular packages of PyPI and npm, installed for the test.
#![expect(clippy::unwrap_used, reason = "a test whose setup fails must panic")]

// `cargo bolero` instruments every target of the package, so every target must link bolero.
use bolero as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use belljar_analysis::policy::{Policy, PolicyLanguage, PolicyVerdict, RunContext, check};

/// Number of files in the first tier, sampled evenly.
const FEW: usize = 150;

fn stdlib() -> PathBuf {
    let ask = "import sysconfig; print(sysconfig.get_path('stdlib'))";
    let output = Command::new("python3").args(["-c", ask]).output().unwrap();
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}

fn files_below(folder: &Path, files: &mut Vec<(PathBuf, PolicyLanguage)>) {
    let mut entries: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let language = match path.extension().and_then(|extension| extension.to_str()) {
            _ if path.is_symlink() => None,
            _ if path.is_dir() => {
                files_below(&path, files);
                None
            }
            Some("py") => Some(PolicyLanguage::Python),
            Some("js" | "mjs" | "cjs") => Some(PolicyLanguage::JavaScript),
            Some("ts" | "mts") => Some(PolicyLanguage::TypeScript),
            Some("sh") => Some(PolicyLanguage::Shell),
            _ => None,
        };
        files.extend(language.map(|language| (path, language)));
    }
}

fn run(program: &str, words: &[&str], folder: &Path) {
    let status = Command::new(program).args(words).current_dir(folder).status().unwrap();
    assert!(status.success(), "{program} {words:?}");
}

fn read(path: &Path, language: PolicyLanguage, policies: &[Policy]) -> PolicyVerdict {
    let code = std::fs::read(path).unwrap();
    check(&String::from_utf8_lossy(&code), language, policies, &RunContext::default())
}

#[test]
fn balanced_refuses_less_than_one_in_a_hundred() {
    let all = std::env::var_os("BELLJAR_TEST_ALL").is_some_and(|all| all == "1");
    let installed = std::env::temp_dir().join(format!("belljar-corpus-{}", std::process::id()));
    let mut files = Vec::new();
    files_below(&stdlib(), &mut files);
    if all {
        std::fs::create_dir_all(&installed).unwrap();
        let pip = [
            "-m", "pip", "install", "-q", "--target", "python", "requests", "flask", "django", "rich",
            "sympy",
        ];
        run("python3", &pip, &installed);
        run(
            "npm",
            &["install", "--silent", "--prefix", "node", "express", "lodash", "axios", "typescript"],
            &installed,
        );
        files_below(&installed, &mut files);
        assert!(files.len() >= 2_000, "{} files", files.len());
    } else {
        let step = files.len().div_ceil(FEW);
        files = files.into_iter().step_by(step).collect();
    }
    let balanced = [Policy::built_in("balanced").unwrap()];
    let (mut refused, mut unread) = (Vec::new(), 0);
    for (path, language) in &files {
        let verdict = read(path, *language, &balanced);
        let is_unread = |rule: &str| rule.ends_with("-UNREAD") || rule.ends_with("-SYNTAX");
        unread += usize::from(verdict.findings.iter().any(|finding| is_unread(finding.rule)));
        refused.extend(verdict.refusal().map(|why| format!("{}: {why}", path.display())));
    }
    println!("{} files, {unread} not read or not parsed, {} refused", files.len(), refused.len());
    println!("{}", refused.join("\n"));
    // A directory that only this test uses.
    let _ = std::fs::remove_dir_all(&installed);
    assert!(refused.len() * 100 < files.len(), "{refused:#?}");
}
