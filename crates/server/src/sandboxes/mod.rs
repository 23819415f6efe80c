//! `/v1/sandboxes`: places that stay, with commands, files and ports in them.
//!
//! ```text
//! open ─▶ running ⇄ paused            time is over: ended, or paused
//!            └────────┴─▶ ended       closed · expired · idle · failed · interrupted; recorded, once
//! ```
//!
//! A sandbox that is alive is an [`Open`] in the registry, and a task watches over its time and its end (`life.rs`).
//! Whoever works with one holds a [`Used`], so that it is not idle meanwhile. Pausing, resuming, extending and ending
//! happen one after the other, in the order in which they were asked for; so do executions in one sandbox.
//!
//! What a command writes is kept inside, by the guest. Whoever looks at one has a place in that ([`look::Look`]) and
//! nothing else: it is waited for (`foreground.rs`), told as events (`output.rs`) or shown in a terminal (`terminal.rs`).

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
