//! One live sandbox: its life, its use, its end, and the CPU time it has used.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use belljar_engine::report::Report;
use belljar_engine::sandbox::{AdmittedSandbox, SandboxPackages};
use belljar_engine::sandbox_handle::{SandboxError, SandboxFuture, SandboxHandle};
use belljar_store::{SandboxId, TenantName, Timestamp};
use tokio::sync::{self, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::end_cause::EndCause;
use super::registry::SandboxSlot;
use crate::error::Error;
use crate::run_queue::{MemoryReservation, RunQueue};
use crate::share_pool::OtherTenants;

/// Delay before retrying an operation on a paused sandbox.
const PAUSED_RETRY_DELAY: Duration = Duration::from_millis(250);

/// A live sandbox.
#[derive(Debug)]
pub(crate) struct LiveSandbox {
    pub(crate) id: SandboxId,
    pub(crate) tenant: TenantName,
    pub(crate) living: Box<dyn SandboxHandle>,
    pub(crate) admitted: AdmittedSandbox,
    pub(crate) packages: SandboxPackages,
    /// Queue with a single slot: executions in the sandbox run one at a time.
    pub(crate) run_queue: RunQueue,
    /// Held while a snapshot is taken: one at a time.
    pub(crate) snapshot_lock: sync::Mutex<()>,
    /// Held while it is paused, resumed, extended or ended: one at a time, in the order of the requests.
    pub(super) state_lock: sync::Mutex<()>,
    created: Instant,
    /// How long it may exist, used or not.
    life: Duration,
    /// Announces every change but the begin of a use.
    usage: watch::Sender<SandboxUse>,
    /// Why its end has begun, once it has.
    end_cause: watch::Sender<Option<EndCause>>,
    slots: Mutex<Option<(SandboxSlot, MemoryReservation)>>,
    accounted: AccountedCpu,
}

/// The reason a sandbox is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expiry {
    /// The sandbox was not used for its timeout.
    Unused,
    /// Its life has ended.
    Life,
}

/// The use of a sandbox, from which its expiry follows.
#[derive(Debug)]
struct SandboxUse {
    /// Number of calls, open streams and running commands.
    users: usize,
    /// End of the last use.
    last: (Instant, Timestamp),
    /// How long it may be unused.
    timeout: Duration,
    paused: bool,
}

impl SandboxUse {
    fn new(timeout: Duration) -> Self {
        Self { users: 0, last: (Instant::now(), Timestamp::now()), timeout, paused: false }
    }

    fn mark_used(&mut self) {
        self.last = (Instant::now(), Timestamp::now());
    }

    /// Returns when it expires if it stays unused; `None` while it is used or paused.
    fn deadline(&self) -> Option<Instant> {
        (self.users == 0 && !self.paused).then(|| self.last.0 + self.timeout)
    }
}

/// CPU time that is already accounted for.
#[derive(Debug, Default)]
struct AccountedCpu {
    /// CPU time of executions, which is recorded with them.
    executions_ms: AtomicU64,
    /// CPU time recorded so far, including that of executions.
    recorded_ms: AtomicU64,
}

impl LiveSandbox {
    pub(super) fn new(
        id: SandboxId,
        tenant: TenantName,
        living: Box<dyn SandboxHandle>,
        (admitted, packages): (AdmittedSandbox, SandboxPackages),
        slots: (SandboxSlot, MemoryReservation),
        life: Duration,
        queue: usize,
    ) -> Self {
        let usage = watch::Sender::new(SandboxUse::new(admitted.timeout));
        Self {
            id,
            tenant,
            living,
            admitted,
            packages,
            run_queue: RunQueue::new(1, queue, queue, &OtherTenants::default()),
            snapshot_lock: sync::Mutex::default(),
            state_lock: sync::Mutex::default(),
            created: Instant::now(),
            life,
            usage,
            end_cause: watch::Sender::default(),
            slots: Mutex::new(Some(slots)),
            accounted: AccountedCpu::default(),
        }
    }

    /// Returns whether its end has begun.
    pub(super) fn is_ended(&self) -> bool {
        self.end_cause.borrow().is_some()
    }

    /// Begins the end. Returns false if it had already begun.
    pub(super) fn begin_end(&self, cause: &EndCause) -> bool {
        self.end_cause.send_if_modified(|begun| {
            let is_first = begun.is_none();
            begun.get_or_insert_with(|| cause.clone());
            is_first
        })
    }

