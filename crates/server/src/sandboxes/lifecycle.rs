//! The life of a sandbox: it is created, paused, resumed, extended and ended, and every end is recorded once.
//!
//! Work that must not be left half done if a client disconnects runs in its own task.

use std::sync::Arc;
use std::time::Duration;

use belljar_engine::network::HostRules;
use belljar_engine::packages::{Progress, ProvidedPackages};
use belljar_engine::plan::Network;
use belljar_engine::quantity::show_duration;
use belljar_engine::report::DependenciesReport;
use belljar_engine::sandbox::{AdmittedSandbox, OnTimeout, SandboxRequest};
use belljar_engine::sandbox_handle::{NetworkStats, SandboxError, SandboxHandle, SandboxPhase, SandboxStats};
use belljar_store::{
    DailyUsage, NewSandbox, SandboxEnd, SandboxId, SandboxRecord, SandboxState, SnapshotId, TenantName,
    Timestamp,
};
use futures_util::future::join_all;
use serde_json::{Map, Value};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::live_sandbox::{Expiry, LiveSandbox, SandboxDeadline, SandboxInUse};
use super::registry::SandboxSlot;
use super::sandbox_json::{self, NetworkAccess, json_value};
use crate::app_state::AppState;
use crate::authentication::Caller;
use crate::error::Error;
use crate::live_executions::AwaitedCommand;
use crate::places::{VolumeMonitor, mount_volumes, snapshots};
use crate::run_queue::MemoryReservation;

/// Timeout for reading the final figures of a sandbox.
const FINAL_STATS_TIMEOUT: Duration = Duration::from_secs(1);

/// Creates a sandbox and reports the installation of its packages to `progress`. If the caller is gone by
/// then, ends it.
pub(crate) async fn open(
    world: &Arc<AppState>,
    caller: &Caller,
    request: SandboxRequest,
    mut progress: impl Progress + 'static,
) -> Result<SandboxRecord, Error> {
    // Delays shutdown until the outcome is known.
    let awaited = AwaitedCommand::new(world);
    if world.live.is_closed() {
        return Err(Error::ShuttingDown);
    }
    let names = sandbox_json::RequestedNames::from_request(&request);
    let admitted = world.engine.admit_sandbox(request, caller.tenancy())?.with_tenant(caller.tenant.as_str());
    check_lifetime(world, admitted.timeout, world.settings.sandbox_life)?;
    let memory = admitted.plan.limits.memory_bytes;
    let mut room = (
        world.sandboxes.reserve(&caller.tenant, caller.quotas.sandboxes)?,
        world.gate.reserve_memory(&caller.tenant, &caller.quotas, memory)?,
    );
    let snapshot = snapshots::resolve_snapshot(world, caller, admitted.snapshot.as_deref()).await?;
    let (admitted, mounts) = mount_volumes(world, &caller.tenant, admitted).await?;
    room.0.mounts = mounts;
    let making = SandboxBuilder {
        id: SandboxId::generate()?,
        tenant: caller.tenant.clone(),
        settings: sandbox_json::settings(names, &admitted),
        deadline: SandboxDeadline::after(admitted.timeout),
        admitted,
        snapshot,
    };
    let (tell, told) = oneshot::channel();
    let world = Arc::clone(world);
    tokio::spawn(async move {
        let _awaited = awaited;
        let made = making.build(&world, room, &mut progress).await;
        let opened = made.as_ref().ok().map(|(open, _)| Arc::clone(open));
        if tell.send(made.map(|(_, shown)| shown)).is_err()
            && let Some(open) = opened
        {
            end(&world, &open, SandboxEnd::Closed).await;
        }
    });
    told.await.map_err(|_| Error::Internal)?
}

fn check_lifetime(world: &AppState, timeout: Duration, left: Duration) -> Result<(), Error> {
    if timeout <= left {
        return Ok(());
    }
    let (most, left) = (show_duration(world.settings.sandbox_life), show_duration(left));
    let message = format!("the maximum lifetime of a sandbox is {most}; this one has {left} left");
    Err(Error::Invalid { field: "timeout_ms", message })
}

