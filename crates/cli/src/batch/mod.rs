//! `belljar run --batch`: a request a line in, a result a line out, so many at a time.
//!
//! ```text
//! thread "lines"    file → Entry             a few ahead, then it waits
//! this thread       Entry → Place → Done     starts one when there is room, and when results are taken
//! thread "results"  Done → stdout            writes all that has gathered, then flushes
//! ```
//!
//! However long the file and however slow the reader, what is kept is bounded by the jobs.

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
/// Pipes of a run that is being started, and some to spare.
const FILES_PER_JOB: u64 = 16;
/// What the process itself has open.
const OWN_FILES: u64 = 64;
const BETWEEN_PROGRESS: Duration = Duration::from_millis(200);

/// Runs the batch, and gives the exit status.
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
        "--jobs: {jobs} need {wanted} open files, and {room} are allowed here; \
         ask for at most {most}, or raise the limit (ulimit -n)"
    )))
}

/// Why no further lines are taken before their end.
#[derive(Debug)]
enum Stop {
    Interrupted,
    /// Nobody reads the results any more.
    ReaderLeft,
    /// Nothing can run any more.
    Broken(Failure),
}

/// A batch on its way.
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
                    // A reader that has paused may keep the rest for long; a second Ctrl-C gives it up.
                    if self.cancelled { return Ok(self.give_up()) }
                    self.stop(Stop::Interrupted);
                }
            }
        }
        self.end().await
    }

    /// Whether there may be further lines.
    fn reads(&self) -> bool {
        !self.at_end && self.stop.is_none()
    }

    fn take_line(&mut self, line: Option<io::Result<Entry>>) -> Result<(), Failure> {
        match line {
            Some(Ok(entry)) => self.place.start(entry)?,
            Some(Err(error)) => {
                // What was read so far is a request like any other, and runs to its end.
                self.stop.get_or_insert(Stop::Broken(Failure::invalid(format!(
                    "--batch: cannot read on: {error}"
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

    /// Takes no further lines and cancels what runs. The first reason stays.
    fn stop(&mut self, why: Stop) {
        self.stop.get_or_insert(why);
        self.cancelled = true;
        self.place.cancel();
    }

    /// Leaves what has not been written.
    fn give_up(&self) -> u8 {
        if !self.quiet {
            say::note(&self.tally.summary());
        }
        CANCELLED
    }

    /// Waits for the last results to be written, and says what became of it all.
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

/// The next time to show progress; never where nobody watches.
async fn tick(progress: &mut Option<Interval>) {
    match progress {
        Some(interval) => drop(interval.tick().await),
        None => std::future::pending().await,
    }
}
