//! The kernel work, and the only `unsafe` in the workspace.
#![cfg(target_os = "linux")]

pub mod cgroup;
pub mod seccomp;
