//! The ports that a sandbox provider implements.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

pub use belljar_model::layer::MissingLayer;
pub use belljar_model::pool::{ConfinementMismatch, LongestTurns, PoolMetrics};
pub use belljar_model::process::Stream;
use thiserror::Error;

use crate::language::Language;
use crate::layer::Layer;
use crate::outcome::{Kernel, Outcome};
use crate::package_layer::Progress;
use crate::plan::{Image, Plan, Task};
use crate::sandbox_handle::{SandboxCapabilities, SandboxHandle};

/// A boxed future, which keeps the port traits dyn-compatible.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Tells a provider whether the program may continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SinkControl {
    /// The program may continue.
    Continue,
    /// The program wrote too much and must be killed.
    Kill,
}

/// Receives output as it arrives.
pub trait Sink: Send {
    /// Receives the next bytes of a stream.
    fn output(&mut self, stream: Stream, bytes: &[u8]) -> SinkControl;

    /// Discards all output, because the program runs again. Returns whether that is possible.
    fn restart(&mut self) -> bool {
        false
    }

    /// Reports progress before the program starts, in a line for people.
    fn progress(&mut self, _what: &str) {}
}

/// A sink that discards live output; the report still carries it.
#[derive(Debug)]
pub struct DiscardSink;

impl Sink for DiscardSink {
    fn output(&mut self, _stream: Stream, _bytes: &[u8]) -> SinkControl {
        SinkControl::Continue
    }

    fn restart(&mut self) -> bool {
        true
    }
}

impl Progress for DiscardSink {
    fn report(&mut self, _what: &str) {}
}

/// Capabilities of a provider, checked at admission so that nothing degrades later.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Layers that are not enforced on this host.
    pub missing: Vec<MissingLayer>,
    /// Whether host folders can be mounted.
    pub host_paths: bool,
    /// Whether package layers can be mounted; otherwise code only sees packages installed in its image.
    pub package_layers: bool,
    /// Whether network access can be limited to listed hosts or to the internet; otherwise it is all or
    /// nothing.
    pub single_hosts: bool,
    /// Whether programs can have GPUs of the host.
    pub gpus: bool,
    /// Images that requests can name.
    pub images: ImageChoice,
    /// Whether programs run on a remote service, where Belljar enforces nothing but the timeout.
    pub remote: bool,
    /// Capabilities of long-lived sandboxes; `None` if they are not supported.
    pub sandboxes: Option<SandboxCapabilities>,
    /// How strongly the provider isolates programs; `None` if `auto` must not select it.
    pub strength: Option<IsolationStrength>,
}

/// How strongly a provider isolates programs; `auto` prefers the greater one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct IsolationStrength {
    /// Whether programs have a kernel of their own.
    own_kernel: bool,
    /// Number of enforced layers.
    layers: usize,
}

impl IsolationStrength {
    /// Computes the strength for a kernel and the number of missing layers.
    pub fn new(kernel: Kernel, missing: usize) -> Self {
        let all = Layer::ALL.len();
        Self { own_kernel: kernel == Kernel::Gvisor, layers: all.saturating_sub(missing) }
    }
}

/// Images that requests can name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ImageChoice {
    /// None: everything runs in the provider's only image.
    #[default]
    None,
    /// `host`, unpacked roots in host folders, and stored images.
    Unpacked,
    /// The provider's own images, by name.
    Named {
        /// The default image.
        default_image: String,
        /// Other images that requests may name; `*` means all.
        allowed: Vec<String>,
    },
}

/// A capability that a request may need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Capability {
    HostPaths,
    PackageLayers,
    SingleHosts,
    Gpus,
    UnpackedImages,
    NamedImages,
}

impl Capability {
    /// Returns the name of the capability, and a phrase for a provider that lacks it.
    pub(crate) fn name_and_lack(self) -> (&'static str, &'static str) {
        match self {
            Self::HostPaths => ("host_paths", "cannot mount host folders or volumes"),
            Self::PackageLayers => ("package_layers", "cannot install packages; its image must have them"),
            Self::SingleHosts => (
                "single_hosts",
                "cannot limit the network to listed hosts or to the internet; use network 'none' or 'full' with it",
            ),
            Self::Gpus => (
                "gpus",
                "gives programs no GPU; provider 'docker' can, on a machine with the NVIDIA Container Toolkit, if its \
                 setting 'gpus' is true",
            ),
            Self::UnpackedImages => {
                ("unpacked_images", "supports neither image 'host' nor images in host folders")
            }
            Self::NamedImages => ("named_images", "does not support choosing an image"),
        }
    }

    /// Returns whether these capabilities include it.
    pub(crate) fn is_supported_by(self, capabilities: &Capabilities) -> bool {
        match self {
            Self::HostPaths => capabilities.host_paths,
            Self::PackageLayers => capabilities.package_layers,
            Self::SingleHosts => capabilities.single_hosts,
            Self::Gpus => capabilities.gpus,
            Self::UnpackedImages => capabilities.images == ImageChoice::Unpacked,
            Self::NamedImages => capabilities.images != ImageChoice::None,
        }
    }
}

