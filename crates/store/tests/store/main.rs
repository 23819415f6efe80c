//! Tests of the store's public interface with real files, threads and killed processes.
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
