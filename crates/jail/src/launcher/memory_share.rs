//! Memory shares of tenants: when the memory for all jails runs out, the kernel first kills processes of a
//! tenant above its share.
//!
//! The memory is divided equally among the tenants that have a jail, and a share is at most half of it. A
//! jail whose limit no longer fits into its tenant's share has a high OOM score from its start. So even in a
//! sudden shortage, jails whose limits fit are not killed first. While more than half of the memory is in
//! use, actual usage decides instead, because limits are often far above it; it is sampled a few jails at a
//! time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::oom_score::Standing;

/// How often jails are sampled while memory is short, and how often the launcher checks whether it is.
const INTERVAL_WHEN_SHORT: Duration = Duration::from_millis(20);
const INTERVAL_WHEN_AMPLE: Duration = Duration::from_millis(250);

/// The part of one jail in its tenant's memory share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MemoryClaim {
    tenant: String,
    /// Its memory limit.
    limit_bytes: u64,
    /// Its usage when last sampled.
    used_bytes: u64,
    /// Whether its limit fit into its tenant's share when it started.
    fits: bool,
    /// The standing for which the scores of its processes are set.
    pub(super) standing: Standing,
}

/// The jails of one tenant.
#[derive(Debug, Default, PartialEq, Eq)]
struct TenantMemory {
    jails: usize,
    /// The sum of the limits that fit into the share.
    fitting_bytes: u64,
    used_bytes: u64,
}

/// The memory shares of all tenants.
#[derive(Debug)]
pub(super) struct MemoryShares {
    tenants: BTreeMap<String, TenantMemory>,
    /// The index of the run at which the next sample begins.
    pub(super) next_index: usize,
    pub(super) last_check: Instant,
    pub(super) is_short: bool,
}

impl MemoryShares {
    pub(super) fn new(now: Instant) -> Self {
        Self { tenants: BTreeMap::new(), next_index: 0, last_check: now, is_short: false }
    }

    /// Adds a jail; `total_bytes` is the memory for all jails.
    pub(super) fn claim(&mut self, total_bytes: u64, tenant: &str, limit_bytes: u64) -> MemoryClaim {
        let others = self.tenants.keys().filter(|other| *other != tenant).count() as u64;
        let share = total_bytes / (others + 1).max(2);
        let account = self.tenants.entry(tenant.to_owned()).or_default();
        let fits = account.fitting_bytes.saturating_add(limit_bytes) <= share;
        account.jails += 1;
        if fits {
            account.fitting_bytes += limit_bytes;
        }
        let standing = if fits { Standing::WithinShare } else { Standing::AboveShare };
        MemoryClaim { tenant: tenant.to_owned(), limit_bytes, used_bytes: 0, fits, standing }
    }

    /// Removes a jail.
    pub(super) fn release(&mut self, claim: &MemoryClaim) {
        let Some(account) = self.tenants.get_mut(&claim.tenant) else { return };
        account.jails -= 1;
        account.used_bytes -= claim.used_bytes;
        if claim.fits {
            account.fitting_bytes -= claim.limit_bytes;
        }
        if account.jails == 0 {
            self.tenants.remove(&claim.tenant);
        }
    }

    /// Records the current usage of a jail.
    pub(super) fn record_usage(&mut self, claim: &mut MemoryClaim, used_bytes: u64) {
        if let Some(account) = self.tenants.get_mut(&claim.tenant) {
            account.used_bytes = account.used_bytes - claim.used_bytes + used_bytes;
            claim.used_bytes = used_bytes;
        }
    }

    /// Returns whether the tenant of a jail uses more than its share.
    pub(super) fn standing(&self, total_bytes: u64, claim: &MemoryClaim) -> Standing {
        let share = total_bytes / (self.tenants.len() as u64).max(2);
        let used = self.tenants.get(&claim.tenant).map_or(0, |account| account.used_bytes);
        if used > share { Standing::AboveShare } else { Standing::WithinShare }
    }

    /// Returns when to sample next; `None` for a single tenant, which takes nothing from others.
    pub(super) fn next_check(&self) -> Option<Instant> {
        let pause = if self.is_short { INTERVAL_WHEN_SHORT } else { INTERVAL_WHEN_AMPLE };
        (self.tenants.len() > 1).then_some(self.last_check + pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jail_whose_limit_exceeds_the_share_starts_above_it() {
        let mut shares = MemoryShares::new(Instant::now());
        let alone: Vec<_> = (0..3).map(|_| shares.claim(100, "a", 20).standing).collect();
        assert_eq!(alone, [Standing::WithinShare, Standing::WithinShare, Standing::AboveShare]);
        assert_eq!(shares.claim(100, "b", 50).standing, Standing::WithinShare);
        assert_eq!(shares.claim(100, "c", 34).standing, Standing::AboveShare, "more than a third");
        assert_eq!(shares.claim(100, "c", 33).standing, Standing::WithinShare);
    }

    #[test]
    fn usage_decides_while_memory_is_short() {
        let mut shares = MemoryShares::new(Instant::now());
        let mut many: Vec<_> = (0..4).map(|_| shares.claim(100, "a", 20)).collect();
        let mut one = shares.claim(100, "b", 90);
        assert_eq!(one.standing, Standing::AboveShare, "its limit exceeds its share");
        many.iter_mut().for_each(|claim| shares.record_usage(claim, 15));
        shares.record_usage(&mut one, 40);
        assert_eq!(shares.standing(100, &one), Standing::WithinShare);
        assert!(many.iter().all(|claim| shares.standing(100, claim) == Standing::AboveShare));
        shares.record_usage(&mut many[0], 5);
        assert!(many.iter().all(|claim| shares.standing(100, claim) == Standing::WithinShare));
    }

    #[test]
    fn released_claims_leave_no_trace() {
        let mut shares = MemoryShares::new(Instant::now());
        let mut claims: Vec<_> = ["a", "a", "b"].iter().map(|tenant| shares.claim(100, tenant, 40)).collect();
        claims.iter_mut().for_each(|claim| shares.record_usage(claim, 30));
        assert!(shares.next_check().is_some());
        shares.release(&claims[0]);
        assert_eq!(shares.tenants["a"], TenantMemory { jails: 1, fitting_bytes: 0, used_bytes: 30 });
        assert_eq!(shares.claim(100, "a", 40).standing, Standing::WithinShare, "there is room again");
        shares.release(&claims[2]);
        assert!(
            !shares.tenants.contains_key("b") && shares.next_check().is_none(),
            "one tenant is not sampled"
        );
    }
}
