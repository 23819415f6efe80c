//! `belljar run --batch`: reads one request per line and writes one result per line, running a fixed number
//! at once.
//!
//! ```text
//! thread "lines"    file → Entry             parses a few lines ahead, then blocks
//! this thread       Entry → Place → Done     starts a request when a job is free and the writer keeps up
//! thread "results"  Done → stdout            writes all pending results, then flushes
//! ```
//!
//! Memory is bounded by the number of jobs, however long the file and however slow the reader of the results.

mod lines;
mod place;
mod results;
mod tally;

use std::io::{self, IsTerminal, Read};
use std::num::NonZeroUsize;
use std::time::Duration;

use belljar_engine::batch::Entry;
use belljar_engine::defaults::Defaults;
use tokio::time::{Interval, interval};

use crate::args::RunArgs;
use crate::config::Config;
use crate::env::Environment;
use crate::failure::Failure;
use crate::intent::Intent;
use crate::os::{self, Interrupts};
use crate::remote::{self, There};
use crate::{run, say};
use lines::Lines;
use place::Here;
pub(crate) use place::{Done, Place};
use results::Results;
pub(crate) use tally::Became;
use tally::Tally;

const SOME_DID_NOT_SUCCEED: u8 = 1;
const CANCELLED: u8 = 130;
/// Open files per job: the pipes of a run being started, with some to spare.
const FILES_PER_JOB: u64 = 16;
/// Files that this process itself has open.
const OWN_FILES: u64 = 64;
const BETWEEN_PROGRESS: Duration = Duration::from_millis(200);

/// Runs the batch and returns the exit status.
pub(crate) fn run(
    source: Box<dyn Read + Send>,
    args: RunArgs,
    environment: &Environment,
    config: Config,
) -> Result<u8, Failure> {
    let jobs = args.jobs.unwrap_or_else(|| std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN));
    let server = args.server.clone();
    let Intent { request, paths, output } = Intent::of(args, environment)?;
    let defaults = Defaults { request, paths };
    if let Some(url) = server {
        remote::refuse_folders(&defaults.paths)?;
        let there = There::new(&url, environment, jobs)?;
        return os::runtime()?.block_on(async {
            let lines = Lines::read(source, defaults)?;
            Course::new(there, lines, output.quiet)?.run().await
        });
    }
    refuse_more_than_files_allow(jobs)?;
    let (own, sources) = run::images(&config, environment);
    run::on_engine(config, environment, async |engine| {
        own.bring(&defaults.request, &sources, output.quiet).await?;
        defaults.check(engine)?;
        run::warn_of_missing_layers(&engine.capabilities(), output.quiet);
        let lines = Lines::read(source, defaults)?;
        Course::new(Here::new(engine, jobs), lines, output.quiet)?.run().await
    })
}

fn refuse_more_than_files_allow(jobs: NonZeroUsize) -> Result<(), Failure> {
    let wanted = jobs.get() as u64 * FILES_PER_JOB + OWN_FILES;
    let room = os::room_for_files();
    if room >= wanted {
        return Ok(());
    }
    let most = room.saturating_sub(OWN_FILES) / FILES_PER_JOB;
    Err(Failure::invalid(format!(
        "--jobs: {jobs} jobs need {wanted} open files, but the limit is {room}; \
         use at most {most} jobs, or raise the limit (ulimit -n)"
    )))
}

/// Why the batch stops reading lines before the end of the input.
#[derive(Debug)]
enum Stop {
    Interrupted,
    /// Standard output was closed.
    ReaderLeft,
    /// No further request can run.
    Broken(Failure),
}

/// A running batch.
struct Course<P> {
    place: P,
    lines: Lines,
    results: Results,
    tally: Tally,
    interrupts: Interrupts,
    progress: Option<Interval>,
    quiet: bool,
    at_end: bool,
    cancelled: bool,
    stop: Option<Stop>,
}

impl<P: Place> Course<P> {
    fn new(place: P, lines: Lines, quiet: bool) -> Result<Self, Failure> {
        let watched = !quiet && io::stderr().is_terminal();
        Ok(Self {
            place,
            lines,
            results: Results::write()?,
            tally: Tally::start(),
            interrupts: Interrupts::listen()?,
            progress: watched.then(|| interval(BETWEEN_PROGRESS)),
            quiet,
            at_end: false,
            cancelled: false,
            stop: None,
        })
    }

    async fn run(mut self) -> Result<u8, Failure> {
        while self.reads() || self.place.running() > 0 || self.results.waiting() {
            let takes_more = self.reads() && self.place.has_room() && self.results.have_room();
            tokio::select! {
                Some(done) = self.place.next() => self.take_result(done),
                line = self.lines.next(), if takes_more => self.take_line(line)?,
                taken = self.results.hand_over(), if self.results.waiting() => {
                    if !taken { self.stop(Stop::ReaderLeft) }
                }
                () = tick(&mut self.progress) => self.results.show(self.tally.progress(self.place.running())),
                () = self.interrupts.next() => {
                    // The reader may block the remaining output for long; a second Ctrl-C abandons it.
                    if self.cancelled { return Ok(self.give_up()) }
                    self.stop(Stop::Interrupted);
                }
            }
        }
        self.end().await
    }

    /// Returns whether more lines may be read.
    fn reads(&self) -> bool {
        !self.at_end && self.stop.is_none()
    }

    fn take_line(&mut self, line: Option<io::Result<Entry>>) -> Result<(), Failure> {
        match line {
            Some(Ok(entry)) => self.place.start(entry)?,
            Some(Err(error)) => {
                // Requests read before the error run to their end.
                self.stop.get_or_insert(Stop::Broken(Failure::invalid(format!(
                    "--batch: cannot read the next request: {error}"
                ))));
            }
            None => self.at_end = true,
        }
        Ok(())
    }

    fn take_result(&mut self, done: Result<Done, Failure>) {
        match done {
            Ok(Done { became, line }) => {
                self.tally.count(became);
                self.results.add(&line);
            }
            Err(failure) => self.stop(Stop::Broken(failure)),
        }
    }

    /// Stops reading lines and cancels running requests. The first reason is kept.
    fn stop(&mut self, why: Stop) {
        self.stop.get_or_insert(why);
        self.cancelled = true;
        self.place.cancel();
    }

    /// Abandons the results that are not yet written.
    fn give_up(&self) -> u8 {
        if !self.quiet {
            say::note(&self.tally.summary());
        }
        CANCELLED
    }

    /// Waits for the last results to be written and returns the exit status.
    async fn end(mut self) -> Result<u8, Failure> {
        let written = tokio::select! {
            written = self.results.finish() => written?,
            () = self.interrupts.next() => {
                self.stop = Some(Stop::Interrupted);
                true
            }
        };
        if written && !self.quiet {
            say::note(&self.tally.summary());
        }
        match self.stop {
            Some(Stop::Broken(failure)) => Err(failure),
            Some(Stop::Interrupted) => Ok(CANCELLED),
            _ if self.at_end && self.tally.is_clean() => Ok(0),
            _ => Ok(SOME_DID_NOT_SUCCEED),
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
