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
use crate::fair_share::{FairShare, RECENT, ShareRefusal, Tenure, Terms};
pub(crate) use crate::need::Need;
use crate::need::fits_at_all;
use crate::pool::{Rivals, ShareKind};

/// The queue of executions, and its slots.
#[derive(Debug)]
pub(crate) struct Gate(Arc<Mutex<Table>>);

/// A slot: the right to run. Dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct Turn {
    gate: Arc<Mutex<Table>>,
    tenant: TenantName,
    memory: u64,
}

/// Memory reserved for a tenant's sandbox. Dropping it frees the memory.
#[derive(Debug)]
pub(crate) struct Held {
    gate: Arc<Mutex<Table>>,
    tenant: TenantName,
    memory: u64,
}

/// The result of asking for a slot.
#[derive(Debug)]
pub(crate) enum Entry {
    /// A slot was free.
    Now(Turn),
    /// The request is queued.
    Later(Waiting),
}

/// A queued request. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct Waiting {
    gate: Arc<Mutex<Table>>,
    tenant: TenantName,
    number: u64,
    turn: oneshot::Receiver<Turn>,
}

#[derive(Debug)]
struct Table {
    turns: FairShare<TenantName>,
    /// Entries in the queues of all tenants.
    places: FairShare<TenantName>,
    /// Maximum number of entries of one tenant.
    queue: usize,
    rivals: Rivals,
    /// How often a tenant was queued or refused because of its share.
    held_back: Refusals,
    waiting: usize,
    next_number: u64,
    tenants: HashMap<TenantName, Lane>,
    /// Tenants with queued work, in turn order.
    ring: VecDeque<TenantName>,
}

/// Number of times that a fair share was the reason.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Refusals {
    pub(crate) turns: u64,
    pub(crate) queue: u64,
}

/// The reason a tenant gets no slot now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HeldBack {
    Quota,
    Share,
    OtherTenants,
}

#[derive(Debug, Default)]
struct Lane {
    running: usize,
    limit: usize,
    memory: u64,
    memory_limit: u64,
    waiting: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    need: Need,
    /// Whether it occupies a queue entry. A request that waited in its sandbox's queue occupies an entry
    /// there.
    placed: bool,
    turn: oneshot::Sender<Turn>,
}

