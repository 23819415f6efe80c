//! Fair shares of the warm pools: a tenant may use all of their memory and zygotes while it is alone, and at
//! most half as soon as another tenant needs some. A tenant below its half takes memory and zygotes from one
//! above its half.

use std::time::Duration;

use super::child::Child;
use super::keeper::{JAIL_MEMORY, Keeper, Shelf};
use super::nursery::{MOST_ZYGOTES, Nursery};
use crate::spec::Warming;

impl Nursery {
    /// Returns whether this pool may have one more idle child, possibly in place of another tenant's.
    pub(super) fn may_fill(&self, keeper: &Keeper) -> bool {
        let (all, budget) = (self.memory(|_| true), self.settings.pool_memory_bytes);
        let another = self.memory_of_another(keeper);
        let own = self.memory(|other| is_same_tenant(other, keeper)) + another;
        let within_share = own <= budget / 2;
        let fits = all + another <= budget && (within_share || !self.others_come(keeper));
        fits || (within_share && self.over_share(keeper).is_some())
    }

    /// Makes room for one more child of this pool by killing one of a tenant that is above its share.
    pub(super) fn make_room_to_wait(&mut self, at: usize) {
        let keeper = &self.keepers[at];
        let needed = self.memory(|_| true) + self.memory_of_another(keeper);
        if needed <= self.settings.pool_memory_bytes {
            return;
        }
        let Some(from) = self.over_share(keeper) else { return };
        let shelves = &mut self.keepers[from].shelves;
        let waiting = shelves.iter_mut().find_map(|shelf| shelf.waiting.pop()).map(Child::discard);
        let spare = || shelves.iter_mut().find_map(Shelf::take_spare).map(|jail| jail.discard(None));
        self.dying.extend(waiting.or_else(spare));
    }

    /// Returns the memory in bytes that one more idle child needs; in `fork` mode, one more idle jail.
    fn memory_of_another(&self, keeper: &Keeper) -> u64 {
        if self.settings.warming == Warming::Fork { JAIL_MEMORY } else { keeper.memory_of_another() }
    }

    /// Returns the pool to evict to make room for a pool of this tenant: one of its own if it has half of all
    /// pools, otherwise one of the tenant with the most. Among these, the least recently used one that is
    /// idle.
    pub(super) fn zygote_to_give_up(&self, tenant: &str) -> Option<usize> {
        let held = |tenant: &str| self.keepers.iter().filter(|one| one.interpreter.tenant == tenant).count();
        let own = held(tenant);
        let idle = self.keepers.iter().enumerate().filter(|(_, keeper)| keeper.is_idle());
        let candidates = idle.filter(|(_, keeper)| {
            let theirs = &keeper.interpreter.tenant;
            theirs == tenant || (own < MOST_ZYGOTES / 2 && held(theirs) > own)
        });
        let rank = |keeper: &Keeper| (std::cmp::Reverse(held(&keeper.interpreter.tenant)), keeper.used);
        candidates.min_by_key(|(_, keeper)| rank(keeper)).map(|(at, _)| at)
    }

    fn memory(&self, of: impl Fn(&Keeper) -> bool) -> u64 {
        self.keepers.iter().filter(|keeper| of(keeper)).map(Keeper::memory).sum()
    }

    /// Returns whether another tenant made a request recently.
    fn others_come(&self, keeper: &Keeper) -> bool {
        let idle: Duration = self.settings.idle;
        self.keepers.iter().any(|other| !is_same_tenant(other, keeper) && other.used.elapsed() < idle)
    }

    /// Returns a non-empty pool of another tenant that uses more than half of the memory.
    fn over_share(&self, keeper: &Keeper) -> Option<usize> {
        let is_over = |other: &Keeper| {
            !is_same_tenant(other, keeper)
                && other.shelves.iter().any(|shelf| !shelf.is_bare())
                && self.memory(|one| is_same_tenant(one, other)) > self.settings.pool_memory_bytes / 2
        };
        self.keepers.iter().position(is_over)
    }
}

fn is_same_tenant(one: &Keeper, other: &Keeper) -> bool {
    one.interpreter.tenant == other.interpreter.tenant
}
