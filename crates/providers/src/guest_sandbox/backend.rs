//! What a provider over a guest implements: control over the jail or container around the guest.

use std::fmt::Debug;
use std::future::ready;

use belljar_engine::explain::DeniedSyscall;
use belljar_engine::language::Language;
use belljar_engine::outcome::{Limit, Receipt};
use belljar_engine::packages::PackageLayer;
use belljar_engine::provider::{BoxFuture, ProviderError};
use belljar_engine::sandbox_handle::{SandboxError, SandboxFuture, SandboxStats};

use super::prestart::{PrestartSpec, PrestartedInterpreter};
use crate::program::FoundRuntime;

/// Why most backends cannot add packages, and what to do instead.
pub(crate) const CANNOT_ADD_PACKAGES: &str = "this provider cannot add packages to an open sandbox; name them when you create it: \
     dependencies.packages (--dep)";

/// The jail or container of a [`GuestSandbox`](super::GuestSandbox). Dropping it kills everything inside.
pub(crate) trait Backend: Debug + Send + Sync {
    /// Freezes every process inside.
    fn pause(&self) -> SandboxFuture<'_, ()>;

    /// Lets every process inside continue.
    fn resume(&self) -> SandboxFuture<'_, ()>;

    /// Returns the current resource usage, also while paused.
    fn stats(&self) -> SandboxFuture<'_, SandboxStats>;

    /// Returns the receipt: what enforces the sandbox.
    fn receipt(&self) -> SandboxFuture<'_, Receipt>;

    /// Returns the runtime of a language inside.
    fn runtime(&self, language: &'static Language) -> BoxFuture<'_, Result<FoundRuntime, ProviderError>>;

    /// Kills everything inside without waiting.
    fn kill(&self);

    /// Returns why it ended, waiting until that is known.
    fn exit_cause(&self) -> BoxFuture<'_, String>;

    /// Kills everything inside and waits until nothing is left.
    fn close(&self) -> BoxFuture<'_, ()>;

    /// Returns whether it was created for a single task, and otherwise stays until it is closed.
    fn is_for_single_task(&self) -> bool;

    /// Mounts package layers, each over an earlier one with its destination.
    fn attach_packages<'a>(&'a self, _layers: &'a [PackageLayer]) -> SandboxFuture<'a, ()> {
        Box::pin(ready(Err(ProviderError::unsupported("dependencies", CANNOT_ADD_PACKAGES).into())))
    }

    /// Returns whether denied system calls are recorded, so that denials can be attributed to single commands.
    fn records_denied_calls(&self) -> bool {
        false
    }

    /// Returns the system calls denied so far, each with the pid that its command has inside.
    fn denied_calls(&self) -> SandboxFuture<'_, Vec<(u32, DeniedSyscall)>> {
        Box::pin(ready(Ok(Vec::new())))
    }

    /// Takes the interpreter that was pre-started for such a task, and may pre-start one for the next task.
    fn take_prestarted(&self, _spec: Option<PrestartSpec>) -> BoxFuture<'_, Option<PrestartedInterpreter>> {
        Box::pin(ready(None))
    }

    /// Returns the limit that ended the sandbox while its single task ran, or else the error for a lost
    /// sandbox. `why` is what the task saw, which may be no more than a closed connection.
    fn limit_at_exit(&self, why: String) -> SandboxFuture<'_, Limit> {
        Box::pin(ready(Err(SandboxError::Gone(why))))
    }
}
