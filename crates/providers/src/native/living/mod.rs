//! Sandboxes: a jail whose PID 1 is the guest. The guest handles requests over its socket; the launcher
//! handles pausing, statistics and termination.
//!
//! How a program ended is the guest's word. What the sandbox uses, whether it reached a limit, and that it
//! ended are the launcher's: it reads the cgroup and the disk, which it holds open. A request to a paused
//! sandbox fails at once, because the guest is frozen, too. The sandbox is closed only when everything in it
//! is gone.

mod commands;
mod denials;

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use belljar_egress::Egress;
use belljar_engine::finding::Finding;
use belljar_engine::layer::Layer;
use belljar_engine::limits::Limits;
use belljar_engine::network::HostRules;
use belljar_engine::outcome::{Kernel, Outcome, Receipt, Warmth};
use belljar_engine::plan::{Program, Task, WORKSPACE};
use belljar_engine::provider::{BoxFuture, ProviderError, Sink};
use belljar_engine::sandbox_handle::{
    ByteStream, Commands, Files, NetworkStats, SandboxError, SandboxFuture, SandboxHandle, SandboxPhase,
    SandboxStats,
};
use belljar_guest::{Guest, GuestError};
use belljar_jail::spec::{Jail, JailEnding, JailRequest, JailResponse};
use belljar_jail::wire::LauncherEvent;
use tokio::net::UnixStream;
use tokio::sync::{Mutex, OnceCell};

use self::denials::{CommandStarts, TaskDenials};
use super::connection::{LauncherConnection, SubmittedRun, launcher_lost};
use super::egress::JailEgress;
use super::roots::NumberedRoot;
use super::run::{setup_error, step_failure};
use super::{CheckedPlan, NativeShared, run as one_shot};
use crate::guest::task::TaskRun;
use crate::guest::{self, GUEST_CONNECT_TIMEOUT, GuestClient, Lifecycle};
use crate::program::FoundRuntime;

/// Time allowed to learn why a sandbox ended.
const EXIT_NOTICE_TIMEOUT: Duration = Duration::from_secs(5);
/// A sandbox of the native provider.
#[derive(Debug)]
pub(super) struct NativeLiving {
    guest_client: GuestClient,
    jail: Arc<JailLifecycle>,
    layers: OnceCell<Vec<Layer>>,
    shared: Arc<NativeShared>,
    checked_plan: CheckedPlan,
    root: Arc<NumberedRoot>,
    /// Interpreters outside the standard folders that are visible inside. No others can run.
    visible_prefixes: Vec<PathBuf>,
    /// Its egress, if it may reach individual hosts.
    egress: Option<Egress>,
    starts: CommandStarts,
}

/// The jail of a sandbox.
#[derive(Debug)]
struct JailLifecycle {
    connection: LauncherConnection,
    number: u64,
    /// Dropping it kills the jail.
    pending: Mutex<SubmittedRun>,
    exit_cause: OnceCell<String>,
}

impl Lifecycle for JailLifecycle {
    fn kill(&self) {
        self.connection.kill(self.number);
    }

    fn exit_cause(&self) -> BoxFuture<'_, String> {
        let learn = || async {
            let mut ordered = self.pending.lock().await;
            let notice = tokio::time::timeout(EXIT_NOTICE_TIMEOUT, &mut ordered.notice).await;
            if let Ok(Ok(_)) = &notice {
                ordered.mark_finished();
            }
            describe_exit(notice.ok())
        };
        Box::pin(async move { self.exit_cause.get_or_init(learn).await.clone() })
    }
}

/// Opens a sandbox, starting a new launcher if the current one is gone.
pub(super) async fn open(
    shared: &Arc<NativeShared>,
    place: CheckedPlan,
) -> Result<NativeLiving, ProviderError> {
    let prefixes = shared.roots.common_prefixes(&place.plan.image);
    let root = shared.roots.tree(&place.plan, &place.binds, &prefixes)?;
    let (guest, connection, ordered, egress) = match start(shared, &place, &root).await {
        Err(ProviderError::Lost { .. }) => {
            shared.link.restart_if_lost().await?;
            start(shared, &place, &root).await?
        }
        started => started?,
    };
    let env = guest::sandbox_environment(&root.path, &place.plan);
    let jail = Arc::new(JailLifecycle {
        connection,
        number: ordered.number(),
        pending: Mutex::new(ordered),
        exit_cause: OnceCell::new(),
    });
    let inside = GuestClient::new(guest, Arc::clone(&jail) as Arc<dyn Lifecycle>, env);
    Ok(NativeLiving {
        guest_client: inside,
        jail,
        layers: OnceCell::new(),
        shared: Arc::clone(shared),
        checked_plan: place,
        root,
        visible_prefixes: prefixes,
        egress,
        starts: CommandStarts::default(),
    })
}

