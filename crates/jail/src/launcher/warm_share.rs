//! What a tenant may have of what is kept warm: everything while it is alone, and no more than half of the memory and of the
//! zygotes as soon as another tenant comes for some. A tenant below its half takes room from one above it.

use std::time::Duration;

use super::child::Child;
use super::keeper::{JAIL_MEMORY, Keeper, Shelf};
use super::nursery::{MOST_ZYGOTES, Nursery};
use crate::spec::Warming;

impl Nursery {
    /// Whether one more child of this keeper may wait, be it in the place of another tenant's.
    pub(super) fn may_fill(&self, keeper: &Keeper) -> bool {
        let (all, budget) = (self.memory(|_| true), self.settings.pool_memory_bytes);
        let another = self.memory_of_another(keeper);
        let own = self.memory(|other| is_same_tenant(other, keeper)) + another;
        let within_share = own <= budget / 2;
        let fits = all + another <= budget && (within_share || !self.others_come(keeper));
        fits || (within_share && self.over_share(keeper).is_some())
    }

    /// Makes room for one more child of this keeper, where another tenant holds more than its share.
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

    /// What one more that waits would hold: a child, or in `fork` mode a jail.
    fn memory_of_another(&self, keeper: &Keeper) -> u64 {
        if self.settings.warming == Warming::Fork { JAIL_MEMORY } else { keeper.memory_of_another() }
    }

    /// The idle zygote that makes room for one of this tenant's: its own where it has half of them, and otherwise one of the
    /// tenant that has most; of these, the one that was not used for longest.
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

    /// Whether another tenant came not long ago.
    fn others_come(&self, keeper: &Keeper) -> bool {
        let idle: Duration = self.settings.idle;
        self.keepers.iter().any(|other| !is_same_tenant(other, keeper) && other.used.elapsed() < idle)
    }

    /// Somebody waiting of a tenant other than this keeper's that holds more than half of the memory.
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
