//! Sandbox providers, one module each.
//!
//! | module | purpose |
//! |---|---|
//! | `native` | this machine's kernel, through the jail |
//! | `docker` | containers |
//! | `remote` | machines at a service: E2B, Aliyun AgentRun |
//! | `simulated` | runs nothing and reports so |
//! | `guest_sandbox` | a sandbox whose PID 1 is the guest, over a `Backend`: the jail or container around it |
//! | `build_cache` | programs that were built before |
//! | `program` | commands, environment and files of a task |
//! | `egress` | egress of jails and containers |
//! | `host_paths` | which host folders may be mounted |
//! | `host_storage` | volumes, snapshots and host folders on this machine's disk |
//! | `settings` | settings that administrators configure |

#[cfg(target_os = "linux")]
pub mod build_cache;
#[cfg(target_os = "linux")]
pub mod docker;
#[cfg(target_os = "linux")]
mod egress;
#[cfg(target_os = "linux")]
mod guest_sandbox;
#[cfg(target_os = "linux")]
mod host_paths;
#[cfg(target_os = "linux")]
pub mod host_storage;
#[cfg(target_os = "linux")]
mod java_class;
#[cfg(target_os = "linux")]
pub mod native;
// On other systems only remote providers use it, and only parts of it.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
mod program;
pub mod remote;
pub mod settings;
pub mod simulated;
