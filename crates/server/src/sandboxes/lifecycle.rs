//! The life of a sandbox: it is created, paused, resumed, extended and ended, and every end is recorded once.
//!
//! Work that must not be left half done if a client disconnects runs in its own task.

use std::sync::Arc;
use std::time::Duration;

use belljar_engine::network::HostRules;
use belljar_engine::outcome::Receipt;
use belljar_engine::packages::{Progress, ProvidedPackages};
use belljar_engine::plan::{DiskStorage, Network};
use belljar_engine::report::DependenciesReport;
use belljar_engine::sandbox::{AdmittedSandbox, OnTimeout, SandboxPackages, SandboxRequest};
use belljar_engine::sandbox_handle::{NetworkStats, SandboxError, SandboxHandle, SandboxPhase, SandboxStats};
use belljar_store::{
    DailyUsage, NewSandbox, SandboxId, SandboxRecord, SandboxState, SnapshotId, TenantName, Timestamp,
};
use futures_util::future::join_all;
use serde_json::{Map, Value};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::end_cause::EndCause;
use super::live_sandbox::{Expiry, LiveSandbox, SandboxInUse};
use super::registry::SandboxSlot;
use super::settings::{self, NetworkAccess, json_value};
use super::times::{admit_life, check_timeout};
use crate::app_state::AppState;
use crate::authentication::Caller;
use crate::error::Error;
use crate::executions::live_executions::AwaitedCommand;
use crate::run_queue::MemoryReservation;
use crate::storage::disk_quota::reserve_disk;
use crate::storage::snapshots;
use crate::storage::volume_monitor::VolumeMonitor;
use crate::storage::volumes::mount_volumes;

/// Timeout for reading the final figures of a sandbox.
const FINAL_STATS_TIMEOUT: Duration = Duration::from_secs(1);

/// Creates a sandbox and reports the installation of its packages to `progress`. If the caller is gone by
/// then, ends it.
pub(crate) async fn open(
    state: &Arc<AppState>,
    caller: &Caller,
    request: SandboxRequest,
    mut progress: impl Progress + 'static,
) -> Result<SandboxRecord, Error> {
    // Delays shutdown until the outcome is known.
    let awaited = AwaitedCommand::new(&state.live_executions);
    if state.live_executions.is_closed() {
        return Err(Error::ShuttingDown);
    }
    let names = settings::RequestedNames::from_request(&request);
    let has_timeout = request.timeout_ms.is_some();
    let mut admitted =
        state.engine.admit_sandbox(request, caller.tenancy())?.with_tenant(caller.tenant.as_str());
    let life = admit_life(state, &mut admitted, has_timeout)?;
    let memory = admitted.plan.limits.memory_bytes;
    let mut slots = (
        state.sandboxes.reserve(&caller.tenant, caller.quotas.sandboxes)?,
        state.run_queue.reserve_memory(&caller.tenant, &caller.quotas, memory)?,
    );
    state.closed_tenants.check(&caller.tenant)?;
    if admitted.plan.disk_storage == DiskStorage::File {
        slots.0.disk = Some(reserve_disk(state, caller, admitted.plan.limits.disk_bytes).await?);
    }
    let snapshot = snapshots::resolve_snapshot(state, caller, admitted.snapshot.as_deref()).await?;
    let (admitted, mounts) = mount_volumes(state, &caller.tenant, admitted).await?;
    slots.0.mounts = mounts;
    let builder = SandboxBuilder {
        id: SandboxId::generate()?,
        tenant: caller.tenant.clone(),
        settings: settings::stored_settings(names, &admitted, life),
        life,
        admitted,
        snapshot,
    };
    let (sender, receiver) = oneshot::channel();
    let (shown, state) = (state, Arc::clone(state));
    tokio::spawn(async move {
        let _awaited = awaited;
        let made = builder.build(&state, slots, &mut progress).await;
        let opened = made.as_ref().ok().map(|(open, _)| Arc::clone(open));
        if sender.send(made.map(|(_, shown)| shown)).is_err()
            && let Some(open) = opened
        {
            end(&state, &open, EndCause::creator_gone()).await;
        }
    });
    let opened = receiver.await.map_err(|_| Error::Internal)?;
    opened.map_err(|error| shown.error_for(caller.is_admin(), error))
}

