//! Workers for code checks: a bounded number of threads outside the async runtime, shared fairly by the
//! tenants.
//!
//! ```text
//! check ─▶ a worker is free within the tenant's share ─▶ runs ─▶ ended: the next tenant's oldest is run
//!       └▶ waits in its tenant's queue ────────────────┘     └▶ timed out: counts for it until it ends
//!       └▶ its queue is full, or too many of its checks timed out: refused
//! ```
//!
//! While another tenant waits, no tenant uses more than half of the workers. A check has a step budget, so
//! one that runs longer than [`CHECK_TIMEOUT`] reveals a bug in a parser. Only the tenant whose code
//! triggered it is refused, until the check ends.
//!
//! A worker is not a thread of its own: the thread that starts a check first hands the runtime's work to
//! another thread (`block_in_place`). Requests wait for no thread to wake up, which would take longer than
//! most checks.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belljar_store::TenantName;
use tokio::sync::oneshot;
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};

use crate::error::Error;

/// Timeout of a check. The step budget ends even the longest within a second.
const CHECK_TIMEOUT: Duration = Duration::from_secs(if cfg!(debug_assertions) { 60 } else { 10 });
/// Maximum number of abandoned checks of one tenant. Above it, its code is not checked until one of them
/// ends.
const MAX_ABANDONED: usize = 2;
/// Maximum number of abandoned checks of all tenants. Each of them occupies a thread.
const MAX_ABANDONED_TOTAL: usize = 64;
/// Maximum number of queued checks of one tenant, and of all tenants.
const MAX_WAITING: usize = 256;
const MAX_WAITING_TOTAL: usize = 4_096;

/// The workers that check code.
#[derive(Debug, Clone)]
pub(crate) struct CheckWorkers(Arc<CheckWorkersInner>);

#[derive(Debug)]
struct CheckWorkersInner {
    table: Mutex<CheckQueueTable>,
    time_limit: Duration,
    abandoned: AtomicU64,
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct CheckQueueTable {
    workers: usize,
    busy: usize,
    waiting: usize,
    abandoned: usize,
    last_number: u64,
    /// Checks on a worker, without those that timed out.
    running: HashMap<u64, RunningCheck>,
    tenants: HashMap<TenantName, TenantChecks>,
    /// Tenants with waiting requests, in turn order.
    turns: VecDeque<TenantName>,
}

#[derive(Debug, Default)]
struct TenantChecks {
    checking: usize,
    abandoned: usize,
    waiting: VecDeque<oneshot::Sender<CheckWorker>>,
}

#[derive(Debug)]
struct RunningCheck {
    tenant: TenantName,
    started: Instant,
}

/// The right to use a worker. Dropping it gives the worker to the next request.
#[derive(Debug)]
struct CheckWorker {
    shared: Arc<CheckWorkersInner>,
    number: u64,
    tenant: TenantName,
}

enum CheckEntry {
    Now(CheckWorker),
    Later(oneshot::Receiver<CheckWorker>),
}

impl CheckWorkers {
    /// Creates as many workers as the machine has processors, at least two.
    pub(crate) fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self::with_workers(cores.max(2), CHECK_TIMEOUT)
    }

    fn with_workers(workers: usize, time_limit: Duration) -> Self {
        let table = Mutex::new(CheckQueueTable { workers, ..CheckQueueTable::default() });
        let (abandoned, refused) = (AtomicU64::new(0), AtomicU64::new(0));
        Self(Arc::new(CheckWorkersInner { table, time_limit, abandoned, refused }))
    }

    /// Runs `work`, which checks a tenant's code, on a worker.
    ///
    /// # Errors
    /// No worker is available for this tenant now, or the check timed out.
    pub(crate) async fn run_check<T: Send + 'static>(
        &self,
        tenant: &TenantName,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        let entry = self.enter(tenant).inspect_err(|_| {
            self.0.refused.fetch_add(1, Ordering::Relaxed);
        })?;
        let worker = match entry {
            CheckEntry::Now(worker) => worker,
            CheckEntry::Later(worker) => self.wait_for_worker(worker).await?,
        };
        let number = worker.number;
        let (answer, answered) = oneshot::channel();
        // A task of its own: a client that disconnects does not free a worker that is still busy.
        tokio::spawn(async move {
            let result = block_in_place(work);
            drop(worker);
            drop(answer.send(result));
        });
        match timeout(self.0.time_limit, answered).await {
            Ok(result) => result.map_err(|_| Error::Internal),
            Err(_) => {
                self.0.abandon(number);
                Err(Error::CheckTimedOut)
            }
        }
    }

    async fn wait_for_worker(
        &self,
        mut worker: oneshot::Receiver<CheckWorker>,
    ) -> Result<CheckWorker, Error> {
        loop {
            tokio::select! {
                biased;
                worker = &mut worker => return worker.map_err(|_| Error::Internal),
                // The client of a check that timed out may be gone, so nothing else notices the timeout.
                () = sleep(self.0.time_limit) => self.0.abandon_overdue(),
            }
        }
    }

    /// Returns how many checks timed out and how many were refused since the server started.
    pub(crate) fn failures(&self) -> (u64, u64) {
        (self.0.abandoned.load(Ordering::Relaxed), self.0.refused.load(Ordering::Relaxed))
    }

    fn enter(&self, tenant: &TenantName) -> Result<CheckEntry, Error> {
        self.0.abandon_overdue();
        let mut table = lock(&self.0);
        let (all, total) = (table.abandoned, table.waiting);
        let free = table.busy < table.workers && table.may_use_worker(tenant);
        let checks = table.tenants.entry(tenant.clone()).or_default();
        if checks.abandoned >= MAX_ABANDONED {
            return Err(Error::ChecksStuck);
        }
        if all >= MAX_ABANDONED_TOTAL {
            return Err(Error::Overloaded);
        }
        if free && checks.waiting.is_empty() {
            let number = table.occupy_worker(tenant);
            return Ok(CheckEntry::Now(self.0.worker(number, tenant.clone())));
        }
        if checks.waiting.len() >= MAX_WAITING {
            return Err(Error::CheckQueueFull);
        }
        if total >= MAX_WAITING_TOTAL {
            return Err(Error::Overloaded);
        }
        let (sender, receiver) = oneshot::channel();
        if checks.waiting.is_empty() {
            table.turns.push_back(tenant.clone());
        }
        table.waiting += 1;
        table.tenants.entry(tenant.clone()).or_default().waiting.push_back(sender);
        Ok(CheckEntry::Later(receiver))
    }
}

