//! PID 1 of a long-lived sandbox, and the line on which its host talks to it.
//!
//! ```text
//! host (the server)                                    guest (inside, as the sandbox user)
//!   Guest ── Channel ─┐                                 ┌─ dispatch ── processes · files · archives
//!   Guest ── Channel ─┼─▶ one stream socket, frames ◀──┤               watches · ports
//!   Guest ── Channel ─┘   (descriptor 3 inside)         └─ reaper
//! ```
//!
//! - [`protocol`]: frames, messages, credit. Both halves speak it; neither trusts the other with memory.
//! - [`host`]: [`Guest`], with a method for everything that can be asked. Whatever comes from inside is hostile:
//!   it is bounded and checked, and what breaks the rules ends the connection.
//! - `guest` (Linux): one thread, no rights. Every path is resolved there, so that none is on the host.
//! - `archive` (Linux): packs and unpacks folders in a process of its own.

#[cfg(target_os = "linux")]
mod archive;
#[cfg(target_os = "linux")]
mod guest;
pub mod host;
mod line;
pub mod protocol;

#[cfg(target_os = "linux")]
pub use archive::WORKER;
#[cfg(target_os = "linux")]
pub use guest::{GATE, GATED, NAME, ON_STDIO, run_if_asked};
pub use host::{Guest, GuestError};
