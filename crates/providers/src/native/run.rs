//! One run: what it is given, and the order to the launcher; `attend.rs` has the rest of it.

use std::os::fd::OwnedFd;

use belljar_engine::limits::{self, Limits};
use belljar_engine::outcome::Outcome;
use belljar_engine::packages::PYTHON_PROFILE;
use belljar_engine::plan::{Network, Plan, Task};
use belljar_engine::provider::{BoxFuture, Flow, ProviderError, Sink, Stream};
use belljar_engine::{layer::Layer, report};
use belljar_jail::Step;
use belljar_jail::spec::{self, ArtifactRules, Interpreter, Jail, PayloadFile, Tongue};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::attend::{Attending, Pipes};
use super::gate::Gate;
use super::{Place, Shared, root_for};
pub(crate) use crate::program::MAX_RESULT;
use crate::program::{self, ARTIFACT_EXTENSIONS, MAX_ARTIFACT, MAX_ARTIFACTS, Prepared, Spots, WarmTask};

/// What may leave as artifacts.
#[derive(Debug)]
pub(crate) struct Artifacts(pub(crate) ArtifactRules);

impl Default for Artifacts {
    fn default() -> Self {
        let extensions = ARTIFACT_EXTENSIONS;
        debug_assert!(
            extensions.iter().all(|extension| report::mime_type(&format!("a.{extension}")).is_some())
        );
        let extensions = extensions.map(str::to_owned).to_vec();
        Self(ArtifactRules { count: MAX_ARTIFACTS, file_bytes: MAX_ARTIFACT, extensions })
    }
}

/// How often a run is begun at most.
const ATTEMPTS: usize = 3;

/// Runs a task in a jail of its own. When the launcher is lost another one is started; and what can be run again without
/// anybody noticing is run again.
pub(super) async fn run(
    shared: &Shared,
    place: &Place,
    task: &Task,
    sink: &mut dyn Sink,
    mut cancel: BoxFuture<'_, ()>,
) -> Result<Outcome, ProviderError> {
    let mut sink = Witness { sink, shown: false };
    for _ in 1..ATTEMPTS {
        match attempt(shared, place, task, &mut sink, &mut cancel).await {
            Err(ProviderError::Lost { message }) => {
                shared.link.renew().await?;
                if !place.is_sealed() || !sink.restart() {
                    return Err(ProviderError::Lost { message });
                }
            }
            done => return done,
        }
    }
    attempt(shared, place, task, &mut sink, &mut cancel).await
}

/// Knows whether anybody saw output.
struct Witness<'a> {
    sink: &'a mut dyn Sink,
    shown: bool,
}

impl Sink for Witness<'_> {
    fn output(&mut self, stream: Stream, bytes: &[u8]) -> Flow {
        self.shown = true;
        self.sink.output(stream, bytes)
    }

    fn restart(&mut self) -> bool {
        !self.shown || self.sink.restart()
    }
}

async fn attempt(
    shared: &Shared,
    place: &Place,
    task: &Task,
    sink: &mut dyn Sink,
    cancel: &mut BoxFuture<'_, ()>,
) -> Result<Outcome, ProviderError> {
    let (root, found) = root_for(&shared.roots, place, task)?;
    let unique = place.playground.is_some().then(unique_name);
    let prepared = program::prepare(task, &place.plan, found.as_ref(), &root.path, &Spots::fresh(unique));
    let _leftover = Leftover::of(place, &prepared)?;
    let pipes = Pipes::new(prepared.result).map_err(|error| setup("make pipes", &error))?;
    let payload = pack(&prepared).map_err(|error| setup("pack the files", &error))?;
    let jail = jail(shared, place, task, prepared, root.number);
    let gate = Gate::of(&place.plan.network)?;
    let mut fds = pipes.theirs(&payload);
    fds.extend(gate.as_ref().map(Gate::theirs));
    let ordered = shared.link.connection()?.start(&root, jail, &fds).await?;
    drop(fds);
    let egress = gate.map(Gate::ordered);
    let ours = pipes.keep_ours(!task.stdin.is_empty()).map_err(|error| setup("make pipes", &error))?;
    let mut outcome =
        Attending::new(ordered, place.plan.limits, sink).attend(ours, &task.stdin, cancel).await?;
    if let Some(egress) = egress {
        egress.close().await;
        outcome.findings.extend(egress.findings());
    }
    Ok(outcome)
}

/// The code's file in a playground, which goes when the run is over.
struct Leftover(Option<(OwnedFd, String)>);

