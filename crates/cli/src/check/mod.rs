//! `belljar check`: checks code against a policy as a run would, without running it.

mod sarif;
mod show;
mod sources;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use belljar_analysis::policy::{
    DEFAULT_POLICY, NetworkAccess, Policy, PolicyLanguage, PolicyVerdict, RunContext, check, unread_verdict,
};
use belljar_engine::request::NetworkSpec;
use clap::Args;

use self::sources::{CheckInput, CodeContent};
use crate::config::Config;
use crate::error::CliError;
use crate::say::REFUSED;

const EXAMPLES: &str = "\
Examples:
  belljar check job.py                                  check one file with the policy 'balanced'
  belljar check src tests/*.sh --policy strict          check folders and files
  belljar check --policy strict -c 'eval(input())'      check a line of Python
  cat install.sh | belljar check - --language bash      check standard input
  belljar check job.py --json                           print JSON, with rule, line and suggestion
  belljar check src --sarif > findings.sarif            write SARIF, for code scanning

Exit status: 0 when the code may run, 126 when the policy refuses some of it, 125 when it could not
be checked (the message says why). The check is advice; the sandbox is what contains the code.";

/// Arguments of `belljar check`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CheckArgs {
    /// Files and folders to check; '-' reads standard input
    #[arg(value_name = "FILE")]
    sources: Vec<PathBuf>,
    /// Code to check, given inline; Python unless --language is set
    #[arg(short = 'c', value_name = "CODE", allow_hyphen_values = true, conflicts_with = "sources")]
    code: Option<OsString>,
    /// Language of the code [default: by file extension or #! line]
    #[arg(long, value_name = "LANGUAGE")]
    language: Option<String>,
    /// Policy: off, audit, balanced, strict, ragflow, or one from belljar.toml
    #[arg(long, value_name = "POLICY", default_value = DEFAULT_POLICY)]
    policy: String,
    /// Network access that the run would have
    #[arg(long, value_name = "MODE", default_value = "none", value_parser = NetworkSpec::PLAIN_MODES)]
    network: String,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Print a SARIF 2.1.0 log
    #[arg(long, conflicts_with = "json")]
    sarif: bool,
}

/// A checked piece of code and its verdict.
struct CheckedSource {
    name: String,
    code: String,
    verdict: PolicyVerdict,
}

/// Checks the sources and prints the findings.
pub(crate) fn run(args: CheckArgs, config: &Config) -> Result<u8, CliError> {
    let policy = config.policies.get(&args.policy);
    let policy = policy.map_err(|error| CliError::invalid(format!("--policy: {error}")))?;
    let network = if args.network == "none" { NetworkAccess::None } else { NetworkAccess::Open };
    let context = RunContext { network, ..RunContext::default() };
    let sources = sources::collect_sources(args.sources, args.code, args.language.as_deref())?;
    let checked = check_all(&sources, &policy, &context)?;
    match (args.json, args.sarif) {
        (true, _) => show::json(&checked),
        (_, true) => sarif::show(&checked),
        _ => show::text(&checked),
    }
    let refused = checked.iter().any(|checked| checked.verdict.refusal().is_some());
    Ok(if refused { REFUSED } else { 0 })
}

/// Checks sources in parallel, one thread per processor. Results are in the order of the sources.
fn check_all(
    sources: &[CheckInput],
    policy: &Arc<Policy>,
    context: &RunContext,
) -> Result<Vec<CheckedSource>, CliError> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some((at, source)) = sources.iter().enumerate().nth(next.fetch_add(1, Ordering::Relaxed)) {
            let checked = check_source(source, policy, context);
            done.lock().unwrap_or_else(PoisonError::into_inner).push((at, checked));
        }
    };
    let workers = thread::available_parallelism().map_or(1, usize::from).min(sources.len());
    thread::scope(|scope| {
        for _ in 1..workers {
            scope.spawn(work);
        }
        work();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, checked)| checked).collect()
}

fn check_source(
    source: &CheckInput,
    policy: &Arc<Policy>,
    context: &RunContext,
) -> Result<CheckedSource, CliError> {
    let policies = std::slice::from_ref(policy);
    let name = source.name.clone();
    Ok(match source.content()? {
        CodeContent::Text(code, language) => {
            let verdict = check(&code, language, policies, context);
            CheckedSource { name, code, verdict }
        }
        CodeContent::TooLong(language) => {
            let verdict = unread_verdict(language, policies, context);
            CheckedSource { name, code: String::new(), verdict }
        }
    })
}

/// Returns the analyzer of a language, by the language's name.
fn analyzer_of(language: &str) -> Result<PolicyLanguage, CliError> {
    PolicyLanguage::from_name(language).ok_or_else(|| {
        CliError::invalid(format!("cannot check {language}; supported: python, javascript, typescript, bash"))
    })
}
