//! Warm children whose confinement did not match what they reported, held until they are collected.

use std::sync::{Mutex, PoisonError};

use belljar_engine::provider::Mismatch;
use belljar_jail::spec;

/// How many are held. A pool with a mismatch pauses before it starts another interpreter, so a regular
/// collector misses none. The metric counts all of them.
const MOST: usize = 256;

/// Mismatches not yet collected, oldest first.
#[derive(Debug, Default)]
pub(super) struct Mismatches(Mutex<Vec<Mismatch>>);

impl Mismatches {
    pub(super) fn push(&self, mismatch: spec::Mismatch) {
        let spec::Mismatch { pool, tenant, what } = mismatch;
        // Each statement leaves the list consistent, so a panic elsewhere does not corrupt it.
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < MOST {
            kept.push(Mismatch { pool, tenant, what });
        }
    }

    pub(super) fn take(&self) -> Vec<Mismatch> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_taken_once_and_bounded() {
        let mismatches = Mismatches::default();
        for number in 0..MOST + 10 {
            let text = number.to_string();
            mismatches.push(spec::Mismatch { pool: "python".to_owned(), tenant: "a".to_owned(), what: text });
        }
        let taken = mismatches.take();
        assert_eq!((taken.len(), taken[0].what.as_str()), (MOST, "0"));
        assert_eq!(mismatches.take(), []);
    }
}
