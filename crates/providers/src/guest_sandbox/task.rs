//! One task in a sandbox: writes its files, starts its commands through the guest, and collects its results.
//!
//! Files of a task have a folder of their own, which is removed when the task is over; its artifacts are the
//! files that are new or changed. The timeout is also enforced out here, a little later, in case the guest
//! cannot be trusted to do it.

use std::time::{Duration, Instant};

use belljar_engine::explain;
use belljar_engine::limits::Limits;
use belljar_engine::outcome::{Ending, Limit, Outcome, Usage};
use belljar_engine::plan::{Program, Task, WORKSPACE};
use belljar_engine::provider::{BoxFuture, Sink, SinkControl};
use belljar_engine::sandbox_handle::{
    AttachOptions, CommandEnding, CommandViewer, Commands, FileKind, Files, OutputEvent, ProcessId,
    SandboxError, SandboxStats, StartCommand, StdinMode, WriteOptions,
};

use super::GuestSandbox;
use super::denials::{PendingStart, StartedTask};
use super::prestart::{PrestartSpec, PrestartedInterpreter};
use super::results::{ArtifactSnapshot, TaskResults, artifacts_folder, collect_results, snapshot_artifacts};
use super::verdict::Counters;
use crate::program::{self, FoundRuntime, PreparedProgram, RunPaths, unique_number};

/// How much output the guest keeps per command. All output is forwarded as it arrives.
const KEEP_BYTES: u32 = 256 << 10;
/// Time after the deadline before a guest is no longer trusted to end the task.
const TIMEOUT_GRACE: Duration = Duration::from_secs(2);

/// Where a single-task sandbox holds our own files, apart from everything that programs look at.
pub(crate) const INBOX: &str = "/.belljar/inbox";

impl GuestSandbox {
    /// Runs a task. `limits` has its timeout and output limits.
    pub(super) async fn run_task(
        &self,
        task: &Task,
        limits: &Limits,
        sink: &mut dyn Sink,
        cancel: BoxFuture<'_, ()>,
    ) -> Result<Outcome, SandboxError> {
        let (start, started) = (self.starts.begin(), Instant::now());
        let runtime = match &task.program {
            Program::Code { language, .. } => Some(self.backend.runtime(language).await?),
            Program::Command(_) => None,
        };
        let run = TaskRun::prepare(self, task, limits, runtime.as_ref());
        let prestarted = self.backend.take_prestarted(run.prestart_spec()).await;
        match run.run(start, prestarted, sink, cancel).await {
            // The limit was the task's own, because nothing else ran in the sandbox.
            Err(SandboxError::Gone(why)) => {
                let ending = Ending::LimitHit(self.backend.limit_at_exit(why).await?, None);
                let outcome = Outcome::new(ending, started.elapsed(), self.receipt_with_network().await?);
                Ok(Outcome { findings: self.all_refused_hosts(), ..outcome })
            }
            outcome => outcome,
        }
    }

    /// Returns whether the sandbox is for one task and has no other files: that task needs no cleanup, and our
    /// own files are in the inbox.
    fn has_inbox(&self) -> bool {
        self.single_task && self.plan.host_workspace.is_none()
    }
}

/// A task that is ready to start.
#[derive(Debug)]
struct TaskRun<'a> {
    sandbox: &'a GuestSandbox,
    task: &'a Task,
    limits: &'a Limits,
    runtime: Option<&'a FoundRuntime>,
    prepared: PreparedProgram,
    /// The directory of our own files.
    folder: String,
}

impl<'a> TaskRun<'a> {
    fn prepare(
        sandbox: &'a GuestSandbox,
        task: &'a Task,
        limits: &'a Limits,
        runtime: Option<&'a FoundRuntime>,
    ) -> Self {
        let code_in_inbox = !sandbox.has_inbox();
        let folder =
            if code_in_inbox { format!("/tmp/.belljar-{}", unique_number()) } else { INBOX.to_owned() };
        let paths = RunPaths { code_in_inbox, inbox: folder.clone(), compiled: format!("{folder}/program") };
        let (plan, path) = (sandbox.current_plan(), sandbox.search_path());
        let prepared = program::prepare(task, &plan, runtime, &path, &paths);
        Self { sandbox, task, limits, runtime, prepared, folder }
    }

    /// Returns what to pre-start for the next task like this one, if anything.
    fn prestart_spec(&self) -> Option<PrestartSpec> {
        let Program::Code { language, .. } = &self.task.program else { return None };
        // A request's own variables may be secrets and must not be kept for the next task.
        if !self.task.env.is_empty() {
            return None;
        }
        let prestart = self.runtime?.runtime.prestart?;
        let ([command], true) = (self.prepared.commands.as_slice(), self.sandbox.has_inbox()) else {
            return None;
        };
        let script_path = format!("{}/{}", self.folder, prestart.file);
        let (program, arguments) = command.split_first()?;
        let interpreter = [program.clone(), prestart.option.to_owned(), script_path.clone()];
        let waiting: Vec<_> = interpreter.into_iter().chain(arguments.iter().cloned()).collect();
        let start = |command| command_request(&self.prepared, command, &self.folder, &self.task.workdir);
        Some(PrestartSpec {
            language: language.name,
            command: start(command),
            waiting_command: start(&waiting),
            script_path,
            script_text: prestart.script,
        })
    }

