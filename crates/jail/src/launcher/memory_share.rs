//! What each tenant holds of the memory that all sandboxes have together, so that the kernel kills processes of a tenant above
//! its share first when that runs out.
//!
//! The share is an equal part for every tenant that has a jail, and at most half. A jail whose limit no longer fits into its
//! tenant's share has a high score from its start: whatever happens at once, those within their share by their limits are not
//! hit first. While more than half of the memory is in use, what tenants really use is looked at, a few jails at a time, and
//! decides instead: limits are often far above that.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::oom_score::Standing;
use super::run::Run;
use super::runs::Runs;

/// How often jails are looked at while memory is short, and how often whether it is.
const SHORT: Duration = Duration::from_millis(20);
const AMPLE: Duration = Duration::from_millis(250);
/// How many jails are looked at in one turn of the loop, and how many processes have their score set.
const MOST_JAILS: usize = 32;
const MOST_PROCESSES: usize = 256;

/// One jail's part of what its tenant holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claim {
    tenant: String,
    /// What it may use.
    limit_bytes: u64,
    /// What it used when that was looked at last.
    used_bytes: u64,
    /// Whether its limit fitted into its tenant's share.
    fits: bool,
    /// What its processes have their scores for.
    pub(super) standing: Standing,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Account {
    jails: usize,
    /// The limits of those that fit into the share.
    fitting_bytes: u64,
    used_bytes: u64,
}

/// What all tenants hold.
#[derive(Debug)]
pub(super) struct MemoryShares {
    tenants: BTreeMap<String, Account>,
    /// Where in the list of jails the next look begins.
    next: usize,
    looked: Instant,
    short: bool,
}

impl MemoryShares {
    pub(super) fn new(now: Instant) -> Self {
        Self { tenants: BTreeMap::new(), next: 0, looked: now, short: false }
    }

    /// Counts a jail; `total_bytes` is what all of them may have.
    fn claim(&mut self, total_bytes: u64, tenant: &str, limit_bytes: u64) -> Claim {
        let others = self.tenants.keys().filter(|other| *other != tenant).count() as u64;
        let share = total_bytes / (others + 1).max(2);
        let account = self.tenants.entry(tenant.to_owned()).or_default();
        let fits = account.fitting_bytes.saturating_add(limit_bytes) <= share;
        account.jails += 1;
        if fits {
            account.fitting_bytes += limit_bytes;
        }
        let standing = if fits { Standing::WithinShare } else { Standing::AboveShare };
        Claim { tenant: tenant.to_owned(), limit_bytes, used_bytes: 0, fits, standing }
    }

    /// Counts a jail no longer.
    fn release(&mut self, claim: &Claim) {
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

    /// Counts what a jail uses now.
    fn note(&mut self, claim: &mut Claim, used_bytes: u64) {
        if let Some(account) = self.tenants.get_mut(&claim.tenant) {
            account.used_bytes = account.used_bytes - claim.used_bytes + used_bytes;
            claim.used_bytes = used_bytes;
        }
    }

    /// Whether the tenant of a jail uses more than its share.
    fn standing(&self, total_bytes: u64, claim: &Claim) -> Standing {
        let share = total_bytes / (self.tenants.len() as u64).max(2);
        let used = self.tenants.get(&claim.tenant).map_or(0, |account| account.used_bytes);
        if used > share { Standing::AboveShare } else { Standing::WithinShare }
    }

    /// When to look next. A tenant that is alone takes nothing from others.
    fn due(&self) -> Option<Instant> {
        let pause = if self.short { SHORT } else { AMPLE };
        (self.tenants.len() > 1).then_some(self.looked + pause)
    }
}

impl Runs {
    /// Keeps a run that has begun, and has the kernel end its processes as soon as its tenant's share says.
    pub(super) fn enroll(&mut self, number: u64, mut run: Run) {
        if let Some(total) = self.home.groups.memory_for_all() {
            let claim = self.shares.claim(total, run.tenant(), run.memory_bytes());
            if claim.standing == Standing::AboveShare {
                run.set_oom_scores(&self.home, claim.standing);
            }
            run.claim = Some(claim);
        }
        self.running.push((number, run));
    }

