//! What models may do: one table of tools, who does them, and how a model is answered.
//!
//! ```text
//! MCP (stdio, HTTP) ──┐
//! a tool call ────────┴▶ Tool::call(input) ─▶ Hands ─▶ engine        Answer { text, images, structured }
//! ```
//!
//! [`Hands`] is the port: this process's own engine ([`Alone`]), or the server on behalf of a tenant. Nothing here touches
//! disk, network or processes.

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
