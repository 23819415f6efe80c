//! `belljar run`: runs one request and prints the result.

use std::io::{self, Write};

use belljar_engine::admit::AdmittedRequest;
use belljar_engine::finding::Finding;
use belljar_engine::layer::Layer;
use belljar_engine::provider::{Capabilities, Sink, Stream};
use belljar_engine::report::{Report, Status, exit_status};
use belljar_engine::{Engine, Error};

use crate::artifacts::{ArtifactFolder, count_artifacts};
use crate::config::Config;
use crate::env::Environment;
use crate::error::CliError;
use crate::identity::execution_id;
use crate::intent::{Intent, OutputForm, OutputOptions};
use crate::os::Interrupts;
use crate::run_args::RunArgs;
use crate::view::{ProgressView, View};
use crate::{batch, input, provider_kinds, remote, say, wire};

/// Runs code or a batch and returns the exit status.
pub(crate) fn run(args: RunArgs, environment: &Environment, config: Config) -> Result<u8, CliError> {
    let config =
        Config { providers: config.providers.with_named(args.provider.as_deref(), environment), ..config };
    // All inputs are read before anything is started, so that an error in the arguments costs nothing.
    if let Some(path) = &args.batch {
        return batch::run(input::open_requests(path)?, args, environment, config);
    }
    if let Some(path) = &args.inputs {
        return batch::run_inputs(input::open_requests(path)?, args, environment, config);
    }
    let server = args.server.clone();
    let mut intent = Intent::from_args(args, environment)?;
    if let Some(url) = server {
        return remote::run(&url, intent, environment);
    }
    intent.request.provider = wire::provider_name(&intent.request, &config)?;
    let named = intent.request.provider.clone();
    wire::with_engine(named.as_deref(), &config, environment, async |wired| {
        wired.ensure_image(&intent.request, intent.output.quiet).await?;
        perform(&wired.engine, intent).await
    })
}

async fn perform(engine: &Engine, intent: Intent) -> Result<u8, CliError> {
    let Intent { request, paths, output, artifacts } = intent;
    provider_kinds::test_candidates(engine, request.provider.as_deref()).await;
    let admitted = engine.admit(request, paths)?;
    warn_of_missing_layers(admitted.capabilities(), output.quiet);
    let interrupts = Interrupts::listen()?;
    let report = match output.form {
        OutputForm::Json => answer(engine, admitted, interrupts, output.quiet, artifacts.as_ref()).await?,
        OutputForm::Live | OutputForm::Raw => {
            show(engine, admitted, interrupts, output, artifacts.as_ref()).await?
        }
    };
    Ok(exit_status(&report))
}

/// Warns of isolation layers that are missing, because nothing may degrade silently.
pub(crate) fn warn_of_missing_layers(capabilities: &Capabilities, quiet: bool) {
    if let Some(warning) = missing_layers(capabilities).filter(|_| !quiet) {
        say::warning(&warning);
    }
}

/// Runs the code and prints only the result object, on one line.
async fn answer(
    engine: &Engine,
    admitted: AdmittedRequest,
    mut interrupts: Interrupts,
    quiet: bool,
    artifacts: Option<&ArtifactFolder>,
) -> Result<Report, CliError> {
    let cancel = Box::pin(interrupts.next());
    let report = engine.execute(execution_id()?, admitted, &mut ProgressView::new(quiet), cancel).await?;
    artifacts.map_or(Ok(()), |folder| folder.save_all(&report))?;
    match print_json(&report) {
        // A closed pipe is not a failure.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(CliError::host(format!("write the result to standard output: {error}")))
        }
        _ => Ok(report),
    }
}

fn print_json(report: &Report) -> io::Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    let mut stdout = io::stdout().lock();
    stdout.write_all(&line)?;
    stdout.flush()
}

