//! Whose turn it is: so many executions run at a time, and tenants take turns.
//!
//! ```text
//! enter ─▶ a turn is free ─────────────▶ Turn ─▶ dropped: the next tenant's oldest gets it
//!       └▶ waits in its tenant's queue ─┘
//!       └▶ the queue is full: refused
//! ```
//!
//! A tenant has a queue of its own, with a bound, and whoever had a turn goes behind the others: a tenant that sends a
//! thousand requests delays another's first by one. What a tenant has at one time is counted here as well: executions
//! under way, and the memory that they and its sandboxes may take.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_engine::quantity::show_bytes;
use belljar_store::{Quotas, TenantName};
use tokio::sync::oneshot;

use crate::error::Error;

/// Hands out turns.
#[derive(Debug)]
pub(crate) struct Gate(Arc<Mutex<Table>>);

/// The right to run; giving it back is dropping it.
#[derive(Debug)]
pub(crate) struct Turn {
    gate: Arc<Mutex<Table>>,
    tenant: TenantName,
    memory: u64,
}

/// Memory that a tenant has taken for longer; giving it back is dropping it.
#[derive(Debug)]
pub(crate) struct Held {
    gate: Arc<Mutex<Table>>,
    tenant: TenantName,
    memory: u64,
}

/// What came of the wish to run.
#[derive(Debug)]
pub(crate) enum Entry {
    /// Now.
    Now(Turn),
    /// When others are done.
    Later(Waiting),
}

/// A place in a queue; dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct Waiting {
    gate: Arc<Mutex<Table>>,
    tenant: TenantName,
    number: u64,
    turn: oneshot::Receiver<Turn>,
}

#[derive(Debug)]
struct Table {
    free: usize,
    queue: usize,
    queue_total: usize,
    waiting: usize,
    next_number: u64,
    tenants: HashMap<TenantName, Lane>,
    /// Tenants of whom somebody waits, the next one first.
    ring: VecDeque<TenantName>,
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
    memory: u64,
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

    /// Whether one more may run that takes so much memory.
    fn may_run(&self, memory: u64) -> bool {
        self.running < self.limit && self.has_memory(memory)
    }

    fn is_idle(&self) -> bool {
        self.running == 0 && self.memory == 0 && self.waiting.is_empty()
    }
}

impl Gate {
    /// So many turns; so many may wait of one tenant, and of all.
    pub(crate) fn new(turns: usize, queue: usize, queue_total: usize) -> Self {
        Self(Arc::new(Mutex::new(Table {
            free: turns,
            queue,
            queue_total,
            waiting: 0,
            next_number: 0,
            tenants: HashMap::new(),
            ring: VecDeque::new(),
        })))
    }

    /// Asks for a turn of a tenant that may have so much, for something that may take so much memory.
    pub(crate) fn enter(&self, tenant: &TenantName, quotas: &Quotas, memory: u64) -> Result<Entry, Error> {
        if quotas.concurrency == Some(0) {
            return Err(Error::QueueFull);
        }
        fits_at_all(quotas, memory)?;
        let mut table = lock(&self.0);
        let (free, queue) = (table.free, table.queue);
        let total_is_full = table.waiting >= table.queue_total;
        let lane = table.tenants.entry(tenant.clone()).or_default();
        lane.allow(quotas);
        if free > 0 && lane.may_run(memory) && lane.waiting.is_empty() {
            table.give(tenant, memory);
            return Ok(Entry::Now(Turn { gate: Arc::clone(&self.0), tenant: tenant.clone(), memory }));
        }
        if lane.waiting.len() >= queue || total_is_full {
            let own = lane.waiting.len() >= queue;
            table.forget_idle(tenant);
            return Err(if own { Error::QueueFull } else { Error::Overloaded });
        }
        Ok(Entry::Later(self.wait(&mut table, tenant, memory)))
    }

    fn wait(&self, table: &mut Table, tenant: &TenantName, memory: u64) -> Waiting {
        let (sender, turn) = oneshot::channel();
        let number = table.next_number;
        table.next_number += 1;
        table.waiting += 1;
        let lane = table.tenants.entry(tenant.clone()).or_default();
        if lane.waiting.is_empty() {
            table.ring.push_back(tenant.clone());
        }
        lane.waiting.push_back(Waiter { number, memory, turn: sender });
        Waiting { gate: Arc::clone(&self.0), tenant: tenant.clone(), number, turn }
    }