/// A sandbox that is being created.
struct SandboxBuilder {
    id: SandboxId,
    tenant: TenantName,
    settings: Map<String, Value>,
    deadline: SandboxDeadline,
    admitted: AdmittedSandbox,
    snapshot: Option<SnapshotId>,
}

impl SandboxBuilder {
    async fn build(
        mut self,
        world: &Arc<AppState>,
        room: (SandboxSlot, MemoryReservation),
        progress: &mut dyn Progress,
    ) -> Result<(Arc<LiveSandbox>, SandboxRecord), Error> {
        let created = Timestamp::now();
        let new = NewSandbox {
            id: self.id.clone(),
            tenant: self.tenant.clone(),
            settings: self.settings.clone(),
            metadata: self.admitted.metadata.clone(),
            created,
            expires: Some(self.deadline.shown),
        };
        // Recorded in parallel, so that a failed creation is recorded as well.
        let (recorded, opened) =
            tokio::join!(world.store.add_sandbox(new), world.engine.open_sandbox(&self.admitted, progress));
        recorded?;
        let (running, living) = match self.prepare_or_close(world, opened).await {
            Ok(living) => living,
            Err(error) => {
                let store = &world.store;
                store.end_sandbox(&self.tenant, &self.id, SandboxEnd::Failed, Timestamp::now()).await?;
                return Err(error);
            }
        };
        let shown = SandboxRecord {
            id: self.id.clone(),
            tenant: self.tenant.clone(),
            state: SandboxState::Running,
            settings: self.settings,
            metadata: self.admitted.metadata.clone(),
            created,
            changed: running,
            expires: Some(self.deadline.shown),
            ended: None,
        };
        let times = (self.deadline, world.settings.sandbox_life);
        let queue = world.settings.queue;
        let guard = VolumeMonitor::for_mounts(&room.0.mounts);
        let open =
            Arc::new(LiveSandbox::new(self.id, self.tenant, living, self.admitted, room, times, queue));
        world.sandboxes.insert(&open);
        world.meters.opened();
        if let Some(mut guard) = guard {
            // A sandbox whose volumes already exceed their size is halted from the start.
            guard.enforce(world, &open).await;
            guard.start(world, &open);
        }
        tokio::spawn(supervise(Arc::clone(world), Arc::clone(&open)));
        Ok((open, shown))
    }

    /// Prepares the sandbox and returns the time from which it runs; on failure, closes it.
    async fn prepare_or_close(
        &mut self,
        world: &AppState,
        opened: Result<(Box<dyn SandboxHandle>, ProvidedPackages), belljar_engine::Error>,
    ) -> Result<(Timestamp, Box<dyn SandboxHandle>), Error> {
        let (living, prepared) = opened?;
        self.settings.insert("dependencies".to_owned(), json_value(&DependenciesReport::from(prepared)));
        match self.prepare(world, &*living).await {
            Ok(running) => Ok((running, living)),
            Err(error) => {
                living.close().await;
                Err(error)
            }
        }
    }

    /// Adds the receipt to the settings, restores the snapshot if there is one, and records the sandbox as
    /// running.
    async fn prepare(&mut self, world: &AppState, living: &dyn SandboxHandle) -> Result<Timestamp, Error> {
        let receipt = living.receipt().await?;
        self.settings.insert("receipt".to_owned(), json_value(&receipt));
        if let Some(snapshot) = &self.snapshot {
            let disk_bytes = self.admitted.plan.limits.disk_bytes;
            snapshots::restore(world, living, snapshot, disk_bytes).await?;
        }
        let running = Timestamp::now();
        world.store.mark_sandbox_running(&self.tenant, &self.id, &self.settings, running).await?;
        Ok(running)
    }
}

