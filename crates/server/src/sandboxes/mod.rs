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

mod handlers;
mod life;
mod object;
mod open;
mod registry;

pub(crate) use handlers::*;
pub(crate) use life::{end_all, find, give_up, sweep};
pub(crate) use open::{Open, Used};
pub(crate) use registry::Registry;
