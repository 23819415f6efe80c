//! Tools that models can call: the table of tools, the backend that executes them, and the answers to models.
//!
//! ```text
//! MCP (stdio, HTTP) ──┐
//! a tool call ────────┴▶ Tool::call(input) ─▶ ToolBackend ─▶ engine        ToolAnswer { text, images, structured }
//! ```
//!
//! [`Hands`] is the port. It is implemented by an in-process engine ([`Alone`]), and by the server for a
//! tenant. This crate does not touch disk, network or processes.

mod act;
mod alone;
mod answer;
mod call;
mod error;
mod hands;
mod input;
mod mcp;
mod resources;
mod table;
mod telling;
mod words;

pub use alone::Alone;
pub use answer::{Answer, Image};
pub use call::{Call, Reply};
pub use error::Error;
pub use hands::{Done, Entered, Hands, Opened};
pub use mcp::{Desk, Office, serve};
pub use table::{Format, Tool, definitions};
pub use telling::{Telling, hear};