/// Supervises the lifetime and the end of one sandbox.
async fn supervise(world: Arc<AppState>, open: Arc<LiveSandbox>) {
    loop {
        tokio::select! {
            biased;
            () = open.wait_for_end() => return,
            why = open.living.ended() => {
                tracing::warn!(sandbox = %open.id, why, "sandbox ended unexpectedly");
                end(&world, &open, SandboxEnd::Failed).await;
            }
            over = open.expired() => expire(&world, &open, over).await,
        }
    }
}

async fn expire(world: &Arc<AppState>, open: &Arc<LiveSandbox>, over: Expiry) {
    let pauses = over == Expiry::Timeout && open.admitted.on_timeout == OnTimeout::Pause;
    if pauses && pause(world, open).await.is_ok() {
        return;
    }
    end(world, open, SandboxEnd::Expired).await;
}

/// A change of one sandbox's state. Changes run one at a time.
#[derive(Debug, Clone, Copy)]
pub(super) enum StateChange {
    Pause,
    Resume,
    Extend(Duration),
}

impl StateChange {
    pub(super) async fn apply(self, world: &AppState, open: &LiveSandbox) -> Result<(), Error> {
        match self {
            Self::Pause => pause(world, open).await,
            Self::Resume => resume(world, open).await,
            Self::Extend(span) => extend(world, open, span).await,
        }
    }
}

/// Freezes all processes, and stops the lifetime.
async fn pause(world: &AppState, open: &LiveSandbox) -> Result<(), Error> {
    let _step = open.state_lock.lock().await;
    if is_paused(open)? {
        return Ok(());
    }
    open.living.pause().await?;
    record(world, open, SandboxState::Paused, None).await
}

/// Resumes a sandbox. The lifetime starts again with the last value set, up to the maximum lifetime.
async fn resume(world: &AppState, open: &LiveSandbox) -> Result<(), Error> {
    let _step = open.state_lock.lock().await;
    if !is_paused(open)? {
        return Ok(());
    }
    open.living.resume().await?;
    record(
        world,
        open,
        SandboxState::Running,
        Some(SandboxDeadline::after(open.lifetime().min(open.remaining_lifetime()))),
    )
    .await
}

/// Sets the lifetime, counted from now.
async fn extend(world: &AppState, open: &LiveSandbox, timeout: Duration) -> Result<(), Error> {
    let _step = open.state_lock.lock().await;
    if is_paused(open)? {
        return Err(SandboxError::Paused.into());
    }
    check_lifetime(world, timeout, open.remaining_lifetime())?;
    open.set_lifetime(timeout);
    record(world, open, SandboxState::Running, Some(SandboxDeadline::after(timeout))).await
}

/// Sets the hosts that a sandbox may reach, paused or not, and returns its network use. The rules are
/// recorded first, so that the record covers everything the sandbox could reach.
pub(super) async fn set_hosts(
    world: &AppState,
    open: &LiveSandbox,
    rules: HostRules,
) -> Result<NetworkStats, Error> {
    let _step = open.state_lock.lock().await;
    if open.is_ended() {
        return Err(Error::SandboxEnded);
    }
    if open.living.network_stats().is_none() {
        return Err(SandboxError::hosts_not_changeable().into());
    }
    let network = NetworkAccess::from(&Network::Hosts(rules.clone()));
    if let Value::Object(network) = json_value(&network) {
        world.store.set_sandbox_network(&open.tenant, &open.id, &network).await?;
    }
    open.living.set_hosts(rules)?;
    Ok(open.living.network_stats().ok_or_else(SandboxError::hosts_not_changeable)?)
}

fn is_paused(open: &LiveSandbox) -> Result<bool, Error> {
    if open.is_ended() {
        return Err(Error::SandboxEnded);
    }
    Ok(open.living.state() == SandboxPhase::Paused)
}

