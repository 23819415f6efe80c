//! Seccomp notifications: which denied system calls a run made, at a limited rate.

pub(super) mod notify_budget;
pub(super) mod process_owner;
pub(super) mod seccomp_notify;
