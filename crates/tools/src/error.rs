//! Why a tool came to nothing. Read by models: each message says what to do.

use thiserror::Error as ThisError;

/// Why a tool came to nothing. What a program did is never one of these.
#[derive(Debug, ThisError)]
pub enum Error {
    /// There is no tool of that name.
    #[error("there is no tool '{0}'; there are {known}", known = crate::table::names())]
    UnknownTool(String),
    /// What the model gave does not fit the tool.
    #[error("{tool}: {message}")]
    Input {
        /// The tool.
        tool: &'static str,
        /// What is wrong with it.
        message: String,
    },
    /// The tool call itself cannot be read.
    #[error("tool call: {0}")]
    Call(String),
    /// It was given up, as its caller wished.
    #[error("cancelled")]
    Cancelled,
    /// There is no such sandbox any more.
    #[error("there is no sandbox '{0}'; open one with sandbox_open")]
    NoSandbox(String),
    /// As many sandboxes are open as may be.
    #[error("{0} sandboxes are open, and no more may be; close one with sandbox_close")]
    TooManySandboxes(usize),
    /// The engine says why nothing ran.
    #[error(transparent)]
    Engine(#[from] belljar_engine::Error),
    /// The sandbox says why it did not do it.
    #[error(transparent)]
    Living(#[from] belljar_engine::living::LivingError),
    /// Whoever did it says why not.
    #[error("{0}")]
    Hands(String),
}