async fn record(
    world: &AppState,
    open: &LiveSandbox,
    state: SandboxState,
    deadline: Option<SandboxDeadline>,
) -> Result<(), Error> {
    open.set_deadline(deadline);
    let (store, tenant, id) = (&world.store, &open.tenant, &open.id);
    let expires = deadline.map(|deadline| deadline.shown);
    let (state, expiry) = tokio::join!(
        store.set_sandbox_state(tenant, id, state, Timestamp::now()),
        store.set_sandbox_expiry(tenant, id, expires)
    );
    Ok(state.and(expiry)?)
}

/// Ends a sandbox, and returns whether this call did. Completes once everything is removed and the end is
/// recorded.
pub(crate) async fn end(world: &Arc<AppState>, open: &Arc<LiveSandbox>, because: SandboxEnd) -> bool {
    let (world, open) = (Arc::clone(world), Arc::clone(open));
    let ending = tokio::spawn(async move {
        let _step = open.state_lock.lock().await;
        if !open.begin_end() {
            return false;
        }
        record_cpu_usage(&world, &open).await;
        open.living.close().await;
        let ended = world.store.end_sandbox(&open.tenant, &open.id, because, Timestamp::now()).await;
        if let Err(error) = ended {
            tracing::error!(sandbox = %open.id, %error, "cannot record the end of a sandbox");
        }
        world.meters.ended(because);
        world.sandboxes.remove(&open.id);
        open.release();
        true
    });
    ending.await.unwrap_or(false)
}

/// Records the CPU time of the sandbox's commands. Executions record theirs separately.
async fn record_cpu_usage(world: &AppState, open: &LiveSandbox) {
    let Ok(Ok(SandboxStats { cpu: Some(cpu), .. })) = timeout(FINAL_STATS_TIMEOUT, open.living.stats()).await
    else {
        return;
    };
    let used = DailyUsage { cpu_ms: open.unrecorded_cpu_ms(cpu), executions: 0 };
    if used.cpu_ms == 0 {
        return;
    }
    if let Err(error) = world.store.add_usage(&open.tenant, Timestamp::now().day(), used).await {
        tracing::warn!(sandbox = %open.id, %error, "cannot record CPU time");
    }
}

/// Periodically records the usage of all sandboxes, and ends or pauses idle ones. Runs forever.
pub(crate) async fn end_idle_periodically(world: Arc<AppState>) {
    loop {
        tokio::time::sleep(world.settings.sandbox_sweep).await;
        for open in world.sandboxes.all() {
            record_cpu_usage(&world, &open).await;
            let idle =
                open.is_idle(world.settings.sandbox_idle) && open.living.state() == SandboxPhase::Running;
            match open.admitted.on_timeout {
                _ if !idle => {}
                OnTimeout::Pause if pause(&world, &open).await.is_ok() => {}
                OnTimeout::Pause | OnTimeout::Kill => drop(end(&world, &open, SandboxEnd::Idle).await),
            }
        }
    }
}

/// Ends a sandbox that cannot be kept within its limits.
pub(crate) async fn end_failed(world: &Arc<AppState>, open: &Arc<LiveSandbox>) {
    end(world, open, SandboxEnd::Failed).await;
}

/// Ends all sandboxes when the server shuts down.
pub(crate) async fn end_all(world: &Arc<AppState>) {
    let all = world.sandboxes.all();
    join_all(all.iter().map(|open| end(world, open, SandboxEnd::Interrupted))).await;
}

/// Returns a live sandbox of the caller's tenant.
pub(crate) async fn find(world: &AppState, caller: &Caller, id: &str) -> Result<SandboxInUse, Error> {
    let id = parse_id(id)?;
    match world.sandboxes.find(&caller.tenant, &id).filter(|open| !open.is_ended()) {
        Some(open) => Ok(SandboxInUse::new(open)),
        None => {
            world.store.sandbox(&caller.tenant, &id).await?.ok_or(Error::NotFound("sandbox"))?;
            Err(Error::SandboxEnded)
        }
    }
}

/// Parses a sandbox id. A malformed id is reported as an unknown one.
pub(super) fn parse_id(text: &str) -> Result<SandboxId, Error> {
    text.parse().map_err(|_| Error::NotFound("sandbox"))
}