async fn start(
    shared: &NativeShared,
    place: &CheckedPlan,
    root: &NumberedRoot,
) -> Result<(Guest, LauncherConnection, SubmittedRun, Option<Egress>), ProviderError> {
    let pair = StdUnixStream::pair().and_then(|(ours, theirs)| {
        ours.set_nonblocking(true)?;
        Ok((UnixStream::from_std(ours)?, theirs))
    });
    let (ours, theirs) = pair.map_err(|error| setup_error("create a socket to the guest", &error))?;
    let connection = shared.link.connection()?;
    let gate = JailEgress::for_network(&place.plan.network)?;
    let fds: Vec<_> = [theirs.as_fd()].into_iter().chain(gate.as_ref().map(JailEgress::child_fd)).collect();
    let mut ordered = connection.start(root, jail(place, root.number), &fds).await?;
    drop(fds);
    drop(theirs);
    let egress = gate.map(JailEgress::into_egress);
    let settings = guest::guest_settings(&place.plan.limits);
    match tokio::time::timeout(GUEST_CONNECT_TIMEOUT, Guest::connect(ours, settings)).await {
        Ok(Ok(guest)) => Ok((guest, connection, ordered, egress)),
        Ok(Err(error)) => Err(startup_error(&mut ordered, &error).await),
        Err(_) => Err(ProviderError::Lost { message: "the guest did not answer in time".to_owned() }),
    }
}

/// Returns why the guest is not running, as reported by the launcher.
async fn startup_error(ordered: &mut SubmittedRun, error: &GuestError) -> ProviderError {
    match tokio::time::timeout(EXIT_NOTICE_TIMEOUT, &mut ordered.notice).await {
        Ok(Ok(LauncherEvent::Failed { failure, .. })) => step_failure(&failure),
        Ok(Ok(LauncherEvent::Ended { ending: JailEnding::MachineMemory, .. })) => {
            ProviderError::SandboxMemoryExhausted
        }
        Ok(Ok(LauncherEvent::Ended { ending: JailEnding::Memory, .. })) => ProviderError::Setup {
            step: "start the guest".to_owned(),
            cause: "limits.memory_bytes is too low".to_owned(),
        },
        Ok(Err(_)) => launcher_lost(),
        _ => ProviderError::Setup { step: "start the guest".to_owned(), cause: error.to_string() },
    }
}

fn jail(place: &CheckedPlan, root: u64) -> Jail {
    Jail {
        root,
        is_sandbox: true,
        commands: Vec::new(),
        env: Vec::new(),
        workdir: WORKSPACE.to_owned(),
        timeout: None,
        limits: (&place.plan.limits).into(),
        network: one_shot::network(&place.plan.network),
        host_workspace: place.playground.clone(),
        binds: place.binds.clone(),
        result_pipe: false,
        artifacts: None,
        require_separate_uid: place.plan.require.contains(&Layer::SeparateUid),
        tenant: place.plan.tenant.clone(),
        interpreter: None,
    }
}

impl NativeLiving {
    async fn query(&self, what: JailRequest) -> Result<JailResponse, SandboxError> {
        match self.jail.connection.query(self.jail.number, what).await {
            JailResponse::Gone => Err(SandboxError::Gone(self.jail.exit_cause().await)),
            JailResponse::Refused(message) => {
                Err(ProviderError::Unsupported { field: "pause", message }.into())
            }
            answer => Ok(answer),
        }
    }

    /// Returns the layers in force.
    async fn layers(&self) -> Result<&[Layer], SandboxError> {
        let ask = || async {
            match self.query(JailRequest::Layers).await? {
                JailResponse::Layers(mut layers) => {
                    layers.sort();
                    Ok(layers)
                }
                _ => Err(launcher_lost().into()),
            }
        };
        self.layers.get_or_try_init(ask).await.map(Vec::as_slice)
    }

    async fn set_paused(&self, paused: bool) -> Result<(), SandboxError> {
        if paused {
            // From here on, calls that a paused guest would not answer fail at once.
            self.guest_client.set_paused(true);
        }
        let answer = self.query(if paused { JailRequest::Pause } else { JailRequest::Resume }).await;
        if paused == answer.is_err() {
            self.guest_client.set_paused(false);
        }
        answer.map(drop)
    }

    /// Returns the runtime for the task's language, which must be visible in this sandbox.
    fn runtime(&self, task: &Task) -> Result<Option<FoundRuntime>, ProviderError> {
        let Program::Code { language, .. } = &task.program else { return Ok(None) };
        let located = self.shared.roots.runtime(language, &self.checked_plan.plan.image)?;
        if located.prefixes.iter().any(|prefix| !self.visible_prefixes.contains(prefix)) {
            let message =
                format!("{} is installed outside this sandbox; run it without a sandbox", language.name);
            return Err(ProviderError::Unsupported { field: "language", message });
        }
        Ok(Some(located.found))
    }

