//! Runs the programs of this folder and checks the ending that their header expects.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

use super::{docker, in_sandboxes, judges, neighbours, results, syscalls};
use crate::common::warm::run_warm;
use crate::common::{self, Answer, beside};

/// The result of a case: success, or what is wrong.
pub(crate) type Verdict = Result<(), String>;
/// A case with its name.
pub(crate) type Case = (&'static str, fn() -> Verdict);

pub(crate) fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // More parallelism would only slow all of them down, and some are about time.
    arguments.test_threads = arguments.test_threads.or(Some(2));
    if let Some(why) = common::unusable() {
        println!("skipped: {why}");
        return if common::is_root() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    let mut trials: Vec<Trial> = programs("escape").into_iter().map(self_judged).collect();
    for warm in ["fork", "pool"] {
        let in_warm_languages =
            programs("escape").into_iter().filter(|program| is_of(program, &["py", "js"]));
        trials.extend(in_warm_languages.map(|program| self_judged_warm(program, warm)));
    }
    let any_language = programs("escape").into_iter().filter(|program| is_of(program, &["py", "js"]));
    trials.extend(any_language.map(self_judged_with_internet));
    trials.extend(programs("escape/outside").into_iter().map(judged_from_outside));
    let cases = [judges::CASES, results::CASES, neighbours::CASES, syscalls::CASES].concat();
    trials
        .extend(cases.into_iter().map(|(name, case)| Trial::test(name, move || case().map_err(Into::into))));
    // The daemon is kept until all trials have ended.
    let docker = docker::Daemon::start();
    if let Some(docker) = &docker {
        trials.extend(docker.trials(&programs("escape")));
    }
    let sandboxes = in_sandboxes::SandboxServer::start();
    let any_language = programs("escape").into_iter().filter(|program| is_of(program, &["py", "js"]));
    trials.extend(sandboxes.trials(&any_language.collect::<Vec<_>>()));
    let ended = libtest_mimic::run(&arguments, trials);
    drop((docker, sandboxes));
    ended.exit_code()
}

/// Returns the programs of a folder, sorted.
fn programs(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(beside(folder)).expect("the folder is there").flatten();
    let is_program = |path: &PathBuf| {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        ["py", "sh", "js", "c"].contains(&ending)
            && !path.ends_with("probe.py")
            && !path.ends_with("every_call.c")
    };
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_program).collect();
    found.sort();
    found
}

