//! What every handler reaches: handed in once, by whoever starts the server.

use std::sync::Arc;

use belljar_engine::Engine;
use belljar_engine::places::Places;
use belljar_engine::profile::Profiles;
use belljar_store::Store;
use tokio::sync::Semaphore;

use crate::accounts::{Accounts, Caller};
use crate::bearers::Bearers;
use crate::gate::Gate;
use crate::health::Readiness;
use crate::live::Live;
use crate::mcp::Sessions;
use crate::metrics::Meters;
use crate::places::Mounts;
use crate::readers::Readers;
use crate::roster::Roster;
use crate::sandboxes::Registry;
use crate::settings::Settings;
use crate::trace::Tracer;
use crate::written::Written;

/// The service's world.
#[derive(Debug)]
pub struct World {
    pub(crate) engine: Arc<Engine>,
    pub(crate) store: Arc<Store>,
    pub(crate) settings: Settings,
    pub(crate) accounts: Accounts,
    pub(crate) bearers: Bearers,
    pub(crate) gate: Gate,
    pub(crate) readers: Readers,
    pub(crate) live: Live,
    pub(crate) sandboxes: Registry,
    pub(crate) mcp: Sessions,
    pub(crate) places: Arc<dyn Places>,
    pub(crate) mounts: Mounts,
    pub(crate) meters: Meters,
    pub(crate) written: Written,
    pub(crate) tracer: Option<Tracer>,
    pub(crate) readiness: Readiness,
    /// Kilobytes that bodies may still take.
    pub(crate) bodies: Arc<Semaphore>,
    /// The profiles of the configuration, on which those of the database lie.
    pub(crate) profiles: Profiles,
    pub(crate) roster: Roster,
}

impl World {
    pub(crate) fn new(
        engine: Arc<Engine>,
        store: Arc<Store>,
        places: Arc<dyn Places>,
        profiles: Profiles,
        settings: Settings,
        accounts: Accounts,
        roster: Roster,
    ) -> Self {
        Self {
            gate: Gate::new(settings.concurrency, settings.queue, settings.queue_total),
            readers: Readers::new(),
            bodies: Arc::new(Semaphore::new(settings.bodies_total >> 10)),
            bearers: Bearers::default(),
            live: Live::default(),
            written: Written::new(settings.retention.max_bytes),
            sandboxes: Registry::new(settings.sandboxes),
            mcp: Sessions::default(),
            mounts: Mounts::default(),
            meters: Meters::new(),
            tracer: settings.collector.clone().map(Tracer::new),
            readiness: Readiness::default(),
            engine,
            store,
            places,
            profiles,
            settings,
            accounts,
            roster,
        }
    }

    /// What the volumes and snapshots of a caller may take together.
    pub(crate) fn disk_quota(&self, caller: &Caller) -> u64 {
        caller.quotas.disk_bytes.unwrap_or(self.settings.tenant_disk)
    }
}
