//! Sandboxes: a jail whose PID 1 is the guest. The guest handles requests over its socket; the launcher
//! handles pausing, statistics and termination.

mod commands;
mod kept;

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use belljar_egress::Egress;
use belljar_engine::finding::Finding;
use belljar_engine::layer::Layer;
use belljar_engine::limits::Limits;
use belljar_engine::living::{
    Asked, ByteStream, Commands, Files, Living, LivingError, NetworkUse, State, Stats,
};
use belljar_engine::network::HostRules;
use belljar_engine::outcome::{Kernel, Outcome, Receipt, Warmth};
use belljar_engine::plan::{Program, Task, WORKSPACE};
use belljar_engine::provider::{BoxFuture, ProviderError, Sink};
use belljar_guest::{Guest, GuestError};
use belljar_jail::spec::{Answer, Ask, Ending, Jail};
use belljar_jail::wire::Notice;
use tokio::net::UnixStream;
use tokio::sync::{Mutex, OnceCell};

use self::kept::{Noted, Starts};
use super::connection::{Connection, Ordered, lost};
use super::gate::Gate;
use super::image::NumberedRoot;
use super::run::{failure_of, setup};
use super::{Place, Shared, engine_layer, run as one_shot};
use crate::inside::task::Errand;
use crate::inside::{self, GREETING, Inside, Keeper};
use crate::program::Found;

/// Time allowed to learn why a sandbox ended.
const MOURNING: Duration = Duration::from_secs(5);
/// A sandbox of the native provider.
#[derive(Debug)]
pub(super) struct NativeLiving {
    inside: Inside,
    jail: Arc<KeptJail>,
    layers: OnceCell<Vec<Layer>>,
    shared: Arc<Shared>,
    place: Place,
    root: Arc<NumberedRoot>,
    /// Interpreters outside the standard folders that are visible inside. No others can run.
    prefixes: Vec<PathBuf>,
    /// Its egress, if it may reach individual hosts.
    egress: Option<Egress>,
    starts: Starts,
}

/// The jail of a sandbox.
#[derive(Debug)]
struct KeptJail {
    connection: Connection,
    number: u64,
    /// Dropping it kills the jail.
    ordered: Mutex<Ordered>,
    fate: OnceCell<String>,
}

impl Keeper for KeptJail {
    fn kill(&self) {
        self.connection.kill(self.number);
    }

    fn fate(&self) -> BoxFuture<'_, String> {
        let learn = || async {
            let mut ordered = self.ordered.lock().await;
            let notice = tokio::time::timeout(MOURNING, &mut ordered.notice).await;
            if let Ok(Ok(_)) = &notice {
                ordered.over();
            }
            fate_of(notice.ok())
        };
        Box::pin(async move { self.fate.get_or_init(learn).await.clone() })
    }
}

/// Opens a sandbox, starting a new launcher if the current one is gone.
pub(super) async fn open(shared: &Arc<Shared>, place: Place) -> Result<NativeLiving, ProviderError> {
    let prefixes = shared.roots.usual_prefixes(&place.plan.image);
    let root = shared.roots.tree(&place.plan, &place.binds, &prefixes)?;
    let (guest, connection, ordered, egress) = match start(shared, &place, &root).await {
        Err(ProviderError::Lost { .. }) => {
            shared.link.renew().await?;
            start(shared, &place, &root).await?
        }
        started => started?,
    };
    let env = inside::environment(&root.path, &place.plan);
    let jail = Arc::new(KeptJail {
        connection,
        number: ordered.number(),
        ordered: Mutex::new(ordered),
        fate: OnceCell::new(),
    });
    let inside = Inside::new(guest, Arc::clone(&jail) as Arc<dyn Keeper>, env);
    Ok(NativeLiving {
        inside,
        jail,
        layers: OnceCell::new(),
        shared: Arc::clone(shared),
        place,
        root,
        prefixes,
        egress,
        starts: Starts::default(),
    })
}

