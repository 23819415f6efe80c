//! The step budget of code analysis. Work is counted, not timed: a program is within its budget on every
//! machine, or too complex to check on every machine.
//!
//! A step is one visited or folded node, one scope searched for a name, or a few bytes that folding produces.
//! The budget grows with the code up to a fixed cap, so the work is linear in the size of any code.

use std::cell::Cell;
use std::rc::Rc;

/// Steps that even the smallest program gets.
const BASE_STEPS: u64 = 20_000;
/// Steps for each byte of code. Ordinary code needs fewer than two.
const STEPS_PER_BYTE: u64 = 128;
/// Cap on the steps, for code of any size.
const MAX_STEPS: u64 = 8_000_000;
/// Bytes that folding may produce per step. With the cap, this bounds the memory of one analysis.
const BYTES_PER_STEP: usize = 2;

/// Reason why analysis stopped when the budget was spent.
pub(crate) const TOO_COMPLEX: &str = "too complex to check";

/// Remaining steps, shared by everything that analyzes one program.
#[derive(Debug, Clone)]
pub(crate) struct Budget(Rc<Counter>);

#[derive(Debug)]
struct Counter {
    used: Cell<u64>,
    limit: u64,
}

impl Budget {
    /// Returns the budget for a program of `bytes` bytes.
    pub(crate) fn for_code(bytes: usize) -> Self {
        let limit = BASE_STEPS.saturating_add((bytes as u64).saturating_mul(STEPS_PER_BYTE)).min(MAX_STEPS);
        Self(Rc::new(Counter { used: Cell::new(0), limit }))
    }

    /// Spends steps, and returns whether the budget sufficed.
    pub(crate) fn spend(&self, steps: usize) -> bool {
        let used = self.0.used.get().saturating_add(steps as u64);
        // Usage above the limit is not counted: the number of steps never exceeds the budget by more than
        // one.
        self.0.used.set(used.min(self.0.limit + 1));
        used <= self.0.limit
    }

    /// Spends the steps for producing `bytes` bytes, and returns whether the budget sufficed.
    pub(crate) fn spend_bytes(&self, bytes: usize) -> bool {
        self.spend(1 + bytes / BYTES_PER_STEP)
    }

    /// Returns whether more steps were requested than the budget had.
    pub(crate) fn is_spent(&self) -> bool {
        self.0.used.get() > self.0.limit
    }

    #[cfg(test)]
    pub(crate) fn used(&self) -> u64 {
        self.0.used.get()
    }

    #[cfg(test)]
    pub(crate) fn limit(&self) -> u64 {
        self.0.limit
    }
}
