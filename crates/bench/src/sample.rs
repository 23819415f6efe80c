//! Samples of single runs and their statistics.

use std::time::Duration;

use belljar_engine::outcome::Warmth;
use serde::Serialize;

/// The time of one run and how it was served.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) took: Duration,
    /// How the receipt says that the run was served; `None` without a receipt.
    pub(crate) warmth: Option<Warmth>,
}

/// Number of runs by how they were served.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct WarmthCounts {
    pub(crate) pool: usize,
    pub(crate) fork: usize,
    pub(crate) cold: usize,
}

impl WarmthCounts {
    pub(crate) fn count(samples: &[Sample]) -> Self {
        let count = |wanted| samples.iter().filter(|sample| sample.warmth == Some(wanted)).count();
        Self { pool: count(Warmth::Pool), fork: count(Warmth::Fork), cold: count(Warmth::Cold) }
    }

    pub(crate) fn runs(self) -> usize {
        self.pool + self.fork + self.cold
    }

    pub(crate) fn served_as(self, wanted: Warmth) -> usize {
        match wanted {
            Warmth::Pool => self.pool,
            Warmth::Fork => self.fork,
            Warmth::Cold => self.cold,
        }
    }

    pub(crate) fn share(self, wanted: Warmth) -> f64 {
        self.served_as(wanted) as f64 / self.runs().max(1) as f64
    }
}

/// Returns a percentile by nearest rank, so that it is always a time that was really measured.
pub(crate) fn percentile(samples: &[Sample], share: f64) -> Option<Duration> {
    let mut times: Vec<Duration> = samples.iter().map(|sample| sample.took).collect();
    times.sort_unstable();
    let rank = (times.len() as f64 * share).ceil() as usize;
    times.get(rank.max(1) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(millis: impl IntoIterator<Item = u64>) -> Vec<Sample> {
        let sample = |ms| Sample { took: Duration::from_millis(ms), warmth: None };
        millis.into_iter().map(sample).collect()
    }

    #[test]
    fn percentiles_are_samples() {
        let at = |samples: &[Sample], share| percentile(samples, share).map(|time| time.as_millis());
        let hundred = samples((1..=100).rev());
        assert_eq!(
            (at(&hundred, 0.5), at(&hundred, 0.99), at(&hundred, 1.0)),
            (Some(50), Some(99), Some(100))
        );
        let three = samples([30, 10, 20]);
        assert_eq!((at(&three, 0.5), at(&three, 0.99)), (Some(20), Some(30)));
        assert_eq!((at(&samples([7]), 0.5), at(&samples([7]), 0.0)), (Some(7), Some(7)));
        assert_eq!(at(&[], 0.5), None);
    }

    #[test]
    fn runs_are_counted_by_warmth() {
        let warmths = [Some(Warmth::Pool), Some(Warmth::Pool), Some(Warmth::Fork), Some(Warmth::Cold), None];
        let samples = warmths.map(|warmth| Sample { took: Duration::ZERO, warmth });
        let served = WarmthCounts::count(&samples);
        assert_eq!(served, WarmthCounts { pool: 2, fork: 1, cold: 1 });
        assert_eq!((served.runs(), served.share(Warmth::Pool)), (4, 0.5));
        assert_eq!(WarmthCounts::default().share(Warmth::Pool), 0.0);
    }
}
