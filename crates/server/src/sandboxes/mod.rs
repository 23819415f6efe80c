//! Long-lived sandboxes, with commands and ports.
//!
//! ```text
//! open ─▶ running ⇄ paused            unused for its timeout: ended, or paused; end of its life: ended
//!            └────────┴─▶ ended       closed · expired · failed · interrupted; recorded once, with why
//! ```
//!
//! A live sandbox is a `LiveSandbox` in the registry, and a task supervises its use and its end
//! (`lifecycle.rs`). A `SandboxInUse` marks it as in use: each call, open stream and running command has one.
//! Pausing, resuming, extending and ending run one at a time, in the order of the requests; so do executions
//! in one sandbox.
//!
//! The guest buffers the output of commands. A reader of a command only has a position in that buffer
//! (`command_reader.rs`). A client that waits for the end holds the command up instead of losing output, and its
//! command is killed when it disconnects (`command_process.rs`); any other reader learns what it missed. A
//! WebSocket counts as a connection as long as it is open, and does not delay a shutdown.

pub(crate) mod command_process;
pub(crate) mod command_reader;
pub(crate) mod end_cause;
pub(crate) mod lifecycle;
pub(crate) mod live_sandbox;
pub(crate) mod port_proxy;
mod proxy_headers;
pub(crate) mod registry;
pub(crate) mod settings;
mod times;
pub(crate) mod transfer;
