//! Containers started in advance, if possible with the interpreter that the last run needed. Each serves one
//! tenant and one run. A container that mounts host folders or has egress is created for its run and never
//! waits here.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belljar_engine::provider::PoolMetrics;

use super::container::Container;
use super::container_spec::ContainerSpec;
use super::daemon::Daemon;
use super::image::DockerImage;
use crate::guest_sandbox::{PrestartSpec, PrestartedInterpreter};

/// Containers started concurrently. Starting one keeps a core busy.
const MAX_CONCURRENT_STARTS: usize = 2;

#[derive(Debug)]
pub(super) struct ContainerPool {
    daemon: Arc<Daemon>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Oldest first.
    idle: VecDeque<(ContainerSpec, Container)>,
    starting: usize,
    hits: u64,
    misses: u64,
    last_refill: Duration,
    obstacle: Option<String>,
    closed: bool,
}

impl ContainerPool {
    pub(super) fn new(daemon: &Arc<Daemon>) -> Arc<Self> {
        Arc::new(Self { daemon: Arc::clone(daemon), state: Mutex::default() })
    }

    /// Takes an idle container of this shape, preferring one with this language's interpreter, then one with
    /// none.
    pub(super) fn take_idle(&self, spec: &ContainerSpec, language: Option<&str>) -> Option<Container> {
        let mut state = self.state();
        // The daemon may have restarted meanwhile.
        state.idle.retain(|(_, container)| !container.guest.is_gone());
        let waiting = state.idle.iter().enumerate().filter(|(_, (idle_spec, _))| idle_spec == spec);
        let found = waiting.min_by_key(|(_, (_, container))| {
            let ready = container.prestarted.as_ref().map(|prestarted| prestarted.language);
            (ready != language, ready.is_some())
        });
        let found = found.map(|(at, _)| at);
        let taken = found.and_then(|at| state.idle.remove(at));
        match &taken {
            Some(_) => state.hits += 1,
            None => state.misses += 1,
        }
        taken.map(|(_, container)| container)
    }

    /// Starts another container of this shape. When the pool is full, the oldest is evicted.
    pub(super) fn refill(
        self: &Arc<Self>,
        spec: ContainerSpec,
        image: DockerImage,
        prestart: Option<PrestartSpec>,
    ) {
        {
            let mut state = self.state();
            if state.closed || state.starting >= MAX_CONCURRENT_STARTS.min(self.daemon.settings.pool) {
                return;
            }
            state.starting += 1;
        }
        let pool = Arc::clone(self);
        tokio::spawn(async move {
            let started = Instant::now();
            let mut created = Container::create(&pool.daemon, &spec, image).await;
            if let (Ok(container), Some(prestart)) = (&mut created, prestart) {
                container.prestarted = PrestartedInterpreter::start(&container.guest, prestart).await;
            }
            // Dropped after the lock is released: removing a container takes time.
            let _surplus =
                pool.add_started(spec, created.map_err(|error| error.to_string()), started.elapsed());
        });
    }

    fn add_started(
        &self,
        spec: ContainerSpec,
        created: Result<Container, String>,
        took: Duration,
    ) -> Option<(ContainerSpec, Container)> {
        let mut state = self.state();
        state.starting = state.starting.saturating_sub(1);
        state.obstacle = created.as_ref().err().cloned();
        let container = created.ok()?;
        if state.closed {
            return Some((spec, container));
        }
        state.last_refill = took;
        state.idle.push_back((spec, container));
        (state.idle.len() > self.daemon.settings.pool).then(|| state.idle.pop_front()).flatten()
    }

    /// Removes all idle containers and accepts no more.
    pub(super) fn close(&self) {
        let waiting = {
            let mut state = self.state();
            state.closed = true;
            std::mem::take(&mut state.idle)
        };
        drop(waiting);
    }

    pub(super) fn metrics(&self) -> Vec<PoolMetrics> {
        let state = self.state();
        let mut tenants: Vec<&str> = state.idle.iter().map(|(spec, _)| spec.tenant.as_str()).collect();
        tenants.sort_unstable();
        tenants.dedup();
        let count = |tenant: &str| state.idle.iter().filter(|(spec, _)| spec.tenant == tenant).count();
        let pool = |tenant: &str| PoolMetrics {
            name: format!("docker {}", self.daemon.settings.image),
            tenant: tenant.to_owned(),
            size: count(tenant),
            wanted: self.daemon.settings.pool,
            hits: state.hits,
            misses: state.misses,
            refill_ms: state.last_refill.as_secs_f64() * 1e3,
            obstacle: state.obstacle.clone(),
            ..PoolMetrics::default()
        };
        tenants.into_iter().map(pool).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
