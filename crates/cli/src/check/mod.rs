//! `belljar check`: checks code against a policy as a run would, without running it.

mod gather;
mod sarif;
mod show;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use belljar_analysis::policy::{Context, Language, Network, Policy, USUAL, Verdict, check, unread};
use clap::Args;

use self::gather::{Content, Source};
use crate::config::Config;
use crate::failure::Failure;
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
    #[arg(long, value_name = "L")]
    language: Option<String>,
    /// Policy: off, audit, balanced, strict, ragflow, or one from belljar.toml
    #[arg(long, value_name = "POLICY", default_value = USUAL)]
    policy: String,
    /// Network access that the run would have
    #[arg(long, value_name = "none|full", default_value = "none", value_parser = ["none", "full"])]
    network: String,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Print a SARIF 2.1.0 log
    #[arg(long, conflicts_with = "json")]
    sarif: bool,
}

/// A checked piece of code and its verdict.
struct Checked {
    name: String,
    code: String,
    verdict: Verdict,
}

/// Checks the sources and prints the findings.
pub(crate) fn run(args: CheckArgs, config: &Config) -> Result<u8, Failure> {
    let policy = config.policies.named(&args.policy);
    let policy = policy.map_err(|error| Failure::invalid(format!("--policy: {error}")))?;
    let network = if args.network == "none" { Network::None } else { Network::Open };
    let context = Context { network, ..Context::default() };
    let sources = gather::all(args.sources, args.code, args.language.as_deref())?;
    let checked = all(&sources, &policy, &context)?;
    match (args.json, args.sarif) {
        (true, _) => show::json(&checked),
        (_, true) => sarif::show(&checked),
        _ => show::text(&checked),
    }
    let refused = checked.iter().any(|checked| checked.verdict.refusal().is_some());
    Ok(if refused { REFUSED } else { 0 })
}

/// Checks sources in parallel, one thread per processor. Results are in the order of the sources.
fn all(sources: &[Source], policy: &Arc<Policy>, context: &Context) -> Result<Vec<Checked>, Failure> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some((at, source)) = sources.iter().enumerate().nth(next.fetch_add(1, Ordering::Relaxed)) {
            let checked = one(source, policy, context);
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

fn one(source: &Source, policy: &Arc<Policy>, context: &Context) -> Result<Checked, Failure> {
    let policies = std::slice::from_ref(policy);
    let name = source.name.clone();
    Ok(match source.content()? {
        Content::Text(code, language) => {
            let verdict = check(&code, language, policies, context);
            Checked { name, code, verdict }
        }
        Content::TooLong(language) => {
            let verdict = unread(language, policies, context);
            Checked { name, code: String::new(), verdict }
        }
    })
}

/// Returns the analyzer of a language, by the language's name.
fn reader(language: &str) -> Result<Language, Failure> {
    Language::named(language).ok_or_else(|| {
        Failure::invalid(format!("cannot check {language}; supported: python, javascript, typescript, bash"))
    })
}
