//! The run queue: bounds concurrent executions, and serves tenants in turn.
//!
//! ```text
//! enter ─▶ a slot is free within the tenant's share ─▶ slot ─▶ dropped: the next tenant's oldest gets it
//!       └▶ waits in its tenant's queue ─────────────────┘
//!       └▶ the queue is full: refused
//! ```
//!
//! Every tenant has its own bounded queue, and a tenant that got a slot moves behind the others: a tenant
//! that sends a thousand requests delays another tenant's first request by one. Executions are not preempted,
//! so slots are shared by the rule of `fair_share.rs`: a quarter more slots than the configured number are
//! reserved for tenants within their fair share, and a tenant holds more than half of the configured number
//! only with executions that end within a minute, while no other tenant has recently asked for a slot. A
//! tenant's concurrent use is counted here as well: running executions, and the memory limits of these and of
//! its sandboxes.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use belljar_store::{Quotas, TenantName};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::error::Error;
use crate::fair_share::{DEMAND_WINDOW, FairShare, ShareRefusal, ShareTerms, Tenure};
pub(crate) use crate::resource_need::ResourceNeed;
use crate::resource_need::check_fits_quota;
use crate::share_pool::{OtherTenants, ShareKind};

/// The queue of executions, and its slots.
#[derive(Debug)]
pub(crate) struct RunQueue(Arc<Mutex<RunQueueTable>>);

/// A slot: the right to run. Dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct RunSlot {
    shared: Arc<Mutex<RunQueueTable>>,
    tenant: TenantName,
    memory: u64,
}

/// Memory reserved for a tenant's sandbox. Dropping it frees the memory.
#[derive(Debug)]
pub(crate) struct MemoryReservation {
    shared: Arc<Mutex<RunQueueTable>>,
    tenant: TenantName,
    memory: u64,
}

/// The result of asking for a slot.
#[derive(Debug)]
pub(crate) enum RunEntry {
    /// A slot was free.
    Now(RunSlot),
    /// The request is queued.
    Queued(QueuedRun),
}

/// A queued request. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct QueuedRun {
    shared: Arc<Mutex<RunQueueTable>>,
    tenant: TenantName,
    number: u64,
    turn: oneshot::Receiver<RunSlot>,
}

#[derive(Debug)]
struct RunQueueTable {
    turns: FairShare<TenantName>,
    /// Entries in the queues of all tenants.
    entries: FairShare<TenantName>,
    /// Maximum number of entries of one tenant.
    queue: usize,
    other_tenants: OtherTenants,
    /// How often a tenant was queued or refused because of its share.
    share_delays: ShareDelays,
    waiting: usize,
    next_number: u64,
    tenants: HashMap<TenantName, TenantQueue>,
    /// Tenants with queued work, in turn order.
    turn_order: VecDeque<TenantName>,
}

/// Number of times that a fair share was the reason.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ShareDelays {
    pub(crate) turns: u64,
    pub(crate) queue: u64,
}

/// The work of one tenant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TenantLoad {
    /// Running executions.
    pub(crate) running: u64,
    /// Queued executions.
    pub(crate) queued: u64,
    /// Memory limits of running executions and of sandboxes.
    pub(crate) memory_bytes: u64,
}

/// The reason a tenant gets no slot now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WaitReason {
    Quota,
    Share,
    OtherTenants,
}

#[derive(Debug, Default)]
struct TenantQueue {
    running: usize,
    limit: usize,
    memory: u64,
    memory_limit: u64,
    waiting: VecDeque<QueuedRequest>,
}

#[derive(Debug)]
struct QueuedRequest {
    number: u64,
    need: ResourceNeed,
    /// Whether it occupies a queue entry. A request that waited in its sandbox's queue occupies an entry
    /// there.
    occupies_entry: bool,
    turn: oneshot::Sender<RunSlot>,
}

impl TenantQueue {
    fn set_quotas(&mut self, quotas: &Quotas) {
        self.limit = quotas.concurrency.map_or(usize::MAX, |limit| limit as usize);
        self.memory_limit = quotas.memory_bytes.unwrap_or(u64::MAX);
    }

