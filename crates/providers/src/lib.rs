//! Ways to make sandboxes, one module each.

#[cfg(target_os = "linux")]
pub mod native;
mod program;
