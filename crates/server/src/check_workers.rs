//! Workers for code checks: a bounded number of threads outside the async runtime, shared fairly by the
//! tenants.
//!
//! ```text
//! read ─▶ a worker is free within the tenant's share ─▶ checks ─▶ ended: the next tenant's oldest is checked
//!      └▶ waits in its tenant's queue ─────────────────┘      └▶ timed out: counts for it until it ends
//!      └▶ its queue is full, or too many of its checks timed out: refused
//! ```
//!
//! While another tenant waits, no tenant uses more than half of the workers. A check has a step budget, so
//! one that runs longer than [`CHECK_TIMEOUT`] reveals a bug in a parser. Only the tenant whose code
//! triggered it is refused, until the check ends.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use belljar_store::TenantName;
use tokio::sync::oneshot;

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

/// The right to use a worker. Dropping it gives the worker to the next request.
#[derive(Debug)]
struct CheckWorker {
    shared: Arc<CheckWorkersInner>,
    tenant: TenantName,
}

/// A check that timed out and is still running. Dropped when it ends.
#[derive(Debug)]
struct AbandonedCheck {
    shared: Arc<CheckWorkersInner>,
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
            CheckEntry::Later(worker) => worker.await.map_err(|_| Error::Internal)?,
        };
        let (answer, answered) = oneshot::channel();
        // Supervised by its own task: a client that disconnects does not free a worker that is still busy.
        tokio::spawn(supervise(worker, self.0.time_limit, work, answer));
        answered.await.unwrap_or(Err(Error::Internal))
    }

    /// Returns how many checks timed out and how many were refused since the server started.
    pub(crate) fn failures(&self) -> (u64, u64) {
        (self.0.abandoned.load(Ordering::Relaxed), self.0.refused.load(Ordering::Relaxed))
    }

    fn enter(&self, tenant: &TenantName) -> Result<CheckEntry, Error> {
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
            checks.checking += 1;
            table.busy += 1;
            return Ok(CheckEntry::Now(CheckWorker { shared: Arc::clone(&self.0), tenant: tenant.clone() }));
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

    /// Takes the next queued request that may have a worker.
    fn next(&mut self) -> Option<(TenantName, oneshot::Sender<CheckWorker>)> {
        if self.busy >= self.workers {
            return None;
        }
        let at = self.turns.iter().position(|tenant| self.may_use_worker(tenant))?;
        let tenant = self.turns.remove(at)?;
        let checks = self.tenants.get_mut(&tenant)?;
        let sender = checks.waiting.pop_front()?;
        checks.checking += 1;
        self.busy += 1;
        self.waiting -= 1;
        if !checks.waiting.is_empty() {
            self.turns.push_back(tenant.clone());
        }
        Some((tenant, sender))
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

impl CheckWorker {
    /// Counts the check as abandoned and frees the worker for others.
    fn abandon(self) -> AbandonedCheck {
        let (shared, tenant) = (Arc::clone(&self.shared), self.tenant.clone());
        shared.abandoned.fetch_add(1, Ordering::Relaxed);
        let mut table = lock(&shared);
        table.abandoned += 1;
        table.tenants.entry(tenant.clone()).or_default().abandoned += 1;
        drop(table);
        AbandonedCheck { shared, tenant }
    }
}

impl Drop for CheckWorker {
    fn drop(&mut self) {
        let mut table = lock(&self.shared);
        table.busy -= 1;
        if let Some(checks) = table.tenants.get_mut(&self.tenant) {
            checks.checking -= 1;
        }
        table.forget_idle(&self.tenant);
        let next: Vec<_> = std::iter::from_fn(|| table.next()).collect();
        drop(table);
        for (tenant, sender) in next {
            // If the request is gone, the worker is dropped here, and its `Drop` serves the next one.
            drop(sender.send(Self { shared: Arc::clone(&self.shared), tenant }));
        }
    }
}

impl Drop for AbandonedCheck {
    fn drop(&mut self) {
        let mut table = lock(&self.shared);
        table.abandoned -= 1;
        if let Some(checks) = table.tenants.get_mut(&self.tenant) {
            checks.abandoned -= 1;
        }
        table.forget_idle(&self.tenant);
    }
}

async fn supervise<T: Send + 'static>(
    worker: CheckWorker,
    time_limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
    answer: oneshot::Sender<Result<T, Error>>,
) {
    let mut running = tokio::task::spawn_blocking(work);
    match tokio::time::timeout(time_limit, &mut running).await {
        Ok(read) => {
            drop(worker);
            drop(answer.send(read.map_err(|_| Error::Internal)));
        }
        Err(_) => {
            let abandoned = worker.abandon();
            drop(answer.send(Err(Error::CheckTimedOut)));
            drop(running.await);
            drop(abandoned);
        }
    }
}

fn lock(shared: &CheckWorkersInner) -> MutexGuard<'_, CheckQueueTable> {
    shared.table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "check_workers_tests.rs"]
mod tests;
