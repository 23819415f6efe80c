//! One run: prepares its input and requests it from the launcher. The rest is in `run_io.rs`.

use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::task::{Poll, ready};
use std::time::Duration;

use belljar_engine::layer::Layer;
use belljar_engine::network::GateKind;
use belljar_engine::outcome::Outcome;
use belljar_engine::packages::PYTHON_PROFILE_LAYER;
use belljar_engine::plan::{Network, Plan, Task};
use belljar_engine::provider::{BoxFuture, ProviderError, Sink, SinkControl, Stream};
use belljar_jail::spec::{
    self, CollectionRules, Jail, PayloadFile, PayloadTarget, WarmInterpreter, WarmLanguage,
};

use super::build::CachedBuild;
use super::egress::JailEgress;
use super::run_io::{JailOutcome, RunIo, RunPipes};
use super::{CheckedPlan, NativeShared, NumberedRoot, root_for};
use crate::program::{self, ARTIFACTS_FOLDER, PreparedProgram, RunPaths, WarmTask};

/// How often a run is attempted.
const MAX_ATTEMPTS: usize = 3;

/// Runs a task in a new jail. If the launcher dies, a new one is started, and the task runs again if no
/// effect of the first attempt is visible.
pub(super) async fn run(
    shared: &NativeShared,
    checked: &CheckedPlan,
    task: &Task,
    sink: &mut dyn Sink,
    cancel: BoxFuture<'_, ()>,
) -> Result<Outcome, ProviderError> {
    let mut cancel = stay_complete(cancel);
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

/// Returns a future that can be awaited again after it has completed: a task may take several attempts and jails.
fn stay_complete(future: BoxFuture<'_, ()>) -> BoxFuture<'_, ()> {
    let mut pending = Some(future);
    Box::pin(poll_fn(move |context| {
        if let Some(future) = &mut pending {
            ready!(future.as_mut().poll(context));
            pending = None;
        }
        Poll::Ready(())
    }))
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
    if let Some(build) = CachedBuild::of_task(shared, checked, task, found.as_ref(), &prepared)
        && let Some(outcome) = build.build_and_run(sink, cancel).await?
    {
        return Ok(outcome);
    }
    let run = JailRun {
        shared,
        checked,
        root: &root,
        task,
        collection: artifact_rules(&checked.plan),
        timeout: checked.plan.limits.timeout,
    };
    run.run(prepared, &task.stdin, sink, cancel).await.map(JailOutcome::with_artifact_findings)
}

/// Returns which files are returned as artifacts.
pub(super) fn artifact_rules(plan: &Plan) -> CollectionRules {
    CollectionRules { folder: ARTIFACTS_FOLDER.to_owned(), limits: plan.artifacts }
}

/// A run in one jail.
pub(super) struct JailRun<'a> {
    pub(super) shared: &'a NativeShared,
    pub(super) checked: &'a CheckedPlan,
    pub(super) root: &'a NumberedRoot,
    pub(super) task: &'a Task,
    pub(super) collection: CollectionRules,
    pub(super) timeout: Duration,
}

impl JailRun<'_> {
    /// Runs to the end.
    pub(super) async fn run(
        &self,
        prepared: PreparedProgram,
        stdin: &[u8],
        sink: &mut dyn Sink,
        cancel: &mut BoxFuture<'_, ()>,
    ) -> Result<JailOutcome, ProviderError> {
        let Self { shared, checked, .. } = self;
        let pipes = RunPipes::new(prepared.has_result_pipe)
            .map_err(|error| ProviderError::setup("make pipes", error))?;
        let payload = pack_files(&prepared, &self.collection.folder)
            .map_err(|error| ProviderError::setup("pack the files", error))?;
        let egress = JailEgress::for_network(&checked.plan.network, checked.gate, &checked.plan.tenant)?;
        let mut fds = pipes.child_fds(&payload);
        fds.extend(egress.as_ref().map(JailEgress::child_fd));
        let pending = shared.link.connection()?.start(self.root, self.jail(prepared), &fds).await?;
        drop(fds);
        let egress = egress.map(JailEgress::into_egress);
        let ours = pipes
            .into_host_ends(!stdin.is_empty())
            .map_err(|error| ProviderError::setup("make pipes", error))?;
        let limits = (checked.plan.limits, self.collection.limits, checked.plan.result_bytes);
        let mut ended = RunIo::new(pending, limits, sink).run_to_end(ours, stdin, cancel).await?;
        ended.outcome.receipt.network = Some(checked.plan.network.receipt(checked.gate));
        if let Some(egress) = egress {
            egress.close().await;
            ended.outcome.findings.extend(egress.findings());
        }
        Ok(ended)
    }

    fn jail(&self, prepared: PreparedProgram) -> Jail {
        let checked = self.checked;
        Jail {
            root: self.root.number,
            is_sandbox: false,
            commands: prepared.commands,
            env: prepared.env.iter().map(|(key, value)| format!("{key}={value}")).collect(),
            workdir: self.task.workdir.clone(),
            timeout: Some(self.timeout),
            limits: (&checked.plan.limits).into(),
            writable_root: false,
            has_disk_file: false,
            network: network(checked),
            host_workspace: checked.host_workspace.clone(),
            binds: checked.binds.clone(),
            result_pipe: prepared.has_result_pipe,
            artifacts: Some(self.collection.clone()),
            require_separate_uid: checked.plan.require.contains(&Layer::SeparateUid),
            tenant: checked.plan.tenant.clone(),
            interpreter: prepared.warm.and_then(|warm| interpreter(checked, warm)),
        }
    }
}

/// Packs the files, and the folder whose files are collected.
fn pack_files(prepared: &PreparedProgram, folder: &str) -> std::io::Result<OwnedFd> {
    let folder = PayloadFile { target: PayloadTarget::Workspace, path: format!("{folder}/"), mode: 0o755 };
    let folder = prepared.artifacts_folder.then_some((folder, &[][..]));
    let files = prepared.files.iter().map(|file| {
        let target = if file.inbox { PayloadTarget::Inbox } else { PayloadTarget::Workspace };
        (PayloadFile { target, path: file.path.clone(), mode: file.mode }, file.content.as_slice())
    });
    let files: Vec<(PayloadFile, &[u8])> = folder.into_iter().chain(files).collect();
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

pub(super) fn network(checked: &CheckedPlan) -> spec::JailNetwork {
    match checked.plan.network {
        Network::None => spec::JailNetwork::Own,
        Network::Hosts(_) | Network::Internet(_) => match checked.gate {
            GateKind::Proxy => spec::JailNetwork::Proxied,
            GateKind::Tun => spec::JailNetwork::Tun,
        },
        Network::Full => spec::JailNetwork::Host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_cancellation_can_be_awaited_by_each_jail_of_a_run() {
        let mut cancel = stay_complete(Box::pin(async {}));
        for _ in 0..3 {
            (&mut cancel).await;
        }
    }
}