impl Leftover {
    fn of(place: &Place, prepared: &Prepared) -> Result<Self, ProviderError> {
        let (Some(folder), Some(name)) = (&place.playground, &prepared.temporary) else {
            return Ok(Self(None));
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::open(folder.as_str(), flags, Mode::empty());
        let folder = folder.map_err(|errno| setup("open the workspace", &errno.into()))?;
        Ok(Self(Some((folder, name.clone()))))
    }
}

impl Drop for Leftover {
    fn drop(&mut self) {
        if let Some((folder, name)) = &self.0 {
            // Where nothing ran it is not there. The name is ours and has no folder in it, so no link is followed.
            let _removed = rustix::fs::unlinkat(folder, name, AtFlags::empty());
        }
    }
}

pub(super) fn setup(step: &str, error: &std::io::Error) -> ProviderError {
    ProviderError::Setup { step: step.to_owned(), cause: error.to_string() }
}

/// Part of a file name that no other run has.
pub(crate) fn unique_name() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("belljar-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn pack(prepared: &Prepared) -> std::io::Result<OwnedFd> {
    let files: Vec<(PayloadFile, &[u8])> = prepared
        .files
        .iter()
        .map(|file| {
            let place = if file.inbox { spec::Place::Inbox } else { spec::Place::Workspace };
            (PayloadFile { place, path: file.path.clone(), mode: file.mode }, file.content.as_slice())
        })
        .collect();
    belljar_jail::payload::pack(&text_of(prepared), &files)
}

/// What a warm interpreter is told: where the code is, and the environment, each ended by a NUL but the last.
fn text_of(prepared: &Prepared) -> Vec<u8> {
    let Some(warm) = &prepared.warm else { return Vec::new() };
    let variables = prepared.env.iter().map(|(name, value)| format!("{name}={value}"));
    std::iter::once(warm.source.clone()).chain(variables).collect::<Vec<_>>().join("\0").into_bytes()
}

fn interpreter(place: &Place, warm: WarmTask) -> Option<Interpreter> {
    let tongue = match warm.language.name {
        "python" => Tongue::Python,
        "javascript" => Tongue::Node,
        _ => return None,
    };
    let of_python = |names: &[String]| if tongue == Tongue::Python { names.to_vec() } else { Vec::new() };
    Some(Interpreter {
        tongue,
        program: warm.program,
        env: warm.env.iter().map(|(name, value)| format!("{name}={value}")).collect(),
        preimports: of_python(&place.plan.preimports),
        frequent_imports: of_python(&place.plan.frequent_imports),
        hidden: hidden(&place.plan),
        tenant: place.plan.tenant.clone(),
    })
}

/// What requests bring is not seen by an interpreter that waits: only the operator's own packages are, where it is to
/// import some of them.
fn hidden(plan: &Plan) -> Vec<String> {
    let is_operators = |destination: &str| destination == PYTHON_PROFILE && !plan.preimports.is_empty();
    let layers = plan.package_layers.iter().map(|layer| layer.destination);
    layers.filter(|destination| !is_operators(destination)).map(str::to_owned).collect()
}

fn jail(shared: &Shared, place: &Place, task: &Task, prepared: Prepared, root: u64) -> Jail {
    Jail {
        root,
        living: false,
        commands: prepared.commands,
        env: prepared.env.iter().map(|(key, value)| format!("{key}={value}")).collect(),
        workdir: task.workdir.clone(),
        limits: limits(&place.plan.limits),
        network: network(&place.plan.network),
        playground: place.playground.clone(),
        binds: place.binds.clone(),
        result_pipe: prepared.result,
        artifacts: Some(shared.artifacts.0.clone()),
        require_separate_uid: place.plan.require.contains(&Layer::SeparateUid),
        tenant: place.plan.tenant.clone(),
        interpreter: prepared.warm.and_then(|warm| interpreter(place, warm)),
    }
}

pub(super) fn limits(limits: &Limits) -> spec::Limits {
    spec::Limits {
        timeout: Some(limits.timeout),
        memory_bytes: limits.memory_bytes,
        cpu_millis: limits.cpu_millis,
        processes: limits.processes,
        disk_bytes: limits.disk_bytes,
        open_files: limits::OPEN_FILES,
    }
}

pub(super) fn network(network: &Network) -> spec::Network {
    match network {
        Network::None => spec::Network::Own,
        Network::Hosts(_) => spec::Network::Gated,
        Network::Full => spec::Network::Host,
    }
}

pub(super) fn failure_of(failure: &belljar_jail::StepFailed) -> ProviderError {
    let hint = match failure.step {
        Step::Owners => "; its file system cannot do that, use a folder on another one",
        _ if failure.errno == Errno::PERM.raw_os_error() => "; 'belljar doctor' says what may help",
        _ => "",
    };
    ProviderError::Setup { step: failure.what(), cause: format!("{}{hint}", failure.cause()) }
}
