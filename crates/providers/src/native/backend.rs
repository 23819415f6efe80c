//! The jail of a long-lived sandbox. The launcher pauses, measures and ends it: it reads the cgroup and the
//! disk, which it holds open. The sandbox is closed only when everything in it is gone.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use belljar_egress::Egress;
use belljar_engine::explain::DeniedSyscall;
use belljar_engine::language::Language;
use belljar_engine::layer::Layer;
use belljar_engine::outcome::{Kernel, Receipt, RootReceipt};
use belljar_engine::packages::PackageLayer;
use belljar_engine::plan::{DiskStorage, Image, Plan, RootAccess, WORKSPACE};
use belljar_engine::provider::{BoxFuture, ProviderError};
use belljar_engine::sandbox_handle::{SandboxError, SandboxFuture, SandboxStats};
use belljar_guest::{Guest, GuestError};
use belljar_jail::spec::{Jail, JailEnding, JailRequest, JailResponse, ROOT_CAPABILITIES};
use belljar_jail::wire::LauncherEvent;
use tokio::net::UnixStream;
use tokio::sync::{Mutex, OnceCell};

use super::connection::{LauncherConnection, SubmittedRun, launcher_lost, step_failure};
use super::disks::DiskReservation;
use super::egress::JailEgress;
use super::roots::NumberedRoot;
use super::run;
use super::{CheckedPlan, NAME, NativeShared};
use crate::guest_sandbox::{Backend, GUEST_CONNECT_TIMEOUT, GuestSandbox, guest_settings};
use crate::host_paths::utf8_path;
use crate::program::FoundRuntime;

/// Time allowed to learn why a sandbox ended.
const EXIT_NOTICE_TIMEOUT: Duration = Duration::from_secs(5);

/// The jail of a sandbox.
#[derive(Debug)]
struct JailBackend {
    connection: LauncherConnection,
    number: u64,
    /// Dropping it kills the jail.
    pending: Mutex<SubmittedRun>,
    exit_cause: OnceCell<String>,
    layers: OnceCell<Vec<Layer>>,
    shared: Arc<NativeShared>,
    image: Image,
    disk_storage: DiskStorage,
    root: RootAccess,
    /// The space of its disk in a file. Freed once everything in the sandbox is gone.
    _disk: Option<DiskReservation>,
    /// Interpreters outside the standard folders that are visible inside. No others can run.
    visible_prefixes: Vec<PathBuf>,
}

/// Opens a sandbox, starting a new launcher if the current one is gone.
pub(super) async fn open(
    shared: &Arc<NativeShared>,
    checked: &CheckedPlan,
) -> Result<GuestSandbox, ProviderError> {
    let visible_prefixes = shared.roots.common_prefixes(&checked.plan.image);
    let root = shared.roots.tree(checked, &visible_prefixes, true)?;
    let started = match start(shared, checked, &root).await {
        Err(ProviderError::Lost { .. }) => {
            shared.link.restart_if_lost().await?;
            start(shared, checked, &root).await?
        }
        started => started?,
    };
    let StartedGuest { guest, connection, pending, egress, disk } = started;
    let backend = JailBackend {
        connection,
        number: pending.number(),
        pending: Mutex::new(pending),
        exit_cause: OnceCell::new(),
        layers: OnceCell::new(),
        shared: Arc::clone(shared),
        image: checked.plan.image.clone(),
        disk_storage: checked.plan.disk_storage,
        root: checked.plan.root,
        _disk: disk,
        visible_prefixes,
    };
    Ok(GuestSandbox::new(guest, backend, checked.plan.clone(), root.path.clone(), egress))
}

/// A guest that has connected, and its jail.
#[derive(Debug)]
struct StartedGuest {
    guest: Guest,
    connection: LauncherConnection,
    pending: SubmittedRun,
    egress: Option<Egress>,
    disk: Option<DiskReservation>,
}

