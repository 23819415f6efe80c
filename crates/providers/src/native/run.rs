//! One run: prepares its input and requests it from the launcher. The rest is in `run_io.rs`.

use std::os::fd::OwnedFd;

use belljar_engine::layer::Layer;
use belljar_engine::outcome::Outcome;
use belljar_engine::packages::PYTHON_PROFILE_LAYER;
use belljar_engine::plan::{Network, Plan, Task};
use belljar_engine::provider::{BoxFuture, ProviderError, Sink, SinkControl, Stream};
use belljar_jail::spec::{
    self, ArtifactRules, Jail, PayloadFile, PayloadTarget, WarmInterpreter, WarmLanguage,
};

use super::egress::JailEgress;
use super::run_io::{RunIo, RunPipes};
use super::{CheckedPlan, NativeShared, root_for};
use crate::program::{
    self, ARTIFACT_EXTENSIONS, MAX_ARTIFACT_BYTES, MAX_ARTIFACT_COUNT, PreparedProgram, RunPaths, WarmTask,
};

/// Returns which files are returned as artifacts.
fn artifact_rules() -> ArtifactRules {
    let extensions = ARTIFACT_EXTENSIONS.map(str::to_owned).to_vec();
    ArtifactRules { count: MAX_ARTIFACT_COUNT, file_bytes: MAX_ARTIFACT_BYTES, extensions }
}

/// How often a run is attempted.
const MAX_ATTEMPTS: usize = 3;

/// Runs a task in a new jail. If the launcher dies, a new one is started, and the task runs again if no
/// effect of the first attempt is visible.
pub(super) async fn run(
    shared: &NativeShared,
    checked: &CheckedPlan,
    task: &Task,
    sink: &mut dyn Sink,
    mut cancel: BoxFuture<'_, ()>,
) -> Result<Outcome, ProviderError> {
    let mut sink = OutputTracker { sink, has_output: false };
    for _ in 1..MAX_ATTEMPTS {
        match attempt(shared, checked, task, &mut sink, &mut cancel).await {
            Err(lost @ ProviderError::Lost { .. }) => {
                shared.link.restart_if_lost().await?;
                if !checked.is_sealed() || !sink.restart() {
                    return Err(lost);
                }
            }
            done => return done,
        }
    }
    attempt(shared, checked, task, &mut sink, &mut cancel).await
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
    checked: &CheckedPlan,
    task: &Task,
    sink: &mut dyn Sink,
    cancel: &mut BoxFuture<'_, ()>,
) -> Result<Outcome, ProviderError> {
    let (root, found) = root_for(&shared.roots, checked, task)?;
    let paths = RunPaths::for_new_sandbox(checked.host_workspace.is_some());
    let prepared = program::prepare(task, &checked.plan, found.as_ref(), &root.path, &paths);
    let pipes =
        RunPipes::new(prepared.has_result_pipe).map_err(|error| ProviderError::setup("make pipes", error))?;
    let payload = pack_files(&prepared).map_err(|error| ProviderError::setup("pack the files", error))?;
    let jail = jail(checked, task, prepared, root.number);
    let egress = JailEgress::for_network(&checked.plan.network)?;
    let mut fds = pipes.child_fds(&payload);
    fds.extend(egress.as_ref().map(JailEgress::child_fd));
    let pending = shared.link.connection()?.start(&root, jail, &fds).await?;
    drop(fds);
    let egress = egress.map(JailEgress::into_egress);
    let ours = pipes
        .into_host_ends(!task.stdin.is_empty())
        .map_err(|error| ProviderError::setup("make pipes", error))?;
    let mut outcome =
        RunIo::new(pending, checked.plan.limits, sink).run_to_end(ours, &task.stdin, cancel).await?;
    if let Some(egress) = egress {
        egress.close().await;
        outcome.findings.extend(egress.findings());
    }
    Ok(outcome)
}

fn pack_files(prepared: &PreparedProgram) -> std::io::Result<OwnedFd> {
    let files: Vec<(PayloadFile, &[u8])> = prepared
        .files
        .iter()
        .map(|file| {
            let target = if file.inbox { PayloadTarget::Inbox } else { PayloadTarget::Workspace };
            (PayloadFile { target, path: file.path.clone(), mode: file.mode }, file.content.as_slice())
        })
        .collect();
    belljar_jail::payload::pack(&warm_request(prepared), &files)
}

/// Returns the request to a warm interpreter: the path of the code and the environment, separated by NUL.
fn warm_request(prepared: &PreparedProgram) -> Vec<u8> {
    let Some(warm) = &prepared.warm else { return Vec::new() };
    let variables = warm.program_env.iter().map(|(name, value)| format!("{name}={value}"));
    std::iter::once(warm.source.clone()).chain(variables).collect::<Vec<_>>().join("\0").into_bytes()
}

fn interpreter(checked: &CheckedPlan, warm: WarmTask) -> Option<WarmInterpreter> {
    let language = match warm.language.name {
        "python" => WarmLanguage::Python,
        "javascript" => WarmLanguage::Node,
        _ => return None,
    };
    let of_python =
        |names: &[String]| if language == WarmLanguage::Python { names.to_vec() } else { Vec::new() };
    Some(WarmInterpreter {
        language,
        program: warm.program,
        env: warm.env.iter().map(|(name, value)| format!("{name}={value}")).collect(),
        preimports: of_python(&checked.plan.preimports),
        frequent_imports: of_python(&checked.plan.frequent_imports),
        hidden: hidden_layers(&checked.plan),
        tenant: checked.plan.tenant.clone(),
    })
}

/// Returns the package layers hidden from a warm interpreter. It must not see what requests bring, only the
/// operator's own packages, if it preimports some of them.
fn hidden_layers(plan: &Plan) -> Vec<String> {
    let is_operators = |destination: &str| destination == PYTHON_PROFILE_LAYER && !plan.preimports.is_empty();
    let layers = plan.package_layers.iter().map(|layer| layer.destination);
    layers.filter(|destination| !is_operators(destination)).map(str::to_owned).collect()
}

fn jail(checked: &CheckedPlan, task: &Task, prepared: PreparedProgram, root: u64) -> Jail {
    Jail {
        root,
        is_sandbox: false,
        commands: prepared.commands,
        env: prepared.env.iter().map(|(key, value)| format!("{key}={value}")).collect(),
        workdir: task.workdir.clone(),
        timeout: Some(checked.plan.limits.timeout),
        limits: (&checked.plan.limits).into(),
        network: network(&checked.plan.network),
        host_workspace: checked.host_workspace.clone(),
        binds: checked.binds.clone(),
        result_pipe: prepared.has_result_pipe,
        artifacts: Some(artifact_rules()),
        require_separate_uid: checked.plan.require.contains(&Layer::SeparateUid),
        tenant: checked.plan.tenant.clone(),
        interpreter: prepared.warm.and_then(|warm| interpreter(checked, warm)),
    }
}

pub(super) fn network(network: &Network) -> spec::JailNetwork {
    match network {
        Network::None => spec::JailNetwork::Own,
        Network::Hosts(_) => spec::JailNetwork::Proxied,
        Network::Full => spec::JailNetwork::Host,
    }
}
