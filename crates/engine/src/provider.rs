//! The ports: what a way of making sandboxes has to offer.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::fleet::Strength;
use crate::language::Language;
use crate::layer::Layer;
use crate::living::{Living, LivingCapabilities};
use crate::outcome::Outcome;
use crate::packages::Progress;
use crate::plan::{Image, Plan, Task};

/// A boxed future, so that the ports stay usable as trait objects.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One of the two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Whether the program may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// It may.
    Continue,
    /// It wrote too much and is to be ended.
    Kill,
}

/// Takes output as it comes.
pub trait Sink: Send {
    /// The next bytes of a stream.
    fn output(&mut self, stream: Stream, bytes: &[u8]) -> Flow;

    /// Forgets everything, because the program is run again; whether that is possible.
    fn restart(&mut self) -> bool {
        false
    }

    /// How far things are before the program starts, a line for people.
    fn progress(&mut self, _what: &str) {}
}

/// Shows nothing: the result object will carry it.
#[derive(Debug)]
pub struct Blind;

impl Sink for Blind {
    fn output(&mut self, _stream: Stream, _bytes: &[u8]) -> Flow {
        Flow::Continue
    }

    fn restart(&mut self) -> bool {
        true
    }
}

impl Progress for Blind {
    fn at(&mut self, _what: &str) {}
}

/// What a provider cannot do here, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingLayer {
    /// The layer.
    pub layer: Layer,
    /// Why it is missing.
    pub reason: String,
    /// The command or setting that mends it.
    pub remedy: String,
}

/// What a provider can do: asked at admission, so that nothing degrades later.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Layers that are not enforced on this host.
    pub missing: Vec<MissingLayer>,
    /// Whether host folders can be made visible.
    pub host_paths: bool,
    /// Whether layers with packages can be made visible; without, code has what its image has.
    pub package_layers: bool,
    /// Whether single hosts can be let through; without, it is all of the network or nothing.
    pub single_hosts: bool,
    /// Which images there are.
    pub images: ImageChoice,
    /// Whether programs run on somebody else's machines, and Belljar enforces nothing there but time.
    pub remote: bool,
    /// What living sandboxes can do; absent where there are none.
    pub living: Option<LivingCapabilities>,
    /// How well it keeps programs in; absent where it is only ever chosen by name.
    pub strength: Option<Strength>,
}

/// Which images requests can name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ImageChoice {
    /// None: everything runs in what the provider has.
    #[default]
    None,
    /// `host`, roots in folders of this machine, and images that are kept unpacked.
    Unpacked,
    /// Images that the provider itself has, by name.
    Named {
        /// Where none is named.
        usual: String,
        /// Others that may be named; `*` stands for all.
        others: Vec<String>,
    },
}

/// What a request may need of a provider, by the name under which capabilities are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Capability {
    HostPaths,
    PackageLayers,
    SingleHosts,
    UnpackedImages,
    NamedImages,
}

impl Capability {
    /// Its name, and what it is for those who do not know that.
    pub(crate) fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::HostPaths => ("host_paths", "shows no folders or volumes of this machine"),
            Self::PackageLayers => ("package_layers", "installs no packages; its image must have them"),
            Self::SingleHosts => ("single_hosts", "cannot let out to single hosts, only to all or none"),
            Self::UnpackedImages => ("unpacked_images", "runs neither 'host' nor roots in folders"),
            Self::NamedImages => ("named_images", "has no images to name"),
        }
    }

    /// Whether somebody has it.
    pub(crate) fn is_in(self, capabilities: &Capabilities) -> bool {
        match self {
            Self::HostPaths => capabilities.host_paths,
            Self::PackageLayers => capabilities.package_layers,
            Self::SingleHosts => capabilities.single_hosts,
            Self::UnpackedImages => capabilities.images == ImageChoice::Unpacked,
            Self::NamedImages => capabilities.images != ImageChoice::None,
        }
    }
}

/// What a provider failed to do.
#[derive(Debug, Error)]
pub enum ProviderError {
    /// Something in the request that only the provider can check.
    #[error("{field}: {message}")]
    Invalid {
        /// The field, as the request spells it.
        field: &'static str,
        /// What is wrong and what to do.
        message: String,
    },
    /// The image has no runtime for a language.
    #[error("language: {language} is not available in image {image}; {install}")]
    LanguageMissing {
        /// The language.
        language: &'static str,
        /// The image.
        image: String,
        /// What to install.
        install: String,
    },
    /// This provider does not do that.
    #[error("{field}: {message}")]
    Unsupported {
        /// The field, as the request spells it.
        field: &'static str,
        /// What is not possible, and what is.
        message: String,
    },
    /// A step of the set-up failed; nothing ran.
    #[error("set-up failed: {step}: {cause}")]
    Setup {
        /// The step, with what it worked on.
        step: String,
        /// The cause, and what may mend it.
        cause: String,
    },
    /// All sandboxes together used up the memory that they may have, and this one was ended for it. It may have run.
    #[error(
        "the memory for all sandboxes together is used up, and this one was ended to free some, not for a limit of its own; \
         run it again when less is running, or raise sandbox_memory in [server] of belljar.toml"
    )]
    SandboxMemoryExhausted,
    /// The machinery went away under a run.
    #[error("the sandbox was lost: {message}")]
    Lost {
        /// What happened.
        message: String,
    },
}

