//! The store as its callers see it: real files, real threads, real deaths.
#![expect(clippy::unwrap_used, reason = "a test that cannot be prepared fails")]

mod common;
mod idempotency;
mod load;
mod migration;
mod paging;
mod providers;
mod retention;
mod survival;
mod tenants;