/// Runs the code and prints output as it arrives, then the result of `main`, then notes on anything unusual.
async fn show(
    engine: &Engine,
    admitted: AdmittedRequest,
    mut interrupts: Interrupts,
    output: OutputOptions,
    artifacts: Option<&ArtifactFolder>,
) -> Result<Report, CliError> {
    let id = execution_id()?;
    let mut view = View::start(output.form == OutputForm::Raw, output.quiet)?;
    let report: Result<Report, Error> =
        engine.execute(id, admitted, &mut view, Box::pin(interrupts.next())).await;
    if let Some(line) = report.as_ref().ok().and_then(result_line) {
        view.output(Stream::Stdout, line.as_bytes());
    }
    // A paused terminal may block the rest for long; a second Ctrl-C abandons it.
    tokio::select! {
        () = view.finish() => {}
        () = interrupts.next() => {}
    }
    let report = report?;
    artifacts.map_or(Ok(()), |folder| folder.save_all(&report))?;
    if !output.quiet {
        let notes = notes(&report, artifacts);
        if !notes.is_empty() && leaves_line_open(&report.stderr) {
            say::end_line();
        }
        notes.iter().for_each(|note| say::note(note));
    }
    Ok(report)
}

fn missing_layers(capabilities: &Capabilities) -> Option<String> {
    if capabilities.remote {
        return Some("the code runs on a remote service; Belljar enforces only the time limit".to_owned());
    }
    let names: Vec<_> = capabilities.missing.iter().map(|missing| missing.layer.name()).collect();
    if names.len() == Layer::ALL.len() {
        return Some("the code does not run: the result is simulated".to_owned());
    }
    (!names.is_empty())
        .then(|| format!("not enforced on this machine: {} (see why with: belljar doctor)", names.join(", ")))
}

/// Returns the result of `main` as a line of JSON, starting on a new line.
fn result_line(report: &Report) -> Option<String> {
    let start = if leaves_line_open(&report.stdout) { "\n" } else { "" };
    report.result.present.then(|| format!("{start}{}\n", report.result.value))
}

/// Maximum number of findings to print.
const MAX_SHOWN_FINDINGS: usize = 5;

/// Formats the findings worth printing: policy findings in the code, artifacts that were left out and, if the run
/// failed, denials by the sandbox.
pub(crate) fn finding_lines(findings: &[Finding], succeeded: bool) -> Vec<String> {
    let matters = |finding: &&Finding| match finding.severity.as_str() {
        "info" => false,
        "high" => true,
        _ => finding.line.is_some() || finding.category == "artifacts" || !succeeded,
    };
    let worth: Vec<_> = findings.iter().filter(matters).collect();
    let mut lines: Vec<_> = worth.iter().take(MAX_SHOWN_FINDINGS).map(|finding| line(finding)).collect();
    if worth.len() > MAX_SHOWN_FINDINGS {
        lines.push(format!("{} more findings (see all with --json)", worth.len() - MAX_SHOWN_FINDINGS));
    }
    lines
}

fn line(finding: &Finding) -> String {
    let Finding { rule, message, suggestion, .. } = finding;
    match finding.line {
        Some(line) => format!("line {line}: {message}; {suggestion} [{rule}]"),
        None => format!("hint: {message}; {suggestion}"),
    }
}

fn leaves_line_open(output: &str) -> bool {
    !output.is_empty() && !output.ends_with('\n')
}

/// Returns notes to print after the output. A plain exit gets none, because the program explained it itself.
fn notes(report: &Report, artifacts: Option<&ArtifactFolder>) -> Vec<String> {
    let mut notes = Vec::new();
    let explains_itself = report.exit_code.is_some_and(|code| code != 0) && report.limit.is_none();
    // A warning before the output has said so.
    let is_simulated = report.receipt.as_ref().is_some_and(|receipt| receipt.simulated);
    if !explains_itself && !is_simulated {
        notes.extend(report.error.clone());
    }
    let cut: Vec<_> = [("stdout", report.stdout_truncated), ("stderr", report.stderr_truncated)]
        .into_iter()
        .filter_map(|(name, truncated)| truncated.then_some(name))
        .collect();
    if !cut.is_empty() {
        notes.push(format!("the middle of {} was left out; keep more with --output SIZE", cut.join(" and ")));
    }
    notes.extend(finding_lines(&report.findings, report.status == Status::Succeeded));
    notes.extend(artifacts_note(report.artifacts.len(), artifacts));
    notes
}

/// Returns a note on artifacts: where they are, or how to get them.
pub(crate) fn artifacts_note(count: usize, folder: Option<&ArtifactFolder>) -> Option<String> {
    let note = |_| match folder {
        Some(folder) => folder.note(count),
        None => format!("{} (save with --artifacts DIR)", count_artifacts(count)),
    };
    (count > 0).then_some(()).map(note)
}
