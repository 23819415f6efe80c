//! `/v1/sandboxes`: long-lived sandboxes, with commands, files and ports.
//!
//! ```text
//! open ─▶ running ⇄ paused            lifetime over: ended, or paused
//!            └────────┴─▶ ended       closed · expired · idle · failed · interrupted; recorded once
//! ```
//!
//! A live sandbox is a [`LiveSandbox`] in the registry, and a task supervises its lifetime and its end
//! (`lifecycle.rs`). A [`SandboxInUse`] marks it as in use, so that it is not idle. Pausing, resuming,
//! extending and ending run one at a time, in the order of the requests; so do executions in one sandbox.
//!
//! The guest buffers the output of commands. A reader of a command only has a position in that buffer
//! (`command_reader.rs`): its output is collected until the end (`command_process.rs`), streamed as events
//! (`output.rs`) or shown in a terminal (`terminal.rs`). A client that waits for the end holds the command up
//! instead of losing output, and its command is killed when it disconnects; any other reader is told what it
//! missed. A WebSocket counts as a connection as long as it is open, and does not delay a shutdown.

pub(crate) mod archives;
mod command_process;
mod command_reader;
mod commands;
mod extract;
pub(crate) mod files;
mod handlers;
mod lifecycle;
mod live_sandbox;
pub(crate) mod network;
mod output;
mod paths;
pub(crate) mod ports;
mod proxy_headers;
mod range;
mod registry;
mod sandbox_json;
mod terminal;
mod transfer;
pub(crate) mod watch;

pub(crate) use commands::*;
pub(crate) use handlers::*;
pub(crate) use lifecycle::{end, end_all, end_failed, end_idle_periodically, find, open};
pub(crate) use live_sandbox::{LiveSandbox, SandboxInUse};
pub(crate) use proxy_headers::PassThrough;
pub(crate) use registry::SandboxRegistry;
pub(crate) use terminal::*;
