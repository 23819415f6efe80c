//! The port: who does what a tool asks for.

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

/// What comes of asking.
pub type Done<'a, T> = BoxFuture<'a, Result<T, Error>>;

/// Does what tools ask for, on behalf of one caller: nobody else's sandboxes are there.
pub trait Hands: Debug + Send + Sync {
    /// Runs a request, in a fresh sandbox or inside an open one; the result object. When `cancel` completes nothing of it
    /// is left running before this returns, nor when the future is dropped.
    fn run<'a>(
        &'a self,
        request: Request,
        inside: Option<&'a str>,
        progress: &'a mut dyn Progress,
        cancel: BoxFuture<'a, ()>,
    ) -> Done<'a, Value>;

    /// Reads what a request would run.
    fn check(&self, request: Request) -> Done<'_, Verdict>;

    /// Opens a sandbox; dropping the future gives that up.
    fn open<'a>(&'a self, request: SandboxRequest, progress: &'a mut dyn Progress) -> Done<'a, Opened>;

    /// Ends one, and everything in it.
    fn close<'a>(&'a self, sandbox: &'a str) -> Done<'a, ()>;

    /// Works with the files of one.
    fn enter<'a>(&'a self, sandbox: &'a str) -> Done<'a, Box<dyn Entered>>;

    /// Those that this caller opened and can see here.
    fn sandboxes(&self) -> Vec<String>;
}

/// A sandbox while somebody works with its files.
pub trait Entered: Send + Sync {
    /// Its files.
    fn files(&self) -> &dyn Files;
}

/// A sandbox that was opened.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Opened {
    /// Its name, for the other tools.
    pub sandbox: String,
    /// It ends by itself after so many milliseconds.
    pub timeout_ms: u64,
    /// Packages that were installed in it.
    pub packages: Vec<String>,
}
