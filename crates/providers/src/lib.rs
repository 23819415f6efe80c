//! Ways to make sandboxes, one module each.

#[cfg(target_os = "linux")]
pub mod docker;
#[cfg(target_os = "linux")]
mod inside;
#[cfg(target_os = "linux")]
pub mod native;
// Elsewhere only services use it, which need less of it.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
mod program;
pub mod remote;
pub mod settings;
pub mod simulated;