    fn has_memory(&self, wanted: u64) -> bool {
        self.memory.saturating_add(wanted) <= self.memory_limit
    }

    /// Returns whether one more execution with this memory limit may run.
    fn may_run(&self, memory: u64) -> bool {
        self.running < self.limit && self.has_memory(memory)
    }

    fn is_idle(&self) -> bool {
        self.running == 0 && self.memory == 0 && self.waiting.is_empty()
    }
}

impl RunQueue {
    /// Creates a queue with `turns` slots, `queue` entries per tenant and `queue_total` entries overall.
    pub(crate) fn new(turns: usize, queue: usize, queue_total: usize, other_tenants: &OtherTenants) -> Self {
        Self(Arc::new(Mutex::new(RunQueueTable {
            turns: FairShare::with_reserve_on_top(turns as u64),
            entries: FairShare::with_reserve_on_top(queue_total as u64),
            queue,
            other_tenants: other_tenants.clone(),
            share_delays: ShareDelays::default(),
            waiting: 0,
            next_number: 0,
            tenants: HashMap::new(),
            turn_order: VecDeque::new(),
        })))
    }

    /// Asks for a slot for a tenant.
    pub(crate) fn enter(
        &self,
        tenant: &TenantName,
        quotas: &Quotas,
        need: ResourceNeed,
    ) -> Result<RunEntry, Error> {
        if quotas.concurrency == Some(0) {
            return Err(Error::QueueFull);
        }
        check_fits_quota(quotas, need.memory_bytes)?;
        let mut table = lock(&self.0);
        if table.try_take_slot(tenant, quotas, need) {
            return Ok(RunEntry::Now(self.new_slot(tenant, need)));
        }
        if let Err(refused) = table.take_entry(tenant) {
            table.forget_idle(tenant);
            return Err(refused);
        }
        Ok(RunEntry::Queued(self.enqueue(&mut table, tenant, need, true)))
    }

    /// Asks for a slot for an execution that has passed its sandbox's queue. Each sandbox has at most one, so
    /// it occupies no queue entry and is never refused.
    pub(crate) fn enter_from_sandbox(
        &self,
        tenant: &TenantName,
        quotas: &Quotas,
        need: ResourceNeed,
    ) -> RunEntry {
        let mut table = lock(&self.0);
        if table.try_take_slot(tenant, quotas, need) {
            return RunEntry::Now(self.new_slot(tenant, need));
        }
        RunEntry::Queued(self.enqueue(&mut table, tenant, need, false))
    }

    fn new_slot(&self, tenant: &TenantName, need: ResourceNeed) -> RunSlot {
        RunSlot { shared: Arc::clone(&self.0), tenant: tenant.clone(), memory: need.memory_bytes }
    }

    fn enqueue(
        &self,
        table: &mut RunQueueTable,
        tenant: &TenantName,
        need: ResourceNeed,
        placed: bool,
    ) -> QueuedRun {
        let (sender, turn) = oneshot::channel();
        let number = table.next_number;
        table.next_number += 1;
        table.waiting += 1;
        let tenant_queue = table.tenants.entry(tenant.clone()).or_default();
        if tenant_queue.waiting.is_empty() {
            table.turn_order.push_back(tenant.clone());
        }
        tenant_queue.waiting.push_back(QueuedRequest { number, need, occupies_entry: placed, turn: sender });
        QueuedRun { shared: Arc::clone(&self.0), tenant: tenant.clone(), number, turn }
    }

    /// Reserves memory for a sandbox, without waiting: a sandbox may hold its memory for a long time.
    pub(crate) fn reserve_memory(
        &self,
        tenant: &TenantName,
        quotas: &Quotas,
        memory: u64,
    ) -> Result<MemoryReservation, Error> {
        check_fits_quota(quotas, memory)?;
        let mut table = lock(&self.0);
        let tenant_queue = table.tenants.entry(tenant.clone()).or_default();
        tenant_queue.set_quotas(quotas);
        if !tenant_queue.has_memory(memory) {
            table.forget_idle(tenant);
            return Err(Error::MemoryQuotaUsedUp);
        }
        tenant_queue.memory += memory;
        Ok(MemoryReservation { shared: Arc::clone(&self.0), tenant: tenant.clone(), memory })
    }

