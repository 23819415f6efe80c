//! Cold starts: a jail is set up for one run, or kept as a spare until a run needs it.

mod mounts;
pub(super) mod spares;
pub(super) mod start;
