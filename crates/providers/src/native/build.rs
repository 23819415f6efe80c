//! Compiled programs: built in one jail, unless the build cache has them, and run in another.
//!
//! ```text
//! code, files, environment, compiler ─▶ key ─▶ cache ──────────── hit ──────────────┐
//!                                               └ miss ─▶ build jail ─▶ files ─▶ cache │
//!                                                                        └──────────┴─▶ jail of the program
//! ```
//!
//! The built files leave the build jail before the program runs, so a program cannot change what the next run of its
//! code finds. They are handed to the program's jail as read-only files.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use belljar_beneath::{ContentDigest, Hasher};
use belljar_engine::artifact::ArtifactLimits;
use belljar_engine::language::BuildSteps;
use belljar_engine::outcome::{Ending, Kernel, Outcome, Receipt, Usage};
use belljar_engine::packages::GO_LIBRARY;
use belljar_engine::plan::{CodeSource, Image, Network, Program, Task, WORKSPACE};
use belljar_engine::provider::{BoxFuture, ProviderError, Sink, SinkControl, Stream};
use belljar_jail::spec::{CollectionRules, INBOX};

use super::run::{JailRun, artifact_rules};
use super::{CheckedPlan, NAME, NativeShared, root_for};
use crate::build_cache::{BuildCache, BuildOutput, BuildTurn, OwnBuild};
use crate::java_class::main_class;
use crate::program::{
    self, FoundRuntime, GO_CACHE_VARIABLE, PreparedProgram, ProgramFile, RunPaths, StepValues,
};

/// Folder of the built files in the workspace of the build jail.
const BUILD_FOLDER: &str = ".belljar-build";
/// Folder of the built files in the inbox of the program's jail.
const RUN_FOLDER: &str = "build";
/// Name of a compiled program.
const PROGRAM: &str = "program";
/// Limits on the built files. A larger program is built for each run.
const BUILD_LIMITS: ArtifactLimits =
    ArtifactLimits { files: 1_000, file_bytes: 48 << 20, total_bytes: 48 << 20 };
/// How much of each output stream of a compiler is kept for later runs. With more, it is compiled again.
const MAX_OUTPUT_BYTES: usize = 64 << 10;
/// Files that change with the packages of a system: compilers consist of more than one program.
const SYSTEM_STAMPS: [&str; 4] =
    ["/var/lib/dpkg/status", "/var/lib/rpm/rpmdb.sqlite", "/lib/apk/db/installed", "/etc/ld.so.cache"];

/// A task whose program can be built separately.
pub(super) struct CachedBuild<'a> {
    shared: &'a NativeShared,
    checked: &'a CheckedPlan,
    task: &'a Task,
    cache: &'a Arc<BuildCache>,
    prepared: &'a PreparedProgram,
    key: ContentDigest,
    build_command: Vec<String>,
    run_command: Vec<String>,
}

/// Returns whether the program of a task was built before.
pub(super) fn is_built(shared: &NativeShared, checked: &CheckedPlan, task: &Task) -> bool {
    let Ok((root, found)) = root_for(&shared.roots, checked, task) else { return false };
    let paths = RunPaths::for_new_sandbox(false);
    let prepared = program::prepare(task, &checked.plan, found.as_ref(), &root.path, &paths);
    let build = CachedBuild::of_task(shared, checked, task, found.as_ref(), &prepared);
    build.is_some_and(|build| build.cache.contains(&checked.plan.tenant, &build.key))
}

/// Removes the built programs of a tenant.
pub(super) async fn remove_tenant(shared: &NativeShared, tenant: &str) -> Result<(), ProviderError> {
    let Some(cache) = shared.builds.clone() else { return Ok(()) };
    let tenant = tenant.to_owned();
    let removed = blocking(move || cache.remove_tenant(&tenant)).await;
    removed.unwrap_or(Ok(())).map_err(|error| ProviderError::setup("remove built programs", error))
}