/// One pool of sandboxes that were made ahead of time.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PoolMetrics {
    /// What runs in it: `python`, or `python+numpy+pandas`.
    pub name: String,
    /// Whose it is.
    pub tenant: String,
    /// Sandboxes that wait.
    pub size: usize,
    /// How many it tries to have waiting.
    pub wanted: usize,
    /// Memory that the waiting ones hold.
    pub memory_bytes: u64,
    /// Runs that found one waiting.
    pub hits: u64,
    /// Runs that found none, and had one forked.
    pub forks: u64,
    /// Runs that found none, and started cold.
    pub misses: u64,
    /// Interpreters that were started to fork from, the first one included.
    pub zygotes: u64,
    /// Forks that were not confined as they said, seen from outside. Nothing ran in them; their interpreter and everything
    /// that came of it was ended.
    pub mismatches: u64,
    /// How long making the last one took.
    pub refill_ms: f64,
    /// The process ids of those that wait, on the host.
    pub processes: Vec<u32>,
    /// Why nothing is warm here, where something stands in the way.
    pub obstacle: Option<String>,
}

/// A fork of a warm interpreter that was not confined as it said, seen from outside. Nothing ran in it; its interpreter and
/// everything that came of it was ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The name of its pool: the language, and what is imported ahead of time.
    pub pool: String,
    /// Whose the pool is.
    pub tenant: String,
    /// What did not match.
    pub what: String,
}

/// The longest turns of the loop that serves all sandboxes of a provider on this machine, of which one of its handlers took
/// most. While a turn lasts nobody else is served.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoopTurns {
    /// A word of a closed list.
    pub handler: String,
    /// The most CPU time in one turn.
    pub longest_cpu: Duration,
    /// The longest time from one poll to the next.
    pub longest_wall: Duration,
}

/// A way to make sandboxes.
pub trait Provider: Debug + Send + Sync {
    /// Its name in requests and receipts.
    fn name(&self) -> &'static str;
    /// What it can do on this host.
    fn capabilities(&self) -> Capabilities;
    /// Makes a place.
    fn open<'a>(&'a self, plan: &'a Plan) -> BoxFuture<'a, Result<Box<dyn Sandbox>, ProviderError>>;
    /// Makes a place that stays. Refused where [`Capabilities::living`] is absent.
    fn open_living<'a>(&'a self, _plan: &'a Plan) -> BoxFuture<'a, Result<Box<dyn Living>, ProviderError>> {
        let message = format!("provider '{}' has no living sandboxes", self.name());
        Box::pin(std::future::ready(Err(ProviderError::Unsupported { field: "provider", message })))
    }
    /// What runs a language in an image, in words that change when it does; nothing where it cannot be run.
    fn runtime<'a>(
        &'a self,
        _language: &'static Language,
        _image: &'a Image,
    ) -> BoxFuture<'a, Option<String>> {
        Box::pin(std::future::ready(None))
    }
    /// Makes sure that it could run something now. Within seconds, and without running anything.
    fn check(&self) -> BoxFuture<'_, Result<(), ProviderError>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// What it keeps ready, and how often that was of use.
    fn pools(&self) -> BoxFuture<'_, Vec<PoolMetrics>>;
    /// Takes what was seen of forks that were not confined as they said, since the last time; each is given once.
    fn take_mismatches(&self) -> Vec<Mismatch> {
        Vec::new()
    }
    /// The longest turns of its loop, where one loop serves all its sandboxes.
    fn turns(&self) -> BoxFuture<'_, Vec<LoopTurns>> {
        Box::pin(std::future::ready(Vec::new()))
    }
    /// Ends everything and waits until nothing is left.
    fn shut_down(&self) -> BoxFuture<'_, ()>;
}

/// A place in which tasks run. Dropping it kills what runs there.
pub trait Sandbox: Debug + Send {
    /// Runs a task; `cancel` ends it early when it completes.
    fn run<'a>(
        &'a mut self,
        task: &'a Task,
        sink: &'a mut dyn Sink,
        cancel: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, Result<Outcome, ProviderError>>;
}
