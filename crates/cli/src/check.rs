//! `belljar check`: reads code as a run would, and says what a policy minds in it. Nothing runs.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use belljar_analysis::policy::{Context, Finding, Language, Network, Policy, Verdict, check};
use clap::Args;
use serde_json::json;

use crate::failure::{Failure, shown};
use crate::{input, language};

const REFUSED: u8 = 126;

const EXAMPLES: &str = "\
Examples:
  belljar check job.py                                  as a run would, with the policy 'balanced'
  belljar check --policy strict -c 'eval(input())'      a line of Python
  cat install.sh | belljar check - --language bash      from standard input
  belljar check job.py --json                           one JSON object, with rule, line and suggestion

Exit status: 0, 126 when the policy refuses the code, 125 when nothing was read (the message says why).
This is advice and not the boundary: whatever code says, the sandbox holds.";

/// `belljar check`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CheckArgs {
    /// File with the code; '-' reads it from standard input
    #[arg(value_name = "FILE")]
    source: Option<PathBuf>,
    /// The code itself; Python unless --language says otherwise
    #[arg(short = 'c', value_name = "CODE", allow_hyphen_values = true, conflicts_with = "source")]
    code: Option<OsString>,
    /// Language of the code [default: by file name or #! line]
    #[arg(long, value_name = "L")]
    language: Option<String>,
    /// off, audit, balanced, strict or ragflow
    #[arg(long, value_name = "POLICY", default_value = "balanced")]
    policy: String,
    /// What the run would reach: none or full
    #[arg(long, value_name = "none|full", default_value = "none", value_parser = ["none", "full"])]
    network: String,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Reads, judges and shows.
pub(crate) fn run(args: CheckArgs) -> Result<u8, Failure> {
    let policy =
        Policy::named(&args.policy).map_err(|error| Failure::invalid(format!("--policy: {error}")))?;
    let network = if args.network == "none" { Network::None } else { Network::Open };
    let context = Context { network, ..Context::default() };
    let (name, code, language) = read(args.source.as_deref(), args.code, args.language.as_deref())?;
    let verdict = check(&code, language, &policy, &context);
    if args.json {
        show_json(&verdict)
    } else {
        show(&name, &code, &verdict)
    }
    Ok(if verdict.refusal().is_some() { REFUSED } else { 0 })
}

fn read(
    source: Option<&Path>,
    inline: Option<OsString>,
    given: Option<&str>,
) -> Result<(String, String, Language), Failure> {
    let (name, code, detected) = match (source, inline) {
        (Some(path), _) => {
            let code = input::code(path)?;
            let name = if input::is_stdin(path) { "standard input".to_owned() } else { shown(path) };
            let detected = language::detect(path, &code).map(|language| language.name);
            (name, code, detected)
        }
        (None, Some(code)) => ("code".to_owned(), code.into_encoded_bytes(), Some("python")),
        (None, None) => {
            return Err(Failure::invalid(
                "nothing to check: give a FILE, '-' for standard input, or -c CODE",
            ));
        }
    };
    let language = match given {
        Some(given) => Some(belljar_engine::language::Language::named(given)?.name),
        None => detected,
    };
    let language = language.ok_or_else(|| {
        Failure::invalid(format!(
            "cannot tell the language of {name}; add --language, for example --language python"
        ))
    })?;
    let reader = Language::named(language).ok_or_else(|| {
        Failure::invalid(format!("{language} is not read; there are python, javascript, typescript and bash"))
    })?;
    let code = String::from_utf8(code).map_err(|_| Failure::invalid(format!("{name} is not UTF-8")))?;
    Ok((name, code, reader))
}

fn show_json(verdict: &Verdict) {
    let refusal = verdict.refusal();
    let status = if refusal.is_some() { "refused" } else { "passed" };
    let object = json!({"status": status, "error": refusal, "findings": verdict.findings});
    crate::say::answer(&object.to_string());
}

fn show(name: &str, code: &str, verdict: &Verdict) {
    let mut text = String::new();
    for finding in &verdict.findings {
        excerpt(&mut text, name, code, finding);
    }
    text.push_str(&summary(verdict));
    // Nobody listening is no reason to fail; colours are dropped where no terminal is.
    let _ = writeln!(anstream::stdout().lock(), "{text}");
}

fn summary(verdict: &Verdict) -> String {
    match (verdict.refusal(), verdict.findings.len()) {
        (Some(refusal), _) => refusal,
        (None, 0) => "nothing found".to_owned(),
        (None, 1) => "1 finding; it would run".to_owned(),
        (None, count) => format!("{count} findings; it would run"),
    }
}

/// The longest piece of a line that is shown.
const MAX_WIDTH: usize = 120;

fn excerpt(text: &mut String, name: &str, code: &str, finding: &Finding) {
    let (colour, word) = if finding.refused { ("\x1b[1;31m", "refused") } else { ("\x1b[1;33m", "warning") };
    let Finding { rule, message, line, column, suggestion, decided_by, .. } = finding;
    let message = harmless(message);
    let number = line.to_string();
    let blank = " ".repeat(number.len());
    // A long line is shown around the place.
    let column_index = *column as usize - 1;
    let skipped = if column_index < MAX_WIDTH { 0 } else { column_index - MAX_WIDTH / 2 };
    let source: String = code
        .lines()
        .nth(*line as usize - 1)
        .unwrap_or_default()
        .chars()
        .skip(skipped)
        .take(MAX_WIDTH)
        .collect();
    let source = harmless(&source);
    let caret = " ".repeat(column_index - skipped);
    let _ = write!(
        text,
        "{colour}{word}[{rule}]\x1b[0m\x1b[1m: {message}\x1b[0m\n{blank}--> {name}:{line}:{column}\n{blank} |\n\
         {number} | {source}\n{blank} | {caret}{colour}^\x1b[0m\n{blank} = help: {suggestion}\n{blank} = note: {decided_by}\n\n"
    );
}

/// Code cannot draw on the terminal; each character keeps its width, so that the caret stays in place.
fn harmless(line: &str) -> String {
    line.chars()
        .map(|c| {
            if c == '\t' {
                ' '
            } else if c.is_control() {
                '\u{fffd}'
            } else {
                c
            }
        })
        .collect()
}
