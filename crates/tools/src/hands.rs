//! The port to the backend that executes tool calls.

use std::fmt::Debug;

use belljar_engine::living::Files;
use belljar_engine::packages::Progress;
use belljar_engine::policy::Verdict;
use belljar_engine::provider::BoxFuture;
use belljar_engine::request::Request;
use belljar_engine::sandbox::SandboxRequest;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::Error;

/// The result of a backend operation.
pub type Done<'a, T> = BoxFuture<'a, Result<T, Error>>;

/// Executes tool calls for one caller and only sees that caller's sandboxes.
pub trait Hands: Debug + Send + Sync {
    /// Runs a request in a fresh sandbox, or in an open one, and returns the result object. After `cancel`
    /// completes or the future is dropped, nothing is left running.
    fn run<'a>(
        &'a self,
        request: Request,
        inside: Option<&'a str>,
        progress: &'a mut dyn Progress,
        cancel: BoxFuture<'a, ()>,
    ) -> Done<'a, Value>;

    /// Checks the code of a request against the policies.
    fn check(&self, request: Request) -> Done<'_, Verdict>;

    /// Opens a sandbox; dropping the future cancels that.
    fn open<'a>(&'a self, request: SandboxRequest, progress: &'a mut dyn Progress) -> Done<'a, Opened>;

    /// Closes a sandbox and kills everything in it.
    fn close<'a>(&'a self, sandbox: &'a str) -> Done<'a, ()>;

    /// Returns access to the files of a sandbox.
    fn enter<'a>(&'a self, sandbox: &'a str) -> Done<'a, Box<dyn Entered>>;

    /// Lists the caller's open sandboxes.
    fn sandboxes(&self) -> Vec<String>;
}

/// Access to the files of a sandbox, which keeps it in use.
pub trait Entered: Send + Sync {
    /// Returns the files of the sandbox.
    fn files(&self) -> &dyn Files;
}

/// Output of `sandbox_open`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Opened {
    /// Id of the sandbox, for the other tools.
    pub sandbox: String,
    /// Milliseconds after which the sandbox is closed.
    pub timeout_ms: u64,
    /// Packages that were installed.
    pub packages: Vec<String>,
}
