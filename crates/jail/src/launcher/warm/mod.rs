//! Warm pools: zygotes that have imported modules, and jails and children forked ahead of demand.

pub(super) mod builder;
mod child;
mod child_connection;
mod events;
pub(super) mod jail;
pub(super) mod namespaces;
pub(super) mod pool;
pub(super) mod pools;
mod prefault;
pub(super) mod running_child;
mod shares;
mod zygote;
mod zygote_resources;
