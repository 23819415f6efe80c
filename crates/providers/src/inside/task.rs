//! One task in a sandbox: writes its files, starts its commands through the guest, and collects its results.
//! The guest reports how the task ended; usage and limits are measured from outside.

use std::time::{Duration, Instant};

use belljar_engine::explain::{self, Kept};
use belljar_engine::finding::Finding;
use belljar_engine::limits::Limits;
use belljar_engine::living::{
    self, Asked, Attach, Commands, Files, Living, LivingError, Output, OutputEvent, ProcessId, StartCommand,
    Stats, Stdin, WriteOptions,
};
use belljar_engine::outcome::{Ending, Limit, Outcome, Usage};
use belljar_engine::plan::{Plan, Program, Task, WORKSPACE};
use belljar_engine::provider::{BoxFuture, Flow, ProviderError, Sink};
use belljar_jail::spec::ArtifactRules;

use super::ahead::{Ahead, Order};
use super::left::{Left, Seen, artifacts_in, collect};
use crate::native::run::unique_name;
use crate::program::{self, Found, Prepared, Spots};

/// How much output the guest keeps per command. All output is forwarded as it arrives.
const KEPT: u32 = 256 << 10;
/// Time after the deadline before a guest is no longer trusted to end the task.
const GRACE: Duration = Duration::from_secs(2);

/// Where a single-task sandbox holds our own files, apart from everything that programs look at.
pub(crate) const INBOX: &str = "/.belljar/inbox";

/// A task and where it runs.
#[derive(Debug)]
pub(crate) struct Errand<'a> {
    pub(crate) task: &'a Task,
    /// Timeout and output limits.
    pub(crate) limits: &'a Limits,
    pub(crate) plan: &'a Plan,
    /// The runtime of the task's language.
    pub(crate) found: Option<Found>,
    /// The search path inside.
    pub(crate) path: &'a str,
    /// Whether the sandbox is for this task only: it has no other files, needs no cleanup, and has an inbox.
    pub(crate) fresh: bool,
    /// Whether nothing else runs there, so that every counted event belongs to the task.
    pub(crate) alone: bool,
    pub(crate) artifacts: &'a ArtifactRules,
    /// Starts the task's commands.
    pub(crate) commands: &'a dyn Commands,
    /// Reports denials in more detail than the counters.
    pub(crate) notes: Option<&'a dyn Notes>,
}

/// A provider's own record of a task's denials.
pub(crate) trait Notes: std::fmt::Debug + Send + Sync {
    /// Returns findings on what these commands were denied.
    fn findings<'a>(
        &'a self,
        commands: &'a [ProcessId],
        now: &'a Stats,
        ending: Ending,
    ) -> Asked<'a, Vec<Finding>>;
}

/// A task that is ready to start.
#[derive(Debug)]
pub(crate) struct Ready<'a> {
    errand: Errand<'a>,
    prepared: Prepared,
    /// The directory of our own files.
    folder: String,
}

impl<'a> Errand<'a> {
    pub(crate) fn ready(self) -> Ready<'a> {
        let name = unique_name();
        let folder = if self.fresh { INBOX.to_owned() } else { format!("/tmp/.{name}") };
        let (inbox, compiled) = (folder.clone(), format!("{folder}/program"));
        let spots = Spots { hidden: (!self.fresh).then_some(name), inbox, compiled };
        let prepared = program::prepare(self.task, self.plan, self.found.as_ref(), self.path, &spots);
        Ready { errand: self, prepared, folder }
    }
}

