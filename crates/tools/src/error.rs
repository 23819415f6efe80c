//! Errors of tool calls. Models read the messages, so each one says what to do.

use thiserror::Error as ThisError;

/// Why a tool call failed. A failing program is not an error.
#[derive(Debug, ThisError)]
pub enum Error {
    /// There is no tool with that name.
    #[error("there is no tool '{0}'; available: {known}", known = crate::table::tool_names())]
    UnknownTool(String),
    /// The input does not match the tool's schema.
    #[error("{tool}: {message}")]
    Input {
        /// The tool.
        tool: &'static str,
        /// The problem.
        message: String,
    },
    /// The tool call itself is malformed.
    #[error("tool call: {0}")]
    Call(String),
    /// The caller canceled the call.
    #[error("canceled")]
    Cancelled,
    /// The sandbox does not exist or is closed.
    #[error("there is no sandbox '{0}'; open one with sandbox_open")]
    NoSandbox(String),
    /// The maximum number of sandboxes is open.
    #[error("the maximum of {0} sandboxes is open; close one with sandbox_close")]
    TooManySandboxes(usize),
    /// The engine refused or failed to run the request.
    #[error(transparent)]
    Engine(#[from] belljar_engine::Error),
    /// An operation on the sandbox failed.
    #[error(transparent)]
    Sandbox(#[from] belljar_engine::sandbox_handle::SandboxError),
    /// The backend failed.
    #[error("{0}")]
    Backend(String),
}