    async fn read_stats(&self) -> Result<SandboxStats, SandboxError> {
        let JailResponse::Stats(stats) = self.query(JailRequest::Stats).await? else {
            return Err(launcher_lost().into());
        };
        Ok(stats)
    }
}

fn describe_exit(notice: Option<Result<LauncherEvent, tokio::sync::oneshot::error::RecvError>>) -> String {
    match notice {
        Some(Ok(LauncherEvent::Ended { ending, .. })) => match ending {
            JailEnding::Killed => "the sandbox was closed".to_owned(),
            JailEnding::TimedOut => "it timed out".to_owned(),
            JailEnding::MachineMemory => {
                "the memory shared by all sandboxes ran out, and this one was killed".to_owned()
            }
            JailEnding::Memory => "it ran out of memory, and its init process was killed".to_owned(),
            JailEnding::Signalled(signal) => format!("its init process was killed by signal {signal}"),
            other => format!("its init process ended: {other:?}"),
        },
        Some(Ok(LauncherEvent::Failed { failure, .. })) => failure.to_string(),
        Some(Err(_)) => "the launcher was killed".to_owned(),
        Some(Ok(_)) | None => "it no longer responds".to_owned(),
    }
}

impl SandboxHandle for NativeLiving {
    fn state(&self) -> SandboxPhase {
        match (self.guest_client.guest.is_gone(), self.guest_client.is_paused()) {
            (true, _) => SandboxPhase::Ended,
            (false, true) => SandboxPhase::Paused,
            (false, false) => SandboxPhase::Running,
        }
    }

    fn commands(&self) -> &dyn Commands {
        self
    }

    fn files(&self) -> &dyn Files {
        &self.guest_client
    }

    fn run<'a>(
        &'a self,
        task: &'a Task,
        limits: &'a Limits,
        sink: &'a mut dyn Sink,
        cancel: BoxFuture<'a, ()>,
    ) -> SandboxFuture<'a, Outcome> {
        Box::pin(async move {
            let start = self.starts.begin();
            let noted = TaskDenials { living: self, start, before: self.baseline().await? };
            let errand = TaskRun {
                task,
                limits,
                plan: &self.checked_plan.plan,
                runtime: self.runtime(task)?,
                path: &self.root.path,
                single_task: false,
                exclusive: false,
                artifact_rules: &self.shared.artifacts.0,
                commands: &self.guest_client,
                denials: Some(&noted),
            };
            errand.prepare().run(self, None, sink, cancel).await
        })
    }

    fn open_port(&self, port: u16) -> SandboxFuture<'_, ByteStream> {
        Box::pin(async move {
            let stream = self
                .guest_client
                .convert_result(self.guest_client.running_guest()?.open_port(port).await)
                .await?;
            Ok(Box::pin(stream) as ByteStream)
        })
    }

    fn pause(&self) -> SandboxFuture<'_, ()> {
        Box::pin(self.set_paused(true))
    }

    fn resume(&self) -> SandboxFuture<'_, ()> {
        Box::pin(self.set_paused(false))
    }

    fn halt(&self, why: String) -> SandboxFuture<'_, ()> {
        // First stop new commands from starting. One that has just started is found when the caller repeats
        // this.
        self.guest_client.set_halted(Some(why));
        Box::pin(async {
            self.guest_client.convert_result(self.guest_client.running_guest()?.end_all().await).await
        })
    }

    fn release(&self) {
        self.guest_client.set_halted(None);
    }

    fn halt_reason(&self) -> Option<String> {
        self.guest_client.halted()
    }

    fn receipt(&self) -> SandboxFuture<'_, Receipt> {
        Box::pin(async {
            let isolation = self.layers().await?.to_vec();
            Ok(Receipt {
                provider: "native",
                kernel: Kernel::Host,
                isolation,
                warm: Warmth::Cold,
                simulated: false,
                instead_of: None,
                service: None,
            })
        })
    }

    fn stats(&self) -> SandboxFuture<'_, SandboxStats> {
        Box::pin(self.read_stats())
    }

    fn denial_findings(&self) -> SandboxFuture<'_, Vec<Finding>> {
        Box::pin(self.sandbox_denials())
    }

    fn network_stats(&self) -> Option<NetworkStats> {
        self.egress.as_ref().map(guest::network_use)
    }

    fn set_hosts(&self, rules: HostRules) -> Result<(), SandboxError> {
        let egress = self.egress.as_ref().ok_or_else(SandboxError::hosts_not_changeable)?;
        egress.set_rules(rules);
        Ok(())
    }

    fn ended(&self) -> BoxFuture<'_, String> {
        Box::pin(async {
            self.guest_client.guest.gone().await;
            self.jail.exit_cause().await
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if self.jail.exit_cause.get().is_none() {
                self.jail.kill();
            }
            self.jail.exit_cause().await;
            if let Some(egress) = &self.egress {
                egress.close().await;
            }
        })
    }
}