    /// Returns whether one more request of this tenant may be queued.
    pub(crate) fn has_room(&self, tenant: &TenantName) -> bool {
        let table = lock(&self.0);
        table.entries.check(tenant, 1, table.entry_terms()).is_ok()
    }

    /// Returns how often a tenant was held back because of its share.
    pub(crate) fn share_delays(&self) -> ShareDelays {
        lock(&self.0).share_delays
    }

    /// Returns the work of one tenant.
    pub(crate) fn tenant_load(&self, tenant: &TenantName) -> TenantLoad {
        lock(&self.0).tenants.get(tenant).map_or_else(TenantLoad::default, |queue| TenantLoad {
            running: queue.running as u64,
            queued: queue.waiting.len() as u64,
            memory_bytes: queue.memory,
        })
    }

    /// Returns the number of queued requests.
    pub(crate) fn queued_count(&self) -> usize {
        lock(&self.0).waiting
    }
}

impl RunQueueTable {
    /// Takes a slot at once, if the tenant has no queued requests and its quotas and shares allow it.
    fn try_take_slot(&mut self, tenant: &TenantName, quotas: &Quotas, need: ResourceNeed) -> bool {
        let tenant_queue = self.tenants.entry(tenant.clone()).or_default();
        tenant_queue.set_quotas(quotas);
        let is_first = tenant_queue.waiting.is_empty();
        self.turns.record_demand(tenant, Instant::now());
        let given = if is_first { self.take_slot(tenant, need) } else { Err(WaitReason::OtherTenants) };
        self.share_delays.turns += u64::from(given == Err(WaitReason::Share));
        given.is_ok()
    }

    fn entry_terms(&self) -> ShareTerms {
        ShareTerms { cap: None, tenure: Tenure::Lasting, has_other_tenants: self.other_tenants.exist() }
    }

    /// Takes a queue entry.
    fn take_entry(&mut self, tenant: &TenantName) -> Result<(), Error> {
        if self.entries.held(tenant) >= self.queue as u64 {
            return Err(Error::QueueFull);
        }
        match self.entries.take(tenant, 1, self.entry_terms(), Instant::now()) {
            Ok(()) => Ok(()),
            Err(ShareRefusal::Full) => Err(Error::Overloaded),
            Err(ShareRefusal::Cap(most) | ShareRefusal::Share(most)) => {
                self.share_delays.queue += 1;
                Err(Error::ShareTaken { kind: ShareKind::Queue, most })
            }
        }
    }

    /// Takes the next queued request that may run, and a slot for it.
    fn take_next(&mut self) -> Option<(TenantName, QueuedRequest)> {
        let now = Instant::now();
        // A queued request is ongoing demand, however long it has waited.
        self.turn_order.iter().for_each(|tenant| self.turns.record_demand(tenant, now));
        for _ in 0..self.turn_order.len() {
            let tenant = self.turn_order.pop_front()?;
            let Some(need) = self
                .tenants
                .get(&tenant)
                .and_then(|tenant_queue| tenant_queue.waiting.front())
                .map(|first| first.need)
            else {
                continue;
            };
            if self.take_slot(&tenant, need).is_err() {
                self.turn_order.push_back(tenant);
                continue;
            }
            let tenant_queue = self.tenants.get_mut(&tenant)?;
            let waiter = tenant_queue.waiting.pop_front()?;
            if !tenant_queue.waiting.is_empty() {
                self.turn_order.push_back(tenant.clone());
            }
            self.remove_from_queue(&tenant, &waiter);
            return Some((tenant, waiter));
        }
        None
    }

    fn remove_from_queue(&mut self, tenant: &TenantName, waiter: &QueuedRequest) {
        self.waiting -= 1;
        if waiter.occupies_entry {
            self.entries.give_back(tenant, 1);
        }
    }