async fn start(
    shared: &NativeShared,
    checked: &CheckedPlan,
    root: &NumberedRoot,
) -> Result<StartedGuest, ProviderError> {
    let pair = StdUnixStream::pair().and_then(|(ours, theirs)| {
        ours.set_nonblocking(true)?;
        Ok((UnixStream::from_std(ours)?, theirs))
    });
    let (ours, theirs) = pair.map_err(|error| ProviderError::setup("create a socket to the guest", error))?;
    let connection = shared.link.connection()?;
    let egress = JailEgress::for_network(&checked.plan.network, checked.gate, &checked.plan.tenant)?;
    let (mount, disk) = create_disk(shared, &checked.plan).await?.unzip();
    let fds = [theirs.as_fd()].into_iter().chain(mount.as_ref().map(AsFd::as_fd));
    let fds: Vec<_> = fds.chain(egress.as_ref().map(JailEgress::child_fd)).collect();
    let mut pending = connection.start(root, jail(checked, root.number), &fds).await?;
    drop(fds);
    // With a copy of the mount here, the disk would outlive the sandbox.
    drop((theirs, mount));
    let egress = egress.map(JailEgress::into_egress);
    let settings = guest_settings(&checked.plan.limits);
    match tokio::time::timeout(GUEST_CONNECT_TIMEOUT, Guest::connect(ours, settings)).await {
        Ok(Ok(guest)) => Ok(StartedGuest { guest, connection, pending, egress, disk }),
        Ok(Err(error)) => Err(startup_error(&mut pending, &error).await),
        Err(_) => Err(ProviderError::lost("the guest did not answer in time")),
    }
}

/// Creates the disk, if it is in a file: a new one for each start, because a disk is never mounted again.
async fn create_disk(
    shared: &NativeShared,
    plan: &Plan,
) -> Result<Option<(OwnedFd, DiskReservation)>, ProviderError> {
    match (plan.disk_storage, &shared.disks) {
        (DiskStorage::Memory, _) => Ok(None),
        (DiskStorage::File, Ok(disks)) => disks.create(plan.limits.disk_bytes).await.map(Some),
        (DiskStorage::File, Err(why)) => Err(ProviderError::unsupported("disk_storage", why)),
    }
}

/// Returns why the guest is not running, as reported by the launcher.
async fn startup_error(pending: &mut SubmittedRun, error: &GuestError) -> ProviderError {
    match tokio::time::timeout(EXIT_NOTICE_TIMEOUT, &mut pending.notice).await {
        Ok(Ok(LauncherEvent::Failed { failure, .. })) => step_failure(&failure),
        Ok(Ok(LauncherEvent::Ended { ending: JailEnding::MachineMemory, .. })) => {
            ProviderError::SandboxMemoryExhausted
        }
        Ok(Ok(LauncherEvent::Ended { ending: JailEnding::Memory, .. })) => {
            ProviderError::setup("start the guest", "limits.memory_bytes is too low")
        }
        Ok(Err(_)) => launcher_lost(),
        _ => ProviderError::setup("start the guest", error),
    }
}

fn jail(checked: &CheckedPlan, root: u64) -> Jail {
    Jail {
        root,
        is_sandbox: true,
        commands: Vec::new(),
        env: Vec::new(),
        workdir: WORKSPACE.to_owned(),
        timeout: None,
        limits: (&checked.plan.limits).into(),
        writable_root: checked.plan.root == RootAccess::Writable,
        has_disk_file: checked.plan.disk_storage == DiskStorage::File,
        network: run::network(checked),
        host_workspace: checked.host_workspace.clone(),
        binds: checked.binds.clone(),
        result_pipe: false,
        artifacts: None,
        require_separate_uid: checked.plan.require.contains(&Layer::SeparateUid),
        tenant: checked.plan.tenant.clone(),
        interpreter: None,
    }
}

impl JailBackend {
    async fn query(&self, request: JailRequest) -> Result<JailResponse, SandboxError> {
        match self.connection.query(self.number, request).await {
            JailResponse::Gone => Err(SandboxError::Gone(self.exit_cause().await)),
            response => Ok(response),
        }
    }

    /// Pauses or resumes the jail.
    async fn set_frozen(&self, request: JailRequest) -> Result<(), SandboxError> {
        match self.query(request).await? {
            JailResponse::Refused(message) => Err(ProviderError::unsupported("pause", message).into()),
            _ => Ok(()),
        }
    }

    async fn attach_layers(&self, layers: &[PackageLayer]) -> Result<(), SandboxError> {
        for layer in layers {
            let source = utf8_path("dependencies", &layer.source)?;
            let request = JailRequest::AttachPackages { source, path: layer.destination.to_owned() };
            if let JailResponse::Refused(message) = self.query(request).await? {
                return Err(ProviderError::setup("attach packages", message).into());
            }
        }
        Ok(())
    }

