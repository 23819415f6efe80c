//! Ways to make sandboxes, one module each.

#[cfg(target_os = "linux")]
pub mod docker;
#[cfg(target_os = "linux")]
mod inside;
#[cfg(target_os = "linux")]
pub mod native;
mod program;
pub mod remote;
pub mod settings;
pub mod simulated;
