//! `belljar run --batch` and `--inputs`: reads one request per line, or one input of a program, and writes one result
//! per line, running a fixed number at once.
//!
//! ```text
//! thread "lines"    file → Entry             parses a few lines ahead, then blocks
//! this thread       Entry → Place → Done     starts a request when a job is free and the writer keeps up
//! thread "results"  Done → stdout            writes all pending results, then flushes
//! ```
//!
//! Memory is bounded by the number of jobs, however long the file and however slow the reader of the results.

mod counts;
mod lines;
mod results;
mod runner;

use std::io::{self, IsTerminal, Read};
use std::num::NonZeroUsize;
use std::time::Duration;

use belljar_engine::batch::{Batch, BatchEntry};
use belljar_engine::defaults::RequestDefaults;
use belljar_engine::{TenantRules, request};
use tokio::time::{Interval, interval};

use crate::config::Config;
use crate::env::Environment;
use crate::error::CliError;
use crate::intent::Intent;
use crate::os::{self, Interrupts};
use crate::remote::{self, RemoteInputs, RemoteRunner};
use crate::run_args::RunArgs;
use crate::{provider_kinds, run, say, wire};
use counts::BatchCounts;
pub(crate) use counts::LineStatus;
use lines::ParsedLines;
use results::ResultWriter;
use runner::LocalRunner;
pub(crate) use runner::{BatchRunner, ResultLine};

const EXIT_LINES_FAILED: u8 = 1;
const EXIT_CANCELED: u8 = 130;
/// Open files per job: the pipes of a run being started, with some to spare.
const FILES_PER_JOB: u64 = 16;
/// Files that this process itself has open.
const OWN_FILES: u64 = 64;
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Runs the batch and returns the exit status.
pub(crate) fn run(
    source: Box<dyn Read + Send>,
    args: RunArgs,
    environment: &Environment,
    config: Config,
) -> Result<u8, CliError> {
    let jobs = args.jobs.unwrap_or_else(|| std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN));
    let server = args.server.clone();
    let Intent { request, paths, output, artifacts } = Intent::from_args(args, environment)?;
    let defaults = RequestDefaults { request, paths };
    let parse = |defaults: RequestDefaults| move |line: &[u8]| Ok(defaults.complete(request::parse(line)?));
    if let Some(url) = server {
        remote::refuse_local_paths(&defaults.paths)?;
        let remote_runner = RemoteRunner::new(&url, environment, jobs, artifacts)?;
        return os::runtime()?.block_on(async {
            let lines = ParsedLines::read(source, parse(defaults))?;
            BatchDriver::new(remote_runner, "--batch", lines, output.quiet)?.run().await
        });
    }
    check_open_file_limit(jobs)?;
    wire::with_engine(None, &config, environment, async |wired| {
        let engine = &wired.engine;
        wired.ensure_image(&defaults.request, output.quiet).await?;
        defaults.check(engine)?;
        run::warn_of_missing_layers(&engine.capabilities(), output.quiet);
        let lines = ParsedLines::read(source, parse(defaults))?;
        let local_runner = LocalRunner::new(Batch::new(engine, jobs), artifacts);
        BatchDriver::new(local_runner, "--batch", lines, output.quiet)?.run().await
    })
}

/// Runs a program with each input and returns the exit status.
pub(crate) fn run_inputs(
    source: Box<dyn Read + Send>,
    args: RunArgs,
    environment: &Environment,
    config: Config,
) -> Result<u8, CliError> {
    let (asked_jobs, server) = (args.jobs, args.server.clone());
    let Intent { mut request, paths, output, artifacts } = Intent::from_args(args, environment)?;
    if let Some(url) = server {
        remote::refuse_local_paths(&paths)?;
        request.jobs = asked_jobs.and_then(|jobs| jobs.get().try_into().ok());
        let remote_runner = RemoteInputs::new(&url, environment, request, artifacts)?;
        return os::runtime()?.block_on(async {
            let lines = ParsedLines::read(source, request::parse_input)?;
            BatchDriver::new(remote_runner, "--inputs", lines, output.quiet)?.run().await
        });
    }
    let jobs =
        asked_jobs.unwrap_or_else(|| std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN));
    check_open_file_limit(jobs)?;
    request.provider = wire::provider_name(&request, &config)?;
    let named = request.provider.clone();
    wire::with_engine(named.as_deref(), &config, environment, async |wired| {
        let engine = &wired.engine;
        wired.ensure_image(&request, output.quiet).await?;
        provider_kinds::test_candidates(engine, named.as_deref()).await;
        let program = engine.admit_program(request, paths, TenantRules::default())?;
        run::warn_of_missing_layers(&engine.capabilities(), output.quiet);
        let lines = ParsedLines::read(source, request::parse_input)?;
        let local_runner = LocalRunner::new(Batch::of_inputs(engine, program, jobs), artifacts);
        BatchDriver::new(local_runner, "--inputs", lines, output.quiet)?.run().await
    })
}

