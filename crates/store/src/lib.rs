//! State that outlives the server process, in one SQLite file: tenants, keys, profiles, executions with their
//! results, sandboxes, volumes, snapshots, usage and the audit log.
//!
//! ```text
//! caller ──write──▶ bounded queue ──▶ one writer thread: BEGIN, many writes, COMMIT ──▶ answers
//! caller ──read───▶ bounded queue ──▶ a few reader threads, each with a read-only connection
//! ```
//!
//! - A write is answered after its group commits, so every acknowledged write survives `kill -9`; with
//!   [`Durability::Power`] it also survives a power loss.
//! - A failed write is rolled back alone. When a whole group fails (a full disk), each of its writes is
//!   retried separately.
//! - No column holds code, standard input, arguments, files or the values of environment variables.
//! - Callers pass timestamps in, so the recorded times are the times the caller saw.

mod audit;
mod backup;
mod bound;
mod error;
pub mod executions;
mod id;
mod keys;
mod log;
mod name;
mod open;
mod places;
mod profiles;
mod providers;
mod readers;
mod retention;
mod sandboxes;
mod scope;
mod seal;
mod secret;
mod settings;
mod store;
mod tenants;
mod time;
mod usage;
mod words;
mod writer;

pub use audit::{AuditEntry, AuditOutcome, AuditPage, AuditRecord};
pub use error::{Error, Kind};
pub use id::{ExecutionId, KeyId, SandboxId, SnapshotId, VolumeId};
pub use keys::{Holder, KeyRecord, NewKey};
pub use name::{ProfileName, TenantName, VolumeName};
pub use open::{Durability, Options};
pub use places::{Snapshot, Volume};
pub use profiles::StoredProfile;
pub use providers::{ProviderContent, ProviderVersion};
pub use retention::{Pruned, Retention};
pub use sandboxes::{NewSandbox, Sandbox, SandboxEnd, SandboxFilter, SandboxPage, SandboxState};
pub use scope::{Scope, Scopes};
pub use seal::{Sealed, SealingKey};
pub use secret::{Digest, Secret};
pub use store::Store;
pub use tenants::{Quotas, Tenant};
pub use time::{Day, Timestamp};
pub use usage::Usage;
