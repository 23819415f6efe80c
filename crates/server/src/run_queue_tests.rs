//! Tests of the run queue without a server.

use std::time::Duration;

use super::*;
use crate::resource_need::MAX_BRIEF_TIME_LIMIT;

const ANY: Quotas = Quotas {
    concurrency: None,
    sandboxes: None,
    cpu_seconds_per_day: None,
    memory_bytes: None,
    disk_bytes: None,
};
const ONE: Quotas = Quotas { concurrency: Some(1), ..ANY };

fn name(text: &str) -> TenantName {
    text.parse().unwrap()
}

fn run_queue(turns: usize, queue: usize, queue_total: usize) -> RunQueue {
    let other_tenants = OtherTenants::default();
    other_tenants.set(true);
    RunQueue::new(turns, queue, queue_total, &other_tenants)
}

fn brief(memory: u64) -> ResourceNeed {
    ResourceNeed::new(memory, Duration::from_secs(1))
}

fn now(entry: Result<RunEntry, Error>) -> RunSlot {
    match entry.unwrap() {
        RunEntry::Now(turn) => turn,
        RunEntry::Queued(_) => panic!("waits"),
    }
}

fn later(entry: Result<RunEntry, Error>) -> QueuedRun {
    match entry.unwrap() {
        RunEntry::Now(_) => panic!("runs"),
        RunEntry::Queued(waiting) => waiting,
    }
}

fn is_empty(run_queue: &RunQueue) -> bool {
    let table = lock(&run_queue.0);
    table.tenants.is_empty()
        && table.turn_order.is_empty()
        && table.turns.used() == 0
        && table.entries.used() == 0
}

#[tokio::test]
async fn slots_rotate_between_tenants() {
    let run_queue = run_queue(1, 100, 1_000);
    let (greedy, other, modest) = (name("greedy"), name("other"), name("modest"));
    let first = now(run_queue.enter(&greedy, &ANY, brief(0)));
    // The reserve is used up as well.
    let _second = now(run_queue.enter(&other, &ANY, brief(0)));
    let mut many: Vec<_> = (0..50).map(|_| later(run_queue.enter(&greedy, &ANY, brief(0)))).collect();
    let mut one = later(run_queue.enter(&modest, &ANY, brief(0)));
    drop(first);
    let second = many.remove(0).wait().await.unwrap();
    assert!(one.turn.try_recv().is_err());
    drop(second);
    let theirs = one.wait().await.unwrap();
    assert!(many[0].turn.try_recv().is_err());
    drop((theirs, one, many, _second));
    assert_eq!(run_queue.queued_count(), 0);
    assert!(is_empty(&run_queue));
}

#[tokio::test]
async fn the_reserve_serves_another_tenant_at_once() {
    let run_queue = run_queue(8, 100, 1_000);
    let (mallory, bob) = (name("mallory"), name("bob"));
    let mut turns: Vec<_> = (0..8).map(|_| now(run_queue.enter(&mallory, &ANY, brief(0)))).collect();
    let mut ninth = later(run_queue.enter(&mallory, &ANY, brief(0)));
    let bobs = (now(run_queue.enter(&bob, &ANY, brief(0))), now(run_queue.enter(&bob, &ANY, brief(0))));
    // While bob holds slots, freed ones do not return to mallory until it is below half.
    turns.truncate(4);
    assert!(ninth.turn.try_recv().is_err());
    assert_eq!(run_queue.share_delays().turns, 1);
    turns.truncate(3);
    let ninth_turn = ninth.wait().await.unwrap();
    drop((turns, ninth_turn, ninth, bobs));
    assert!(is_empty(&run_queue));
}

#[tokio::test]
async fn long_executions_never_take_more_than_half() {
    let run_queue = run_queue(8, 100, 1_000);
    let (mallory, bob) = (name("mallory"), name("bob"));
    let long = ResourceNeed::new(0, MAX_BRIEF_TIME_LIMIT + Duration::from_secs(1));
    let turns: Vec<_> = (0..4).map(|_| now(run_queue.enter(&mallory, &ANY, long))).collect();
    let waits = later(run_queue.enter(&mallory, &ANY, long));
    let bobs: Vec<_> = (0..4).map(|_| now(run_queue.enter(&bob, &ANY, long))).collect();
    drop((turns, waits, bobs));
    assert!(is_empty(&run_queue));
    let raised = Quotas { concurrency: Some(6), ..ANY };
    let turns: Vec<_> = (0..6).map(|_| now(run_queue.enter(&mallory, &raised, long))).collect();
    drop((later(run_queue.enter(&mallory, &raised, long)), turns));
}

