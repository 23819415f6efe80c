//! A running container, as a sandbox.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use belljar_egress::Egress;
use belljar_engine::explain;
use belljar_engine::finding::Finding;
use belljar_engine::layer::Layer;
use belljar_engine::limits::Limits;
use belljar_engine::living::{
    Asked, ByteStream, Commands, Files, Living, LivingError, NetworkUse, State, Stats,
};
use belljar_engine::network::HostRules;
use belljar_engine::outcome::{Ending, Kernel, Outcome, Receipt, Usage, Warmth};
use belljar_engine::plan::{Plan, Program, Task};
use belljar_engine::provider::{BoxFuture, ProviderError, Sink};

use super::container::{Container, Made};
use super::daemon::Daemon;
use super::image::DockerImage;
use super::runtimes::search_path;
use super::shape::Shape;
use super::{NAME, Shared, count};
use crate::inside::ahead::Ahead;
use crate::inside::task::{Errand, Ready};
use crate::inside::{self, Inside, Keeper, environment};
use crate::program::Found;

/// Time allowed for the stream to close after its container is removed.
const MOURNING: Duration = Duration::from_secs(5);

/// A container in use.
#[derive(Debug)]
pub(super) struct DockerLiving {
    inside: Inside,
    kept: Arc<Kept>,
    shared: Arc<Shared>,
    plan: Plan,
    /// The search path inside the container.
    path: String,
    /// Its egress, if it may reach individual hosts.
    egress: Option<Egress>,
    isolation: Vec<Layer>,
    kernel: Kernel,
    warm: Warmth,
    image: DockerImage,
    /// Whether it is for a single task; the shape of the container for the next task; the interpreter
    /// pre-started here.
    fresh: bool,
    next: Option<Shape>,
    ahead: Mutex<Option<Ahead>>,
    /// The usage when it was paused. It does not change until resumed, and a paused guest cannot be asked.
    at_rest: Mutex<Option<Stats>>,
}

/// The container, until it is killed or closed.
#[derive(Debug)]
struct Kept {
    daemon: Arc<Daemon>,
    id: String,
    made: Mutex<Option<Made>>,
}

impl Keeper for Kept {
    fn kill(&self) {
        drop(self.made.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn fate(&self) -> BoxFuture<'_, String> {
        Box::pin(async {
            if self.made.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
                return "the sandbox was closed".to_owned();
            }
            self.daemon.fate(&self.id).await.to_string()
        })
    }
}

impl DockerLiving {
    /// Creates one for a single task.
    pub(super) fn for_task(
        shared: &Arc<Shared>,
        plan: Plan,
        container: Container,
        warm: Warmth,
        next: Option<Shape>,
    ) -> Self {
        Self { next, ..Self::new(shared, plan, container, warm, true) }
    }

    /// Creates one that stays until it is closed.
    pub(super) fn to_stay(shared: &Arc<Shared>, plan: Plan, container: Container) -> Self {
        Self::new(shared, plan, container, Warmth::Cold, false)
    }

    fn new(shared: &Arc<Shared>, mut plan: Plan, container: Container, warm: Warmth, fresh: bool) -> Self {
        let Container { guest, image, isolation, kernel, egress, ahead, made } = container;
        let daemon = Arc::clone(&shared.daemon);
        let kept = Arc::new(Kept { daemon, id: made.id.clone(), made: Mutex::new(Some(made)) });
        let path = search_path(&plan, image.variables.path.as_deref());
        // Variables set by the image have the lowest precedence.
        let mut set = image.variables.env.clone();
        set.append(&mut plan.env);
        plan.env = set;
        let env = if fresh { BTreeMap::new() } else { environment(&path, &plan) };
        Self {
            inside: Inside::new(guest, Arc::clone(&kept) as Arc<dyn Keeper>, env),
            kept,
            shared: Arc::clone(shared),
            plan,
            path,
            egress,
            isolation,
            kernel,
            warm,
            image,
            fresh,
            next: None,
            ahead: Mutex::new(ahead),
            at_rest: Mutex::new(None),
        }
    }

    /// Returns the runtime for the task's language.
    async fn runtime(&self, task: &Task) -> Result<Option<Found>, ProviderError> {
        let Program::Code { language, .. } = &task.program else { return Ok(None) };
        let name = self.plan.image.identity();
        self.shared.runtimes.find(&self.inside.guest, &self.image, language, &name).await.map(Some)
    }

    /// Takes the interpreter pre-started for this task, if any, and refills the pool for the next task like
    /// it.
    async fn ahead_for(&self, ready: &Ready<'_>) -> Option<Ahead> {
        let order = ready.ahead();
        let waiting = self.ahead.lock().unwrap_or_else(PoisonError::into_inner).take();
        let fits = waiting.as_ref().is_some_and(|ahead| ahead.is_for(order.as_ref()));
        if let Some(shape) = &self.next {
            self.shared.pool.refill(shape.clone(), self.image.clone(), order);
        }
        match waiting {
            Some(ahead) if !fits => {
                ahead.end(&self.inside.guest).await;
                None
            }
            waiting => waiting,
        }
    }

