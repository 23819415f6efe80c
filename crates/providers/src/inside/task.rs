//! One task in a living sandbox: its files are written inside, its commands are started by the guest, and what it left is
//! looked at afterwards. How it ended is the guest's word; whether a limit had to do with it, and what it used, are counted
//! outside.

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

/// What the guest keeps of a task's output; everything is passed on as it comes.
const KEPT: u32 = 256 << 10;
/// How much longer than its time a task is waited for, before the guest is no longer believed to end it.
const GRACE: Duration = Duration::from_secs(2);

/// Where a box that is made for one task has room for what is ours, apart from all that programs look at.
pub(crate) const INBOX: &str = "/.belljar/inbox";

/// A task, and where it is run.
#[derive(Debug)]
pub(crate) struct Errand<'a> {
    pub(crate) task: &'a Task,
    /// The limits of time and output.
    pub(crate) limits: &'a Limits,
    pub(crate) plan: &'a Plan,
    /// What runs the task's language.
    pub(crate) found: Option<Found>,
    /// The search path inside.
    pub(crate) path: &'a str,
    /// Whether nobody else's files are there, nobody will miss what is left, and there is an inbox.
    pub(crate) fresh: bool,
    /// Whether nobody else runs anything there: whatever was counted is its own.
    pub(crate) alone: bool,
    pub(crate) artifacts: &'a ArtifactRules,
    /// What starts its commands.
    pub(crate) commands: &'a dyn Commands,
    /// Whoever knows more about what it was kept from than counters tell.
    pub(crate) notes: Option<&'a dyn Notes>,
}

/// What a provider itself notes of a task.
pub(crate) trait Notes: std::fmt::Debug + Send + Sync {
    /// What these commands were kept from.
    fn findings<'a>(
        &'a self,
        commands: &'a [ProcessId],
        now: &'a Stats,
        ending: Ending,
    ) -> Asked<'a, Vec<Finding>>;
}

/// A task with all that it takes to start it.
#[derive(Debug)]
pub(crate) struct Ready<'a> {
    errand: Errand<'a>,
    prepared: Prepared,
    /// Where what is ours goes.
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
    /// What would be started ahead of time for another one like it, where that can be.
    pub(crate) fn ahead(&self) -> Option<Order> {
        let Program::Code { language, .. } = &self.errand.task.program else { return None };
        // A request's own variables may be secrets, and are not kept for whoever comes next.
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
        // Before anything of ours goes, which would make room on a full disk.
        let stats = living.stats().await?;
        let after = collect(files, &prepared, &folder, &seen, rules).await;
        if !errand.fresh {
            clear(files, &prepared, &folder).await;
        }
        let ending = ran?;
        let (result, artifacts) = match after {
            // Its time ran out while it stood still, and it leaves nothing.
            Err(LivingError::Paused) => Left::default(),
            after => after?,
        };
        if is_killed_from_above(ending, &before, &stats) {
            return Err(ProviderError::SandboxMemoryExhausted.into());
        }
        let ending = match judge(ending, &before, &stats, living.halted().is_some()) {
            // Where nobody else has anything, whoever was killed was part of it.
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

/// What starts a command of a task.
fn start(prepared: &Prepared, command: &[String], folder: &str, workdir: &str) -> StartCommand {
    let mut words = command.to_vec();
    if prepared.result {
        // What `main` returns leaves by descriptor 3, here into a file of ours.
        let shell = ["/bin/sh", "-c", "exec \"$@\" 3>\"$0\""].map(str::to_owned);
        words = shell.into_iter().chain([format!("{folder}/result")]).chain(words).collect();
    }
    let mut start = StartCommand::program(words);
    start.env = prepared.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    start.workdir = Some(workdir.to_owned());
    start.keep_bytes = KEPT;
    start
}

/// What was counted of the sandbox as a whole, where nobody else was there.
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

/// Ours goes whatever became of it; in a sandbox that is gone there is nothing left.
async fn clear(files: &dyn Files, prepared: &Prepared, folder: &str) {
    let _removed = files.remove(folder, true).await;
    if let Some(temporary) = &prepared.temporary {
        let _removed = files.remove(&format!("{WORKSPACE}/{temporary}"), false).await;
    }
}

/// Whether a task failed while a process was killed for want of memory that was not the sandbox's own.
fn is_killed_from_above(ending: Ending, before: &Stats, after: &Stats) -> bool {
    let killed = after.machine_memory_kills > before.machine_memory_kills;
    killed && matches!(ending, Ending::Signalled(9) | Ending::Exited(1..))
}

/// A limit that was reached while the task ran, and that it failed with, is its ending.
fn judge(ending: Ending, before: &Stats, after: &Stats, halted: bool) -> Ending {
    match ending {
        // A volume is too full.
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

/// A command of a task.
struct Begun {
    process: ProcessId,
    output: Box<dyn Output>,
    /// Whether it waits for the end of what it reads.
    open: bool,
    /// Whether the guest ends it in time.
    timed: bool,
}

/// A task that is going on.
struct Going<'a> {
    living: &'a dyn Living,
    starter: &'a dyn Commands,
    /// What was started for one like it.
    ahead: Option<Ahead>,
    task: &'a Task,
    sink: &'a mut dyn Sink,
    deadline: Instant,
    why_killed: Option<Ending>,
    /// What was started for it.
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
                // A program that does not read, or has ended, wants no more.
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

    /// Starts a command, or has the one go on that was started for it ahead of time.
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
            // Nothing is, since the process is held up.
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
        // One that has ended meanwhile needs no killing; and its end is heard.
        let _killed = self.living.commands().signal(process, 9).await;
    }
}