#[tokio::test]
async fn unused_slots_are_borrowed_after_a_while() {
    let run_queue = run_queue(2, 100, 1_000);
    let (ada, bob) = (name("ada"), name("bob"));
    drop(now(run_queue.enter(&bob, &ANY, brief(0))));
    let first = now(run_queue.enter(&ada, &ANY, brief(0)));
    let mut second = later(run_queue.enter(&ada, &ANY, brief(0)));
    // Forgets bob's demand, as if it had expired.
    lock(&run_queue.0).turns = FairShare::with_reserve_on_top(2);
    drop(second.wait().await.unwrap());
    drop((first, second));
}

#[tokio::test]
async fn queue_entries_are_shared_fairly() {
    let run_queue = run_queue(1, 100, 8);
    let (mallory, bob) = (name("mallory"), name("bob"));
    let _turns = (now(run_queue.enter(&mallory, &ANY, brief(0))), now(run_queue.enter(&bob, &ANY, brief(0))));
    let waits: Vec<_> = (0..4).map(|_| later(run_queue.enter(&mallory, &ANY, brief(0)))).collect();
    let refused = run_queue.enter(&mallory, &ANY, brief(0)).unwrap_err();
    assert!(matches!(refused, Error::ShareTaken { kind: ShareKind::Queue, most: 4 }), "{refused}");
    assert!(run_queue.has_room(&bob) && !run_queue.has_room(&mallory));
    drop((later(run_queue.enter(&bob, &ANY, brief(0))), waits));
    assert_eq!(lock(&run_queue.0).entries.used(), 0);
}

#[tokio::test]
async fn a_tenants_concurrency_quota_leaves_slots_to_others() {
    let run_queue = run_queue(3, 1, 10);
    let (small, other) = (name("small"), name("other"));
    let running = now(run_queue.enter(&small, &ONE, brief(0)));
    let mut waits = later(run_queue.enter(&small, &ONE, brief(0)));
    assert!(matches!(run_queue.enter(&small, &ONE, brief(0)), Err(Error::QueueFull)));
    let theirs = now(run_queue.enter(&other, &ANY, brief(0)));
    drop(theirs);
    assert!(waits.turn.try_recv().is_err());
    drop(running);
    drop(waits.wait().await.unwrap());
    drop(waits);
    assert!(is_empty(&run_queue));
}

#[tokio::test]
async fn memory_is_counted_over_executions_and_sandboxes() {
    let run_queue = run_queue(9, 9, 9);
    let (tenant, quotas) = (name("a"), Quotas { memory_bytes: Some(10), ..ANY });
    let refused = run_queue.enter(&tenant, &quotas, brief(11)).unwrap_err().to_string();
    assert!(refused.starts_with("limits.memory_bytes: 11 bytes is more than the 10 bytes"), "{refused}");
    let sandbox = run_queue.reserve_memory(&tenant, &quotas, 6).unwrap();
    assert!(matches!(run_queue.reserve_memory(&tenant, &quotas, 5), Err(Error::MemoryQuotaUsedUp)));
    let running = now(run_queue.enter(&tenant, &quotas, brief(4)));
    let large = later(run_queue.enter(&tenant, &quotas, brief(5)));
    let mut small = later(run_queue.enter(&tenant, &quotas, brief(3)));
    drop(running);
    // The large request is first and still does not fit. When it leaves, the small one runs.
    assert!(small.turn.try_recv().is_err());
    drop(large);
    let running = small.wait().await.unwrap();
    let mut next = later(run_queue.enter(&tenant, &quotas, brief(7)));
    drop(sandbox);
    drop(next.wait().await.unwrap());
    drop((running, small, next));
    assert!(is_empty(&run_queue));
}

#[tokio::test]
async fn leaving_the_queue_passes_the_slot_on() {
    let run_queue = run_queue(1, 2, 4);
    let tenant = name("a");
    let running = now(run_queue.enter(&tenant, &ANY, brief(0)));
    let gone = later(run_queue.enter(&tenant, &ANY, brief(0)));
    let mut stays = later(run_queue.enter(&tenant, &ANY, brief(0)));
    drop(running);
    // The slot was sent to the request that leaves without taking it.
    drop(gone);
    drop(stays.wait().await.unwrap());
    drop(stays);
    assert!(is_empty(&run_queue));
}
