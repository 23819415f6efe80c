//! Warm children whose confinement did not match what they reported, held until they are collected.

use std::sync::{Mutex, PoisonError};

use belljar_engine::provider::ConfinementMismatch;

/// How many are held. A pool with a mismatch pauses before it starts another interpreter, so a regular
/// collector misses none. The metric counts all of them.
const MAX_MISMATCHES: usize = 256;

/// Mismatches not yet collected, oldest first.
#[derive(Debug, Default)]
pub(super) struct Mismatches(Mutex<Vec<ConfinementMismatch>>);

impl Mismatches {
    pub(super) fn push(&self, mismatch: ConfinementMismatch) {
        // Each statement leaves the list consistent, so a panic elsewhere does not corrupt it.
        let mut mismatches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if mismatches.len() < MAX_MISMATCHES {
            mismatches.push(mismatch);
        }
    }

    pub(super) fn take(&self) -> Vec<ConfinementMismatch> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mismatches_are_taken_once_and_bounded() {
        let mismatches = Mismatches::default();
        for number in 0..MAX_MISMATCHES + 10 {
            let text = number.to_string();
            mismatches.push(ConfinementMismatch {
                pool: "python".to_owned(),
                tenant: "a".to_owned(),
                what: text,
            });
        }
        let taken = mismatches.take();
        assert_eq!((taken.len(), taken[0].what.as_str()), (MAX_MISMATCHES, "0"));
        assert_eq!(mismatches.take(), []);
    }
}
