//! One live sandbox: its lifetime, its users, and the CPU time it has used.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use belljar_engine::report::Report;
use belljar_engine::sandbox::AdmittedSandbox;
use belljar_engine::sandbox_handle::{SandboxError, SandboxFuture, SandboxHandle};
use belljar_store::{SandboxId, TenantName, Timestamp};
use tokio::sync::{self, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::registry::SandboxSlot;
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
    /// Queue with a single slot: executions in the sandbox run one at a time.
    pub(crate) run_queue: RunQueue,
    /// Held while a snapshot is taken: one at a time.
    pub(crate) snapshot_lock: sync::Mutex<()>,
    /// Held while it is paused, resumed, extended or ended: one at a time, in the order of the requests.
    pub(super) state_lock: sync::Mutex<()>,
    /// End of the maximum lifetime, which no extension can exceed.
    lifetime_end: Instant,
    /// The last lifetime that was set.
    lifetime: Mutex<Duration>,
    deadline: watch::Sender<Option<SandboxDeadline>>,
    ended: watch::Sender<bool>,
    slots: Mutex<Option<(SandboxSlot, MemoryReservation)>>,
    users: Mutex<SandboxUsers>,
    accounted: AccountedCpu,
}

/// The end of a lifetime, by the monotonic clock and by the wall clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct SandboxDeadline {
    pub(super) at: Instant,
    pub(super) shown: Timestamp,
}

impl SandboxDeadline {
    pub(super) fn after(span: Duration) -> Self {
        Self { at: Instant::now() + span, shown: Timestamp::now().plus(span) }
    }
}

/// The reason a lifetime is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expiry {
    /// The lifetime set by its owner.
    Timeout,
    /// The maximum lifetime of any sandbox.
    Life,
}

/// The users of a sandbox.
#[derive(Debug)]
struct SandboxUsers {
    users: usize,
    last: Instant,
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
        admitted: AdmittedSandbox,
        slots: (SandboxSlot, MemoryReservation),
        times: (SandboxDeadline, Duration),
        queue: usize,
    ) -> Self {
        let (deadline, life) = times;
        let (now, span) = (Instant::now(), Mutex::new(admitted.timeout));
        Self {
            id,
            tenant,
            living,
            admitted,
            run_queue: RunQueue::new(1, queue, queue, &OtherTenants::default()),
            snapshot_lock: sync::Mutex::default(),
            state_lock: sync::Mutex::default(),
            lifetime_end: now + life,
            lifetime: span,
            deadline: watch::Sender::new(Some(deadline)),
            ended: watch::Sender::new(false),
            slots: Mutex::new(Some(slots)),
            users: Mutex::new(SandboxUsers { users: 0, last: now }),
            accounted: AccountedCpu::default(),
        }
    }

    /// Returns whether its end has begun.
    pub(super) fn is_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Begins the end. Returns false if it had already begun.
    pub(super) fn begin_end(&self) -> bool {
        !self.ended.send_replace(true)
    }

    /// Completes when its end begins, which stops all streams from it.
    pub(crate) async fn wait_for_end(&self) {
        // `self` owns the sender, so waiting cannot fail.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
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

    pub(super) fn lifetime(&self) -> Duration {
        *lock(&self.lifetime)
    }

    pub(super) fn set_lifetime(&self, span: Duration) {
        *lock(&self.lifetime) = span;
    }

    /// Returns the time left until the maximum lifetime.
    pub(super) fn remaining_lifetime(&self) -> Duration {
        self.lifetime_end.saturating_duration_since(Instant::now())
    }

    pub(super) fn deadline(&self) -> Option<SandboxDeadline> {
        *self.deadline.borrow()
    }

    pub(super) fn set_deadline(&self, deadline: Option<SandboxDeadline>) {
        self.deadline.send_replace(deadline);
    }

    /// Completes when the lifetime is over, taking changes of the deadline into account.
    pub(super) async fn expired(&self) -> Expiry {
        let mut deadline = self.deadline.subscribe();
        loop {
            let at = deadline.borrow_and_update().map(|deadline| deadline.at);
            tokio::select! {
                () = sleep_until(self.lifetime_end) => return Expiry::Life,
                () = sleep_until(at.unwrap_or(self.lifetime_end)), if at.is_some() => return Expiry::Timeout,
                _ = deadline.changed() => {}
            }
        }
    }

    /// Returns whether it has been unused for `span`.
    pub(super) fn is_idle(&self, span: Duration) -> bool {
        let attention = lock(&self.users);
        attention.users == 0 && attention.last.elapsed() >= span
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

/// Marks a sandbox as in use, so that it is not idle.
#[derive(Debug)]
pub(crate) struct SandboxInUse(Arc<LiveSandbox>);

impl SandboxInUse {
    pub(super) fn new(open: Arc<LiveSandbox>) -> Self {
        lock(&open.users).users += 1;
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
        let mut attention = lock(&self.0.users);
        attention.users -= 1;
        attention.last = Instant::now();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