impl Ready<'_> {
    /// Returns what to pre-start for the next task like this one, if anything.
    pub(crate) fn ahead(&self) -> Option<Order> {
        let Program::Code { language, .. } = &self.errand.task.program else { return None };
        // A request's own variables may be secrets and must not be kept for the next task.
        if !self.errand.task.env.is_empty() {
            return None;
        }
        let ahead = self.errand.found.as_ref()?.runtime.ahead?;
        let ([command], true) = (self.prepared.commands.as_slice(), self.errand.fresh) else { return None };
        let script = format!("{}/{}", self.folder, ahead.file);
        let (program, rest) = command.split_first()?;
        let first = [program.clone(), ahead.option.to_owned(), script.clone()];
        let waiting: Vec<_> = first.into_iter().chain(rest.iter().cloned()).collect();
        let workdir = &self.errand.task.workdir;
        let start = |command| start(&self.prepared, command, &self.folder, workdir);
        let (usual, waiting) = (start(command), start(&waiting));
        Some(Order { language: language.name, usual, waiting, script, text: ahead.script })
    }

    pub(crate) async fn run(
        self,
        living: &dyn Living,
        ahead: Option<Ahead>,
        sink: &mut dyn Sink,
        mut cancel: BoxFuture<'_, ()>,
    ) -> Result<Outcome, LivingError> {
        let started = Instant::now();
        let Self { errand, prepared, folder } = self;
        let Errand { task, limits, artifacts: rules, .. } = errand;
        if let Some(why) = living.halted() {
            return Err(LivingError::Halted(why));
        }
        let receipt = living.receipt().await?;
        let files = living.files();
        if !errand.fresh {
            files.make_folder(&folder, false, Some(0o700)).await?;
        }
        let seen = if errand.fresh { Seen::new() } else { artifacts_in(files, rules).await? };
        let before = living.stats().await?;
        let deadline = started + limits.timeout;
        let (starter, started_commands) = (errand.commands, Vec::new());
        let mut going = Going {
            living,
            starter,
            ahead,
            task,
            sink,
            deadline,
            why_killed: None,
            commands: started_commands,
        };
        let ran = going.run(&prepared, &folder, &mut cancel).await;
        let commands = std::mem::take(&mut going.commands);
        // Measured before our files are removed, which would free space on a full disk.
        let stats = living.stats().await?;
        let after = collect(files, &prepared, &folder, &seen, rules).await;
        if !errand.fresh {
            clear(files, &prepared, &folder).await;
        }
        let ending = ran?;
        let (result, artifacts) = match after {
            // The timeout expired while the sandbox was paused. A paused sandbox yields no results.
            Err(LivingError::Paused) => Left::default(),
            after => after?,
        };
        if is_killed_from_above(ending, &before, &stats) {
            return Err(ProviderError::SandboxMemoryExhausted.into());
        }
        let ending = match judge(ending, &before, &stats, living.halted().is_some()) {
            // Nothing else runs in the sandbox, so the killed process belonged to the task.
            Ending::Exited(_) if errand.alone && stats.memory_kills > before.memory_kills => {
                Ending::LimitHit(Limit::Memory, None)
            }
            ending => ending,
        };
        let findings = match errand.notes {
            Some(notes) => notes.findings(&commands, &stats, ending).await?,
            None => explain::findings(&counted(&before, &stats, errand.alone), ending, &errand.plan.limits),
        };
        let usage = Usage {
            cpu: stats.cpu.unwrap_or_default().saturating_sub(before.cpu.unwrap_or_default()),
            peak_memory_bytes: stats.peak_memory_bytes.unwrap_or_default(),
            peak_processes: stats.peak_processes,
        };
        Ok(Outcome { ending, duration: started.elapsed(), usage, result, artifacts, findings, receipt })
    }
}

/// Builds a start request for a command of a task.
fn start(prepared: &Prepared, command: &[String], folder: &str, workdir: &str) -> StartCommand {
    let mut words = command.to_vec();
    if prepared.result {
        // The return value of `main` is written to descriptor 3, which the shell redirects to a file of ours.
        let shell = ["/bin/sh", "-c", "exec \"$@\" 3>\"$0\""].map(str::to_owned);
        words = shell.into_iter().chain([format!("{folder}/result")]).chain(words).collect();
    }
    let mut start = StartCommand::program(words);
    start.env = prepared.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    start.workdir = Some(workdir.to_owned());
    start.keep_bytes = KEPT;
    start
}

/// Returns denials counted for the whole sandbox, if nothing else ran in it.
fn counted(before: &Stats, now: &Stats, alone: bool) -> Kept {
    if !alone && before.processes != Some(0) {
        return Kept::default();
    }
    Kept {
        forks_refused: now.forks_refused.saturating_sub(before.forks_refused),
        memory_kills: now.memory_kills.saturating_sub(before.memory_kills),
        disk_full: now.disk_full && !before.disk_full,
        ..Kept::default()
    }
}

/// Removes our own files whatever the outcome. Errors are ignored: a sandbox that is gone has no files.
async fn clear(files: &dyn Files, prepared: &Prepared, folder: &str) {
    let _removed = files.remove(folder, true).await;
    if let Some(temporary) = &prepared.temporary {
        let _removed = files.remove(&format!("{WORKSPACE}/{temporary}"), false).await;
    }
}

/// Returns whether a task failed while a process was killed because memory outside the sandbox's own limit
/// ran out.
fn is_killed_from_above(ending: Ending, before: &Stats, after: &Stats) -> bool {
    let killed = after.machine_memory_kills > before.machine_memory_kills;
    killed && matches!(ending, Ending::Signalled(9) | Ending::Exited(1..))
}

/// Returns the ending: a limit that was hit while the task ran counts if the task failed.
fn judge(ending: Ending, before: &Stats, after: &Stats, halted: bool) -> Ending {
    match ending {
        // A volume exceeds its limit.
        Ending::Signalled(9) if halted => Ending::LimitHit(Limit::Disk, None),
        Ending::Signalled(9) if after.memory_kills > before.memory_kills => {
            Ending::LimitHit(Limit::Memory, None)
        }
        Ending::Signalled(25) => Ending::LimitHit(Limit::Disk, None),
        Ending::Exited(status) if status != 0 && after.memory_kills > before.memory_kills => {
            Ending::LimitHit(Limit::Memory, None)
        }
        Ending::Exited(status) if status != 0 && after.disk_full => {
            Ending::LimitHit(Limit::Disk, Some(status))
        }
        Ending::Exited(status) if status != 0 && after.forks_refused > before.forks_refused => {
            Ending::LimitHit(Limit::Processes, Some(status))
        }
        other => other,
    }
}