impl<'a> CachedBuild<'a> {
    /// Returns the build of a task. Returns `None` without a cache, and if the build may depend on folders of the host,
    /// which are not part of the key.
    pub(super) fn of_task(
        shared: &'a NativeShared,
        checked: &'a CheckedPlan,
        task: &'a Task,
        found: Option<&FoundRuntime>,
        prepared: &'a PreparedProgram,
    ) -> Option<Self> {
        let (cache, found) = (shared.builds.as_ref()?, found?);
        let steps: BuildSteps = found.runtime.build?;
        let plan = &checked.plan;
        let is_known_image = matches!(plan.image, Image::Host | Image::Stored(_));
        let is_closed = plan.host_workspace.is_none() && plan.mounts.is_empty();
        let Program::Code { language, source: CodeSource::Text { name, code }, .. } = &task.program else {
            return None;
        };
        if !is_known_image || !is_closed {
            return None;
        }
        let main_class = if language.name == "java" { main_class(code)? } else { String::new() };
        let source = format!("{WORKSPACE}/{name}");
        let command = |step, folder: &str| {
            let (program, compiled) = (&found.program, &format!("{folder}/{PROGRAM}"));
            let (source, main_class, limits) = (&source, &main_class, &plan.limits);
            StepValues { program, source, compiled, main_class, limits }.fill(step)
        };
        let build_command = command(steps.build, &format!("{WORKSPACE}/{BUILD_FOLDER}"));
        let run_command = command(steps.run, &format!("{INBOX}/{RUN_FOLDER}"));
        let toolchain = shared.runtime_identity(language, &plan.image)?;
        let key = build_key(checked, task, prepared, &toolchain, &build_command);
        Some(Self { shared, checked, task, cache, prepared, key, build_command, run_command })
    }

    /// Runs the program, and builds it first if it was not built before. Returns `None` if the built files cannot
    /// be handed over; then one jail has to do both.
    pub(super) async fn build_and_run(
        &self,
        sink: &mut dyn Sink,
        cancel: &mut BoxFuture<'_, ()>,
    ) -> Result<Option<Outcome>, ProviderError> {
        let own_build = match self.find_or_wait(cancel).await {
            FoundBuild::Built(output) => return self.run_built(&output, sink, cancel).await,
            FoundBuild::Missing(own_build) => own_build,
            FoundBuild::Canceled => {
                let receipt = Receipt::new(NAME, Kernel::Host);
                return Ok(Some(Outcome::new(Ending::Cancelled, Duration::ZERO, receipt)));
            }
        };
        let may_need_network = self.checked.plan.network != Network::None;
        let output = BuildOutput::default();
        let mut recorder = OutputRecorder { sink, is_held: may_need_network, output, is_complete: true };
        let built = self.build(&mut recorder, cancel).await?;
        let OutputRecorder { sink, mut output, is_complete, .. } = recorder;
        let BuildEnd { outcome, is_whole } = built;
        let is_built = outcome.ending == Ending::Exited(0);
        let is_repeated = may_need_network && matches!(outcome.ending, Ending::Exited(1..));
        let is_usable = is_built && is_whole && (is_complete || !may_need_network);
        if is_repeated || is_built && !is_usable {
            return Ok(None);
        }
        let is_killed = may_need_network && forward(&output, sink) == SinkControl::Kill;
        if !is_built {
            return Ok(Some(Outcome { artifacts: Vec::new(), ..outcome }));
        }
        if is_killed {
            return Ok(None);
        }
        output.files.clone_from(&outcome.artifacts);
        let output = Arc::new(output);
        let storing = is_complete.then(|| {
            let (cache, key, output) = (Arc::clone(self.cache), self.key, Arc::clone(&output));
            let tenant = self.checked.plan.tenant.clone();
            tokio::task::spawn_blocking(move || {
                cache.store(&tenant, &key, &output);
                drop(own_build);
            })
        });
        let left = self.checked.plan.limits.timeout.saturating_sub(outcome.duration);
        let ran = self.run(&output, left.max(Duration::from_millis(1)), sink, cancel).await?;
        if let Some(storing) = storing {
            // The next run of the same code finds the program, or builds it again.
            let _stored = storing.await;
        }
        let (usage, duration) = (sum(&outcome.usage, &ran.usage), outcome.duration + ran.duration);
        Ok(Some(Outcome { usage, duration, ..ran }))
    }