    async fn take_stats(&self) -> Result<Stats, LivingError> {
        let at_rest = *self.at_rest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stats) = at_rest.filter(|_| !self.inside.guest.is_gone()) {
            return Ok(stats);
        }
        let stats = count::stats(&self.inside.guest, self.plan.playground.is_some()).await;
        if self.inside.guest.is_gone() {
            return Err(LivingError::Gone(self.kept.fate().await));
        }
        Ok(stats)
    }

    async fn set_paused(&self, paused: bool) -> Result<(), LivingError> {
        if paused == self.inside.is_paused() {
            return Ok(());
        }
        let stats = self.take_stats().await?;
        let client = &self.shared.daemon.connected().await?.client;
        if paused {
            // From here on, calls that a paused guest would not answer fail at once.
            self.inside.set_paused(true);
        }
        let done = match paused {
            true => client.pause_container(&self.kept.id).await,
            false => client.unpause_container(&self.kept.id).await,
        };
        if paused == done.is_err() {
            self.inside.set_paused(false);
        }
        let explain = |error| self.shared.daemon.explain("pause or resume the container", &error);
        done.map_err(explain)?;
        *self.at_rest.lock().unwrap_or_else(PoisonError::into_inner) = paused.then_some(stats);
        Ok(())
    }

    /// Returns the outcome of a task whose container ended. In a single-task container, hitting a limit is
    /// the task's own ending.
    async fn ended_under(&self, why: String, started: Instant) -> Result<Outcome, LivingError> {
        if !self.fresh {
            return Err(LivingError::Gone(why));
        }
        let Some(limit) = self.kept.daemon.fate(&self.kept.id).await.limit() else {
            return Err(LivingError::Gone(why));
        };
        Ok(Outcome {
            ending: Ending::LimitHit(limit, None),
            duration: started.elapsed(),
            usage: Usage::default(),
            result: None,
            artifacts: Vec::new(),
            findings: Vec::new(),
            receipt: self.receipt().await?,
        })
    }

    async fn end(&self) {
        let made = self.kept.made.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(removing) = made.and_then(|mut made| made.remove()) {
            let _removed = removing.await;
            // The stream closes with the container. If the daemon is gone, it has closed already.
            let _gone = tokio::time::timeout(MOURNING, self.inside.guest.gone()).await;
        }
        if let Some(egress) = &self.egress {
            egress.close().await;
        }
    }
}

impl Living for DockerLiving {
    fn state(&self) -> State {
        match (self.inside.guest.is_gone(), self.inside.is_paused()) {
            (true, _) => State::Ended,
            (false, true) => State::Paused,
            (false, false) => State::Running,
        }
    }

    fn commands(&self) -> &dyn Commands {
        &self.inside
    }

    fn files(&self) -> &dyn Files {
        &self.inside
    }

    fn run<'a>(
        &'a self,
        task: &'a Task,
        limits: &'a Limits,
        sink: &'a mut dyn Sink,
        cancel: BoxFuture<'a, ()>,
    ) -> Asked<'a, Outcome> {
        Box::pin(async move {
            let (mark, started) = (self.egress.as_ref().map(Egress::mark), Instant::now());
            let errand = Errand {
                task,
                limits,
                plan: &self.plan,
                found: self.runtime(task).await?,
                path: &self.path,
                fresh: self.fresh && self.plan.playground.is_none(),
                alone: self.fresh,
                artifacts: &self.shared.artifacts.0,
                commands: &self.inside,
                notes: None,
            };
            let ready = errand.ready();
            let ahead = self.ahead_for(&ready).await;
            let mut outcome = match ready.run(self, ahead, sink, cancel).await {
                Err(LivingError::Gone(why)) => self.ended_under(why, started).await?,
                outcome => outcome?,
            };
            if let Some((egress, mark)) = self.egress.as_ref().zip(mark) {
                outcome.findings.extend(egress.findings_since(&mark));
            }
            Ok(outcome)
        })
    }

    fn open_port(&self, port: u16) -> Asked<'_, ByteStream> {
        Box::pin(async move {
            let stream = self.inside.told(self.inside.awake()?.open_port(port).await).await?;
            Ok(Box::pin(stream) as ByteStream)
        })
    }

    fn pause(&self) -> Asked<'_, ()> {
        Box::pin(self.set_paused(true))
    }

    fn resume(&self) -> Asked<'_, ()> {
        Box::pin(self.set_paused(false))
    }

    fn halt(&self, why: String) -> Asked<'_, ()> {
        // First stop new commands from starting. One that has just started is found when the caller repeats
        // this.
        self.inside.set_halted(Some(why));
        Box::pin(async { self.inside.told(self.inside.awake()?.end_all().await).await })
    }

    fn release(&self) {
        self.inside.set_halted(None);
    }

    fn halted(&self) -> Option<String> {
        self.inside.halted()
    }

    fn receipt(&self) -> Asked<'_, Receipt> {
        let receipt = Receipt {
            provider: NAME,
            kernel: self.kernel,
            isolation: self.isolation.clone(),
            warm: self.warm,
            simulated: false,
            service: None,
        };
        Box::pin(std::future::ready(Ok(receipt)))
    }

    fn stats(&self) -> Asked<'_, Stats> {
        Box::pin(self.take_stats())
    }

    fn kept_from(&self) -> Asked<'_, Vec<Finding>> {
        Box::pin(async {
            let Stats { forks_refused, memory_kills, disk_full, .. } = self.take_stats().await?;
            let kept = explain::Kept { forks_refused, memory_kills, disk_full, ..explain::Kept::default() };
            let mut findings = explain::findings(&kept, Ending::Exited(0), &self.plan.limits);
            findings.extend(self.egress.iter().flat_map(Egress::findings));
            Ok(findings)
        })
    }

    fn network(&self) -> Option<NetworkUse> {
        self.egress.as_ref().map(inside::network_use)
    }

    fn set_hosts(&self, rules: HostRules) -> Result<(), LivingError> {
        let egress = self.egress.as_ref().ok_or_else(LivingError::no_gate)?;
        egress.set_rules(rules);
        Ok(())
    }

    fn ended(&self) -> BoxFuture<'_, String> {
        Box::pin(async {
            self.inside.guest.gone().await;
            self.kept.fate().await
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.end())
    }
}