    /// Takes a slot, if the tenant's quotas and share allow it.
    fn take_slot(&mut self, tenant: &TenantName, need: ResourceNeed) -> Result<(), WaitReason> {
        let has_other_tenants = self.other_tenants.exist();
        let tenant_queue =
            self.tenants.get_mut(tenant).filter(|tenant_queue| tenant_queue.may_run(need.memory_bytes));
        let Some(tenant_queue) = tenant_queue else { return Err(WaitReason::Quota) };
        // A quota set by an administrator replaces the share.
        let cap = (tenant_queue.limit < usize::MAX).then_some(tenant_queue.limit as u64);
        let terms = ShareTerms { cap, tenure: need.tenure, has_other_tenants };
        match self.turns.take(tenant, 1, terms, Instant::now()) {
            Ok(()) => {
                tenant_queue.running += 1;
                tenant_queue.memory += need.memory_bytes;
                Ok(())
            }
            Err(ShareRefusal::Full) => Err(WaitReason::OtherTenants),
            Err(ShareRefusal::Cap(_)) => Err(WaitReason::Quota),
            Err(ShareRefusal::Share(_)) => Err(WaitReason::Share),
        }
    }

    fn release(&mut self, tenant: &TenantName, running: usize, memory: u64) {
        self.turns.give_back(tenant, running as u64);
        if let Some(tenant_queue) = self.tenants.get_mut(tenant) {
            tenant_queue.running -= running;
            tenant_queue.memory -= memory;
        }
        self.forget_idle(tenant);
    }

    /// Drops a tenant's entry once it has nothing running, reserved or queued.
    fn forget_idle(&mut self, tenant: &TenantName) {
        if self.tenants.get(tenant).is_some_and(TenantQueue::is_idle) {
            self.tenants.remove(tenant);
            self.turn_order.retain(|name| name != tenant);
        }
    }
}

impl QueuedRun {
    /// Waits for the slot. Dropping `self` leaves the queue.
    pub(crate) async fn wait(&mut self) -> Result<RunSlot, Error> {
        loop {
            tokio::select! {
                biased;
                turn = &mut self.turn => return turn.map_err(|_| Error::ShuttingDown),
                // Another tenant's demand may have expired, which triggers no event.
                () = sleep(DEMAND_WINDOW) => grant_free_slots(&self.shared),
            }
        }
    }
}

impl Drop for QueuedRun {
    fn drop(&mut self) {
        let mut table = lock(&self.shared);
        let Some(tenant_queue) = table.tenants.get_mut(&self.tenant) else { return };
        let position = tenant_queue.waiting.iter().position(|waiter| waiter.number == self.number);
        let left = position.and_then(|position| tenant_queue.waiting.remove(position));
        if tenant_queue.waiting.is_empty() {
            table.turn_order.retain(|name| *name != self.tenant);
        }
        if let Some(waiter) = left {
            table.remove_from_queue(&self.tenant, &waiter);
        }
        table.forget_idle(&self.tenant);
        drop(table);
        // The next request may need less. An unclaimed slot is passed on by its own `Drop`, which runs after
        // this.
        grant_free_slots(&self.shared);
    }
}

impl Drop for RunSlot {
    fn drop(&mut self) {
        lock(&self.shared).release(&self.tenant, 1, self.memory);
        grant_free_slots(&self.shared);
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        lock(&self.shared).release(&self.tenant, 0, self.memory);
        grant_free_slots(&self.shared);
    }
}

/// Gives free slots to queued requests.
fn grant_free_slots(shared: &Arc<Mutex<RunQueueTable>>) {
    loop {
        let mut table = lock(shared);
        let Some((tenant, waiter)) = table.take_next() else { return };
        // Unlock first: if the receiver is gone, the slot is dropped here, and its `Drop` takes the lock.
        drop(table);
        let _ = waiter.turn.send(RunSlot {
            shared: Arc::clone(shared),
            tenant,
            memory: waiter.need.memory_bytes,
        });
    }
}

fn lock(table: &Mutex<RunQueueTable>) -> MutexGuard<'_, RunQueueTable> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "run_queue_tests.rs"]
mod tests;
