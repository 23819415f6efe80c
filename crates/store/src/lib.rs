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
//!
//! - A new write is refused when the queue is full. A record of something that has happened (a result, an
//!   audit entry) waits for room.
//! - The tenant is the first column of every index that a lookup uses, and part of every lookup: another
//!   tenant's id is an unknown id. Ids are ordered by time, and lists are pages by id.
//! - A repeated request is recognized by its idempotency key and a digest; the request itself is not stored.
//! - An existing migration is never edited: a schema change is a new file in `migrations/`, and a database
//!   with the previous schema becomes a test fixture.

mod audit;
mod backup;
mod error;
pub mod executions;
mod id;
mod keys;
mod name;
mod open;
mod profiles;
mod providers;
mod readers;
mod retention;
mod sandboxes;
mod scope;
mod seal;
mod secret;
mod settings;
mod size_limits;
mod store;
mod tenant_deletion;
mod tenants;
mod text_enum;
mod time;
mod usage;
mod volumes;
mod wal;
mod writer;

pub use audit::{AuditEntry, AuditOutcome, AuditPage, AuditRecord};
pub use error::{Error, ObjectKind};
pub use id::{ExecutionId, KeyId, SandboxId, SnapshotId, VolumeId};
pub use keys::{KeyRecord, NewKey, VerifiedKey};
pub use name::{ProfileName, TenantName, VolumeName};
pub use open::{Durability, StoreOptions};
pub use profiles::StoredProfile;
pub use providers::{ProviderContent, ProviderVersion};
pub use retention::{PruneSummary, Retention};
pub use sandboxes::{NewSandbox, SandboxEnd, SandboxFilter, SandboxPage, SandboxRecord, SandboxState};
pub use scope::{Scope, Scopes};
pub use seal::{SealedSecrets, SealingKey};
pub use secret::{Digest, KeySecret};
pub use store::Store;
pub use tenant_deletion::{DeletedRecords, TenantDeletionStep};
pub use tenants::{Quotas, Tenant};
pub use time::{Day, Timestamp};
pub use usage::{DailyUsage, OwnedObjects};
pub use volumes::{Snapshot, Volume};
