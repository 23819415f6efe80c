//! Shared state of all handlers, created once when the server starts.

use std::sync::Arc;

use belljar_engine::Engine;
use belljar_engine::host_storage::HostStorage;
use belljar_engine::profile::Profiles;
use belljar_store::Store;

use crate::authentication::{Authenticator, Caller};
use crate::body::BodyMemory;
use crate::check_workers::CheckWorkers;
use crate::connections::Connections;
use crate::error::Error;
use crate::health::Readiness;
use crate::live_executions::LiveExecutions;
use crate::mcp::McpSessions;
use crate::metrics::Metrics;
use crate::mismatches::PendingMismatches;
use crate::places::VolumeMounts;
use crate::provider_registry::ProviderRegistry;
use crate::retention_trigger::RetentionTrigger;
use crate::revocation::ConnectionHandles;
use crate::run_queue::RunQueue;
use crate::sandboxes::SandboxRegistry;
use crate::settings::Settings;
use crate::share_pool::OtherTenants;
use crate::streams::Streams;
use crate::trace::Tracer;

/// State that every handler can access.
#[derive(Debug)]
pub struct AppState {
    pub(crate) engine: Arc<Engine>,
    pub(crate) store: Arc<Store>,
    pub(crate) settings: Settings,
    pub(crate) accounts: Authenticator,
    pub(crate) bearers: ConnectionHandles,
    pub(crate) gate: RunQueue,
    pub(crate) readers: CheckWorkers,
    pub(crate) live: LiveExecutions,
    pub(crate) sandboxes: SandboxRegistry,
    pub(crate) mcp: McpSessions,
    pub(crate) places: Arc<dyn HostStorage>,
    pub(crate) mounts: VolumeMounts,
    pub(crate) meters: Metrics,
    pub(crate) mismatches: PendingMismatches,
    pub(crate) written: RetentionTrigger,
    pub(crate) tracer: Option<Tracer>,
    pub(crate) readiness: Readiness,
    pub(crate) bodies: BodyMemory,
    pub(crate) connections: Connections,
    pub(crate) streams: Streams,
    /// Whether more than one tenant competes for the server's resources.
    pub(crate) rivals: OtherTenants,
    /// Profiles from the configuration file. Profiles in the database override them.
    pub(crate) profiles: Profiles,
    pub(crate) roster: ProviderRegistry,
}

impl AppState {
    pub(crate) fn new(
        engine: Arc<Engine>,
        store: Arc<Store>,
        places: Arc<dyn HostStorage>,
        profiles: Profiles,
        settings: Settings,
        accounts: Authenticator,
        roster: ProviderRegistry,
    ) -> Self {
        let rivals = OtherTenants::default();
        Self {
            gate: RunQueue::new(settings.concurrency, settings.queue, settings.queue_total, &rivals),
            bodies: BodyMemory::new(settings.bodies_total, settings.max_body, &rivals),
            connections: Connections::new(settings.connections, &rivals),
            streams: Streams::new(&settings, &rivals),
            readers: CheckWorkers::new(),
            bearers: ConnectionHandles::default(),
            live: LiveExecutions::default(),
            written: RetentionTrigger::new(settings.retention.max_bytes),
            sandboxes: SandboxRegistry::new(settings.sandboxes, &rivals),
            rivals,
            mcp: McpSessions::default(),
            mounts: VolumeMounts::default(),
            meters: Metrics::new(),
            mismatches: PendingMismatches::default(),
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
    pub(crate) async fn update_has_rivals(&self) -> Result<(), Error> {
        let tenants = self.store.tenants().await?;
        self.rivals.set(tenants.iter().filter(|tenant| tenant.disabled.is_none()).count() > 1);
        Ok(())
    }

    /// Returns how often a tenant was refused or had to wait because of its share, by kind.
    pub(crate) fn share_refusals(&self) -> Vec<(&'static str, u64)> {
        let gate = self.gate.share_delays();
        let mut all = vec![("turns", gate.turns), ("queue", gate.queue), self.sandboxes.share_refusals()];
        all.extend(self.bodies.share_refusals());
        all.extend(self.connections.share_refusals());
        all.push(self.streams.share_refusals());
        all
    }

    /// Returns the caller's disk quota in bytes, for its volumes and snapshots together.
    pub(crate) fn disk_quota(&self, caller: &Caller) -> u64 {
        caller.quotas.disk_bytes.unwrap_or(self.settings.tenant_disk)
    }
}
