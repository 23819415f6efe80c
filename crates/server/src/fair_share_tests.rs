//! Example and property tests of the rule in `fair_share.rs`.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::{DEMAND_WINDOW, FairShare, ShareRefusal, ShareTerms, Tenure};

const BRIEF: ShareTerms = ShareTerms { cap: None, tenure: Tenure::Brief, has_other_tenants: true };
const LASTING: ShareTerms = ShareTerms { cap: None, tenure: Tenure::Lasting, has_other_tenants: true };
const ALONE: ShareTerms = ShareTerms { cap: None, tenure: Tenure::Lasting, has_other_tenants: false };

fn take_all(pool: &mut FairShare<u8>, party: u8, terms: ShareTerms, now: Instant) -> u64 {
    while pool.take(&party, 1, terms, now).is_ok() {}
    pool.held(&party)
}

#[test]
fn the_reserve_serves_a_second_party_at_once() {
    let (mut pool, now) = (FairShare::with_reserve_on_top(8), Instant::now());
    assert_eq!(take_all(&mut pool, 1, BRIEF, now), 8);
    assert_eq!(pool.take(&2, 1, BRIEF, now), Ok(()));
    assert_eq!(pool.take(&1, 1, BRIEF, now), Err(ShareRefusal::Share(4)));
    // The first party gets no returned units before it is below half.
    pool.give_back(&1, 4);
    assert_eq!(pool.take(&1, 1, BRIEF, now), Err(ShareRefusal::Share(4)));
    pool.give_back(&1, 1);
    assert_eq!(pool.take(&1, 1, BRIEF, now), Ok(()));
}

#[test]
fn borrowing_requires_no_recent_demand_of_others() {
    let (mut pool, now) = (FairShare::with_reserve_on_top(8), Instant::now());
    pool.record_demand(&2, now);
    assert_eq!(take_all(&mut pool, 1, BRIEF, now), 4);
    let later = now + DEMAND_WINDOW + Duration::from_secs(2);
    assert_eq!(take_all(&mut pool, 1, BRIEF, later), 8);
}

#[test]
fn lasting_units_are_not_borrowed_if_other_tenants_exist() {
    let now = Instant::now();
    assert_eq!(take_all(&mut FairShare::with_reserve_on_top(100), 1, LASTING, now), 50);
    assert_eq!(take_all(&mut FairShare::with_reserve_on_top(100), 1, ALONE, now), 100);
    assert_eq!(take_all(&mut FairShare::with_reserve_within(32), 1, LASTING, now), 12);
    assert_eq!(take_all(&mut FairShare::with_reserve_within(32), 1, ALONE, now), 24);
    let raised = ShareTerms { cap: Some(80), ..LASTING };
    assert_eq!(take_all(&mut FairShare::with_reserve_on_top(100), 1, raised, now), 80);
}

#[test]
fn two_parties_at_half_leave_the_reserve_to_a_third() {
    let (mut pool, now) = (FairShare::with_reserve_on_top(100), Instant::now());
    assert_eq!(take_all(&mut pool, 1, LASTING, now), 50);
    assert_eq!(take_all(&mut pool, 2, LASTING, now), 50);
    assert_eq!(take_all(&mut pool, 3, LASTING, now), 25);
    assert_eq!(pool.take(&4, 1, LASTING, now), Err(ShareRefusal::Full));
}

#[test]
fn one_unit_and_its_reserve_serve_two_parties() {
    let (mut pool, now) = (FairShare::with_reserve_on_top(1), Instant::now());
    assert_eq!((take_all(&mut pool, 1, BRIEF, now), take_all(&mut pool, 2, BRIEF, now)), (1, 1));
    assert_eq!(pool.take(&1, 1, BRIEF, now), Err(ShareRefusal::Share(1)));
}

#[test]
fn parties_without_demand_are_removed() {
    let (mut pool, now) = (FairShare::with_reserve_on_top(4), Instant::now());
    (0..100).for_each(|party| pool.record_demand(&party, now));
    pool.record_demand(&200, now + DEMAND_WINDOW + Duration::from_secs(2));
    assert_eq!(pool.parties.len(), 1);
}

#[derive(Debug, Clone)]
enum Step {
    Take { party: u8, amount: u64, lasting: bool },
    GiveBack { party: u8, amount: u64 },
    Wait { seconds: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..5u8, 1..6u64, any::<bool>())
            .prop_map(|(party, amount, lasting)| Step::Take { party, amount, lasting }),
        2 => (0..5u8, 1..6u64).prop_map(|(party, amount)| Step::GiveBack { party, amount }),
        1 => (0..10u64).prop_map(|seconds| Step::Wait { seconds }),
    ]
}

proptest! {
    #[test]
    fn no_sequence_violates_the_rule(
        size in 1..200u64, on_top: bool, steps in prop::collection::vec(step(), 0..200),
    ) {
        let mut pool = if on_top {
            FairShare::with_reserve_on_top(size)
        } else {
            FairShare::with_reserve_within(size)
        };
        let mut now = Instant::now();
        for step in steps {
            match step {
                Step::Wait { seconds } => now += Duration::from_secs(seconds),
                Step::GiveBack { party, amount } => pool.give_back(&party, amount),
                Step::Take { party, amount, lasting } => {
                    let terms = if lasting { LASTING } else { BRIEF };
                    let (own, used) = (pool.held(&party), pool.used());
                    let taken = pool.take(&party, amount, terms, now);
                    // Evaluated after the attempt, because `take` may remove expired parties.
                    let share = pool.fair_share(&party);
                    let contested = pool.is_contested(&party);
                    let half = (pool.ordinary / 2).max(1);
                    if own + amount <= share {
                        prop_assert_eq!(taken.is_ok(), used + amount <= pool.total);
                    }
                    if taken.is_ok() {
                        prop_assert!(own + amount <= pool.ordinary);
                        prop_assert!(own + amount <= half || (!contested && !lasting));
                        prop_assert!(used + amount <= pool.ordinary || own + amount <= share);
                    }
                }
            }
            prop_assert!(pool.used() <= pool.total);
            prop_assert_eq!(pool.used(), pool.parties.values().map(|party| party.held).sum::<u64>());
        }
    }

    #[test]
    fn a_newcomer_always_gets_units(size in 1..1_000u64, lasting: bool) {
        let (mut pool, now) = (FairShare::with_reserve_on_top(size), Instant::now());
        let terms = if lasting { LASTING } else { BRIEF };
        take_all(&mut pool, 1, terms, now);
        prop_assert!(take_all(&mut pool, 2, terms, now) >= 1);
    }
}