    /// Gives up a run that is over.
    pub(super) fn dismiss(&mut self, at: usize) -> Run {
        let (_, run) = self.running.swap_remove(at);
        if let Some(claim) = &run.claim {
            self.shares.release(claim);
        }
        run
    }

    /// When tenants' shares are looked at next.
    pub(super) fn shares_due(&self) -> Option<Instant> {
        self.home.groups.memory_for_all().and_then(|_| self.shares.due())
    }

    /// Looks at what tenants use while memory is short, where that is due.
    pub(super) fn look_at_shares(&mut self, now: Instant) {
        let Some(total) = self.home.groups.memory_for_all() else { return };
        if self.shares.due().is_none_or(|due| due > now) {
            return;
        }
        self.shares.looked = now;
        self.shares.short = self.home.groups.memory_of_all().is_some_and(|used| used > total / 2);
        if !self.shares.short {
            return;
        }
        let jails = self.running.len();
        let first = self.shares.next % jails.max(1);
        let looked_at = || (0..jails.min(MOST_JAILS)).map(|step| (first + step) % jails);
        for at in looked_at() {
            let run = &mut self.running[at].1;
            let used = run.group().and_then(|group| group.memory()).unwrap_or(0);
            if let Some(claim) = &mut run.claim {
                self.shares.note(claim, used);
            }
        }
        let mut changed = 0;
        for at in looked_at() {
            self.shares.next = at + 1;
            let run = &mut self.running[at].1;
            let Some(claim) = &mut run.claim else { continue };
            let standing = self.shares.standing(total, claim);
            // Above the share, what has been started in the meantime is looked at again.
            if standing != std::mem::replace(&mut claim.standing, standing)
                || standing == Standing::AboveShare
            {
                changed += run.set_oom_scores(&self.home, standing);
            }
            if changed > MOST_PROCESSES {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_into_half_is_above_the_share_from_its_start() {
        let mut shares = MemoryShares::new(Instant::now());
        let alone: Vec<_> = (0..3).map(|_| shares.claim(100, "a", 20).standing).collect();
        assert_eq!(alone, [Standing::WithinShare, Standing::WithinShare, Standing::AboveShare]);
        assert_eq!(shares.claim(100, "b", 50).standing, Standing::WithinShare);
        assert_eq!(shares.claim(100, "c", 34).standing, Standing::AboveShare, "more than a third");
        assert_eq!(shares.claim(100, "c", 33).standing, Standing::WithinShare);
    }

    #[test]
    fn what_is_used_decides_while_memory_is_short() {
        let mut shares = MemoryShares::new(Instant::now());
        let mut many: Vec<_> = (0..4).map(|_| shares.claim(100, "a", 20)).collect();
        let mut one = shares.claim(100, "b", 90);
        assert_eq!(one.standing, Standing::AboveShare, "by its limit");
        many.iter_mut().for_each(|claim| shares.note(claim, 15));
        shares.note(&mut one, 40);
        assert_eq!(shares.standing(100, &one), Standing::WithinShare);
        assert!(many.iter().all(|claim| shares.standing(100, claim) == Standing::AboveShare));
        shares.note(&mut many[0], 5);
        assert!(many.iter().all(|claim| shares.standing(100, claim) == Standing::WithinShare));
    }

    #[test]
    fn nothing_is_left_of_a_jail_that_is_over() {
        let mut shares = MemoryShares::new(Instant::now());
        let mut claims: Vec<_> = ["a", "a", "b"].iter().map(|tenant| shares.claim(100, tenant, 40)).collect();
        claims.iter_mut().for_each(|claim| shares.note(claim, 30));
        assert!(shares.due().is_some());
        shares.release(&claims[0]);
        assert_eq!(shares.tenants["a"], Account { jails: 1, fitting_bytes: 0, used_bytes: 30 });
        assert_eq!(shares.claim(100, "a", 40).standing, Standing::WithinShare, "there is room again");
        shares.release(&claims[2]);
        assert!(!shares.tenants.contains_key("b") && shares.due().is_none(), "a tenant that is alone");
    }
}
