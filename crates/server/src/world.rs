//! Shared state of all handlers, created once when the server starts.

use std::sync::Arc;

use belljar_engine::Engine;
use belljar_engine::places::Places;
use belljar_engine::profile::Profiles;
use belljar_store::Store;

use crate::accounts::{Accounts, Caller};
use crate::bearers::Bearers;
use crate::body::Bodies;
use crate::connections::Connections;
use crate::error::Error;
use crate::gate::Gate;
use crate::health::Readiness;
use crate::live::Live;
use crate::mcp::Sessions;
use crate::metrics::Meters;
use crate::mismatches::Unwritten;
use crate::places::Mounts;
use crate::pool::Rivals;
use crate::readers::Readers;
use crate::roster::Roster;
use crate::sandboxes::Registry;
use crate::settings::Settings;
use crate::streams::Streams;
use crate::trace::Tracer;
use crate::written::Written;

/// State that every handler can access.
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
    pub(crate) mismatches: Unwritten,
    pub(crate) written: Written,
    pub(crate) tracer: Option<Tracer>,
    pub(crate) readiness: Readiness,
    pub(crate) bodies: Bodies,
    pub(crate) connections: Connections,
    pub(crate) streams: Streams,
    /// Whether more than one tenant competes for the server's resources.
    pub(crate) rivals: Rivals,
    /// Profiles from the configuration file. Profiles in the database override them.
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
        let rivals = Rivals::default();
        Self {
            gate: Gate::new(settings.concurrency, settings.queue, settings.queue_total, &rivals),
            bodies: Bodies::new(settings.bodies_total, settings.max_body, &rivals),
            connections: Connections::new(settings.connections, &rivals),
            streams: Streams::new(&settings, &rivals),
            readers: Readers::new(),
            bearers: Bearers::default(),
            live: Live::default(),
            written: Written::new(settings.retention.max_bytes),
            sandboxes: Registry::new(settings.sandboxes, &rivals),
            rivals,
            mcp: Sessions::default(),
            mounts: Mounts::default(),
            meters: Meters::new(),
            mismatches: Unwritten::default(),
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

    /// Records whether more than one tenant is enabled.
    pub(crate) async fn count_tenants(&self) -> Result<(), Error> {
        let tenants = self.store.tenants().await?;
        self.rivals.set(tenants.iter().filter(|tenant| tenant.disabled.is_none()).count() > 1);
        Ok(())
    }

    /// Returns how often a tenant was refused or had to wait because of its share, by kind.
    pub(crate) fn share_refusals(&self) -> Vec<(&'static str, u64)> {
        let gate = self.gate.refusals();
        let mut all = vec![("turns", gate.turns), ("queue", gate.queue), self.sandboxes.refused()];
        all.extend(self.bodies.refused());
        all.extend(self.connections.refused());
        all.push(self.streams.refused());
        all
    }

    /// Returns the caller's disk quota in bytes, for its volumes and snapshots together.
    pub(crate) fn disk_quota(&self, caller: &Caller) -> u64 {
        caller.quotas.disk_bytes.unwrap_or(self.settings.tenant_disk)
    }
}
