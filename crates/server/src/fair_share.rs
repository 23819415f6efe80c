//! Fair shares of resources that all tenants use.
//!
//! One rule covers slots, queue entries, sandboxes, connections, streams and bytes. Of `total` units, the
//! last `reserve` are held back; `ordinary` is the rest. A party that holds `own` units and asks for `amount`
//! more
//!
//! 1. never exceeds its cap (a quota set by an administrator);
//! 2. without a cap, gets at most half of `ordinary`. It may *borrow* beyond that half, up to `ordinary`: for
//!    a [`Tenure::Brief`] while no other party holds or recently asked for units, and for a
//!    [`Tenure::Lasting`] only if there is no other tenant at all;
//! 3. gets units of the reserve only while it stays within its fair share: `ordinary` divided by the number
//!    of active parties, at least two.
//!
//! So the sum never exceeds `total`, a party within its fair share is refused only if no unit is left, and a
//! party that is alone can use everything except the reserve.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// How long after its last request a party counts as having demand.
pub(crate) const DEMAND_WINDOW: Duration = Duration::from_secs(5);
/// Interval at which parties without units or demand are removed.
const PURGE_INTERVAL: Duration = Duration::from_secs(1);

/// How long a party keeps its units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tenure {
    /// Returned within a minute.
    Brief,
    /// Kept for an unbounded time.
    Lasting,
}

/// The terms on which a party takes units.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShareTerms {
    /// The party's maximum, if an administrator set one.
    pub(crate) cap: Option<u64>,
    pub(crate) tenure: Tenure,
    /// Whether the server has other tenants, active or not.
    pub(crate) has_other_tenants: bool,
}

/// The reason no units were given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShareRefusal {
    /// The party is at its cap.
    Cap(u64),
    /// The party is at its share, which is currently this many units.
    Share(u64),
    /// No units are left.
    Full,
}

#[derive(Debug)]
struct Party {
    held: u64,
    last_demand: Instant,
}

/// The units of one resource and the parties that hold them.
#[derive(Debug)]
pub(crate) struct FairShare<P> {
    total: u64,
    ordinary: u64,
    used: u64,
    parties: HashMap<P, Party>,
    next_purge: Option<Instant>,
}

/// Returns a quarter of `units`, at least one.
fn quarter(units: u64) -> u64 {
    (units / 4).max(1)
}

impl<P: Eq + Hash + Clone> FairShare<P> {
    /// Creates a pool of `ordinary` units and a reserve of a quarter on top of them.
    pub(crate) fn with_reserve_on_top(ordinary: u64) -> Self {
        Self::new(ordinary.saturating_add(quarter(ordinary)), ordinary)
    }

    /// Creates a pool of `total` units, a quarter of which is the reserve.
    pub(crate) fn with_reserve_within(total: u64) -> Self {
        Self::new(total, total.saturating_sub(quarter(total)).max(1))
    }

    fn new(total: u64, ordinary: u64) -> Self {
        Self { total, ordinary, used: 0, parties: HashMap::new(), next_purge: None }
    }

    /// Returns the number of units that `party` holds.
    pub(crate) fn held(&self, party: &P) -> u64 {
        self.parties.get(party).map_or(0, |party| party.held)
    }

    /// Returns the number of units that all parties hold together.
    #[cfg(test)]
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Records that a party asked for units.
    pub(crate) fn record_demand(&mut self, party: &P, now: Instant) {
        self.purge(now);
        match self.parties.get_mut(party) {
            Some(known) => known.last_demand = now,
            None => drop(self.parties.insert(party.clone(), Party { held: 0, last_demand: now })),
        }
    }

    /// Takes units for a party, or returns the reason for refusing. Either way, the request counts as demand.
    pub(crate) fn take(
        &mut self,
        party: &P,
        amount: u64,
        terms: ShareTerms,
        now: Instant,
    ) -> Result<(), ShareRefusal> {
        self.record_demand(party, now);
        self.check(party, amount, terms)?;
        self.used += amount;
        if let Some(party) = self.parties.get_mut(party) {
            party.held += amount;
        }
        Ok(())
    }

    /// Returns whether a party could take `amount` units now.
    pub(crate) fn check(&self, party: &P, amount: u64, terms: ShareTerms) -> Result<(), ShareRefusal> {
        let wanted = self.held(party).saturating_add(amount);
        let limit = self.limit(party, terms);
        if wanted > limit {
            let capped = terms.cap == Some(limit);
            return Err(if capped { ShareRefusal::Cap(limit) } else { ShareRefusal::Share(limit) });
        }
        let used = self.used.saturating_add(amount);
        if used > self.total {
            return Err(ShareRefusal::Full);
        }
        let share = self.fair_share(party);
        if used > self.ordinary && wanted > share {
            // A party that is alone is not limited by its share.
            let alone = self.used == self.held(party);
            return Err(if alone { ShareRefusal::Full } else { ShareRefusal::Share(share) });
        }
        Ok(())
    }

    /// Returns the most that a party may hold, however much is free.
    fn limit(&self, party: &P, terms: ShareTerms) -> u64 {
        if let Some(cap) = terms.cap {
            return cap.min(self.ordinary);
        }
        let may_borrow = match terms.tenure {
            Tenure::Brief => !self.is_contested(party),
            Tenure::Lasting => !terms.has_other_tenants,
        };
        if may_borrow { self.ordinary } else { (self.ordinary / 2).max(1) }
    }

    /// Returns the most that a party may hold when only the reserve is left.
    fn fair_share(&self, party: &P) -> u64 {
        let active = self.parties.len() + usize::from(!self.parties.contains_key(party));
        (self.ordinary / (active as u64).max(2)).max(1)
    }

    fn is_contested(&self, party: &P) -> bool {
        self.parties.len() > usize::from(self.parties.contains_key(party))
    }

    /// Returns units.
    pub(crate) fn give_back(&mut self, party: &P, amount: u64) {
        if let Some(known) = self.parties.get_mut(party) {
            let amount = amount.min(known.held);
            known.held -= amount;
            self.used -= amount;
        }
    }

    /// Transfers one unit from one party to another. On refusal, nothing changes.
    pub(crate) fn transfer(
        &mut self,
        from: &P,
        to: &P,
        terms: ShareTerms,
        now: Instant,
    ) -> Result<(), ShareRefusal> {
        let held = self.held(from).min(1);
        self.give_back(from, held);
        let taken = self.take(to, 1, terms, now);
        if taken.is_err() && held > 0 {
            let kept = self.parties.entry(from.clone()).or_insert(Party { held: 0, last_demand: now });
            kept.held += held;
            self.used += held;
        }
        taken
    }

    /// Removes parties that hold nothing and have not asked for units recently.
    fn purge(&mut self, now: Instant) {
        if self.next_purge.is_some_and(|next| now < next) {
            return;
        }
        self.parties.retain(|_, party| {
            party.held > 0 || now.saturating_duration_since(party.last_demand) < DEMAND_WINDOW
        });
        self.next_purge = Some(now + PURGE_INTERVAL);
    }
}

#[cfg(test)]
#[path = "fair_share_tests.rs"]
mod tests;
