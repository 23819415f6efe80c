//! What outlives the server: tenants, keys, profiles, executions with their results, sandboxes, volumes, snapshots,
//! usage and the audit log, in one SQLite file.
//!
//! ```text
//! caller ──write──▶ bounded queue ──▶ one writer thread: BEGIN, many writes, COMMIT ──▶ answers
//! caller ──read───▶ bounded queue ──▶ a few reader threads, each with a read-only connection
//! ```
//!
//! - A write is answered after the commit of its group, so whatever was acknowledged survives `kill -9`; with
//!   [`Durability::Power`] also a loss of power.
//! - A write that fails is undone alone. When a whole group fails (a full disk), each of its writes is tried by itself.
//! - Code, standard input, arguments, files and values of environment variables have no column here.
//! - Times are handed in, so that what is recorded is what the caller saw.

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