    /// Takes memory for a sandbox. Nobody waits for that: it may be a long time.
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

    /// Whether one more of this tenant may wait.
    pub(crate) fn has_room(&self, tenant: &TenantName) -> bool {
        let table = lock(&self.0);
        let own = table.tenants.get(tenant).map_or(0, |lane| lane.waiting.len());
        own < table.queue && table.waiting < table.queue_total
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.0).waiting
    }
}

impl Table {
    /// The next turn, if somebody waits who may have it.
    fn next(&mut self) -> Option<(TenantName, Waiter)> {
        for _ in 0..self.ring.len() {
            let tenant = self.ring.pop_front()?;
            let Some(lane) = self.tenants.get_mut(&tenant) else { continue };
            let Some(first) = lane.waiting.front() else { continue };
            if !lane.may_run(first.memory) {
                self.ring.push_back(tenant);
                continue;
            }
            let waiter = lane.waiting.pop_front()?;
            if !lane.waiting.is_empty() {
                self.ring.push_back(tenant.clone());
            }
            self.waiting -= 1;
            self.give(&tenant, waiter.memory);
            return Some((tenant, waiter));
        }
        None
    }

    fn give(&mut self, tenant: &TenantName, memory: u64) {
        self.free -= 1;
        if let Some(lane) = self.tenants.get_mut(tenant) {
            lane.running += 1;
            lane.memory += memory;
        }
    }

    fn give_back(&mut self, tenant: &TenantName, running: usize, memory: u64) {
        self.free += running;
        if let Some(lane) = self.tenants.get_mut(tenant) {
            lane.running -= running;
            lane.memory -= memory;
        }
        self.forget_idle(tenant);
    }

    /// Tenants come and go; a lane is there only as long as somebody is in it.
    fn forget_idle(&mut self, tenant: &TenantName) {
        if self.tenants.get(tenant).is_some_and(Lane::is_idle) {
            self.tenants.remove(tenant);
            self.ring.retain(|name| name != tenant);
        }
    }
}

/// What never fits is not worth waiting for.
fn fits_at_all(quotas: &Quotas, memory: u64) -> Result<(), Error> {
    match quotas.memory_bytes {
        Some(most) if memory > most => {
            let (memory, most) = (show_bytes(memory), show_bytes(most));
            let message = format!("{memory} is more than the {most} that this tenant may have at one time");
            Err(Error::Invalid { field: "limits.memory_bytes", message })
        }
        _ => Ok(()),
    }
}