/// A sandbox that is being created.
struct SandboxBuilder {
    id: SandboxId,
    tenant: TenantName,
    settings: Map<String, Value>,
    life: Duration,
    admitted: AdmittedSandbox,
    snapshot: Option<SnapshotId>,
}

impl SandboxBuilder {
    async fn build(
        mut self,
        state: &Arc<AppState>,
        slots: (SandboxSlot, MemoryReservation),
        progress: &mut dyn Progress,
    ) -> Result<(Arc<LiveSandbox>, SandboxRecord), Error> {
        let created = Timestamp::now();
        let new = NewSandbox {
            id: self.id.clone(),
            tenant: self.tenant.clone(),
            settings: self.settings.clone(),
            metadata: self.admitted.metadata.clone(),
            created,
            expires: Some(created.plus(self.admitted.timeout.min(self.life))),
        };
        // Recorded in parallel, so that a failed creation is recorded as well.
        let (recorded, opened) = tokio::join!(
            state.store.add_sandbox(new),
            state.engine.open_sandbox(&mut self.admitted, progress)
        );
        recorded?;
        let (running, living, packages) = match self.prepare_or_close(state, opened).await {
            Ok(living) => living,
            Err(error) => {
                let store = &state.store;
                let EndCause { kind, reason } = EndCause::failed(format!("not created: {}", error.message()));
                store.end_sandbox(&self.tenant, &self.id, kind, &reason, Timestamp::now()).await?;
                return Err(error);
            }
        };
        let mut shown = SandboxRecord {
            id: self.id.clone(),
            tenant: self.tenant.clone(),
            state: SandboxState::Running,
            settings: self.settings,
            metadata: self.admitted.metadata.clone(),
            created,
            changed: running,
            expires: None,
            ended: None,
            ended_reason: None,
        };
        let queue = state.settings.queue;
        let monitor = VolumeMonitor::for_mounts(&slots.0.mounts);
        let open = Arc::new(LiveSandbox::new(
            self.id,
            self.tenant,
            living,
            (self.admitted, packages),
            slots,
            self.life,
            queue,
        ));
        shown.expires = open.expires();
        state.sandboxes.insert(&open);
        state.metrics.opened();
        if let Some(mut monitor) = monitor {
            // A sandbox whose volumes already exceed their size is halted from the start.
            monitor.enforce(state, &open).await;
            tokio::spawn(monitor_volumes(Arc::clone(state), Arc::clone(&open), monitor));
        }
        tokio::spawn(supervise(Arc::clone(state), Arc::clone(&open)));
        Ok((open, shown))
    }

    /// Prepares the sandbox and returns the time from which it runs; on failure, closes it.
    async fn prepare_or_close(
        &mut self,
        state: &AppState,
        opened: Result<(Box<dyn SandboxHandle>, ProvidedPackages), belljar_engine::Error>,
    ) -> Result<(Timestamp, Box<dyn SandboxHandle>, SandboxPackages), Error> {
        let (living, prepared) = opened?;
        let packages = SandboxPackages::from(&prepared);
        self.settings.insert("dependencies".to_owned(), json_value(&DependenciesReport::from(prepared)));
        match self.prepare(state, &*living).await {
            Ok(running) => Ok((running, living, packages)),
            Err(error) => {
                living.close().await;
                Err(error)
            }
        }
    }

    /// Adds the receipt to the settings, restores the snapshot if there is one, and records the sandbox as
    /// running.
    async fn prepare(&mut self, state: &AppState, living: &dyn SandboxHandle) -> Result<Timestamp, Error> {
        let instead_of = self.admitted.replaced_provider();
        let receipt = Receipt { instead_of, ..living.receipt().await? };
        self.settings.insert("receipt".to_owned(), json_value(&receipt));
        if let Some(snapshot) = &self.snapshot {
            let disk_bytes = self.admitted.plan.limits.disk_bytes;
            snapshots::restore(state, living, snapshot, disk_bytes).await?;
        }
        let running = Timestamp::now();
        state.store.mark_sandbox_running(&self.tenant, &self.id, &self.settings, running).await?;
        Ok(running)
    }
}

