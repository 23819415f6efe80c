//! One task in a sandbox: writes its files, starts its commands through the guest, and collects its results.
//! The guest reports how the task ended; usage and limits are measured from outside.
//!
//! Files of a task have a folder of their own, which is removed when the task is over; its artifacts are the
//! files that are new or changed. The timeout is also enforced out here, a little later, in case the guest
//! cannot be trusted to do it.

use std::time::{Duration, Instant};

use belljar_engine::explain::{self, Denials};
use belljar_engine::finding::Finding;
use belljar_engine::limits::Limits;
use belljar_engine::outcome::{Ending, Limit, Outcome, Usage};
use belljar_engine::plan::{Plan, Program, Task, WORKSPACE};
use belljar_engine::provider::{BoxFuture, ProviderError, Sink, SinkControl};
use belljar_engine::sandbox_handle::{
    self, AttachOptions, CommandViewer, Commands, Files, OutputEvent, ProcessId, SandboxError, SandboxFuture,
    SandboxHandle, SandboxStats, StartCommand, StdinMode, WriteOptions,
};
use belljar_jail::spec::ArtifactRules;

use super::prestart::{PrestartSpec, PrestartedInterpreter};
use super::results::{ArtifactSnapshot, TaskResults, collect_results, list_artifacts};
use crate::native::run::unique_name;
use crate::program::{self, FoundRuntime, PreparedProgram, RunPaths};

/// How much output the guest keeps per command. All output is forwarded as it arrives.
const KEEP_BYTES: u32 = 256 << 10;
/// Time after the deadline before a guest is no longer trusted to end the task.
const TIMEOUT_GRACE: Duration = Duration::from_secs(2);

/// Where a single-task sandbox holds our own files, apart from everything that programs look at.
pub(crate) const INBOX: &str = "/.belljar/inbox";

/// A task and where it runs.
#[derive(Debug)]
pub(crate) struct TaskRun<'a> {
    pub(crate) task: &'a Task,
    /// Timeout and output limits.
    pub(crate) limits: &'a Limits,
    pub(crate) plan: &'a Plan,
    /// The runtime of the task's language.
    pub(crate) runtime: Option<FoundRuntime>,
    /// The search path inside.
    pub(crate) path: &'a str,
    /// Whether the sandbox is for this task only: it has no other files, needs no cleanup, and has an inbox.
    pub(crate) single_task: bool,
    /// Whether nothing else runs there, so that every counted event belongs to the task.
    pub(crate) exclusive: bool,
    pub(crate) artifact_rules: &'a ArtifactRules,
    /// Starts the task's commands.
    pub(crate) commands: &'a dyn Commands,
    /// Reports denials in more detail than the counters.
    pub(crate) denials: Option<&'a dyn DenialFindings>,
}

/// A provider's own record of a task's denials.
pub(crate) trait DenialFindings: std::fmt::Debug + Send + Sync {
    /// Returns findings on what these commands were denied.
    fn findings<'a>(
        &'a self,
        commands: &'a [ProcessId],
        now: &'a SandboxStats,
        ending: Ending,
    ) -> SandboxFuture<'a, Vec<Finding>>;
}

/// A task that is ready to start.
#[derive(Debug)]
pub(crate) struct PreparedTask<'a> {
    run: TaskRun<'a>,
    prepared: PreparedProgram,
    /// The directory of our own files.
    folder: String,
}

impl<'a> TaskRun<'a> {
    pub(crate) fn prepare(self) -> PreparedTask<'a> {
        let name = unique_name();
        let folder = if self.single_task { INBOX.to_owned() } else { format!("/tmp/.{name}") };
        let (inbox, compiled) = (folder.clone(), format!("{folder}/program"));
        let spots = RunPaths { unique_name: (!self.single_task).then_some(name), inbox, compiled };
        let prepared = program::prepare(self.task, self.plan, self.runtime.as_ref(), self.path, &spots);
        PreparedTask { run: self, prepared, folder }
    }
}

