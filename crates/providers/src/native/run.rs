//! One run: prepares its input and requests it from the launcher. The rest is in `run_io.rs`.

use std::os::fd::OwnedFd;

use belljar_engine::outcome::Outcome;
use belljar_engine::packages::PYTHON_PROFILE_LAYER;
use belljar_engine::plan::{Network, Plan, Task};
use belljar_engine::provider::{BoxFuture, ProviderError, Sink, SinkControl, Stream};
use belljar_engine::{layer::Layer, report};
use belljar_jail::Step;
use belljar_jail::spec::{self, ArtifactRules, Jail, PayloadFile, WarmInterpreter, WarmLanguage};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::egress::JailEgress;
use super::run_io::{RunIo, RunPipes};
use super::{CheckedPlan, NativeShared, root_for};
pub(crate) use crate::program::MAX_RESULT_BYTES;
use crate::program::{
    self, ARTIFACT_EXTENSIONS, MAX_ARTIFACT_BYTES, MAX_ARTIFACT_COUNT, PreparedProgram, RunPaths, WarmTask,
};

/// Which files are returned as artifacts.
#[derive(Debug)]
pub(crate) struct ArtifactLimits(pub(crate) ArtifactRules);

impl Default for ArtifactLimits {
    fn default() -> Self {
        let extensions = ARTIFACT_EXTENSIONS;
        debug_assert!(
            extensions.iter().all(|extension| report::mime_type(&format!("a.{extension}")).is_some())
        );
        let extensions = extensions.map(str::to_owned).to_vec();
        Self(ArtifactRules { count: MAX_ARTIFACT_COUNT, file_bytes: MAX_ARTIFACT_BYTES, extensions })
    }
}

/// How often a run is attempted.
const MAX_ATTEMPTS: usize = 3;

/// Runs a task in a new jail. If the launcher dies, a new one is started, and the task runs again if no
/// effect of the first attempt is visible.
pub(super) async fn run(
    shared: &NativeShared,
    place: &CheckedPlan,
    task: &Task,
    sink: &mut dyn Sink,
    mut cancel: BoxFuture<'_, ()>,
) -> Result<Outcome, ProviderError> {
    let mut sink = OutputTracker { sink, has_output: false };
    for _ in 1..MAX_ATTEMPTS {
        match attempt(shared, place, task, &mut sink, &mut cancel).await {
            Err(ProviderError::Lost { message }) => {
                shared.link.restart_if_lost().await?;
                if !place.is_sealed() || !sink.restart() {
                    return Err(ProviderError::Lost { message });
                }
            }
            done => return done,
        }
    }
    attempt(shared, place, task, &mut sink, &mut cancel).await
}

/// A sink that records whether output was written.
struct OutputTracker<'a> {
    sink: &'a mut dyn Sink,
    has_output: bool,
}

impl Sink for OutputTracker<'_> {
    fn output(&mut self, stream: Stream, bytes: &[u8]) -> SinkControl {
        self.has_output = true;
        self.sink.output(stream, bytes)
    }

    fn restart(&mut self) -> bool {
        !self.has_output || self.sink.restart()
    }
}

async fn attempt(
    shared: &NativeShared,
    place: &CheckedPlan,
    task: &Task,
    sink: &mut dyn Sink,
    cancel: &mut BoxFuture<'_, ()>,
) -> Result<Outcome, ProviderError> {
    let (root, found) = root_for(&shared.roots, place, task)?;
    let unique = place.playground.is_some().then(unique_name);
    let prepared =
        program::prepare(task, &place.plan, found.as_ref(), &root.path, &RunPaths::for_new_sandbox(unique));
    let _leftover = TemporaryFile::for_run(place, &prepared)?;
    let pipes = RunPipes::new(prepared.has_result_pipe).map_err(|error| setup_error("make pipes", &error))?;
    let payload = pack_files(&prepared).map_err(|error| setup_error("pack the files", &error))?;
    let jail = jail(shared, place, task, prepared, root.number);
    let gate = JailEgress::for_network(&place.plan.network)?;
    let mut fds = pipes.child_fds(&payload);
    fds.extend(gate.as_ref().map(JailEgress::child_fd));
    let ordered = shared.link.connection()?.start(&root, jail, &fds).await?;
    drop(fds);
    let egress = gate.map(JailEgress::into_egress);
    let ours =
        pipes.into_host_ends(!task.stdin.is_empty()).map_err(|error| setup_error("make pipes", &error))?;
    let mut outcome =
        RunIo::new(ordered, place.plan.limits, sink).run_to_end(ours, &task.stdin, cancel).await?;
    if let Some(egress) = egress {
        egress.close().await;
        outcome.findings.extend(egress.findings());
    }
    Ok(outcome)
}

/// The code's file in a playground, removed when the run is over.
struct TemporaryFile(Option<(OwnedFd, String)>);

