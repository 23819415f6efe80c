//! One sandbox that is alive: its time, whether somebody uses it, and what it has used.

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

/// How often something is asked again of a sandbox that is paused.
const AGAIN: Duration = Duration::from_millis(250);

/// A sandbox that is alive.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) id: SandboxId,
    pub(crate) tenant: TenantName,
    pub(crate) living: Box<dyn Living>,
    pub(crate) admitted: AdmittedSandbox,
    /// Executions in it run one after the other.
    pub(crate) gate: Gate,
    /// Held while its files are kept: one snapshot at a time.
    pub(crate) snapshots: sync::Mutex<()>,
    /// Held while it is paused, resumed, extended or ended: one after the other, in the order of asking.
    pub(super) steps: sync::Mutex<()>,
    /// The moment after which it may not live, whoever extends it.
    last_moment: Instant,
    /// The time that it was last given.
    span: Mutex<Duration>,
    deadline: watch::Sender<Option<Deadline>>,
    ended: watch::Sender<bool>,
    room: Mutex<Option<(Room, Held)>>,
    attention: Mutex<Attention>,
    counted: Counted,
}

/// When its time is over: by the clock that never jumps, and by the one that people read.
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

/// What has happened to a sandbox's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    /// The time that its owner gave it.
    Timeout,
    /// The time that any sandbox has.
    Life,
}

/// Who looks after it.
#[derive(Debug)]
struct Attention {
    users: usize,
    last: Instant,
}

/// What was recorded of its use already, or passed by.
#[derive(Debug, Default)]
struct Counted {
    /// Processor time of executions, which are accounted for by themselves.
    executions_ms: AtomicU64,
    /// Processor time that was recorded, those executions included.
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

    /// Whether its end has begun.
    pub(super) fn is_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Begins the end; false where it had begun.
    pub(super) fn begin_end(&self) -> bool {
        !self.ended.send_replace(true)
    }

    /// Completes when its end begins: what streams from it stops then.
    pub(crate) async fn ends(&self) {
        // The sender is ours, so waiting cannot fail.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    /// Asks something of it; while it is paused, again and again.
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

    /// Somebody else may have its room, and its memory.
    pub(super) fn release(&self) {
        lock(&self.room).take();
    }

    pub(super) fn span(&self) -> Duration {
        *lock(&self.span)
    }

    pub(super) fn set_span(&self, span: Duration) {
        *lock(&self.span) = span;
    }

    /// How long it may live at most from now on.
    pub(super) fn left(&self) -> Duration {
        self.last_moment.saturating_duration_since(Instant::now())
    }

    pub(super) fn deadline(&self) -> Option<Deadline> {
        *self.deadline.borrow()
    }

    pub(super) fn set_deadline(&self, deadline: Option<Deadline>) {
        self.deadline.send_replace(deadline);
    }

    /// Completes when its time is over, however often that is moved.
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

    /// Whether nobody has used it for so long.
    pub(super) fn is_idle(&self, span: Duration) -> bool {
        let attention = lock(&self.attention);
        attention.users == 0 && attention.last.elapsed() >= span
    }

    /// Takes down what an execution in it used.
    pub(crate) fn ran(&self, report: &Report) {
        self.counted.executions_ms.fetch_add(report.usage.cpu_ms.max(0.0) as u64, Ordering::Relaxed);
    }

    /// The processor time that is still to be recorded, when so much has been used altogether.
    pub(super) fn unrecorded(&self, total: Duration) -> u64 {
        let total = total.as_millis() as u64;
        let used = total.saturating_sub(self.counted.recorded_ms.swap(total, Ordering::Relaxed));
        used.saturating_sub(self.counted.executions_ms.swap(0, Ordering::Relaxed))
    }
}

/// A sandbox that somebody works with: it is not idle meanwhile.
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