async fn start(
    shared: &Shared,
    place: &Place,
    root: &NumberedRoot,
) -> Result<(Guest, Connection, Ordered, Option<Egress>), ProviderError> {
    let pair = StdUnixStream::pair().and_then(|(ours, theirs)| {
        ours.set_nonblocking(true)?;
        Ok((UnixStream::from_std(ours)?, theirs))
    });
    let (ours, theirs) = pair.map_err(|error| setup("create a socket to the guest", &error))?;
    let connection = shared.link.connection()?;
    let gate = Gate::of(&place.plan.network)?;
    let fds: Vec<_> = [theirs.as_fd()].into_iter().chain(gate.as_ref().map(Gate::theirs)).collect();
    let mut ordered = connection.start(root, jail(place, root.number), &fds).await?;
    drop(fds);
    drop(theirs);
    let egress = gate.map(Gate::ordered);
    let settings = inside::settings(&place.plan.limits);
    match tokio::time::timeout(GREETING, Guest::connect(ours, settings)).await {
        Ok(Ok(guest)) => Ok((guest, connection, ordered, egress)),
        Ok(Err(error)) => Err(why_not(&mut ordered, &error).await),
        Err(_) => Err(ProviderError::Lost { message: "the guest did not answer in time".to_owned() }),
    }
}

/// Returns why the guest is not running, as reported by the launcher.
async fn why_not(ordered: &mut Ordered, error: &GuestError) -> ProviderError {
    match tokio::time::timeout(MOURNING, &mut ordered.notice).await {
        Ok(Ok(Notice::Failed { failure, .. })) => failure_of(&failure),
        Ok(Ok(Notice::Ended { ending: Ending::MachineMemory, .. })) => ProviderError::SandboxMemoryExhausted,
        Ok(Ok(Notice::Ended { ending: Ending::Memory, .. })) => ProviderError::Setup {
            step: "start the guest".to_owned(),
            cause: "limits.memory_bytes is too low".to_owned(),
        },
        Ok(Err(_)) => lost(),
        _ => ProviderError::Setup { step: "start the guest".to_owned(), cause: error.to_string() },
    }
}

fn jail(place: &Place, root: u64) -> Jail {
    let mut limits = one_shot::limits(&place.plan.limits);
    limits.timeout = None;
    Jail {
        root,
        living: true,
        commands: Vec::new(),
        env: Vec::new(),
        workdir: WORKSPACE.to_owned(),
        limits,
        network: one_shot::network(&place.plan.network),
        playground: place.playground.clone(),
        binds: place.binds.clone(),
        result_pipe: false,
        artifacts: None,
        require_separate_uid: place.plan.require.contains(&Layer::SeparateUid),
        tenant: place.plan.tenant.clone(),
        interpreter: None,
    }
}

impl NativeLiving {
    async fn ask(&self, what: Ask) -> Result<Answer, LivingError> {
        match self.jail.connection.ask(self.jail.number, what).await {
            Answer::Gone => Err(LivingError::Gone(self.jail.fate().await)),
            Answer::Refused(message) => Err(ProviderError::Unsupported { field: "pause", message }.into()),
            answer => Ok(answer),
        }
    }

    /// Returns the layers in force.
    async fn layers(&self) -> Result<&[Layer], LivingError> {
        let ask = || async {
            match self.ask(Ask::Layers).await? {
                Answer::Layers(layers) => {
                    let mut layers: Vec<Layer> = layers.into_iter().map(engine_layer).collect();
                    layers.sort();
                    Ok(layers)
                }
                _ => Err(lost().into()),
            }
        };
        self.layers.get_or_try_init(ask).await.map(Vec::as_slice)
    }