    /// Returns the error of a call that comes after its end has begun.
    pub(crate) fn ended_error(&self) -> Error {
        let cause = self.end_cause.borrow();
        Error::SandboxEnded(cause.as_ref().map_or_else(String::new, |cause| cause.reason.clone()))
    }

    /// Completes when its end begins, which stops all streams from it.
    pub(crate) async fn wait_for_end(&self) {
        // `self` owns the sender, so waiting cannot fail.
        let _ = self.end_cause.subscribe().wait_for(Option::is_some).await;
    }

    /// Performs an operation, and retries it while the sandbox is paused.
    pub(crate) async fn retry_while_paused<'a, T>(
        &'a self,
        ask: impl Fn() -> SandboxFuture<'a, T>,
    ) -> Result<T, SandboxError> {
        loop {
            match ask().await {
                Err(SandboxError::Paused) if !self.is_ended() => sleep(PAUSED_RETRY_DELAY).await,
                answer => return answer,
            }
        }
    }

    /// Frees the slot and the memory of the sandbox.
    pub(super) fn release(&self) {
        lock(&self.slots).take();
    }

    /// Returns how long it may be unused.
    pub(super) fn timeout(&self) -> Duration {
        self.usage.borrow().timeout
    }

    pub(super) fn set_timeout(&self, timeout: Duration) {
        self.usage.send_modify(|usage| usage.timeout = timeout);
    }

    /// Records that it was paused or resumed. While paused, it does not expire for lack of use.
    pub(super) fn set_paused(&self, paused: bool) {
        self.usage.send_modify(|usage| {
            usage.paused = paused;
            usage.mark_used();
        });
    }

    /// Returns its life, counted from its creation.
    pub(super) fn life(&self) -> Duration {
        self.life
    }

    /// Returns the time left until the end of its life.
    pub(super) fn remaining_life(&self) -> Duration {
        (self.created + self.life).saturating_duration_since(Instant::now())
    }

    /// Returns when it expires if it is not used from now on; `None` while it is paused.
    pub(super) fn expires(&self) -> Option<Timestamp> {
        let usage = self.usage.borrow();
        let last = if usage.users > 0 { Timestamp::now() } else { usage.last.1 };
        let end_of_life = Timestamp::now().plus(self.remaining_life());
        (!usage.paused).then(|| last.plus(usage.timeout).min(end_of_life))
    }

    /// Completes when it was not used for its timeout, or at the end of its life.
    pub(super) async fn expired(&self) -> Expiry {
        let end_of_life = self.created + self.life;
        let mut usage = self.usage.subscribe();
        loop {
            let due = usage.borrow_and_update().deadline();
            tokio::select! {
                () = sleep_until(end_of_life) => return Expiry::Life,
                () = sleep_until(due.unwrap_or(end_of_life)), if due.is_some() => {
                    // A use that has begun meanwhile is not announced.
                    if self.is_unused() {
                        return Expiry::Unused;
                    }
                }
                _ = usage.changed() => {}
            }
        }
    }

    /// Returns whether it was not used for its timeout.
    fn is_unused(&self) -> bool {
        self.usage.borrow().deadline().is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Adds the CPU time of an execution in the sandbox.
    pub(crate) fn add_execution_cpu(&self, report: &Report) {
        self.accounted.executions_ms.fetch_add(report.usage.cpu.as_millis() as u64, Ordering::Relaxed);
    }

    /// Returns the CPU time in milliseconds that is still to be recorded, given the total.
    pub(super) fn unrecorded_cpu_ms(&self, total: Duration) -> u64 {
        let total = total.as_millis() as u64;
        let used = total.saturating_sub(self.accounted.recorded_ms.swap(total, Ordering::Relaxed));
        used.saturating_sub(self.accounted.executions_ms.swap(0, Ordering::Relaxed))
    }
}

/// Marks a sandbox as in use, so that it does not expire for lack of use.
#[derive(Debug)]
pub(crate) struct SandboxInUse(Arc<LiveSandbox>);

impl SandboxInUse {
    pub(super) fn new(open: Arc<LiveSandbox>) -> Self {
        open.usage.send_if_modified(|usage| {
            usage.users += 1;
            false
        });
        Self(open)
    }

    pub(crate) fn sandbox(&self) -> &Arc<LiveSandbox> {
        &self.0
    }
}

impl Deref for SandboxInUse {
    type Target = LiveSandbox;

    fn deref(&self) -> &LiveSandbox {
        &self.0
    }
}

impl Drop for SandboxInUse {
    fn drop(&mut self) {
        self.0.usage.send_if_modified(|usage| {
            usage.users -= 1;
            usage.mark_used();
            usage.users == 0
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