/// Why a provider failed.
#[derive(Debug, Error)]
pub enum ProviderError {
    /// A field is invalid that only the provider can check.
    #[error("{field}: {message}")]
    Invalid {
        /// The field, as the request spells it.
        field: &'static str,
        /// The problem, and how to fix it.
        message: String,
    },
    /// The image has no runtime for a language.
    #[error("language: {language} is not available in image {image}; {install}")]
    LanguageMissing {
        /// The language.
        language: &'static str,
        /// The image.
        image: String,
        /// How to install it.
        install: String,
    },
    /// Not supported by this provider.
    #[error("{field}: {message}")]
    Unsupported {
        /// The field, as the request spells it.
        field: &'static str,
        /// Says what is not possible, and what is.
        message: String,
    },
    /// A set-up step failed; nothing ran.
    #[error("set-up failed: {step}: {cause}")]
    Setup {
        /// The step and its object.
        step: String,
        /// The cause, and how to fix it.
        cause: String,
    },
    /// All sandboxes together ran out of memory, and this one was killed to free some. The program may have
    /// run.
    #[error(
        "all sandboxes together ran out of memory, and this one was killed to free some, not for a limit of its own; \
         retry when fewer are running, or raise sandbox_memory in [server] of belljar.toml"
    )]
    SandboxMemoryExhausted,
    /// The sandbox failed or disappeared during the execution.
    #[error("the sandbox was lost: {message}")]
    Lost {
        /// The cause.
        message: String,
    },
}

impl ProviderError {
    /// Creates the error for a failed set-up step.
    pub fn setup(step: impl Into<String>, cause: impl ToString) -> Self {
        Self::Setup { step: step.into(), cause: cause.to_string() }
    }

    /// Creates the error for a sandbox that failed or disappeared.
    pub fn lost(message: impl ToString) -> Self {
        Self::Lost { message: message.to_string() }
    }

    /// Creates the error for something that the provider does not support.
    pub fn unsupported(field: &'static str, message: impl Into<String>) -> Self {
        Self::Unsupported { field, message: message.into() }
    }
}

/// A provider of sandboxes.
pub trait Provider: Debug + Send + Sync {
    /// Returns the name used in requests and receipts.
    fn name(&self) -> &'static str;
    /// Returns the capabilities on this host.
    fn capabilities(&self) -> Capabilities;
    /// Runs a task in a sandbox of its own. `cancel` ends the task early when it completes. Dropping the
    /// future kills everything in the sandbox.
    fn run<'a>(
        &'a self,
        plan: &'a Plan,
        task: &'a Task,
        sink: &'a mut dyn Sink,
        cancel: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, Result<Outcome, ProviderError>>;
    /// Opens a long-lived sandbox. Fails if [`Capabilities::sandboxes`] is `None`.
    fn open<'a>(&'a self, _plan: &'a Plan) -> BoxFuture<'a, Result<Box<dyn SandboxHandle>, ProviderError>> {
        let message = format!("provider '{}' does not support long-lived sandboxes", self.name());
        Box::pin(std::future::ready(Err(ProviderError::unsupported("provider", message))))
    }
    /// Returns a string that identifies the runtime of a language in an image and changes with it, or `None`
    /// if the image cannot run the language.
    fn runtime_identity<'a>(
        &'a self,
        _language: &'static Language,
        _image: &'a Image,
    ) -> BoxFuture<'a, Option<String>> {
        Box::pin(std::future::ready(None))
    }
    /// Returns whether the program of a task is built already, so that running it needs no compiler. It may have
    /// to be built nevertheless, if it is removed meanwhile.
    fn is_built<'a>(&'a self, _plan: &'a Plan, _task: &'a Task) -> BoxFuture<'a, bool> {
        Box::pin(std::future::ready(false))
    }
    /// Removes what is cached for a tenant alone. A provider that caches nothing has nothing to remove.
    fn remove_tenant<'a>(&'a self, _tenant: &'a str) -> BoxFuture<'a, Result<(), ProviderError>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// Checks within seconds that the provider could run something now, without running anything.
    fn self_test(&self) -> BoxFuture<'_, Result<(), ProviderError>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// Returns metrics of the warm pools.
    fn pools(&self) -> BoxFuture<'_, Vec<PoolMetrics>> {
        Box::pin(std::future::ready(Vec::new()))
    }
    /// Takes the confinement mismatches seen since the last call.
    fn take_mismatches(&self) -> Vec<ConfinementMismatch> {
        Vec::new()
    }
    /// Returns the longest turns of the event loop, if one loop serves all sandboxes.
    fn longest_turns(&self) -> BoxFuture<'_, Vec<LongestTurns>> {
        Box::pin(std::future::ready(Vec::new()))
    }
    /// Shuts down and waits until nothing is left.
    fn shut_down(&self) -> BoxFuture<'_, ()>;
}