    /// Runs a program that was built before.
    async fn run_built(
        &self,
        output: &BuildOutput,
        sink: &mut dyn Sink,
        cancel: &mut BoxFuture<'_, ()>,
    ) -> Result<Option<Outcome>, ProviderError> {
        if forward(output, sink) == SinkControl::Kill {
            // Compiled again, the program ends at its output limit.
            return Ok(None);
        }
        self.run(output, self.checked.plan.limits.timeout, sink, cancel).await.map(Some)
    }

    /// Returns what was built before. If another run builds it now, waits for that.
    async fn find_or_wait(&self, cancel: &mut BoxFuture<'_, ()>) -> FoundBuild {
        if let Some(output) = self.find().await {
            return FoundBuild::Built(output);
        }
        let own_build = match self.cache.enter(&self.checked.plan.tenant, &self.key) {
            BuildTurn::Own(build) => Some(build),
            BuildTurn::OfAnother(build) => tokio::select! {
                () = build.ended() => None,
                () = &mut *cancel => return FoundBuild::Canceled,
            },
        };
        // A build may have ended in between. One that failed is not waited for again.
        self.find().await.map_or(FoundBuild::Missing(own_build), FoundBuild::Built)
    }

    async fn find(&self) -> Option<BuildOutput> {
        let tenant = self.checked.plan.tenant.clone();
        let (cache, key) = (Arc::clone(self.cache), self.key);
        blocking(move || cache.find(&tenant, &key)).await.flatten()
    }

    /// Builds the program in a jail of its own, without a network: what the build can reach there is not part of the
    /// key.
    async fn build(
        &self,
        sink: &mut dyn Sink,
        cancel: &mut BoxFuture<'_, ()>,
    ) -> Result<BuildEnd, ProviderError> {
        let prepared = PreparedProgram {
            commands: vec![self.build_command.clone()],
            artifacts_folder: true,
            ..self.prepared.clone()
        };
        let mut plan = self.checked.plan.clone();
        plan.network = Network::None;
        let gate = self.shared.gate_kind(&plan.network);
        let checked = CheckedPlan { plan, gate, host_workspace: None, binds: Vec::new() };
        let (root, _) = root_for(&self.shared.roots, &checked, self.task)?;
        let run = JailRun {
            shared: self.shared,
            checked: &checked,
            root: &root,
            task: self.task,
            collection: CollectionRules { folder: BUILD_FOLDER.to_owned(), limits: BUILD_LIMITS },
            timeout: self.checked.plan.limits.timeout,
        };
        let ended = run.run(prepared, b"", sink, cancel).await?;
        let is_whole = !ended.outcome.artifacts.is_empty() && ended.skipped.named.is_empty();
        Ok(BuildEnd { outcome: ended.outcome, is_whole })
    }

    /// Runs the built program.
    async fn run(
        &self,
        output: &BuildOutput,
        timeout: Duration,
        sink: &mut dyn Sink,
        cancel: &mut BoxFuture<'_, ()>,
    ) -> Result<Outcome, ProviderError> {
        // What only the build needs is the same for every run: absent.
        let mut plan = self.checked.plan.clone();
        plan.package_layers.retain(|layer| layer.destination != GO_LIBRARY);
        let checked = CheckedPlan { plan, gate: self.checked.gate, host_workspace: None, binds: Vec::new() };
        let (root, _) = root_for(&self.shared.roots, &checked, self.task)?;
        let mut prepared =
            PreparedProgram { commands: vec![self.run_command.clone()], ..self.prepared.clone() };
        if !self.task.env.contains_key(GO_CACHE_VARIABLE) {
            prepared.env.remove(GO_CACHE_VARIABLE);
        }
        prepared.files.extend(output.files.iter().map(|file| ProgramFile {
            inbox: true,
            path: format!("{RUN_FOLDER}/{}", file.name),
            mode: 0o755,
            content: file.content.clone(),
        }));
        let run = JailRun {
            shared: self.shared,
            checked: &checked,
            root: &root,
            task: self.task,
            collection: artifact_rules(&checked.plan),
            timeout,
        };
        run.run(prepared, &self.task.stdin, sink, cancel).await.map(|ended| ended.with_artifact_findings())
    }
}

/// What is found before a build.
enum FoundBuild {
    Built(BuildOutput),
    /// Nothing. Others wait while the build is held, if this is the first.
    Missing(Option<OwnBuild>),
    /// The run was canceled while it waited.
    Canceled,
}