/// A started command of a task.
struct Begun {
    process: ProcessId,
    output: Box<dyn Output>,
    /// Whether its stdin is open and must be closed.
    open: bool,
    /// Whether the guest enforces the timeout.
    timed: bool,
}

/// A running task.
struct Going<'a> {
    living: &'a dyn Living,
    starter: &'a dyn Commands,
    /// The interpreter pre-started for a task like this one.
    ahead: Option<Ahead>,
    task: &'a Task,
    sink: &'a mut dyn Sink,
    deadline: Instant,
    why_killed: Option<Ending>,
    /// The commands started so far.
    commands: Vec<ProcessId>,
}

impl Going<'_> {
    async fn run(
        &mut self,
        prepared: &Prepared,
        folder: &str,
        cancel: &mut BoxFuture<'_, ()>,
    ) -> Result<Ending, LivingError> {
        for file in &prepared.files {
            let place = if file.inbox { folder } else { WORKSPACE };
            let path = format!("{place}/{}", file.path);
            let options = WriteOptions { permissions: Some(file.mode), ..WriteOptions::default() };
            let files = self.living.files();
            files.write(&path, options, Box::pin(file.content.as_slice())).await?;
            files.set_mode(&path, file.mode).await?;
        }
        let mut ending = Ending::Exited(0);
        for (at, command) in prepared.commands.iter().enumerate() {
            let last = at + 1 == prepared.commands.len();
            let start = start(prepared, command, folder, &self.task.workdir);
            ending = self.step(start, last, cancel).await?;
            if ending != Ending::Exited(0) {
                break;
            }
        }
        Ok(ending)
    }

    /// Runs one command to its end.
    async fn step(
        &mut self,
        start: StartCommand,
        last: bool,
        cancel: &mut BoxFuture<'_, ()>,
    ) -> Result<Ending, LivingError> {
        let commands = self.starter;
        let fed = last && !self.task.stdin.is_empty();
        let Begun { process, mut output, open, timed } = self.begin(start, fed).await?;
        self.commands.push(process);
        let task = self.task;
        let feed = async {
            if open {
                // Fails if the program has closed stdin or exited.
                let _fed = commands.write_stdin(process, &task.stdin).await;
                let _closed = commands.close_stdin(process).await;
            }
            std::future::pending::<()>().await;
        };
        tokio::pin!(feed);
        let due = tokio::time::sleep_until(self.deadline.into());
        let late = tokio::time::sleep_until((self.deadline + GRACE).into());
        tokio::pin!(due, late);
        loop {
            tokio::select! {
                biased;
                event = output.next() => {
                    if let Some(ending) = self.hear(process, event?).await {
                        return Ok(ending);
                    }
                }
                () = &mut *cancel, if self.why_killed.is_none() => self.kill(process, Ending::Cancelled).await,
                () = &mut due, if !timed && self.why_killed.is_none() => {
                    self.kill(process, Ending::TimedOut).await;
                }
                () = &mut late => return Ok(self.why_killed.unwrap_or(Ending::TimedOut)),
                () = &mut feed => {}
            }
        }
    }

    /// Starts a command, or resumes the interpreter pre-started for it.
    async fn begin(&mut self, mut start: StartCommand, fed: bool) -> Result<Begun, LivingError> {
        if let Some(ahead) = self.ahead.take()
            && let Some((process, output)) = ahead.go_on(self.starter).await
        {
            return Ok(Begun { process, output, open: true, timed: false });
        }
        let left = self.deadline.saturating_duration_since(Instant::now());
        start.timeout_ms = Some((left.as_millis() as u64).max(1));
        if fed {
            start.stdin = Stdin::Open;
        }
        let (process, output) = self.starter.start_attached(start, Attach { from: 0, hold: true }).await?;
        Ok(Begun { process, output, open: fed, timed: true })
    }

    async fn hear(&mut self, process: ProcessId, event: Option<OutputEvent>) -> Option<Ending> {
        match event? {
            OutputEvent::Bytes { stream, bytes, .. } => {
                if self.sink.output(stream, &bytes) == Flow::Kill && self.why_killed.is_none() {
                    self.kill(process, Ending::LimitHit(Limit::Output, None)).await;
                }
                None
            }
            // Cannot happen, because the process is paused while output is pending.
            OutputEvent::Lost { .. } => None,
            OutputEvent::Ended { ending, .. } => Some(match (self.why_killed, ending) {
                (Some(why), living::Ending::Signalled(9)) => why,
                (_, living::Ending::Exited(status)) => Ending::Exited(status),
                (_, living::Ending::Signalled(signal)) => Ending::Signalled(signal),
                (_, living::Ending::TimedOut) => Ending::TimedOut,
            }),
        }
    }

    async fn kill(&mut self, process: ProcessId, why: Ending) {
        self.why_killed = Some(why);
        // Fails if it has exited already; its end is reported in any case.
        let _killed = self.living.commands().signal(process, 9).await;
    }
}
