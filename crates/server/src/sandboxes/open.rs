//! One live sandbox: its lifetime, its users, and the CPU time it has used.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use belljar_engine::living::{Asked, Living, LivingError};
use belljar_engine::report::Report;
use belljar_engine::sandbox::AdmittedSandbox;
use belljar_store::{SandboxId, TenantName, Timestamp};
use tokio::sync::{self, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::registry::Room;
use crate::gate::{Gate, Held};
use crate::pool::Rivals;

/// Delay before retrying an operation on a paused sandbox.
const AGAIN: Duration = Duration::from_millis(250);

/// A live sandbox.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) id: SandboxId,
    pub(crate) tenant: TenantName,
    pub(crate) living: Box<dyn Living>,
    pub(crate) admitted: AdmittedSandbox,
    /// Queue with a single slot: executions in the sandbox run one at a time.
    pub(crate) gate: Gate,
    /// Held while a snapshot is taken: one at a time.
    pub(crate) snapshots: sync::Mutex<()>,
    /// Held while it is paused, resumed, extended or ended: one at a time, in the order of the requests.
    pub(super) steps: sync::Mutex<()>,
    /// End of the maximum lifetime, which no extension can exceed.
    last_moment: Instant,
    /// The last lifetime that was set.
    span: Mutex<Duration>,
    deadline: watch::Sender<Option<Deadline>>,
    ended: watch::Sender<bool>,
    room: Mutex<Option<(Room, Held)>>,
    attention: Mutex<Attention>,
    counted: Counted,
}

/// The end of a lifetime, by the monotonic clock and by the wall clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    pub(super) at: Instant,
    pub(super) shown: Timestamp,
}

impl Deadline {
    pub(super) fn after(span: Duration) -> Self {
        Self { at: Instant::now() + span, shown: Timestamp::now().after(span) }
    }
}

/// The reason a lifetime is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    /// The lifetime set by its owner.
    Timeout,
    /// The maximum lifetime of any sandbox.
    Life,
}

/// The users of a sandbox.
#[derive(Debug)]
struct Attention {
    users: usize,
    last: Instant,
}

/// CPU time that is already accounted for.
#[derive(Debug, Default)]
struct Counted {
    /// CPU time of executions, which is recorded with them.
    executions_ms: AtomicU64,
    /// CPU time recorded so far, including that of executions.
    recorded_ms: AtomicU64,
}

impl Open {
    pub(super) fn new(
        id: SandboxId,
        tenant: TenantName,
        living: Box<dyn Living>,
        admitted: AdmittedSandbox,
        room: (Room, Held),
        times: (Deadline, Duration),
        queue: usize,
    ) -> Self {
        let (deadline, life) = times;
        let (now, span) = (Instant::now(), Mutex::new(admitted.timeout));
        Self {
            id,
            tenant,
            living,
            admitted,
            gate: Gate::new(1, queue, queue, &Rivals::default()),
            snapshots: sync::Mutex::default(),
            steps: sync::Mutex::default(),
            last_moment: now + life,
            span,
            deadline: watch::Sender::new(Some(deadline)),
            ended: watch::Sender::new(false),
            room: Mutex::new(Some(room)),
            attention: Mutex::new(Attention { users: 0, last: now }),
            counted: Counted::default(),
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
    pub(crate) async fn ends(&self) {
        // `self` owns the sender, so waiting cannot fail.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    /// Performs an operation, and retries it while the sandbox is paused.
    pub(super) async fn when_awake<'a, T>(
        &'a self,
        ask: impl Fn() -> Asked<'a, T>,
    ) -> Result<T, LivingError> {
        loop {
            match ask().await {
                Err(LivingError::Paused) if !self.is_ended() => sleep(AGAIN).await,
                answer => return answer,
            }
        }
    }

    /// Frees the slot and the memory of the sandbox.
    pub(super) fn release(&self) {
        lock(&self.room).take();
    }

    pub(super) fn span(&self) -> Duration {
        *lock(&self.span)
    }

    pub(super) fn set_span(&self, span: Duration) {
        *lock(&self.span) = span;
    }

    /// Returns the time left until the maximum lifetime.
    pub(super) fn left(&self) -> Duration {
        self.last_moment.saturating_duration_since(Instant::now())
    }

    pub(super) fn deadline(&self) -> Option<Deadline> {
        *self.deadline.borrow()
    }

    pub(super) fn set_deadline(&self, deadline: Option<Deadline>) {
        self.deadline.send_replace(deadline);
    }

    /// Completes when the lifetime is over, taking changes of the deadline into account.
    pub(super) async fn time_is_over(&self) -> Over {
        let mut deadline = self.deadline.subscribe();
        loop {
            let at = deadline.borrow_and_update().map(|deadline| deadline.at);
            tokio::select! {
                () = sleep_until(self.last_moment) => return Over::Life,
                () = sleep_until(at.unwrap_or(self.last_moment)), if at.is_some() => return Over::Timeout,
                _ = deadline.changed() => {}
            }
        }
    }

    /// Returns whether it has been unused for `span`.
    pub(super) fn is_idle(&self, span: Duration) -> bool {
        let attention = lock(&self.attention);
        attention.users == 0 && attention.last.elapsed() >= span
    }

    /// Adds the CPU time of an execution in the sandbox.
    pub(crate) fn ran(&self, report: &Report) {
        self.counted.executions_ms.fetch_add(report.usage.cpu_ms.max(0.0) as u64, Ordering::Relaxed);
    }

    /// Returns the CPU time in milliseconds that is still to be recorded, given the total.
    pub(super) fn unrecorded(&self, total: Duration) -> u64 {
        let total = total.as_millis() as u64;
        let used = total.saturating_sub(self.counted.recorded_ms.swap(total, Ordering::Relaxed));
        used.saturating_sub(self.counted.executions_ms.swap(0, Ordering::Relaxed))
    }
}

/// Marks a sandbox as in use, so that it is not idle.
#[derive(Debug)]
pub(crate) struct Used(Arc<Open>);

impl Used {
    pub(super) fn new(open: Arc<Open>) -> Self {
        lock(&open.attention).users += 1;
        Self(open)
    }

    pub(crate) fn open(&self) -> &Arc<Open> {
        &self.0
    }
}

impl Deref for Used {
    type Target = Open;

    fn deref(&self) -> &Open {
        &self.0
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        let mut attention = lock(&self.0.attention);
        attention.users -= 1;
        attention.last = Instant::now();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