impl Lane {
    fn allow(&mut self, quotas: &Quotas) {
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

impl Gate {
    /// Creates a queue with `turns` slots, `queue` entries per tenant and `queue_total` entries overall.
    pub(crate) fn new(turns: usize, queue: usize, queue_total: usize, rivals: &Rivals) -> Self {
        Self(Arc::new(Mutex::new(Table {
            turns: FairShare::with_reserve_on_top(turns as u64),
            places: FairShare::with_reserve_on_top(queue_total as u64),
            queue,
            rivals: rivals.clone(),
            held_back: Refusals::default(),
            waiting: 0,
            next_number: 0,
            tenants: HashMap::new(),
            ring: VecDeque::new(),
        })))
    }

    /// Asks for a slot for a tenant.
    pub(crate) fn enter(&self, tenant: &TenantName, quotas: &Quotas, need: Need) -> Result<Entry, Error> {
        if quotas.concurrency == Some(0) {
            return Err(Error::QueueFull);
        }
        fits_at_all(quotas, need.memory)?;
        let mut table = lock(&self.0);
        if table.enter_now(tenant, quotas, need) {
            return Ok(Entry::Now(self.turn(tenant, need)));
        }
        if let Err(refused) = table.take_place(tenant) {
            table.forget_idle(tenant);
            return Err(refused);
        }
        Ok(Entry::Later(self.wait(&mut table, tenant, need, true)))
    }

    /// Asks for a slot for an execution that has passed its sandbox's queue. Each sandbox has at most one, so
    /// it occupies no queue entry and is never refused.
    pub(crate) fn enter_from_sandbox(&self, tenant: &TenantName, quotas: &Quotas, need: Need) -> Entry {
        let mut table = lock(&self.0);
        if table.enter_now(tenant, quotas, need) {
            return Entry::Now(self.turn(tenant, need));
        }
        Entry::Later(self.wait(&mut table, tenant, need, false))
    }

    fn turn(&self, tenant: &TenantName, need: Need) -> Turn {
        Turn { gate: Arc::clone(&self.0), tenant: tenant.clone(), memory: need.memory }
    }

    fn wait(&self, table: &mut Table, tenant: &TenantName, need: Need, placed: bool) -> Waiting {
        let (sender, turn) = oneshot::channel();
        let number = table.next_number;
        table.next_number += 1;
        table.waiting += 1;
        let lane = table.tenants.entry(tenant.clone()).or_default();
        if lane.waiting.is_empty() {
            table.ring.push_back(tenant.clone());
        }
        lane.waiting.push_back(Waiter { number, need, placed, turn: sender });
        Waiting { gate: Arc::clone(&self.0), tenant: tenant.clone(), number, turn }
    }

    /// Reserves memory for a sandbox, without waiting: a sandbox may hold its memory for a long time.
    pub(crate) fn hold(&self, tenant: &TenantName, quotas: &Quotas, memory: u64) -> Result<Held, Error> {
        fits_at_all(quotas, memory)?;
        let mut table = lock(&self.0);
        let lane = table.tenants.entry(tenant.clone()).or_default();
        lane.allow(quotas);
        if !lane.has_memory(memory) {
            table.forget_idle(tenant);
            return Err(Error::MemoryTaken);
        }
        lane.memory += memory;
        Ok(Held { gate: Arc::clone(&self.0), tenant: tenant.clone(), memory })
    }

    /// Returns whether one more request of this tenant may be queued.
    pub(crate) fn has_room(&self, tenant: &TenantName) -> bool {
        let table = lock(&self.0);
        table.places.check(tenant, 1, table.place_terms()).is_ok()
    }

    /// Returns how often a tenant was held back because of its share.
    pub(crate) fn refusals(&self) -> Refusals {
        lock(&self.0).held_back
    }

    /// Returns the number of queued requests.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.0).waiting
    }
}

impl Table {
    /// Takes a slot at once, if the tenant has no queued requests and its quotas and shares allow it.
    fn enter_now(&mut self, tenant: &TenantName, quotas: &Quotas, need: Need) -> bool {
        let lane = self.tenants.entry(tenant.clone()).or_default();
        lane.allow(quotas);
        let is_first = lane.waiting.is_empty();
        self.turns.want(tenant, Instant::now());
        let given = if is_first { self.give(tenant, need) } else { Err(HeldBack::OtherTenants) };
        self.held_back.turns += u64::from(given == Err(HeldBack::Share));
        given.is_ok()
    }

    fn place_terms(&self) -> Terms {
        Terms { cap: None, tenure: Tenure::Lasting, has_rivals: self.rivals.exist() }
    }

    /// Takes a queue entry.
    fn take_place(&mut self, tenant: &TenantName) -> Result<(), Error> {
        if self.places.held(tenant) >= self.queue as u64 {
            return Err(Error::QueueFull);
        }
        match self.places.take(tenant, 1, self.place_terms(), Instant::now()) {
            Ok(()) => Ok(()),
            Err(ShareRefusal::Full) => Err(Error::Overloaded),
            Err(ShareRefusal::Cap(most) | ShareRefusal::Share(most)) => {
                self.held_back.queue += 1;
                Err(Error::ShareTaken { kind: ShareKind::Queue, most })
            }
        }
    }

    /// Takes the next queued request that may run, and a slot for it.
    fn next(&mut self) -> Option<(TenantName, Waiter)> {
        let now = Instant::now();
        // A queued request is ongoing demand, however long it has waited.
        self.ring.iter().for_each(|tenant| self.turns.want(tenant, now));
        for _ in 0..self.ring.len() {
            let tenant = self.ring.pop_front()?;
            let Some(need) =
                self.tenants.get(&tenant).and_then(|lane| lane.waiting.front()).map(|first| first.need)
            else {
                continue;
            };
            if self.give(&tenant, need).is_err() {
                self.ring.push_back(tenant);
                continue;
            }
            let lane = self.tenants.get_mut(&tenant)?;
            let waiter = lane.waiting.pop_front()?;
            if !lane.waiting.is_empty() {
                self.ring.push_back(tenant.clone());
            }
            self.left_queue(&tenant, &waiter);
            return Some((tenant, waiter));
        }
        None
    }

