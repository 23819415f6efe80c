//! PID 1 of a long-lived sandbox, and the protocol between it and its host.
//!
//! ```text
//! host (the server)                                    guest (inside, as the sandbox user)
//!   Guest ── Channel ─┐                                 ┌─ dispatch ── processes · files · archives
//!   Guest ── Channel ─┼─▶ one stream socket, frames ◀──┤               watches · ports
//!   Guest ── Channel ─┘   (descriptor 3 inside)         └─ reaper
//! ```
//!
//! - [`protocol`]: frames, messages and flow-control credit. Both halves bound the memory that the other one
//!   can use.
//! - [`host`]: [`Guest`], with a method for each request. All data from the guest is untrusted: it is bounded
//!   and checked, and a protocol violation ends the connection.
//! - `guest` (Linux): one thread, no privileges. Resolves every path, so that the host resolves none.
//! - [`OutputPipe`] (Linux): the output of a program, read after it has gathered for a moment.
//! - `archive` (Linux): packs and unpacks folders in a separate process.

#[cfg(target_os = "linux")]
mod archive;
mod flow_control;
#[cfg(target_os = "linux")]
mod guest;
pub mod host;
#[cfg(target_os = "linux")]
mod output_pipe;
pub mod protocol;

#[cfg(target_os = "linux")]
pub use archive::ARCHIVE_WORKER_NAME;
#[cfg(target_os = "linux")]
pub use guest::{GATE_SOCKET, GATED_ARGUMENT, GUEST_NAME, STDIO_ARGUMENT, run_if_asked};
pub use host::{Guest, GuestError};
#[cfg(target_os = "linux")]
pub use output_pipe::OutputPipe;