impl TemporaryFile {
    fn for_run(place: &CheckedPlan, prepared: &PreparedProgram) -> Result<Self, ProviderError> {
        let (Some(folder), Some(name)) = (&place.playground, &prepared.temporary) else {
            return Ok(Self(None));
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::open(folder.as_str(), flags, Mode::empty());
        let folder = folder.map_err(|errno| setup_error("open the workspace", &errno.into()))?;
        Ok(Self(Some((folder, name.clone()))))
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if let Some((folder, name)) = &self.0 {
            // Fails if nothing ran. The name is generated by us and has no slash, so no symlink is followed.
            let _removed = rustix::fs::unlinkat(folder, name, AtFlags::empty());
        }
    }
}

pub(super) fn setup_error(step: &str, error: &std::io::Error) -> ProviderError {
    ProviderError::Setup { step: step.to_owned(), cause: error.to_string() }
}

/// Returns a file name component that no other run has.
pub(crate) fn unique_name() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("belljar-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn pack_files(prepared: &PreparedProgram) -> std::io::Result<OwnedFd> {
    let files: Vec<(PayloadFile, &[u8])> = prepared
        .files
        .iter()
        .map(|file| {
            let place = if file.inbox { spec::PayloadTarget::Inbox } else { spec::PayloadTarget::Workspace };
            (PayloadFile { target: place, path: file.path.clone(), mode: file.mode }, file.content.as_slice())
        })
        .collect();
    belljar_jail::payload::pack(&warm_request(prepared), &files)
}

/// Returns the request to a warm interpreter: the path of the code and the environment, separated by NUL.
fn warm_request(prepared: &PreparedProgram) -> Vec<u8> {
    let Some(warm) = &prepared.warm else { return Vec::new() };
    let variables = prepared.env.iter().map(|(name, value)| format!("{name}={value}"));
    std::iter::once(warm.source.clone()).chain(variables).collect::<Vec<_>>().join("\0").into_bytes()
}

fn interpreter(place: &CheckedPlan, warm: WarmTask) -> Option<WarmInterpreter> {
    let tongue = match warm.language.name {
        "python" => WarmLanguage::Python,
        "javascript" => WarmLanguage::Node,
        _ => return None,
    };
    let of_python =
        |names: &[String]| if tongue == WarmLanguage::Python { names.to_vec() } else { Vec::new() };
    Some(WarmInterpreter {
        language: tongue,
        program: warm.program,
        env: warm.env.iter().map(|(name, value)| format!("{name}={value}")).collect(),
        preimports: of_python(&place.plan.preimports),
        frequent_imports: of_python(&place.plan.frequent_imports),
        hidden: hidden_layers(&place.plan),
        tenant: place.plan.tenant.clone(),
    })
}

/// Returns the package layers hidden from a warm interpreter. It must not see what requests bring, only the
/// operator's own packages, if it preimports some of them.
fn hidden_layers(plan: &Plan) -> Vec<String> {
    let is_operators = |destination: &str| destination == PYTHON_PROFILE_LAYER && !plan.preimports.is_empty();
    let layers = plan.package_layers.iter().map(|layer| layer.destination);
    layers.filter(|destination| !is_operators(destination)).map(str::to_owned).collect()
}

fn jail(
    shared: &NativeShared,
    place: &CheckedPlan,
    task: &Task,
    prepared: PreparedProgram,
    root: u64,
) -> Jail {
    Jail {
        root,
        is_sandbox: false,
        commands: prepared.commands,
        env: prepared.env.iter().map(|(key, value)| format!("{key}={value}")).collect(),
        workdir: task.workdir.clone(),
        timeout: Some(place.plan.limits.timeout),
        limits: (&place.plan.limits).into(),
        network: network(&place.plan.network),
        host_workspace: place.playground.clone(),
        binds: place.binds.clone(),
        result_pipe: prepared.has_result_pipe,
        artifacts: Some(shared.artifacts.0.clone()),
        require_separate_uid: place.plan.require.contains(&Layer::SeparateUid),
        tenant: place.plan.tenant.clone(),
        interpreter: prepared.warm.and_then(|warm| interpreter(place, warm)),
    }
}

pub(super) fn network(network: &Network) -> spec::JailNetwork {
    match network {
        Network::None => spec::JailNetwork::Own,
        Network::Hosts(_) => spec::JailNetwork::Proxied,
        Network::Full => spec::JailNetwork::Host,
    }
}

pub(super) fn step_failure(failure: &belljar_jail::StepFailed) -> ProviderError {
    let hint = match failure.step {
        Step::Owners => "; its file system does not support that, use a folder on another one",
        _ if failure.errno == Errno::PERM.raw_os_error() => "; run 'belljar doctor' for remedies",
        _ => "",
    };
    ProviderError::Setup { step: failure.subject(), cause: format!("{}{hint}", failure.cause()) }
}
