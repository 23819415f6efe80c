//! Sandbox providers, one module each.

#[cfg(target_os = "linux")]
pub mod docker;
#[cfg(target_os = "linux")]
mod guest;
#[cfg(target_os = "linux")]
pub mod native;
// On other systems only remote providers use it, and only parts of it.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
mod program;
pub mod remote;
pub mod settings;
pub mod simulated;