/// Monitors the volumes of one sandbox, and ends it if they cannot be kept within their sizes.
async fn monitor_volumes(state: Arc<AppState>, open: Arc<LiveSandbox>, monitor: VolumeMonitor) {
    if monitor.run(&state, &open).await {
        tracing::error!(sandbox = %open.id, "sandbox ended: its volumes grow while it is halted");
        end(&state, &open, EndCause::failed("its volumes grew while it was halted")).await;
    }
}

/// Supervises the use, the life and the end of one sandbox.
async fn supervise(state: Arc<AppState>, open: Arc<LiveSandbox>) {
    loop {
        tokio::select! {
            biased;
            () = open.wait_for_end() => return,
            why = open.living.ended() => {
                tracing::warn!(sandbox = %open.id, %why, "sandbox ended unexpectedly");
                end(&state, &open, EndCause::failed(why)).await;
            }
            over = open.expired() => expire(&state, &open, over).await,
        }
    }
}

async fn expire(state: &Arc<AppState>, open: &Arc<LiveSandbox>, over: Expiry) {
    let pauses = over == Expiry::Unused && open.admitted.on_timeout == OnTimeout::Pause;
    if pauses && pause(state, open).await.is_ok() {
        return;
    }
    let cause = match over {
        Expiry::Unused => EndCause::unused(open.timeout()),
        Expiry::Life => EndCause::life_over(open.life()),
    };
    end(state, open, cause).await;
}

/// A change of one sandbox's state. Changes run one at a time.
#[derive(Debug, Clone, Copy)]
pub(crate) enum StateChange {
    Pause,
    Resume,
    Extend(Duration),
}

impl StateChange {
    pub(crate) async fn apply(self, state: &AppState, open: &LiveSandbox) -> Result<(), Error> {
        match self {
            Self::Pause => pause(state, open).await,
            Self::Resume => resume(state, open).await,
            Self::Extend(span) => extend(state, open, span).await,
        }
    }
}

/// Freezes all processes. A paused sandbox does not expire for lack of use, but at the end of its life.
async fn pause(state: &AppState, open: &LiveSandbox) -> Result<(), Error> {
    let _step = open.state_lock.lock().await;
    if is_paused(open)? {
        return Ok(());
    }
    open.living.pause().await?;
    open.set_paused(true);
    record(state, open, SandboxState::Paused).await
}

/// Resumes a sandbox. Its timeout counts again from now.
async fn resume(state: &AppState, open: &LiveSandbox) -> Result<(), Error> {
    let _step = open.state_lock.lock().await;
    if !is_paused(open)? {
        return Ok(());
    }
    open.living.resume().await?;
    open.set_paused(false);
    record(state, open, SandboxState::Running).await
}

/// Sets how long the sandbox may be unused.
async fn extend(state: &AppState, open: &LiveSandbox, timeout: Duration) -> Result<(), Error> {
    let _step = open.state_lock.lock().await;
    if is_paused(open)? {
        return Err(SandboxError::Paused.into());
    }
    check_timeout(timeout, open.remaining_life())?;
    open.set_timeout(timeout);
    record(state, open, SandboxState::Running).await
}

/// Sets the hosts that a sandbox may reach, paused or not, and returns its network use. The rules are
/// recorded first, so that the record covers everything the sandbox could reach.
pub(crate) async fn set_hosts(
    state: &AppState,
    open: &LiveSandbox,
    rules: HostRules,
) -> Result<NetworkStats, Error> {
    let _step = open.state_lock.lock().await;
    if open.is_ended() {
        return Err(open.ended_error());
    }
    if open.living.network_stats().is_none() {
        return Err(SandboxError::hosts_not_changeable().into());
    }
    let network = NetworkAccess::from(&Network::from_rules(rules.clone()));
    if let Value::Object(network) = json_value(&network) {
        state.store.set_sandbox_network(&open.tenant, &open.id, &network).await?;
    }
    open.living.set_hosts(rules)?;
    Ok(open.living.network_stats().ok_or_else(SandboxError::hosts_not_changeable)?)
}

