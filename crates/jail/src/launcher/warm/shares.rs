//! Fair shares of the warm pools: a tenant may use all of their memory and zygotes while it is alone, and at
//! most half as soon as another tenant needs some. A tenant below its half takes memory and zygotes from one
//! above its half.

use std::time::Duration;

use belljar_model::warm::WarmPoolMode;

use super::child::WarmChild;
use super::pool::{Bucket, JAIL_MEMORY_BYTES, PoolEvent, WarmPool};
use super::pools::{MAX_POOLS, WarmPools};

impl WarmPools {
    /// Returns whether this pool may have one more idle child, possibly in place of another tenant's.
    pub(super) fn may_add_idle(&self, pool: &WarmPool) -> bool {
        let (all, budget) = (self.memory_bytes(|_| true), self.settings.memory_bytes);
        let another = self.memory_per_idle(pool);
        let own = self.memory_bytes(|other| is_same_tenant(other, pool)) + another;
        let within_share = own <= budget / 2;
        let fits = all + another <= budget && (within_share || !self.others_active(pool));
        fits || (within_share && self.pool_over_share(pool).is_some())
    }

    /// Makes room for one more child of this pool by killing one of a tenant that is above its share.
    pub(super) fn make_room_for_idle(&mut self, at: usize) {
        let pool = &self.pools[at];
        let needed = self.memory_bytes(|_| true) + self.memory_per_idle(pool);
        if needed <= self.settings.memory_bytes {
            return;
        }
        let Some(from) = self.pool_over_share(pool) else { return };
        let buckets = &mut self.pools[from].buckets;
        let waiting = buckets.iter_mut().find_map(|bucket| bucket.idle.pop()).map(WarmChild::kill);
        let spare = || buckets.iter_mut().find_map(Bucket::take_unreserved_jail).map(|jail| jail.kill(None));
        self.events.extend(waiting.or_else(spare).map(PoolEvent::Killed));
    }

    /// Returns the memory in bytes that one more idle child needs; in `fork` mode, one more idle jail.
    fn memory_per_idle(&self, pool: &WarmPool) -> u64 {
        if self.settings.mode == WarmPoolMode::Fork { JAIL_MEMORY_BYTES } else { pool.memory_per_child() }
    }

    /// Returns the pool to evict to make room for a pool of this tenant: one of its own if it has half of all
    /// pools, otherwise one of the tenant with the most. Among these, the least recently used one that is
    /// idle.
    pub(super) fn pool_to_evict(&self, tenant: &str) -> Option<usize> {
        let held = |tenant: &str| self.pools.iter().filter(|one| one.interpreter.tenant == tenant).count();
        let own = held(tenant);
        let idle = self.pools.iter().enumerate().filter(|(_, pool)| pool.is_idle());
        let candidates = idle.filter(|(_, pool)| {
            let theirs = &pool.interpreter.tenant;
            theirs == tenant || (own < MAX_POOLS / 2 && held(theirs) > own)
        });
        let rank = |pool: &WarmPool| (std::cmp::Reverse(held(&pool.interpreter.tenant)), pool.last_used);
        candidates.min_by_key(|(_, pool)| rank(pool)).map(|(at, _)| at)
    }

    fn memory_bytes(&self, of: impl Fn(&WarmPool) -> bool) -> u64 {
        self.pools.iter().filter(|pool| of(pool)).map(WarmPool::memory_bytes).sum()
    }

    /// Returns whether another tenant made a request recently.
    fn others_active(&self, pool: &WarmPool) -> bool {
        let idle: Duration = self.settings.idle;
        self.pools.iter().any(|other| !is_same_tenant(other, pool) && other.last_used.elapsed() < idle)
    }

    /// Returns a non-empty pool of another tenant that uses more than half of the memory.
    fn pool_over_share(&self, pool: &WarmPool) -> Option<usize> {
        let is_over = |other: &WarmPool| {
            !is_same_tenant(other, pool)
                && other.buckets.iter().any(|bucket| !bucket.is_empty())
                && self.memory_bytes(|one| is_same_tenant(one, other)) > self.settings.memory_bytes / 2
        };
        self.pools.iter().position(is_over)
    }
}

fn is_same_tenant(one: &WarmPool, other: &WarmPool) -> bool {
    one.interpreter.tenant == other.interpreter.tenant
}
