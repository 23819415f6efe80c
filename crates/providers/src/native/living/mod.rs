//! Living sandboxes: a jail whose PID 1 is the guest, and what it is asked through its line. What counts and what ends it
//! are the launcher's: pausing, figures, the end.

mod commands;
mod errors;
mod files;
mod run;

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use belljar_egress::Egress;
use belljar_engine::layer::Layer;
use belljar_engine::limits::Limits;
use belljar_engine::living::{
    Asked, ByteStream, Commands, Files, Living, LivingError, NetworkUse, State, Stats,
};
use belljar_engine::network::HostRules;
use belljar_engine::outcome::{Kernel, Outcome, Receipt, Warmth};
use belljar_engine::plan::{Task, WORKSPACE};
use belljar_engine::provider::{BoxFuture, ProviderError, Sink};
use belljar_guest::protocol::Settings;
use belljar_guest::{Guest, GuestError};
use belljar_jail::spec::{Answer, Ask, Ending, Jail};
use belljar_jail::wire::Notice;
use tokio::net::UnixStream;
use tokio::sync::{Mutex, OnceCell, watch};

use super::connection::{Connection, Ordered, lost};
use super::gate::Gate;
use super::image::NumberedRoot;
use super::run::{failure_of, setup};
use super::{Place, Shared, engine_layer, run as one_shot};
use crate::program::base_environment;

/// How long a guest may take to greet, on a slow machine with next to no processor time.
const GREETING: Duration = Duration::from_secs(60);
/// How long it takes at most to be told why something ended that has.
const MOURNING: Duration = Duration::from_secs(5);
/// What a guest keeps of output, of all processes together; and the part of a small sandbox's memory that it may be.
const KEPT_BYTES: u64 = 64 << 20;
const KEPT_PART: u64 = 8;

/// Where pip puts programs of the sandbox user.
const INSTALLED: &str = "/home/sandbox/.local/bin";
/// Lets packages be installed as the sandbox user: the root is read-only, so nothing of it can be broken. And nobody in
/// there can do anything about a newer installer.
const INSTALLING: [(&str, &str); 3] = [
    ("PIP_BREAK_SYSTEM_PACKAGES", "1"),
    ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
    ("NPM_CONFIG_UPDATE_NOTIFIER", "false"),
];

/// A living sandbox.
#[derive(Debug)]
pub(super) struct NativeLiving {
    guest: Guest,
    connection: Connection,
    number: u64,
    /// Dropped, it kills.
    ordered: Mutex<Ordered>,
    fate: OnceCell<String>,
    layers: OnceCell<Vec<Layer>>,
    paused: AtomicBool,
    halted: watch::Sender<Option<String>>,
    shared: Arc<Shared>,
    place: Place,
    root: Arc<NumberedRoot>,
    /// What can be seen beside the usual folders: no interpreter elsewhere can run.
    prefixes: Vec<PathBuf>,
    /// What every process in it has.
    env: BTreeMap<String, String>,
    /// Its way out, where it may reach single hosts.
    egress: Option<Egress>,
}

/// Opens one. Where the launcher is gone, another one is started.
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
    let mut env = base_environment(&format!("{}:{INSTALLED}", root.path));
    env.extend(INSTALLING.map(|(name, value)| (name.to_owned(), value.to_owned())));
    env.extend(place.plan.env.clone());
    Ok(NativeLiving {
        guest,
        connection,
        number: ordered.number(),
        ordered: Mutex::new(ordered),
        fate: OnceCell::new(),
        layers: OnceCell::new(),
        paused: AtomicBool::new(false),
        halted: watch::Sender::default(),
        shared: Arc::clone(shared),
        place,
        root,
        prefixes,
        env,
        egress,
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
    let (ours, theirs) = pair.map_err(|error| setup("make a line to the guest", &error))?;
    let connection = shared.link.connection()?;
    let gate = Gate::of(&place.plan.network)?;
    let fds: Vec<_> = [theirs.as_fd()].into_iter().chain(gate.as_ref().map(Gate::theirs)).collect();
    let mut ordered = connection.start(root, jail(place, root.number), &fds).await?;
    drop(fds);
    drop(theirs);
    let egress = gate.map(Gate::ordered);
    let kept_bytes = KEPT_BYTES.min(place.plan.limits.memory_bytes / KEPT_PART);
    let settings = Settings { workdir: WORKSPACE.to_owned(), kept_bytes, ..Settings::default() };
    match tokio::time::timeout(GREETING, Guest::connect(ours, settings)).await {
        Ok(Ok(guest)) => Ok((guest, connection, ordered, egress)),
        Ok(Err(error)) => Err(why_not(&mut ordered, &error).await),
        Err(_) => Err(ProviderError::Lost { message: "its guest did not greet".to_owned() }),
    }
}

/// The guest is not there; the launcher knows why.
async fn why_not(ordered: &mut Ordered, error: &GuestError) -> ProviderError {
    match tokio::time::timeout(MOURNING, &mut ordered.notice).await {
        Ok(Ok(Notice::Failed { failure, .. })) => failure_of(&failure),
        Ok(Ok(Notice::Ended { ending: Ending::Memory, .. })) => ProviderError::Setup {
            step: "start the guest".to_owned(),
            cause: "limits.memory_bytes is too little for it".to_owned(),
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
        interpreter: None,
    }
}

impl NativeLiving {
    /// Whether it can be asked: one that is paused would answer only when it is resumed.
    fn awake(&self) -> Result<&Guest, LivingError> {
        if self.paused.load(Ordering::Acquire) { Err(LivingError::Paused) } else { Ok(&self.guest) }
    }

    /// The same for what starts or writes something.
    fn able(&self) -> Result<&Guest, LivingError> {
        match self.halted() {
            Some(why) => Err(LivingError::Halted(why)),
            None => self.awake(),
        }
    }

    /// Does what writes, until it is halted.
    async fn unless_halted<T>(
        &self,
        work: impl Future<Output = Result<T, LivingError>>,
    ) -> Result<T, LivingError> {
        let mut halted = self.halted.subscribe();
        tokio::select! {
            biased;
            // The sender is ours, so waiting cannot fail.
            Ok(why) = halted.wait_for(Option::is_some) => {
                Err(LivingError::Halted(why.clone().unwrap_or_default()))
            }
            done = work => done,
        }
    }

    /// Why it is gone; waits until it is.
    async fn fate(&self) -> &str {
        let learn = || async {
            let mut ordered = self.ordered.lock().await;
            let notice = tokio::time::timeout(MOURNING, &mut ordered.notice).await;
            if let Ok(Ok(_)) = &notice {
                ordered.over();
            }
            fate_of(notice.ok())
        };
        self.fate.get_or_init(learn).await
    }

    async fn ask(&self, what: Ask) -> Result<Answer, LivingError> {
        match self.connection.ask(self.number, what).await {
            Answer::Gone => Err(LivingError::Gone(self.fate().await.to_owned())),
            Answer::Refused(message) => Err(ProviderError::Unsupported { field: "pause", message }.into()),
            answer => Ok(answer),
        }
    }

    /// What is in force.
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
            // From here on nobody asks what would not answer.
            self.paused.store(true, Ordering::Release);
        }
        let answer = self.ask(if paused { Ask::Pause } else { Ask::Resume }).await;
        if paused == answer.is_err() {
            self.paused.store(false, Ordering::Release);
        }
        answer.map(drop)
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
            forks_refused: stats.forks_refused,
            disk_full: stats.disk_full,
        })
    }
}

