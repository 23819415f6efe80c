//! Whose turn it is: so many executions run at a time, and tenants take turns.
//!
//! ```text
//! enter ─▶ a turn is free ─────────────▶ Turn ─▶ dropped: the next tenant's oldest gets it
//!       └▶ waits in its tenant's queue ─┘
//!       └▶ the queue is full: refused
//! ```
//!
//! A tenant has a queue of its own, with a bound, and whoever had a turn goes behind the others: a tenant that sends a
//! thousand requests delays another's first by one.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_store::TenantName;
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
    waiting: VecDeque<(u64, oneshot::Sender<Turn>)>,
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

    /// Asks for a turn of a tenant that may have `limit` at one time.
    pub(crate) fn enter(&self, tenant: &TenantName, limit: Option<u32>) -> Result<Entry, Error> {
        if limit == Some(0) {
            return Err(Error::QueueFull);
        }
        let mut table = lock(&self.0);
        let limit = limit.map_or(usize::MAX, |limit| limit as usize);
        let (free, queue) = (table.free, table.queue);
        let total_is_full = table.waiting >= table.queue_total;
        let lane = table.tenants.entry(tenant.clone()).or_default();
        lane.limit = limit;
        if free > 0 && lane.running < limit && lane.waiting.is_empty() {
            lane.running += 1;
            table.free -= 1;
            return Ok(Entry::Now(Turn { gate: Arc::clone(&self.0), tenant: tenant.clone() }));
        }
        if lane.waiting.len() >= queue || total_is_full {
            let own = lane.waiting.len() >= queue;
            table.forget_idle(tenant);
            return Err(if own { Error::QueueFull } else { Error::Overloaded });
        }
        Ok(Entry::Later(self.wait(&mut table, tenant)))
    }

    fn wait(&self, table: &mut Table, tenant: &TenantName) -> Waiting {
        let (sender, turn) = oneshot::channel();
        let number = table.next_number;
        table.next_number += 1;
        table.waiting += 1;
        let lane = table.tenants.entry(tenant.clone()).or_default();
        if lane.waiting.is_empty() {
            table.ring.push_back(tenant.clone());
        }
        lane.waiting.push_back((number, sender));
        Waiting { gate: Arc::clone(&self.0), tenant: tenant.clone(), number, turn }
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
    fn next(&mut self) -> Option<(TenantName, oneshot::Sender<Turn>)> {
        for _ in 0..self.ring.len() {
            let tenant = self.ring.pop_front()?;
            let Some(lane) = self.tenants.get_mut(&tenant) else { continue };
            if lane.running >= lane.limit {
                self.ring.push_back(tenant);
                continue;
            }
            let Some((_, sender)) = lane.waiting.pop_front() else { continue };
            self.waiting -= 1;
            self.free -= 1;
            lane.running += 1;
            if !lane.waiting.is_empty() {
                self.ring.push_back(tenant.clone());
            }
            return Some((tenant, sender));
        }
        None
    }

    fn give_back(&mut self, tenant: &TenantName) {
        self.free += 1;
        if let Some(lane) = self.tenants.get_mut(tenant) {
            lane.running -= 1;
        }
        self.forget_idle(tenant);
    }

    /// Tenants come and go; a lane is there only as long as somebody is in it.
    fn forget_idle(&mut self, tenant: &TenantName) {
        if self.tenants.get(tenant).is_some_and(|lane| lane.running == 0 && lane.waiting.is_empty()) {
            self.tenants.remove(tenant);
            self.ring.retain(|name| name != tenant);
        }
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
        lane.waiting.retain(|(number, _)| *number != self.number);
        let left = before - lane.waiting.len();
        if lane.waiting.is_empty() {
            table.ring.retain(|name| *name != self.tenant);
        }
        table.waiting -= left;
        table.forget_idle(&self.tenant);
        drop(table);
        // A turn that arrived and was not taken goes on, by its own drop, after this.
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        lock(&self.gate).give_back(&self.tenant);
        loop {
            let mut table = lock(&self.gate);
            if table.free == 0 {
                return;
            }
            let Some((tenant, sender)) = table.next() else { return };
            // The lock is let go first: a turn that nobody takes is dropped, and comes by here again.
            drop(table);
            let _ = sender.send(Turn { gate: Arc::clone(&self.gate), tenant });
        }
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
        let first = now(gate.enter(&greedy, None));
        let mut many: Vec<_> = (0..50).map(|_| later(gate.enter(&greedy, None))).collect();
        let mut one = later(gate.enter(&modest, None));
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
        let running = now(gate.enter(&small, Some(1)));
        let mut waits = later(gate.enter(&small, Some(1)));
        assert!(matches!(gate.enter(&small, Some(1)), Err(Error::QueueFull)));
        let theirs = now(gate.enter(&other, None));
        drop(theirs);
        assert!(waits.turn.try_recv().is_err());
        drop(running);
        drop(waits.turn().await.unwrap());
        drop(waits);
        assert_eq!(lock(&gate.0).free, 3);
    }

    #[tokio::test]
    async fn who_leaves_the_queue_loses_nothing_for_others() {
        let gate = Gate::new(1, 2, 3);
        let tenant = name("a");
        let running = now(gate.enter(&tenant, None));
        let gone = later(gate.enter(&tenant, None));
        let mut stays = later(gate.enter(&tenant, None));
        drop(running);
        // The turn was sent to the one that leaves without having taken it.
        drop(gone);
        drop(stays.turn().await.unwrap());
        drop(stays);
        assert_eq!(lock(&gate.0).free, 1);
    }
}
