//! Counts layers by origin.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use belljar_engine::packages::PackageStats;

use crate::store::{LayerOrigin, StoreUsage};

#[derive(Debug, Default)]
pub(crate) struct LayerCounters {
    hits: AtomicU64,
    fetched: AtomicU64,
    built: AtomicU64,
    failed: AtomicU64,
    install_micros: AtomicU64,
}

impl LayerCounters {
    /// Counts a layer; `took` is the install time of one that was built.
    pub(crate) fn count_layer(&self, origin: LayerOrigin, took: Duration) {
        let counter = match origin {
            LayerOrigin::Local => &self.hits,
            LayerOrigin::Fetched => &self.fetched,
            LayerOrigin::Built => {
                let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
                self.install_micros.fetch_add(micros, Relaxed);
                &self.built
            }
        };
        counter.fetch_add(1, Relaxed);
    }

    /// Counts layers of a cached answer.
    pub(crate) fn count_hits(&self, layers: usize) {
        self.hits.fetch_add(layers as u64, Relaxed);
    }

    pub(crate) fn count_failure(&self) {
        self.failed.fetch_add(1, Relaxed);
    }

    pub(crate) fn stock(&self, weight: StoreUsage) -> PackageStats {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        PackageStats {
            hits: of(&self.hits),
            fetched: of(&self.fetched),
            built: of(&self.built),
            failed: of(&self.failed),
            install_time: Duration::from_micros(of(&self.install_micros)),
            layers: weight.layers,
            bytes: weight.bytes,
        }
    }
}
