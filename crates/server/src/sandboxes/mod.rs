//! `/v1/sandboxes`: long-lived sandboxes, with commands, files and ports.
//!
//! ```text
//! open ─▶ running ⇄ paused            lifetime over: ended, or paused
//!            └────────┴─▶ ended       closed · expired · idle · failed · interrupted; recorded once
//! ```
//!
//! A live sandbox is an [`Open`] in the registry, and a task supervises its lifetime and its end (`life.rs`).
//! A [`Used`] marks it as in use, so that it is not idle. Pausing, resuming, extending and ending run one at
//! a time, in the order of the requests; so do executions in one sandbox.
//!
//! The guest buffers the output of commands. A reader of a command only has a position in that buffer
//! ([`look::Look`]): its output is collected until the end (`foreground.rs`), streamed as events
//! (`output.rs`) or shown in a terminal (`terminal.rs`).

pub(crate) mod archives;
mod commands;
pub(crate) mod files;
mod foreground;
mod handlers;
mod life;
mod look;
mod named;
pub(crate) mod network;
mod object;
mod open;
mod output;
mod passing;
mod paths;
pub(crate) mod ports;
mod range;
mod registry;
mod terminal;
mod transfer;
pub(crate) mod watch;

pub(crate) use commands::*;
pub(crate) use handlers::*;
pub(crate) use life::{end, end_all, find, give_up, open, sweep};
pub(crate) use open::{Open, Used};
pub(crate) use passing::Passed;
pub(crate) use registry::Registry;
pub(crate) use terminal::*;