    async fn set_paused(&self, paused: bool) -> Result<(), LivingError> {
        if paused {
            // From here on, calls that a paused guest would not answer fail at once.
            self.inside.set_paused(true);
        }
        let answer = self.ask(if paused { Ask::Pause } else { Ask::Resume }).await;
        if paused == answer.is_err() {
            self.inside.set_paused(false);
        }
        answer.map(drop)
    }

    /// Returns the runtime for the task's language, which must be visible in this sandbox.
    fn runtime(&self, task: &Task) -> Result<Option<Found>, ProviderError> {
        let Program::Code { language, .. } = &task.program else { return Ok(None) };
        let located = self.shared.roots.runtime(language, &self.place.plan.image)?;
        if located.prefixes.iter().any(|prefix| !self.prefixes.contains(prefix)) {
            let message =
                format!("{} is installed outside this sandbox; run it without a sandbox", language.name);
            return Err(ProviderError::Unsupported { field: "language", message });
        }
        Ok(Some(located.found))
    }

    async fn take_stats(&self) -> Result<Stats, LivingError> {
        let Answer::Stats(stats) = self.ask(Ask::Stats).await? else { return Err(lost().into()) };
        Ok(Stats {
            cpu: stats.cpu,
            memory_bytes: stats.memory_bytes,
            peak_memory_bytes: stats.peak_memory_bytes,
            processes: stats.processes,
            peak_processes: stats.peak_processes,
            disk_bytes: stats.disk_bytes,
            memory_kills: stats.memory_kills,
            machine_memory_kills: stats.machine_memory_kills,
            forks_refused: stats.forks_refused,
            disk_full: stats.disk_full,
        })
    }
}

fn fate_of(notice: Option<Result<Notice, tokio::sync::oneshot::error::RecvError>>) -> String {
    match notice {
        Some(Ok(Notice::Ended { ending, .. })) => match ending {
            Ending::Killed => "the sandbox was closed".to_owned(),
            Ending::TimedOut => "it timed out".to_owned(),
            Ending::MachineMemory => {
                "the memory shared by all sandboxes ran out, and this one was killed".to_owned()
            }
            Ending::Memory => "it ran out of memory, and its init process was killed".to_owned(),
            Ending::Signalled(signal) => format!("its init process was killed by signal {signal}"),
            other => format!("its init process ended: {other:?}"),
        },
        Some(Ok(Notice::Failed { failure, .. })) => failure.to_string(),
        Some(Err(_)) => "the launcher was killed".to_owned(),
        Some(Ok(_)) | None => "it no longer responds".to_owned(),
    }
}

impl Living for NativeLiving {
    fn state(&self) -> State {
        match (self.inside.guest.is_gone(), self.inside.is_paused()) {
            (true, _) => State::Ended,
            (false, true) => State::Paused,
            (false, false) => State::Running,
        }
    }

    fn commands(&self) -> &dyn Commands {
        self
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
            let start = self.starts.begin();
            let noted = Noted { living: self, start, before: self.before().await? };
            let errand = Errand {
                task,
                limits,
                plan: &self.place.plan,
                found: self.runtime(task)?,
                path: &self.root.path,
                fresh: false,
                alone: false,
                artifacts: &self.shared.artifacts.0,
                commands: &self.inside,
                notes: Some(&noted),
            };
            errand.ready().run(self, None, sink, cancel).await
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
        Box::pin(async {
            let isolation = self.layers().await?.to_vec();
            Ok(Receipt {
                provider: "native",
                kernel: Kernel::Host,
                isolation,
                warm: Warmth::Cold,
                simulated: false,
                service: None,
            })
        })
    }

    fn stats(&self) -> Asked<'_, Stats> {
        Box::pin(self.take_stats())
    }

    fn kept_from(&self) -> Asked<'_, Vec<Finding>> {
        Box::pin(self.kept_from_anything())
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
            self.jail.fate().await
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if self.jail.fate.get().is_none() {
                self.jail.kill();
            }
            self.jail.fate().await;
            if let Some(egress) = &self.egress {
                egress.close().await;
            }
        })
    }
}