    fn left_queue(&mut self, tenant: &TenantName, waiter: &Waiter) {
        self.waiting -= 1;
        if waiter.placed {
            self.places.give_back(tenant, 1);
        }
    }

    /// Takes a slot, if the tenant's quotas and share allow it.
    fn give(&mut self, tenant: &TenantName, need: Need) -> Result<(), HeldBack> {
        let has_rivals = self.rivals.exist();
        let lane = self.tenants.get_mut(tenant).filter(|lane| lane.may_run(need.memory));
        let Some(lane) = lane else { return Err(HeldBack::Quota) };
        // A quota set by an administrator replaces the share.
        let cap = (lane.limit < usize::MAX).then_some(lane.limit as u64);
        let terms = Terms { cap, tenure: need.tenure, has_rivals };
        match self.turns.take(tenant, 1, terms, Instant::now()) {
            Ok(()) => {
                lane.running += 1;
                lane.memory += need.memory;
                Ok(())
            }
            Err(ShareRefusal::Full) => Err(HeldBack::OtherTenants),
            Err(ShareRefusal::Cap(_)) => Err(HeldBack::Quota),
            Err(ShareRefusal::Share(_)) => Err(HeldBack::Share),
        }
    }

    fn give_back(&mut self, tenant: &TenantName, running: usize, memory: u64) {
        self.turns.give_back(tenant, running as u64);
        if let Some(lane) = self.tenants.get_mut(tenant) {
            lane.running -= running;
            lane.memory -= memory;
        }
        self.forget_idle(tenant);
    }

    /// Drops a tenant's entry once it has nothing running, reserved or queued.
    fn forget_idle(&mut self, tenant: &TenantName) {
        if self.tenants.get(tenant).is_some_and(Lane::is_idle) {
            self.tenants.remove(tenant);
            self.ring.retain(|name| name != tenant);
        }
    }
}

impl Waiting {
    /// Waits for the slot. Dropping `self` leaves the queue.
    pub(crate) async fn turn(&mut self) -> Result<Turn, Error> {
        loop {
            tokio::select! {
                biased;
                turn = &mut self.turn => return turn.map_err(|_| Error::ShuttingDown),
                // Another tenant's demand may have expired, which triggers no event.
                () = sleep(RECENT) => hand_on(&self.gate),
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut table = lock(&self.gate);
        let Some(lane) = table.tenants.get_mut(&self.tenant) else { return };
        let place = lane.waiting.iter().position(|waiter| waiter.number == self.number);
        let left = place.and_then(|place| lane.waiting.remove(place));
        if lane.waiting.is_empty() {
            table.ring.retain(|name| *name != self.tenant);
        }
        if let Some(waiter) = left {
            table.left_queue(&self.tenant, &waiter);
        }
        table.forget_idle(&self.tenant);
        drop(table);
        // The next request may need less. An unclaimed slot is passed on by its own `Drop`, which runs after
        // this.
        hand_on(&self.gate);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        lock(&self.gate).give_back(&self.tenant, 1, self.memory);
        hand_on(&self.gate);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        lock(&self.gate).give_back(&self.tenant, 0, self.memory);
        hand_on(&self.gate);
    }
}

/// Gives free slots to queued requests.
fn hand_on(gate: &Arc<Mutex<Table>>) {
    loop {
        let mut table = lock(gate);
        let Some((tenant, waiter)) = table.next() else { return };
        // Unlock first: if the receiver is gone, the slot is dropped here, and its `Drop` takes the lock.
        drop(table);
        let _ = waiter.turn.send(Turn { gate: Arc::clone(gate), tenant, memory: waiter.need.memory });
    }
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
