//! The port to the backend that executes tool calls.

use std::fmt::Debug;

use belljar_engine::packages::Progress;
use belljar_engine::policy::Verdict;
use belljar_engine::provider::BoxFuture;
use belljar_engine::request::Request;
use belljar_engine::sandbox::SandboxRequest;
use belljar_engine::sandbox_handle::Files;
use schemars::JsonSchema;
use serde::Serialize;

use crate::Error;

/// The result of a backend operation.
pub type BackendFuture<'a, T> = BoxFuture<'a, Result<T, Error>>;

/// Executes tool calls for one caller and only sees that caller's sandboxes.
pub trait ToolBackend: Debug + Send + Sync {
    /// Runs a request in a fresh sandbox, or in an open one, and returns the result object as JSON. After `cancel`
    /// completes or the future is dropped, nothing is left running.
    fn run<'a>(
        &'a self,
        request: Request,
        inside: Option<&'a str>,
        progress: &'a mut dyn Progress,
        cancel: BoxFuture<'a, ()>,
    ) -> BackendFuture<'a, String>;

    /// Checks the code of a request against the policies.
    fn check(&self, request: Request) -> BackendFuture<'_, Verdict>;

    /// Opens a sandbox; dropping the future cancels that.
    fn open<'a>(
        &'a self,
        request: SandboxRequest,
        progress: &'a mut dyn Progress,
    ) -> BackendFuture<'a, OpenResult>;

    /// Closes a sandbox and kills everything in it.
    fn close<'a>(&'a self, sandbox: &'a str) -> BackendFuture<'a, ()>;

    /// Returns access to the files of a sandbox.
    fn sandbox_files<'a>(&'a self, sandbox: &'a str) -> BackendFuture<'a, Box<dyn SandboxFiles>>;

    /// Lists the caller's open sandboxes.
    fn sandboxes(&self) -> Vec<String>;
}

/// Access to the files of a sandbox, which keeps it in use.
pub trait SandboxFiles: Send + Sync {
    /// Returns the files of the sandbox.
    fn files(&self) -> &dyn Files;
}

/// Output of `sandbox_open`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct OpenResult {
    /// Id of the sandbox, for the other tools.
    pub sandbox: String,
    /// Milliseconds after which the sandbox is closed.
    pub timeout_ms: u64,
    /// Packages that were installed.
    pub packages: Vec<String>,
}
