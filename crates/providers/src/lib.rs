//! Sandbox providers, one module each.
//!
//! | module | purpose |
//! |---|---|
//! | `native` | this machine's kernel, through the jail |
//! | `docker` | containers |
//! | `remote` | machines at a service: E2B, Aliyun AgentRun |
//! | `simulated` | runs nothing and reports so |
//! | `guest` | the client of a guest, whichever provider started it |
//! | `program` | commands, environment and files of a task |
//! | `settings` | settings that administrators configure |

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
