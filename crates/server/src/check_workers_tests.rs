use std::sync::mpsc;

use super::*;

fn tenant(name: &str) -> TenantName {
    name.parse().unwrap()
}

/// A check that runs until it is released.
struct BlockedCheck {
    go: mpsc::Sender<()>,
    answer: tokio::task::JoinHandle<Result<(), Error>>,
}

impl BlockedCheck {
    /// Starts a check, and waits until it has a worker or is queued: checks are served in that order.
    async fn start(workers: &CheckWorkers, name: &'static str) -> Self {
        let entered = |table: &CheckQueueTable| table.busy + table.waiting + table.abandoned;
        let before = entered(&lock(&workers.0));
        let ((go, wait), own) = (mpsc::channel::<()>(), workers.clone());
        let answer = tokio::spawn(async move {
            own.run_check(&tenant(name), move || wait.recv().unwrap_or_default()).await
        });
        until(workers, |table| entered(table) > before).await;
        Self { go, answer }
    }

    async fn start_many(workers: &CheckWorkers, name: &'static str, count: usize) -> Vec<Self> {
        let mut started = Vec::with_capacity(count);
        for _ in 0..count {
            started.push(Self::start(workers, name).await);
        }
        started
    }

    async fn end(self) -> Result<(), Error> {
        drop(self.go);
        self.answer.await.unwrap()
    }
}

async fn until(workers: &CheckWorkers, what: impl Fn(&CheckQueueTable) -> bool) {
    for _ in 0..10_000 {
        if what(&lock(&workers.0)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never: {:?}", lock(&workers.0));
}

fn reading(table: &CheckQueueTable, name: &str) -> usize {
    table.tenants.get(&tenant(name)).map_or(0, |checks| checks.checking)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_has_all_workers_alone_and_half_while_another_waits() {
    let workers = CheckWorkers::with_workers(4, Duration::from_secs(600));
    let mut greedy = BlockedCheck::start_many(&workers, "greedy", 8).await;
    until(&workers, |table| reading(table, "greedy") == 4 && table.waiting == 4).await;
    let others = BlockedCheck::start_many(&workers, "other", 3).await;
    until(&workers, |table| table.waiting == 7).await;
    for running in greedy.drain(..2) {
        running.end().await.unwrap();
    }
    until(&workers, |table| reading(table, "greedy") == 2 && reading(table, "other") == 2).await;
    for running in greedy.drain(..1) {
        running.end().await.unwrap();
    }
    until(&workers, |table| table.busy == 4).await;
    for running in greedy.into_iter().chain(others) {
        running.end().await.unwrap();
    }
    until(&workers, |table| table.busy == 0 && table.waiting == 0 && table.tenants.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn abandoned_checks_count_for_their_tenant_until_they_end() {
    let workers = CheckWorkers::with_workers(2, Duration::from_millis(20));
    let stuck = BlockedCheck::start_many(&workers, "stuck", 2).await;
    until(&workers, |table| table.abandoned == 2 && table.busy == 0).await;
    let refused = workers.run_check(&tenant("stuck"), || ()).await;
    assert!(matches!(refused, Err(Error::ChecksStuck)), "{refused:?}");
    assert_eq!(workers.failures(), (2, 1));
    read_in_the_end(&workers, "other").await;
    for one in stuck {
        assert!(matches!(one.end().await, Err(Error::CheckTimedOut)));
    }
    until(&workers, |table| table.abandoned == 0).await;
    read_in_the_end(&workers, "stuck").await;
}

/// Checks code, retrying on timeouts: on a busy machine the short timeout may pass. Any other refusal is a
/// failure.
async fn read_in_the_end(workers: &CheckWorkers, name: &str) {
    for _ in 0..1_000 {
        match workers.run_check(&tenant(name), || 7).await {
            Ok(seven) => return assert_eq!(seven, 7),
            Err(Error::CheckTimedOut) => until(workers, |table| reading_abandoned(table, name) == 0).await,
            Err(other) => panic!("{other}"),
        }
    }
    panic!("never read");
}

fn reading_abandoned(table: &CheckQueueTable, name: &str) -> usize {
    table.tenants.get(&tenant(name)).map_or(0, |checks| checks.abandoned)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_refuses_its_own_tenant_only() {
    let workers = CheckWorkers::with_workers(2, Duration::from_secs(600));
    let all = BlockedCheck::start_many(&workers, "many", 2 + MAX_WAITING).await;
    until(&workers, |table| table.waiting == MAX_WAITING).await;
    assert!(matches!(workers.run_check(&tenant("many"), || ()).await, Err(Error::CheckQueueFull)));
    let other = BlockedCheck::start(&workers, "other").await;
    until(&workers, |table| table.waiting == MAX_WAITING + 1).await;
    let mut all = all.into_iter();
    all.next().unwrap().end().await.unwrap();
    until(&workers, |table| reading(table, "other") == 1).await;
    other.end().await.unwrap();
    for one in all {
        one.end().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disconnecting_client_does_not_free_a_busy_worker() {
    let workers = CheckWorkers::with_workers(2, Duration::from_secs(600));
    let gone = BlockedCheck::start(&workers, "gone").await;
    until(&workers, |table| table.busy == 1).await;
    gone.answer.abort();
    tokio::task::yield_now().await;
    assert_eq!(lock(&workers.0).busy, 1);
    drop(gone.go);
    until(&workers, |table| table.busy == 0).await;
}