/// The end of a build.
struct BuildEnd {
    outcome: Outcome,
    /// Whether every built file was collected.
    is_whole: bool,
}

/// Returns the hash of everything that a build depends on.
fn build_key(
    checked: &CheckedPlan,
    task: &Task,
    prepared: &PreparedProgram,
    toolchain: &str,
    command: &[String],
) -> ContentDigest {
    let plan = &checked.plan;
    let mut hasher = Hasher::new("belljar build key 1");
    let (image, stamps) = (plan.image.identity(), system_stamps(&plan.image));
    for text in [plan.tenant.as_str(), &*image, toolchain, stamps.as_str(), task.workdir.as_str()] {
        hasher.part(text.as_bytes());
    }
    hasher.number(command.len() as u64);
    command.iter().for_each(|word| hasher.part(word.as_bytes()));
    let env: BTreeMap<_, _> = prepared
        .env
        .iter()
        .filter(|(name, value)| *name != GO_CACHE_VARIABLE || *value != GO_LIBRARY)
        .collect();
    hasher.number(env.len() as u64);
    for (name, value) in env {
        hasher.part(name.as_bytes());
        hasher.part(value.as_bytes());
    }
    let layers: Vec<_> = plan.package_layers.iter().filter(|layer| layer.destination != GO_LIBRARY).collect();
    hasher.number(layers.len() as u64);
    for layer in layers {
        hasher.part(layer.destination.as_bytes());
        hasher.part(layer.source.as_os_str().as_encoded_bytes());
    }
    hasher.number(prepared.files.len() as u64);
    for file in &prepared.files {
        hasher.part(file.path.as_bytes());
        hasher.number(u64::from(file.mode));
        hasher.number(u64::from(file.inbox));
        hasher.part(&file.content);
    }
    hasher.finish()
}

/// Returns a text that changes when packages of the host change. A stored image never changes.
fn system_stamps(image: &Image) -> String {
    if *image != Image::Host {
        return String::new();
    }
    let stamp = |path: &&str| {
        let metadata = std::fs::metadata(path).ok()?;
        Some(format!("{path} {} {} {}", metadata.ino(), metadata.mtime(), metadata.mtime_nsec()))
    };
    SYSTEM_STAMPS.iter().filter_map(stamp).collect::<Vec<_>>().join("\n")
}

fn sum(build: &Usage, run: &Usage) -> Usage {
    Usage {
        cpu: build.cpu + run.cpu,
        peak_memory_bytes: build.peak_memory_bytes.max(run.peak_memory_bytes),
        peak_processes: build.peak_processes.max(run.peak_processes),
    }
}

/// Runs work that reads or writes files. Returns `None` if it panicked.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

/// Forwards what a compiler printed. Returns whether the program may continue.
fn forward(output: &BuildOutput, sink: &mut dyn Sink) -> SinkControl {
    let streams = [(Stream::Stdout, &output.stdout), (Stream::Stderr, &output.stderr)];
    let mut written = streams.into_iter().filter(|(_, bytes)| !bytes.is_empty());
    match written.all(|(stream, bytes)| sink.output(stream, bytes) == SinkControl::Continue) {
        true => SinkControl::Continue,
        false => SinkControl::Kill,
    }
}

/// Keeps the output of a compiler for later runs, and forwards it.
struct OutputRecorder<'a> {
    sink: &'a mut dyn Sink,
    /// Whether nothing is forwarded, because the build may be repeated elsewhere.
    is_held: bool,
    output: BuildOutput,
    /// Whether all output is kept.
    is_complete: bool,
}

impl Sink for OutputRecorder<'_> {
    fn output(&mut self, stream: Stream, bytes: &[u8]) -> SinkControl {
        let kept = match stream {
            Stream::Stdout => &mut self.output.stdout,
            Stream::Stderr => &mut self.output.stderr,
        };
        if kept.len() + bytes.len() <= MAX_OUTPUT_BYTES {
            kept.extend_from_slice(bytes);
        } else {
            self.is_complete = false;
        }
        if self.is_held { SinkControl::Continue } else { self.sink.output(stream, bytes) }
    }
}