fn is_paused(open: &LiveSandbox) -> Result<bool, Error> {
    if open.is_ended() {
        return Err(open.ended_error());
    }
    Ok(open.living.state() == SandboxPhase::Paused)
}

async fn record(state: &AppState, open: &LiveSandbox, new_state: SandboxState) -> Result<(), Error> {
    Ok(state.store.set_sandbox_state(&open.tenant, &open.id, new_state, Timestamp::now()).await?)
}

/// Ends a sandbox, and returns whether this call did. Completes once everything is removed and the end is
/// recorded.
pub(crate) async fn end(state: &Arc<AppState>, open: &Arc<LiveSandbox>, cause: EndCause) -> bool {
    let (state, open) = (Arc::clone(state), Arc::clone(open));
    let ending = tokio::spawn(async move {
        let _step = open.state_lock.lock().await;
        if !open.begin_end(&cause) {
            return false;
        }
        record_cpu_usage(&state, &open).await;
        open.living.close().await;
        let EndCause { kind, reason } = cause;
        let ended = state.store.end_sandbox(&open.tenant, &open.id, kind, &reason, Timestamp::now()).await;
        if let Err(error) = ended {
            tracing::error!(sandbox = %open.id, %error, "cannot record the end of a sandbox");
        }
        state.metrics.ended(kind);
        state.sandboxes.remove(&open.id);
        open.release();
        true
    });
    ending.await.unwrap_or(false)
}

/// Records the CPU time of the sandbox's commands. Executions record theirs separately.
async fn record_cpu_usage(state: &AppState, open: &LiveSandbox) {
    let Ok(Ok(SandboxStats { cpu: Some(cpu), .. })) = timeout(FINAL_STATS_TIMEOUT, open.living.stats()).await
    else {
        return;
    };
    let used = DailyUsage { cpu_ms: open.unrecorded_cpu_ms(cpu), executions: 0 };
    if used.cpu_ms == 0 {
        return;
    }
    if let Err(error) = state.store.add_usage(&open.tenant, Timestamp::now().day(), used).await {
        tracing::warn!(sandbox = %open.id, %error, "cannot record CPU time");
    }
}

/// Periodically records the usage of all sandboxes. Runs forever.
pub(crate) async fn record_usage_periodically(state: Arc<AppState>) {
    loop {
        tokio::time::sleep(state.settings.sandbox_sweep).await;
        for open in state.sandboxes.all() {
            record_cpu_usage(&state, &open).await;
        }
    }
}

/// Ends all sandboxes when the server shuts down.
pub(crate) async fn end_all(state: &Arc<AppState>) {
    let all = state.sandboxes.all();
    join_all(all.iter().map(|open| end(state, open, EndCause::shutdown()))).await;
}

/// Returns a live sandbox of the caller's tenant.
pub(crate) async fn find(state: &AppState, caller: &Caller, id: &str) -> Result<SandboxInUse, Error> {
    let id = parse_id(id)?;
    match state.sandboxes.find(&caller.tenant, &id) {
        Some(open) if open.is_ended() => Err(open.ended_error()),
        Some(open) => Ok(SandboxInUse::new(open)),
        None => {
            let record = state.store.sandbox(&caller.tenant, &id).await?.ok_or(Error::NotFound("sandbox"))?;
            Err(Error::SandboxEnded(record.end_reason().unwrap_or("it is not open").to_owned()))
        }
    }
}

/// Parses a sandbox id. A malformed id is reported as an unknown one.
pub(crate) fn parse_id(text: &str) -> Result<SandboxId, Error> {
    text.parse().map_err(|_| Error::NotFound("sandbox"))
}
