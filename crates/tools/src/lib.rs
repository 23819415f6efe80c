//! Tools that models can call: the table of tools, the backend that executes them, and the answers to models.
//!
//! ```text
//! MCP (stdio, HTTP) ──┐
//! a tool call ────────┴▶ Tool::call(input) ─▶ ToolBackend ─▶ engine        ToolAnswer { text, images, structured }
//! ```
//!
//! [`ToolBackend`] is the port. It is implemented by an in-process engine ([`LocalBackend`]), and by the
//! server for a tenant, with the same run queue, quotas and records as `/v1`. This crate does not touch disk,
//! network or processes.
//!
//! A call that is canceled, or whose client is gone, is killed. The sandboxes that a session opened end with
//! it.

mod answer;
mod backend;
mod call;
mod definitions;
mod error;
mod execute;
mod input;
mod local_backend;
mod mcp;
mod progress;
mod render;
mod resources;
mod table;

pub use answer::{AnswerImage, ToolAnswer};
pub use backend::{BackendFuture, OpenResult, SandboxFiles, ToolBackend};
pub use call::{ModelCall, ReplyFormat};
pub use definitions::{DefinitionFormat, definitions};
pub use error::Error;
pub use local_backend::LocalBackend;
pub use mcp::{McpHost, McpServer, serve};
pub use progress::{ProgressSender, forward_progress};
pub use table::Tool;
