//! The step budget of code reading. Work is counted, not timed: a program is either within its budget on every machine, or too
//! complex to check on every machine.
//!
//! A step is one visited or folded node, one scope that a name is looked up in, or a few bytes that folding produces. The
//! budget grows with the code up to a fixed cap, so the work is linear in the code whatever the code says.

use std::cell::Cell;
use std::rc::Rc;

/// Steps that the smallest program has.
const BASE_STEPS: u64 = 20_000;
/// Steps for each byte of code. Ordinary code needs fewer than two.
const STEPS_PER_BYTE: u64 = 128;
/// The cap, whatever the size of the code.
const MAX_STEPS: u64 = 8_000_000;
/// Bytes that folding may produce for one step. With the cap, this bounds the memory that one reading can take.
const BYTES_PER_STEP: usize = 2;

/// Why code whose budget is spent was not read to its end.
pub(crate) const TOO_COMPLEX: &str = "too complex to check";

/// Steps that are left, shared by everything that reads one program.
#[derive(Debug, Clone)]
pub(crate) struct Budget(Rc<Counter>);

#[derive(Debug)]
struct Counter {
    used: Cell<u64>,
    limit: u64,
}

impl Budget {
    /// Returns the budget for a program of this many bytes.
    pub(crate) fn for_code(bytes: usize) -> Self {
        let limit = BASE_STEPS.saturating_add((bytes as u64).saturating_mul(STEPS_PER_BYTE)).min(MAX_STEPS);
        Self(Rc::new(Counter { used: Cell::new(0), limit }))
    }

    /// Takes steps, and returns whether the budget still holds.
    pub(crate) fn spend(&self, steps: usize) -> bool {
        let used = self.0.used.get().saturating_add(steps as u64);
        // What is above the limit is not counted: the number of steps is never larger than the budget.
        self.0.used.set(used.min(self.0.limit + 1));
        used <= self.0.limit
    }

    /// Takes the steps for producing so many bytes, and returns whether the budget still holds.
    pub(crate) fn spend_bytes(&self, bytes: usize) -> bool {
        self.spend(1 + bytes / BYTES_PER_STEP)
    }

    /// Returns whether more was asked for than there was.
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