    async fn run(
        self,
        start: PendingStart<'_>,
        prestarted: Option<PrestartedInterpreter>,
        sink: &mut dyn Sink,
        mut cancel: BoxFuture<'_, ()>,
    ) -> Result<Outcome, SandboxError> {
        let started = Instant::now();
        let Self { sandbox, task, limits, ref prepared, ref folder, .. } = self;
        if let Some(why) = sandbox.halt_cause() {
            return Err(SandboxError::Halted(why));
        }
        let receipt = sandbox.receipt_with_network().await?;
        let mut seen = ArtifactSnapshot::new();
        if !sandbox.has_inbox() {
            sandbox.make_folder(folder, false, Some(0o700)).await?;
            seen = snapshot_artifacts(sandbox).await?;
        }
        let top = artifacts_folder();
        // Fails if the sandbox has something with this name, or no room; the program runs nevertheless.
        let created = prepared.artifacts_folder && sandbox.make_folder(&top, false, None).await.is_ok();
        let before = sandbox.baseline().await?;
        let mut running = RunningTask {
            sandbox,
            prestarted,
            task,
            sink,
            deadline: started + limits.timeout,
            why_killed: None,
            commands: Vec::new(),
        };
        let ran = running.run(prepared, folder, &mut cancel).await;
        let started_task = StartedTask { start, before, commands: running.commands };
        // Measured before our files are removed, which would free space on a full disk.
        let stats = sandbox.backend.stats().await?;
        let limits = (sandbox.plan.artifacts, sandbox.plan.result_bytes);
        let results = collect_results(sandbox, prepared, folder, &seen, limits).await;
        if !sandbox.has_inbox() {
            // Whatever the outcome; an error does not matter, because a sandbox that is gone has no files.
            let _removed = sandbox.remove(folder, true).await;
            if created {
                remove_empty_folder(sandbox, &top).await;
            }
        }
        let ending = ran?;
        let TaskResults { result, artifacts, skipped } = match results {
            // The timeout expired while the sandbox was paused. A paused sandbox yields no results.
            Err(SandboxError::Paused) => TaskResults::default(),
            results => results?,
        };
        let before = &started_task.before.stats;
        let counters = Counters {
            before,
            after: &stats,
            halted: sandbox.halt_cause().is_some(),
            single_task: sandbox.single_task,
        };
        let ending = counters.ending(ending)?;
        let mut findings = sandbox.task_denials(&started_task, &stats, ending).await?;
        findings.extend(explain::artifact_findings(&skipped, &sandbox.plan.artifacts));
        let usage = usage_since(before, &stats);
        Ok(Outcome { ending, duration: started.elapsed(), usage, result, artifacts, findings, receipt })
    }
}

fn usage_since(before: &SandboxStats, now: &SandboxStats) -> Usage {
    Usage {
        cpu: now.cpu.unwrap_or_default().saturating_sub(before.cpu.unwrap_or_default()),
        peak_memory_bytes: now.peak_memory_bytes.unwrap_or_default(),
        peak_processes: now.peak_processes,
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

/// Removes a folder that a task left empty. Anything else with its name stays.
async fn remove_empty_folder(files: &dyn Files, path: &str) {
    if files.stat(path, false).await.is_ok_and(|metadata| metadata.kind == FileKind::Directory) {
        let _removed = files.remove(path, false).await;
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
    sandbox: &'a GuestSandbox,
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
            let parent = if file.inbox { folder } else { WORKSPACE };
            let path = format!("{parent}/{}", file.path);
            let options = WriteOptions { permissions: Some(file.mode), ..WriteOptions::default() };
            self.sandbox.write(&path, options, Box::pin(file.content.as_slice())).await?;
            self.sandbox.set_mode(&path, file.mode).await?;
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
        let commands = self.sandbox;
        let has_input = last && !self.task.stdin.is_empty();
        let StartedCommand { process, mut output, stdin_open, guest_enforces_timeout } =
            self.start_command(start, has_input).await?;
        self.commands.push(process);
        let task = self.task;
        let feed = async {
            if stdin_open {
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
                () = &mut due, if !guest_enforces_timeout && self.why_killed.is_none() => {
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
        has_input: bool,
    ) -> Result<StartedCommand, SandboxError> {
        if let Some(prestarted) = self.prestarted.take()
            && let Some((process, output)) = prestarted.resume(self.sandbox).await
        {
            return Ok(StartedCommand { process, output, stdin_open: true, guest_enforces_timeout: false });
        }
        let left = self.deadline.saturating_duration_since(Instant::now());
        start.timeout_ms = Some((left.as_millis() as u64).max(1));
        if has_input {
            start.stdin = StdinMode::Open;
        }
        let attach = AttachOptions { from: 0, hold: true };
        let (process, output) = self.sandbox.start_attached_unrecorded(start, attach).await?;
        Ok(StartedCommand { process, output, stdin_open: has_input, guest_enforces_timeout: true })
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
                (Some(why), CommandEnding::Signalled(9)) => why,
                (_, CommandEnding::Exited(status)) => Ending::Exited(status),
                (_, CommandEnding::Signalled(signal)) => Ending::Signalled(signal),
                (_, CommandEnding::TimedOut) => Ending::TimedOut,
            }),
        }
    }

    async fn kill(&mut self, process: ProcessId, why: Ending) {
        self.why_killed = Some(why);
        // Fails if it has exited already; its end is reported in any case.
        let _killed = self.sandbox.signal(process, 9).await;
    }
}