impl Waiting {
    /// Waits for the turn. Dropping this leaves the queue.
    pub(crate) async fn turn(&mut self) -> Result<Turn, Error> {
        (&mut self.turn).await.map_err(|_| Error::ShuttingDown)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut table = lock(&self.gate);
        let Some(lane) = table.tenants.get_mut(&self.tenant) else { return };
        let before = lane.waiting.len();
        lane.waiting.retain(|waiter| waiter.number != self.number);
        let left = before - lane.waiting.len();
        if lane.waiting.is_empty() {
            table.ring.retain(|name| *name != self.tenant);
        }
        table.waiting -= left;
        table.forget_idle(&self.tenant);
        drop(table);
        // Who was next may need less. A turn that arrived and was not taken goes on, by its own drop, after this.
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

/// Gives every turn that is free to whoever waits for one.
fn hand_on(gate: &Arc<Mutex<Table>>) {
    loop {
        let mut table = lock(gate);
        if table.free == 0 {
            return;
        }
        let Some((tenant, waiter)) = table.next() else { return };
        // The lock is let go first: a turn that nobody takes is dropped, and comes by here again.
        drop(table);
        let _ = waiter.turn.send(Turn { gate: Arc::clone(gate), tenant, memory: waiter.memory });
    }
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> TenantName {
        text.parse().unwrap()
    }

    const ANY: Quotas = Quotas {
        concurrency: None,
        sandboxes: None,
        cpu_seconds_per_day: None,
        memory_bytes: None,
        disk_bytes: None,
    };
    const ONE: Quotas = Quotas { concurrency: Some(1), ..ANY };

    fn now(entry: Result<Entry, Error>) -> Turn {
        match entry.unwrap() {
            Entry::Now(turn) => turn,
            Entry::Later(_) => panic!("waits"),
        }
    }

    fn later(entry: Result<Entry, Error>) -> Waiting {
        match entry.unwrap() {
            Entry::Now(_) => panic!("runs"),
            Entry::Later(waiting) => waiting,
        }
    }

    #[tokio::test]
    async fn tenants_take_turns() {
        let gate = Gate::new(1, 100, 1_000);
        let (greedy, modest) = (name("greedy"), name("modest"));
        let first = now(gate.enter(&greedy, &ANY, 0));
        let mut many: Vec<_> = (0..50).map(|_| later(gate.enter(&greedy, &ANY, 0))).collect();
        let mut one = later(gate.enter(&modest, &ANY, 0));
        drop(first);
        let second = many.remove(0).turn().await.unwrap();
        assert!(one.turn.try_recv().is_err());
        drop(second);
        let theirs = one.turn().await.unwrap();
        assert!(many[0].turn.try_recv().is_err());
        drop((theirs, one, many));
        assert_eq!(gate.waiting(), 0);
        assert!(lock(&gate.0).tenants.is_empty() && lock(&gate.0).ring.is_empty());
        assert_eq!(lock(&gate.0).free, 1);
    }

    #[tokio::test]
    async fn a_tenants_own_limit_leaves_turns_to_others() {
        let gate = Gate::new(3, 1, 10);
        let (small, other) = (name("small"), name("other"));
        let running = now(gate.enter(&small, &ONE, 0));
        let mut waits = later(gate.enter(&small, &ONE, 0));
        assert!(matches!(gate.enter(&small, &ONE, 0), Err(Error::QueueFull)));
        let theirs = now(gate.enter(&other, &ANY, 0));
        drop(theirs);
        assert!(waits.turn.try_recv().is_err());
        drop(running);
        drop(waits.turn().await.unwrap());
        drop(waits);
        assert_eq!(lock(&gate.0).free, 3);
    }

    #[tokio::test]
    async fn memory_is_counted_over_executions_and_sandboxes() {
        let gate = Gate::new(9, 9, 9);
        let (tenant, quotas) = (name("a"), Quotas { memory_bytes: Some(10), ..ANY });
        let refused = gate.enter(&tenant, &quotas, 11).unwrap_err().to_string();
        assert!(refused.starts_with("limits.memory_bytes: 11 bytes is more than the 10 bytes"), "{refused}");
        let sandbox = gate.hold(&tenant, &quotas, 6).unwrap();
        assert!(matches!(gate.hold(&tenant, &quotas, 5), Err(Error::MemoryTaken)));
        let running = now(gate.enter(&tenant, &quotas, 4));
        let large = later(gate.enter(&tenant, &quotas, 5));
        let mut small = later(gate.enter(&tenant, &quotas, 3));
        drop(running);
        // The large one still does not fit, and is the first; when it leaves, the small one's turn has come.
        assert!(small.turn.try_recv().is_err());
        drop(large);
        let running = small.turn().await.unwrap();
        let mut next = later(gate.enter(&tenant, &quotas, 7));
        drop(sandbox);
        drop(next.turn().await.unwrap());
        drop((running, small, next));
        assert!(lock(&gate.0).tenants.is_empty() && lock(&gate.0).free == 9);
    }

    #[tokio::test]
    async fn who_leaves_the_queue_loses_nothing_for_others() {
        let gate = Gate::new(1, 2, 3);
        let tenant = name("a");
        let running = now(gate.enter(&tenant, &ANY, 0));
        let gone = later(gate.enter(&tenant, &ANY, 0));
        let mut stays = later(gate.enter(&tenant, &ANY, 0));
        drop(running);
        // The turn was sent to the one that leaves without having taken it.
        drop(gone);
        drop(stays.turn().await.unwrap());
        drop(stays);
        assert_eq!(lock(&gate.0).free, 1);
    }
}