fn check_open_file_limit(jobs: NonZeroUsize) -> Result<(), CliError> {
    let wanted = jobs.get() as u64 * FILES_PER_JOB + OWN_FILES;
    let room = os::max_open_files();
    if room >= wanted {
        return Ok(());
    }
    let most = room.saturating_sub(OWN_FILES) / FILES_PER_JOB;
    Err(CliError::invalid(format!(
        "--jobs: {jobs} jobs need {wanted} open files, but the limit is {room}; \
         use at most {most} jobs, or raise the limit (ulimit -n)"
    )))
}

/// Why the batch stops reading lines before the end of the input.
#[derive(Debug)]
enum StopReason {
    Interrupted,
    /// Standard output was closed.
    StdoutClosed,
    /// No further request can run.
    Broken(CliError),
}

/// A running batch.
struct BatchDriver<P: BatchRunner> {
    runner: P,
    /// The flag that names the file of the lines.
    flag: &'static str,
    lines: ParsedLines<P::Line>,
    results: ResultWriter,
    tally: BatchCounts,
    interrupts: Interrupts,
    progress: Option<Interval>,
    quiet: bool,
    at_end: bool,
    cancelled: bool,
    stop: Option<StopReason>,
}

impl<P: BatchRunner> BatchDriver<P> {
    fn new(
        runner: P,
        flag: &'static str,
        lines: ParsedLines<P::Line>,
        quiet: bool,
    ) -> Result<Self, CliError> {
        let watched = !quiet && io::stderr().is_terminal();
        Ok(Self {
            runner,
            flag,
            lines,
            results: ResultWriter::start()?,
            tally: BatchCounts::start(),
            interrupts: Interrupts::listen()?,
            progress: watched.then(|| interval(PROGRESS_INTERVAL)),
            quiet,
            at_end: false,
            cancelled: false,
            stop: None,
        })
    }

    async fn run(mut self) -> Result<u8, CliError> {
        while self.may_read() || self.runner.running() > 0 || self.results.has_pending() {
            let takes_more = self.may_read() && self.runner.has_free_job() && self.results.has_room();
            tokio::select! {
                Some(done) = self.runner.next() => self.handle_result(done),
                line = self.lines.next(), if takes_more => self.handle_line(line)?,
                taken = self.results.send_pending(), if self.results.has_pending() => {
                    if !taken { self.stop(StopReason::StdoutClosed) }
                }
                () = tick(&mut self.progress) => self.results.show_progress(self.tally.progress(self.runner.running())),
                () = self.interrupts.next() => {
                    // The reader may block the remaining output for long; a second Ctrl-C abandons it.
                    if self.cancelled { return Ok(self.abandon_output()) }
                    self.stop(StopReason::Interrupted);
                }
            }
        }
        self.finish().await
    }

    /// Returns whether more lines may be read.
    fn may_read(&self) -> bool {
        !self.at_end && self.stop.is_none()
    }

    fn handle_line(&mut self, line: Option<io::Result<BatchEntry<P::Line>>>) -> Result<(), CliError> {
        match line {
            Some(Ok(entry)) => self.runner.start(entry)?,
            Some(Err(error)) => {
                // Requests read before the error run to their end.
                self.stop.get_or_insert(StopReason::Broken(CliError::invalid(format!(
                    "{}: cannot read the next line: {error}",
                    self.flag
                ))));
            }
            None => self.at_end = true,
        }
        Ok(())
    }

    fn handle_result(&mut self, done: Result<ResultLine, CliError>) {
        match done {
            Ok(ResultLine { status: became, line }) => {
                self.tally.count(became);
                self.results.add(&line);
            }
            Err(failure) => self.stop(StopReason::Broken(failure)),
        }
    }

    /// Stops reading lines and cancels running requests. The first reason is kept.
    fn stop(&mut self, why: StopReason) {
        self.stop.get_or_insert(why);
        self.cancelled = true;
        self.runner.cancel();
    }

    /// Abandons the results that are not yet written.
    fn abandon_output(&self) -> u8 {
        if !self.quiet {
            say::note(&self.tally.summary());
        }
        EXIT_CANCELED
    }

    /// Waits for the last results to be written and returns the exit status.
    async fn finish(mut self) -> Result<u8, CliError> {
        let written = tokio::select! {
            written = self.results.finish() => written?,
            () = self.interrupts.next() => {
                self.stop = Some(StopReason::Interrupted);
                true
            }
        };
        if written && !self.quiet {
            say::note(&self.tally.summary());
        }
        match self.stop {
            Some(StopReason::Broken(failure)) => Err(failure),
            Some(StopReason::Interrupted) => Ok(EXIT_CANCELED),
            _ if self.at_end && self.tally.is_clean() => Ok(0),
            _ => Ok(EXIT_LINES_FAILED),
        }
    }
}

/// Waits until progress is to be shown; never returns when progress is off.
async fn tick(progress: &mut Option<Interval>) {
    match progress {
        Some(interval) => drop(interval.tick().await),
        None => std::future::pending().await,
    }
}