    /// Returns the layers in force.
    async fn layers(&self) -> Result<Vec<Layer>, SandboxError> {
        let ask = || async {
            match self.query(JailRequest::Layers).await? {
                JailResponse::Layers(mut layers) => {
                    layers.sort();
                    Ok(layers)
                }
                _ => Err(launcher_lost().into()),
            }
        };
        self.layers.get_or_try_init(ask).await.cloned()
    }

    /// Returns the runtime of a language, which must be visible in this sandbox.
    fn find_runtime(&self, language: &'static Language) -> Result<FoundRuntime, ProviderError> {
        let located = self.shared.roots.runtime(language, &self.image)?;
        if located.prefixes.iter().any(|prefix| !self.visible_prefixes.contains(prefix)) {
            let message =
                format!("{} is installed outside this sandbox; run it without a sandbox", language.name);
            return Err(ProviderError::unsupported("language", message));
        }
        Ok(located.found)
    }

    async fn learn_exit_cause(&self) -> String {
        let mut pending = self.pending.lock().await;
        let notice = tokio::time::timeout(EXIT_NOTICE_TIMEOUT, &mut pending.notice).await;
        if let Ok(Ok(_)) = &notice {
            pending.mark_finished();
        }
        describe_exit(notice.ok())
    }
}

impl Backend for JailBackend {
    fn pause(&self) -> SandboxFuture<'_, ()> {
        Box::pin(self.set_frozen(JailRequest::Pause))
    }

    fn resume(&self) -> SandboxFuture<'_, ()> {
        Box::pin(self.set_frozen(JailRequest::Resume))
    }

    fn stats(&self) -> SandboxFuture<'_, SandboxStats> {
        Box::pin(async {
            match self.query(JailRequest::Stats).await? {
                JailResponse::Stats(stats) => Ok(stats),
                _ => Err(launcher_lost().into()),
            }
        })
    }

    fn receipt(&self) -> SandboxFuture<'_, Receipt> {
        Box::pin(async {
            let isolation = self.layers().await?;
            let disk_storage = Some(self.disk_storage);
            let root = (self.root == RootAccess::Writable).then(|| RootReceipt {
                access: self.root,
                capabilities: ROOT_CAPABILITIES.iter().map(|(name, _)| *name).collect(),
            });
            Ok(Receipt { isolation, root, disk_storage, ..Receipt::new(NAME, Kernel::Host) })
        })
    }

    fn runtime(&self, language: &'static Language) -> BoxFuture<'_, Result<FoundRuntime, ProviderError>> {
        Box::pin(async move { self.find_runtime(language) })
    }

    fn kill(&self) {
        self.connection.kill(self.number);
    }

    fn exit_cause(&self) -> BoxFuture<'_, String> {
        Box::pin(async { self.exit_cause.get_or_init(|| self.learn_exit_cause()).await.clone() })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if self.exit_cause.get().is_none() {
                self.kill();
            }
            self.exit_cause().await;
        })
    }

    fn is_for_single_task(&self) -> bool {
        false
    }

    fn attach_packages<'a>(&'a self, layers: &'a [PackageLayer]) -> SandboxFuture<'a, ()> {
        Box::pin(self.attach_layers(layers))
    }

    fn records_denied_calls(&self) -> bool {
        true
    }

    fn denied_calls(&self) -> SandboxFuture<'_, Vec<(u32, DeniedSyscall)>> {
        Box::pin(async {
            match self.query(JailRequest::Calls).await? {
                JailResponse::Calls(calls) => Ok(calls),
                _ => Ok(Vec::new()),
            }
        })
    }
}

fn describe_exit(notice: Option<Result<LauncherEvent, tokio::sync::oneshot::error::RecvError>>) -> String {
    match notice {
        Some(Ok(LauncherEvent::Ended { ending, .. })) => match ending {
            JailEnding::Killed => "the sandbox was closed".to_owned(),
            JailEnding::TimedOut => "it timed out".to_owned(),
            JailEnding::MachineMemory => {
                "out of memory: all sandboxes together used what the server has for them".to_owned()
            }
            JailEnding::Memory => {
                "out of memory: its init process was killed (limits.memory_bytes)".to_owned()
            }
            JailEnding::Signalled(signal) => format!("its init process was killed by signal {signal}"),
            other => format!("its init process ended: {other:?}"),
        },
        Some(Ok(LauncherEvent::Failed { failure, .. })) => failure.to_string(),
        Some(Err(_)) => "the launcher was killed".to_owned(),
        Some(Ok(_)) | None => "it no longer responds".to_owned(),
    }
}