fn fate_of(notice: Option<Result<Notice, tokio::sync::oneshot::error::RecvError>>) -> String {
    match notice {
        Some(Ok(Notice::Ended { ending, .. })) => match ending {
            Ending::Killed => "it was closed".to_owned(),
            Ending::TimedOut => "its time was over".to_owned(),
            Ending::Memory => "its memory ran out, and its first process was killed for it".to_owned(),
            Ending::Signalled(signal) => format!("its first process was ended by signal {signal}"),
            other => format!("its first process ended: {other:?}"),
        },
        Some(Ok(Notice::Failed { failure, .. })) => failure.to_string(),
        Some(Err(_)) => "the launcher was killed under it".to_owned(),
        Some(Ok(_)) | None => "it does not answer any more".to_owned(),
    }
}

impl Living for NativeLiving {
    fn state(&self) -> State {
        match (self.guest.is_gone(), self.paused.load(Ordering::Acquire)) {
            (true, _) => State::Ended,
            (false, true) => State::Paused,
            (false, false) => State::Running,
        }
    }

    fn commands(&self) -> &dyn Commands {
        self
    }

    fn files(&self) -> &dyn Files {
        self
    }

    fn run<'a>(
        &'a self,
        task: &'a Task,
        limits: &'a Limits,
        sink: &'a mut dyn Sink,
        cancel: BoxFuture<'a, ()>,
    ) -> Asked<'a, Outcome> {
        Box::pin(run::run(self, task, limits, sink, cancel))
    }

    fn open_port(&self, port: u16) -> Asked<'_, ByteStream> {
        Box::pin(async move {
            let stream = self.told(self.awake()?.open_port(port).await).await?;
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
        // First nobody starts anything any more. Whoever just did is found when this is done again.
        self.halted.send_replace(Some(why));
        Box::pin(async { self.told(self.awake()?.end_all().await).await })
    }

    fn release(&self) {
        self.halted.send_replace(None);
    }

    fn halted(&self) -> Option<String> {
        self.halted.borrow().clone()
    }

    fn receipt(&self) -> Asked<'_, Receipt> {
        Box::pin(async {
            let isolation = self.layers().await?.to_vec();
            Ok(Receipt { provider: "native", kernel: Kernel::Host, isolation, warm: Warmth::Cold })
        })
    }

    fn stats(&self) -> Asked<'_, Stats> {
        Box::pin(self.take_stats())
    }

    fn network(&self) -> Option<NetworkUse> {
        let egress = self.egress.as_ref()?;
        let traffic = egress.traffic();
        Some(NetworkUse {
            rules: egress.rules(),
            refused: egress.findings(),
            connections: traffic.connections,
            sent_bytes: traffic.sent_bytes,
            received_bytes: traffic.received_bytes,
        })
    }

    fn set_hosts(&self, rules: HostRules) -> Result<(), LivingError> {
        let egress = self.egress.as_ref().ok_or_else(LivingError::no_gate)?;
        egress.set_rules(rules);
        Ok(())
    }

    fn ended(&self) -> BoxFuture<'_, String> {
        Box::pin(async {
            self.guest.gone().await;
            self.fate().await.to_owned()
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if self.fate.get().is_none() {
                self.connection.kill(self.number);
            }
            self.fate().await;
            if let Some(egress) = &self.egress {
                egress.close().await;
            }
        })
    }
}
