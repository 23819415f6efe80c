//! The handles that operations share, created once when the server starts.

use std::sync::Arc;

use belljar_engine::Engine;
use belljar_engine::host_storage::HostStorage;
use belljar_engine::profile::Profiles;
use belljar_store::Store;

use crate::authentication::{Authenticator, Caller};
use crate::body_memory::BodyMemory;
use crate::check_workers::CheckWorkers;
use crate::closed_tenants::ClosedTenants;
use crate::connections::Connections;
use crate::error::Error;
use crate::executions::live_executions::LiveExecutions;
use crate::health::Readiness;
use crate::metrics::Metrics;
use crate::provider_registry::ProviderRegistry;
use crate::retention_trigger::RetentionTrigger;
use crate::revocation::ConnectionHandles;
use crate::run_queue::RunQueue;
use crate::sandboxes::registry::SandboxRegistry;
use crate::settings::Settings;
use crate::share_pool::OtherTenants;
use crate::storage::disk_quota::OpenDisks;
use crate::storage::mounts::VolumeMounts;
use crate::streams::Streams;
use crate::trace::Tracer;

/// The handles that operations share.
#[derive(Debug)]
pub struct AppState {
    pub(crate) engine: Arc<Engine>,
    pub(crate) store: Arc<Store>,
    pub(crate) settings: Settings,
    pub(crate) authenticator: Authenticator,
    pub(crate) connection_handles: ConnectionHandles,
    pub(crate) closed_tenants: ClosedTenants,
    pub(crate) run_queue: RunQueue,
    pub(crate) check_workers: CheckWorkers,
    pub(crate) live_executions: Arc<LiveExecutions>,
    pub(crate) sandboxes: SandboxRegistry,
    pub(crate) host_storage: Arc<dyn HostStorage>,
    pub(crate) volume_mounts: VolumeMounts,
    pub(crate) open_disks: OpenDisks,
    pub(crate) metrics: Metrics,
    pub(crate) retention_trigger: RetentionTrigger,
    pub(crate) tracer: Option<Tracer>,
    pub(crate) readiness: Readiness,
    pub(crate) body_memory: BodyMemory,
    pub(crate) connections: Connections,
    pub(crate) streams: Streams,
    /// Whether more than one tenant competes for the server's resources.
    pub(crate) other_tenants: OtherTenants,
    /// Profiles from the configuration file. Profiles in the database override them.
    pub(crate) profiles: Profiles,
    pub(crate) provider_registry: ProviderRegistry,
}

impl AppState {
    pub(crate) fn new(
        engine: Arc<Engine>,
        store: Arc<Store>,
        host_storage: Arc<dyn HostStorage>,
        profiles: Profiles,
        settings: Settings,
        authenticator: Authenticator,
        provider_registry: ProviderRegistry,
    ) -> Self {
        let other_tenants = OtherTenants::default();
        Self {
            run_queue: RunQueue::new(
                settings.concurrency,
                settings.queue,
                settings.queue_total,
                &other_tenants,
            ),
            body_memory: BodyMemory::new(settings.bodies_total, settings.max_body, &other_tenants),
            connections: Connections::new(settings.connections, &other_tenants),
            streams: Streams::new(&settings, &other_tenants),
            check_workers: CheckWorkers::new(),
            connection_handles: ConnectionHandles::default(),
            closed_tenants: ClosedTenants::default(),
            live_executions: Arc::default(),
            retention_trigger: RetentionTrigger::new(settings.retention.max_bytes),
            sandboxes: SandboxRegistry::new(settings.sandboxes, &other_tenants),
            other_tenants,
            volume_mounts: VolumeMounts::default(),
            open_disks: OpenDisks::default(),
            metrics: Metrics::new(),
            tracer: settings.collector.clone().map(Tracer::new),
            readiness: Readiness::default(),
            engine,
            store,
            host_storage,
            profiles,
            settings,
            authenticator,
            provider_registry,
        }
    }

    /// Records whether more than one tenant is enabled.
    pub(crate) async fn update_other_tenants(&self) -> Result<(), Error> {
        let tenants = self.store.tenants().await?;
        self.other_tenants.set(tenants.iter().filter(|tenant| tenant.disabled.is_none()).count() > 1);
        Ok(())
    }

    /// Returns how often a tenant was refused or had to wait because of its share, by kind.
    pub(crate) fn share_refusals(&self) -> Vec<(&'static str, u64)> {
        let run_queue = self.run_queue.share_delays();
        let mut all =
            vec![("turns", run_queue.turns), ("queue", run_queue.queue), self.sandboxes.share_refusals()];
        all.extend(self.body_memory.share_refusals());
        all.extend(self.connections.share_refusals());
        all.push(self.streams.share_refusals());
        all
    }

    /// Returns an error as this caller may see it.
    pub(crate) fn error_for(&self, is_admin: bool, error: Error) -> Error {
        error.with_cause_for(is_admin, |cause| self.provider_registry.mask(cause))
    }

    /// Returns the caller's disk quota in bytes, for its volumes, its snapshots and the disks of its sandboxes in files
    /// together.
    pub(crate) fn disk_quota(&self, caller: &Caller) -> u64 {
        caller.quotas.disk_bytes.unwrap_or(self.settings.tenant_disk)
    }
}
