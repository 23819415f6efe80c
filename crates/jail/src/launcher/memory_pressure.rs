//! Applies the memory shares of tenants to their runs: samples usage, and sets OOM scores.

use std::time::Instant;

use super::oom_score::Standing;
use super::run::Run;
use super::runs::Runs;

/// Maximum jails sampled in one turn of the event loop, and processes whose scores are set before it stops.
const MAX_SAMPLED_PER_TURN: usize = 32;
const MAX_SCORED_PER_TURN: usize = 256;

impl Runs {
    /// Adds a started run, and sets its OOM scores if it is above its tenant's share.
    pub(super) fn add_run(&mut self, number: u64, mut run: Run) {
        if let Some(total) = self.context.groups.total_memory_limit() {
            let claim = self.memory_shares.claim(total, &run.tenant, run.memory_limit_bytes);
            if claim.standing == Standing::AboveShare {
                run.set_oom_scores(&self.context, claim.standing);
            }
            run.memory_claim = Some(claim);
        }
        self.running.push((number, run));
    }

    /// Removes a run that is over.
    pub(super) fn remove_run(&mut self, at: usize) -> Run {
        let (_, run) = self.running.swap_remove(at);
        if let Some(claim) = &run.memory_claim {
            self.memory_shares.release(claim);
        }
        run
    }

    /// Returns when memory shares must be checked next.
    pub(super) fn next_share_check(&self) -> Option<Instant> {
        self.context.groups.total_memory_limit().and_then(|_| self.memory_shares.next_check())
    }

    /// Samples the memory usage of tenants and adjusts OOM scores, if that is due and memory is short.
    pub(super) fn update_memory_shares(&mut self, now: Instant) {
        let Some(total) = self.context.groups.total_memory_limit() else { return };
        if self.memory_shares.next_check().is_none_or(|due| due > now) {
            return;
        }
        self.memory_shares.last_check = now;
        self.memory_shares.is_short =
            self.context.groups.total_memory_in_use().is_some_and(|used| used > total / 2);
        if !self.memory_shares.is_short {
            return;
        }
        let jails = self.running.len();
        let first = self.memory_shares.next_index % jails.max(1);
        let looked_at = || (0..jails.min(MAX_SAMPLED_PER_TURN)).map(|step| (first + step) % jails);
        for at in looked_at() {
            let run = &mut self.running[at].1;
            let used = run.group().and_then(|group| group.memory_in_use()).unwrap_or(0);
            if let Some(claim) = &mut run.memory_claim {
                self.memory_shares.record_usage(claim, used);
            }
        }
        let mut changed = 0;
        for at in looked_at() {
            self.memory_shares.next_index = at + 1;
            let run = &mut self.running[at].1;
            let Some(claim) = &mut run.memory_claim else { continue };
            let standing = self.memory_shares.standing(total, claim);
            // Above the share, scores are set again, for processes that were started in the meantime.
            if standing != std::mem::replace(&mut claim.standing, standing)
                || standing == Standing::AboveShare
            {
                changed += run.set_oom_scores(&self.context, standing);
            }
            if changed > MAX_SCORED_PER_TURN {
                break;
            }
        }
    }
}