pub(crate) fn name_of(program: &Path) -> String {
    program.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn is_of(program: &Path, endings: &[&str]) -> bool {
    program.extension().and_then(|ending| ending.to_str()).is_some_and(|ending| endings.contains(&ending))
}

/// Runs a self-judging program in a warm interpreter.
fn self_judged_warm(program: PathBuf, warm: &'static str) -> Trial {
    Trial::test(format!("{warm}::{}", name_of(&program)), move || {
        held(&program, |arguments| run_warm(warm, "", arguments)).map_err(Into::into)
    })
}

/// Runs a self-judging program in a sandbox whose network has a gate.
fn self_judged_with_internet(program: PathBuf) -> Trial {
    Trial::test(format!("internet::{}", name_of(&program)), move || {
        let run = |arguments: Vec<String>| {
            common::run(arguments.into_iter().chain(["--network", "internet"].map(str::to_owned)))
        };
        held(&program, run).map_err(Into::into)
    })
}

fn self_judged(program: PathBuf) -> Trial {
    Trial::test(format!("program::{}", name_of(&program)), move || {
        held(&program, common::run).map_err(Into::into)
    })
}

/// Runs a program and checks its result against its header.
pub(crate) fn held(program: &Path, run: impl FnOnce(Vec<String>) -> Answer) -> Verdict {
    let header = Header::of(program);
    let helper = format!("{}:probe.py", beside("escape/probe.py").display());
    let mut arguments = vec![program.display().to_string(), "--file".to_owned(), helper];
    arguments.extend(header.flags.clone());
    let answer = run(arguments);
    if let Some(why) = cannot_run(&answer).or_else(|| header.lacks(&answer)) {
        println!("skipped: {}: {why}", name_of(program));
        return Ok(());
    }
    header.judge(&answer)
}

/// Accepts a verdict if only known checks failed.
pub(crate) fn only_known(known: &[&str], verdict: Verdict) -> Verdict {
    let Err(why) = verdict else { return Ok(()) };
    let Some((broken, _)) = why.split_once("BROKEN: ").and_then(|(_, rest)| rest.split_once("\": ")) else {
        return Err(why);
    };
    if broken.split(", ").all(|check| known.contains(&check)) { Ok(()) } else { Err(why) }
}

/// Runs a program with a token on its command line, and expects that no process with it is left soon after.
fn judged_from_outside(program: PathBuf) -> Trial {
    Trial::test(format!("gone::{}", name_of(&program)), move || {
        let header = Header::of(&program);
        let token = format!("{}-{}", name_of(&program), std::process::id());
        let file = format!("{}:program", program.display());
        let interpreter =
            if program.extension().is_some_and(|ending| ending == "sh") { "bash" } else { "python3" };
        let mut arguments = vec!["--file".to_owned(), file];
        arguments.extend(header.flags.clone());
        arguments.extend(["--", interpreter, "program", &token].map(str::to_owned));
        let answer = common::run(arguments);
        header.judge(&answer)?;
        let alive = common::host::alive_with(&token, std::time::Duration::from_secs(60));
        if alive.is_empty() { Ok(()) } else { Err(format!("alive long after: {alive:?}").into()) }
    })
}

/// Returns why a run is not possible here: a language is not installed, or the host cannot enforce a limit.
pub(crate) fn cannot_run(answer: &Answer) -> Option<String> {
    let missing = ["language_unavailable", "unsupported"].contains(&answer.error_code());
    missing.then(|| answer.error_message().to_owned())
}

/// The header of a program.
#[derive(Debug)]
struct Header {
    status: String,
    /// The expected limit or signal.
    detail: Option<String>,
    flags: Vec<String>,
    /// An isolation layer without which the limit is not guaranteed.
    needs: Option<String>,
}

impl Header {
    fn of(program: &Path) -> Self {
        let text = std::fs::read_to_string(program).expect("a program is text");
        let field = |name: &str| {
            let line = text.lines().take(5).find_map(|line| line.split_once(&format!(" {name}: ")));
            line.map(|(_, rest)| rest.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        };
        let mut expected = field("expect").expect("a program says what is expected of it").into_iter();
        let status = expected.next().expect("a status");
        let needs = field("needs").and_then(|names| names.into_iter().next());
        Self { status, detail: expected.next(), flags: field("with").unwrap_or_default(), needs }
    }

    /// Returns the layer that the program needs and the receipt of its run lacks.
    fn lacks(&self, answer: &Answer) -> Option<String> {
        let layer = self.needs.as_deref().filter(|layer| !answer.has_layer(layer))?;
        (!answer.json["receipt"].is_null()).then(|| format!("{layer} is not enforced here for this user"))
    }

    fn judge(&self, answer: &Answer) -> Verdict {
        let wrong = |what: &str| Err(format!("{what}: {}", answer.json));
        if answer.status() != self.status {
            return wrong(&format!("the status is not {}", self.status));
        }
        let detail = [answer.text("limit"), answer.text("signal")].concat();
        if detail != self.detail.as_deref().unwrap_or_default() {
            return wrong("unexpected ending");
        }
        let last = answer.lines().last().copied().unwrap_or_default().to_owned();
        let held = self.status != "succeeded" || last.starts_with("HELD: ");
        if held { Ok(()) } else { wrong(&format!("it does not end with HELD but with {last:?}")) }
    }
}
