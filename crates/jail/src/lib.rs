//! Linux jails. All `unsafe` code of the workspace is here and in `belljar-zygote`.
//!
//! A single-threaded [`launcher`] is started once. It builds root trees (`root_trees`), keeps a few spare
//! jails whose PID 1 waits, and tells one of them what to run. That PID 1 and the program's own process take
//! the steps in `inside`. The seccomp filter is installed last because it would forbid the steps before it.
#![cfg(target_os = "linux")]

pub mod cgroup;
pub mod container_settings;
pub mod disk_file;
mod fault;
pub mod guest_support;
mod inside;
pub mod launcher;
pub mod payload;
pub mod proxy_sockets;
mod root_trees;
pub mod seccomp;
pub mod spec;
mod step;
mod sys;
pub mod tun;
pub mod wire;

pub use step::{Step, StepFailed};
