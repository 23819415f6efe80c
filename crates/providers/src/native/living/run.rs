//! One task in a living sandbox: its files are written inside, its commands are started by the guest, and what it left is
//! looked at afterwards. How it ended is the guest's word; whether a limit had to do with it, and what it used, are counted
//! outside.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use belljar_egress::Egress;
use belljar_engine::explain::{self, Kept};
use belljar_engine::limits::Limits;
use belljar_engine::living::{
    self, Attach, FailureKind, FileKind, Files, Living, LivingError, OutputEvent, ProcessId, StartCommand,
    Stats, Stdin, WriteOptions,
};
use belljar_engine::outcome::{Artifact, Ending, Limit, Outcome, Usage};
use belljar_engine::plan::{Program, Task, WORKSPACE};
use belljar_engine::provider::{BoxFuture, Flow, ProviderError, Sink};
use belljar_jail::spec::ArtifactRules;
use tokio::io::AsyncReadExt;

use super::NativeLiving;
use crate::native::run::{MAX_RESULT, unique_name};
use crate::program::{self, Found, Prepared, Spots};

/// What the guest keeps of a task's output; everything is passed on as it comes.
const KEPT: u32 = 256 << 10;
/// How much longer than its time a task is waited for, before the guest is no longer believed to end it.
const GRACE: Duration = Duration::from_secs(2);
/// What fits between two looks at the folder of artifacts.
const MAX_LISTED: usize = 10_000;

pub(super) async fn run(
    living: &NativeLiving,
    task: &Task,
    limits: &Limits,
    sink: &mut dyn Sink,
    mut cancel: BoxFuture<'_, ()>,
) -> Result<Outcome, LivingError> {
    let started = Instant::now();
    let mark = living.egress.as_ref().map(Egress::mark);
    living.able()?;
    let receipt = living.receipt().await?;
    let name = unique_name();
    let folder = format!("/tmp/.{name}");
    let inbox = folder.clone();
    let spots = Spots { hidden: Some(name), inbox, compiled: format!("{folder}/program") };
    let found = runtime(living, task)?;
    let path = &living.root.path;
    let prepared = program::prepare(task, &living.place.plan, found.as_ref(), path, &spots);
    living.make_folder(&folder, false, Some(0o700)).await?;
    let before = (living.take_stats().await?, artifacts_in(living).await?);
    let mut going = Going { living, task, sink, deadline: started + limits.timeout, why_killed: None };
    let ran = going.run(&prepared, &folder, &mut cancel).await;
    // Before anything of ours goes, which would make room on a full disk.
    let stats = living.take_stats().await?;
    let after = collect(living, &prepared, &folder, &before.1).await;
    // Ours goes whatever became of it; in a sandbox that is gone there is nothing left.
    let _removed = living.remove(&folder, true).await;
    if let Some(temporary) = &prepared.temporary {
        let _removed = living.remove(&format!("{WORKSPACE}/{temporary}"), false).await;
    }
    let ending = ran?;
    let (result, artifacts) = match after {
        // Its time ran out while it stood still, and it leaves nothing.
        Err(LivingError::Paused) => Left::default(),
        after => after?,
    };
    let ending = judge(ending, &before.0, &stats, living.halted().is_some());
    let forks_refused = stats.forks_refused.saturating_sub(before.0.forks_refused);
    // Nobody listens to the filter here: whose of the commands inside a call was could not be told.
    let kept = Kept { forks_refused, disk_full: stats.disk_full, ..Kept::default() };
    let mut findings = explain::findings(&kept, ending, limits);
    if let Some((egress, mark)) = living.egress.as_ref().zip(mark) {
        findings.extend(egress.findings_since(&mark));
    }
    Ok(Outcome {
        ending,
        duration: started.elapsed(),
        usage: Usage {
            cpu: stats.cpu.unwrap_or_default().saturating_sub(before.0.cpu.unwrap_or_default()),
            peak_memory_bytes: stats.peak_memory_bytes.unwrap_or_default(),
            peak_processes: stats.peak_processes,
        },
        result,
        artifacts,
        findings,
        receipt,
    })
}