impl PreparedTask<'_> {
    /// Returns what to pre-start for the next task like this one, if anything.
    pub(crate) fn prestart_spec(&self) -> Option<PrestartSpec> {
        let Program::Code { language, .. } = &self.run.task.program else { return None };
        // A request's own variables may be secrets and must not be kept for the next task.
        if !self.run.task.env.is_empty() {
            return None;
        }
        let ahead = self.run.runtime.as_ref()?.runtime.prestart?;
        let ([command], true) = (self.prepared.commands.as_slice(), self.run.single_task) else {
            return None;
        };
        let script = format!("{}/{}", self.folder, ahead.file);
        let (program, rest) = command.split_first()?;
        let first = [program.clone(), ahead.option.to_owned(), script.clone()];
        let waiting: Vec<_> = first.into_iter().chain(rest.iter().cloned()).collect();
        let workdir = &self.run.task.workdir;
        let start = |command| command_request(&self.prepared, command, &self.folder, workdir);
        let (usual, waiting) = (start(command), start(&waiting));
        Some(PrestartSpec {
            language: language.name,
            command: usual,
            waiting_command: waiting,
            script_path: script,
            script_text: ahead.script,
        })
    }

    pub(crate) async fn run(
        self,
        sandbox: &dyn SandboxHandle,
        ahead: Option<PrestartedInterpreter>,
        sink: &mut dyn Sink,
        mut cancel: BoxFuture<'_, ()>,
    ) -> Result<Outcome, SandboxError> {
        let started = Instant::now();
        let Self { run: errand, prepared, folder } = self;
        let TaskRun { task, limits, artifact_rules: rules, .. } = errand;
        if let Some(why) = sandbox.halt_reason() {
            return Err(SandboxError::Halted(why));
        }
        let receipt = sandbox.receipt().await?;
        let files = sandbox.files();
        if !errand.single_task {
            files.make_folder(&folder, false, Some(0o700)).await?;
        }
        let seen =
            if errand.single_task { ArtifactSnapshot::new() } else { list_artifacts(files, rules).await? };
        let before = sandbox.stats().await?;
        let deadline = started + limits.timeout;
        let (starter, started_commands) = (errand.commands, Vec::new());
        let mut going = RunningTask {
            sandbox,
            command_starter: starter,
            prestarted: ahead,
            task,
            sink,
            deadline,
            why_killed: None,
            commands: started_commands,
        };
        let ran = going.run(&prepared, &folder, &mut cancel).await;
        let commands = std::mem::take(&mut going.commands);
        // Measured before our files are removed, which would free space on a full disk.
        let stats = sandbox.stats().await?;
        let after = collect_results(files, &prepared, &folder, &seen, rules).await;
        if !errand.single_task {
            remove_own_files(files, &prepared, &folder).await;
        }
        let ending = ran?;
        let (result, artifacts) = match after {
            // The timeout expired while the sandbox was paused. A paused sandbox yields no results.
            Err(SandboxError::Paused) => TaskResults::default(),
            after => after?,
        };
        if is_killed_by_outer_limit(ending, &before, &stats) {
            return Err(ProviderError::SandboxMemoryExhausted.into());
        }
        let ending = match ending_with_limits(ending, &before, &stats, sandbox.halt_reason().is_some()) {
            // Nothing else runs in the sandbox, so the killed process belonged to the task.
            Ending::Exited(_) if errand.exclusive && stats.memory_kills > before.memory_kills => {
                Ending::LimitHit(Limit::Memory, None)
            }
            ending => ending,
        };
        let findings = match errand.denials {
            Some(notes) => notes.findings(&commands, &stats, ending).await?,
            None => explain::denial_findings(
                &counted_denials(&before, &stats, errand.exclusive),
                ending,
                &errand.plan.limits,
            ),
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
fn command_request(
    prepared: &PreparedProgram,
    command: &[String],
    folder: &str,
    workdir: &str,
) -> StartCommand {
    let mut words = command.to_vec();
    if prepared.has_result_pipe {
        // The return value of `main` is written to descriptor 3, which the shell redirects to a file of ours.
        let shell = ["/bin/sh", "-c", "exec \"$@\" 3>\"$0\""].map(str::to_owned);
        words = shell.into_iter().chain([format!("{folder}/result")]).chain(words).collect();
    }
    let mut start = StartCommand::program(words);
    start.env = prepared.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    start.workdir = Some(workdir.to_owned());
    start.keep_bytes = KEEP_BYTES;
    start
}

/// Returns denials counted for the whole sandbox, if nothing else ran in it.
fn counted_denials(before: &SandboxStats, now: &SandboxStats, alone: bool) -> Denials {
    if !alone && before.processes != Some(0) {
        return Denials::default();
    }
    Denials {
        forks_refused: now.forks_refused.saturating_sub(before.forks_refused),
        memory_kills: now.memory_kills.saturating_sub(before.memory_kills),
        disk_full: now.disk_full && !before.disk_full,
        ..Denials::default()
    }
}

/// Removes our own files whatever the outcome. Errors are ignored: a sandbox that is gone has no files.
async fn remove_own_files(files: &dyn Files, prepared: &PreparedProgram, folder: &str) {
    let _removed = files.remove(folder, true).await;
    if let Some(temporary) = &prepared.temporary {
        let _removed = files.remove(&format!("{WORKSPACE}/{temporary}"), false).await;
    }
}

/// Returns whether a task failed while a process was killed because memory outside the sandbox's own limit
/// ran out.
fn is_killed_by_outer_limit(ending: Ending, before: &SandboxStats, after: &SandboxStats) -> bool {
    let killed = after.machine_memory_kills > before.machine_memory_kills;
    killed && matches!(ending, Ending::Signalled(9) | Ending::Exited(1..))
}

/// Returns the ending: a limit that was hit while the task ran counts if the task failed.
fn ending_with_limits(ending: Ending, before: &SandboxStats, after: &SandboxStats, halted: bool) -> Ending {
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
struct StartedCommand {
    process: ProcessId,
    output: Box<dyn CommandViewer>,
    /// Whether its stdin is open and must be closed.
    stdin_open: bool,
    /// Whether the guest enforces the timeout.
    guest_enforces_timeout: bool,
}

/// A running task.
struct RunningTask<'a> {
    sandbox: &'a dyn SandboxHandle,
    command_starter: &'a dyn Commands,
    /// The interpreter pre-started for a task like this one.
    prestarted: Option<PrestartedInterpreter>,
    task: &'a Task,
    sink: &'a mut dyn Sink,
    deadline: Instant,
    why_killed: Option<Ending>,
    /// The commands started so far.
    commands: Vec<ProcessId>,
}

impl RunningTask<'_> {
    async fn run(
        &mut self,
        prepared: &PreparedProgram,
        folder: &str,
        cancel: &mut BoxFuture<'_, ()>,
    ) -> Result<Ending, SandboxError> {
        for file in &prepared.files {
            let place = if file.inbox { folder } else { WORKSPACE };
            let path = format!("{place}/{}", file.path);
            let options = WriteOptions { permissions: Some(file.mode), ..WriteOptions::default() };
            let files = self.sandbox.files();
            files.write(&path, options, Box::pin(file.content.as_slice())).await?;
            files.set_mode(&path, file.mode).await?;
        }
        let mut ending = Ending::Exited(0);
        for (at, command) in prepared.commands.iter().enumerate() {
            let last = at + 1 == prepared.commands.len();
            let start = command_request(prepared, command, folder, &self.task.workdir);
            ending = self.run_command(start, last, cancel).await?;
            if ending != Ending::Exited(0) {
                break;
            }
        }
        Ok(ending)
    }

    /// Runs one command to its end.
    async fn run_command(
        &mut self,
        start: StartCommand,
        last: bool,
        cancel: &mut BoxFuture<'_, ()>,
    ) -> Result<Ending, SandboxError> {
        let commands = self.command_starter;
        let fed = last && !self.task.stdin.is_empty();
        let StartedCommand { process, mut output, stdin_open: open, guest_enforces_timeout: timed } =
            self.start_command(start, fed).await?;
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
        let late = tokio::time::sleep_until((self.deadline + TIMEOUT_GRACE).into());
        tokio::pin!(due, late);
        loop {
            tokio::select! {
                biased;
                event = output.next() => {
                    if let Some(ending) = self.handle_event(process, event?).await {
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
    async fn start_command(
        &mut self,
        mut start: StartCommand,
        fed: bool,
    ) -> Result<StartedCommand, SandboxError> {
        if let Some(ahead) = self.prestarted.take()
            && let Some((process, output)) = ahead.resume(self.command_starter).await
        {
            return Ok(StartedCommand { process, output, stdin_open: true, guest_enforces_timeout: false });
        }
        let left = self.deadline.saturating_duration_since(Instant::now());
        start.timeout_ms = Some((left.as_millis() as u64).max(1));
        if fed {
            start.stdin = StdinMode::Open;
        }
        let (process, output) =
            self.command_starter.start_attached(start, AttachOptions { from: 0, hold: true }).await?;
        Ok(StartedCommand { process, output, stdin_open: fed, guest_enforces_timeout: true })
    }

    async fn handle_event(&mut self, process: ProcessId, event: Option<OutputEvent>) -> Option<Ending> {
        match event? {
            OutputEvent::Bytes { stream, bytes, .. } => {
                if self.sink.output(stream, &bytes) == SinkControl::Kill && self.why_killed.is_none() {
                    self.kill(process, Ending::LimitHit(Limit::Output, None)).await;
                }
                None
            }
            // Cannot happen, because the process is paused while output is pending.
            OutputEvent::Lost { .. } => None,
            OutputEvent::Ended { ending, .. } => Some(match (self.why_killed, ending) {
                (Some(why), sandbox_handle::CommandEnding::Signalled(9)) => why,
                (_, sandbox_handle::CommandEnding::Exited(status)) => Ending::Exited(status),
                (_, sandbox_handle::CommandEnding::Signalled(signal)) => Ending::Signalled(signal),
                (_, sandbox_handle::CommandEnding::TimedOut) => Ending::TimedOut,
            }),
        }
    }

    async fn kill(&mut self, process: ProcessId, why: Ending) {
        self.why_killed = Some(why);
        // Fails if it has exited already; its end is reported in any case.
        let _killed = self.sandbox.commands().signal(process, 9).await;
    }
}