impl CheckQueueTable {
    /// Returns whether a tenant may use one more worker: up to half of them while another tenant waits, else
    /// all.
    fn may_use_worker(&self, tenant: &TenantName) -> bool {
        let others_wait = self.turns.iter().any(|waiting| waiting != tenant);
        let running = self.tenants.get(tenant).map_or(0, |checks| checks.checking);
        !others_wait || running < self.workers / 2
    }

    /// Counts one more check of a tenant as running; returns its number.
    fn occupy_worker(&mut self, tenant: &TenantName) -> u64 {
        self.busy += 1;
        self.tenants.entry(tenant.clone()).or_default().checking += 1;
        self.last_number += 1;
        self.running
            .insert(self.last_number, RunningCheck { tenant: tenant.clone(), started: Instant::now() });
        self.last_number
    }

    /// Frees the worker of a running check. Returns whether the check was running.
    fn free_worker(&mut self, number: u64) -> bool {
        let Some(check) = self.running.remove(&number) else { return false };
        self.busy -= 1;
        if let Some(checks) = self.tenants.get_mut(&check.tenant) {
            checks.checking -= 1;
        }
        true
    }

    /// Takes the next queued request that may have a worker, and its check's number.
    fn next(&mut self) -> Option<(TenantName, u64, oneshot::Sender<CheckWorker>)> {
        if self.busy >= self.workers {
            return None;
        }
        let at = self.turns.iter().position(|tenant| self.may_use_worker(tenant))?;
        let tenant = self.turns.remove(at)?;
        let checks = self.tenants.get_mut(&tenant)?;
        let sender = checks.waiting.pop_front()?;
        self.waiting -= 1;
        if !checks.waiting.is_empty() {
            self.turns.push_back(tenant.clone());
        }
        let number = self.occupy_worker(&tenant);
        Some((tenant, number, sender))
    }

    fn forget_idle(&mut self, tenant: &TenantName) {
        let idle = |checks: &TenantChecks| {
            checks.checking == 0 && checks.abandoned == 0 && checks.waiting.is_empty()
        };
        if self.tenants.get(tenant).is_some_and(idle) {
            self.tenants.remove(tenant);
        }
    }
}

impl CheckWorkersInner {
    fn worker(self: &Arc<Self>, number: u64, tenant: TenantName) -> CheckWorker {
        CheckWorker { shared: Arc::clone(self), number, tenant }
    }

    /// Counts a check that timed out as abandoned, and frees its worker for others.
    fn abandon(self: &Arc<Self>, number: u64) {
        let mut table = lock(self);
        let Some(tenant) = table.running.get(&number).map(|check| check.tenant.clone()) else { return };
        table.free_worker(number);
        table.abandoned += 1;
        table.tenants.entry(tenant).or_default().abandoned += 1;
        drop(table);
        self.abandoned.fetch_add(1, Ordering::Relaxed);
        self.hand_out_workers();
    }

    /// Abandons every check that has timed out.
    fn abandon_overdue(self: &Arc<Self>) {
        let is_overdue = |check: &RunningCheck| check.started.elapsed() >= self.time_limit;
        let table = lock(self);
        let overdue: Vec<u64> =
            table.running.iter().filter(|(_, check)| is_overdue(check)).map(|(number, _)| *number).collect();
        drop(table);
        overdue.into_iter().for_each(|number| self.abandon(number));
    }

    /// Gives free workers to queued requests.
    fn hand_out_workers(self: &Arc<Self>) {
        let mut table = lock(self);
        let next: Vec<_> = std::iter::from_fn(|| table.next()).collect();
        drop(table);
        for (tenant, number, sender) in next {
            // If the request is gone, the worker is dropped here, and its `Drop` serves the next one.
            drop(sender.send(self.worker(number, tenant)));
        }
    }
}

impl Drop for CheckWorker {
    fn drop(&mut self) {
        let mut table = lock(&self.shared);
        if !table.free_worker(self.number) {
            table.abandoned -= 1;
            if let Some(checks) = table.tenants.get_mut(&self.tenant) {
                checks.abandoned -= 1;
            }
        }
        table.forget_idle(&self.tenant);
        drop(table);
        self.shared.hand_out_workers();
    }
}

fn lock(shared: &CheckWorkersInner) -> MutexGuard<'_, CheckQueueTable> {
    shared.table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "check_workers_tests.rs"]
mod tests;