/// What runs the task's language, which must be within what this sandbox shows.
fn runtime(living: &NativeLiving, task: &Task) -> Result<Option<Found>, ProviderError> {
    let Program::Code { language, .. } = &task.program else { return Ok(None) };
    let located = living.shared.roots.runtime(language, &living.place.plan.image)?;
    if located.prefixes.iter().any(|prefix| !living.prefixes.contains(prefix)) {
        let message =
            format!("{} is installed where this sandbox cannot see it; run it by itself", language.name);
        return Err(ProviderError::Unsupported { field: "language", message });
    }
    Ok(Some(located.found))
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

/// A task that is going on.
struct Going<'a> {
    living: &'a NativeLiving,
    task: &'a Task,
    sink: &'a mut dyn Sink,
    deadline: Instant,
    why_killed: Option<Ending>,
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
            self.living.write(&path, options, Box::pin(file.content.as_slice())).await?;
            self.living.set_mode(&path, file.mode).await?;
        }
        let mut ending = Ending::Exited(0);
        for (at, command) in prepared.commands.iter().enumerate() {
            let last = at + 1 == prepared.commands.len();
            let start = self.command(prepared, command, folder, last);
            ending = self.step(start, cancel).await?;
            if ending != Ending::Exited(0) {
                break;
            }
        }
        Ok(ending)
    }

    fn command(&self, prepared: &Prepared, command: &[String], folder: &str, last: bool) -> StartCommand {
        let mut words = command.to_vec();
        if prepared.result {
            // What `main` returns leaves by descriptor 3, here into a file of ours.
            let shell = ["/bin/sh", "-c", "exec \"$@\" 3>\"$0\""].map(str::to_owned);
            words = shell.into_iter().chain([format!("{folder}/result")]).chain(words).collect();
        }
        let mut start = StartCommand::program(words);
        start.env = prepared.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        start.workdir = Some(self.task.workdir.clone());
        start.keep_bytes = KEPT;
        let left = self.deadline.saturating_duration_since(Instant::now());
        start.timeout_ms = Some((left.as_millis() as u64).max(1));
        if last && !self.task.stdin.is_empty() {
            start.stdin = Stdin::Open;
        }
        start
    }

    /// Runs one command to its end.
    async fn step(
        &mut self,
        start: StartCommand,
        cancel: &mut BoxFuture<'_, ()>,
    ) -> Result<Ending, LivingError> {
        let living = self.living;
        let fed = start.stdin == Stdin::Open;
        let started = living.able()?.start_attached(start, Attach { from: 0, hold: true }).await;
        let (process, mut output) = living.told(started).await?;
        let task = self.task;
        let feed = async {
            if fed {
                // A program that does not read, or has ended, wants no more.
                let _fed = living.guest.write_stdin(process, &task.stdin).await;
                let _closed = living.guest.close_stdin(process).await;
            }
            std::future::pending::<()>().await;
        };
        tokio::pin!(feed);
        let late = tokio::time::sleep_until((self.deadline + GRACE).into());
        tokio::pin!(late);
        loop {
            tokio::select! {
                biased;
                event = output.next() => {
                    if let Some(ending) = self.hear(process, living.told(event).await?).await {
                        return Ok(ending);
                    }
                }
                () = &mut *cancel, if self.why_killed.is_none() => self.kill(process, Ending::Cancelled).await,
                () = &mut late => return Ok(self.why_killed.unwrap_or(Ending::TimedOut)),
                () = &mut feed => {}
            }
        }
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
        let _killed = self.living.guest.signal(process, 9).await;
    }
}

type Seen = BTreeMap<String, (u64, i64)>;

/// What may leave as an artifact, and when it was written.
async fn artifacts_in(living: &NativeLiving) -> Result<Seen, LivingError> {
    let rules = &living.shared.artifacts.0;
    let mut seen = Seen::new();
    let mut after = None;
    loop {
        let page = match living.list(ARTIFACTS, after, 256).await {
            Ok(page) => page,
            Err(error) if absent(&error) => return Ok(seen),
            Err(error) => return Err(error),
        };
        let files = page.entries.into_iter().filter(|entry| {
            let metadata = &entry.metadata;
            let size = 1..=rules.file_bytes;
            metadata.kind == FileKind::File && size.contains(&metadata.size) && may_leave(&entry.name, rules)
        });
        seen.extend(files.map(|entry| (entry.name, (entry.metadata.size, entry.metadata.modified_ms))));
        after = page.next;
        if after.is_none() || seen.len() > MAX_LISTED {
            return Ok(seen);
        }
    }
}

const ARTIFACTS: &str = "/workspace/artifacts";

fn absent(error: &LivingError) -> bool {
    matches!(error.kind(), Some(FailureKind::NotFound | FailureKind::NotADirectory | FailureKind::Denied))
}

fn may_leave(name: &str, rules: &ArtifactRules) -> bool {
    let ending = name.rsplit_once('.').map(|(_, ending)| ending);
    !name.starts_with('.')
        && ending.is_some_and(|ending| rules.extensions.iter().any(|e| e.eq_ignore_ascii_case(ending)))
}

type Left = (Option<serde_json::Value>, Vec<Artifact>);

/// What the task left: what it returned, and artifacts that are new or changed.
async fn collect(
    living: &NativeLiving,
    prepared: &Prepared,
    folder: &str,
    before: &Seen,
) -> Result<Left, LivingError> {
    let mut result = None;
    if prepared.result {
        let bytes = whole(living, &format!("{folder}/result"), MAX_RESULT as u64).await;
        result = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    }
    let rules = &living.shared.artifacts.0;
    let mut artifacts = Vec::new();
    for (name, seen) in artifacts_in(living).await? {
        if artifacts.len() == rules.count {
            break;
        }
        if before.get(&name) != Some(&seen) {
            let content = whole(living, &format!("{ARTIFACTS}/{name}"), rules.file_bytes).await;
            artifacts.extend(content.map(|content| Artifact { name, content }));
        }
    }
    Ok((result, artifacts))
}

/// All of a file that is no longer than it may be.
async fn whole(living: &NativeLiving, path: &str, bound: u64) -> Option<Vec<u8>> {
    let (_, reader) = living.guest.read_file(path, 0, Some(bound + 1)).await.ok()?;
    let mut bytes = Vec::new();
    reader.take(bound + 1).read_to_end(&mut bytes).await.ok()?;
    (bytes.len() as u64 <= bound).then_some(bytes)
}
