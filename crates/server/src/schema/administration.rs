//! Tenants, keys, profiles and the audit log.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use super::{Limits, Network};

/// Quotas of a tenant; null means the server's default.
#[derive(Serialize, ToSchema)]
pub(crate) struct Quotas {
    /// Concurrent executions.
    concurrency: Option<u32>,
    /// Live sandboxes.
    sandboxes: Option<u32>,
    /// CPU seconds per day (UTC).
    cpu_seconds_per_day: Option<u64>,
    /// Memory limits of all running executions and sandboxes together, in bytes.
    memory_bytes: Option<u64>,
    /// Size of all volumes and snapshots together, in bytes.
    disk_bytes: Option<u64>,
}

/// A tenant. Times are in milliseconds since 1970.
#[derive(Serialize, ToSchema)]
pub(crate) struct Tenant {
    /// Name of the tenant.
    name: String,
    /// Quotas of the tenant.
    quotas: Quotas,
    /// Creation time.
    created: i64,
    /// Time it was disabled; null while enabled.
    #[schema(required)]
    disabled: Option<i64>,
    /// Size of all stored results in bytes.
    stored_bytes: u64,
    /// Policy that always applies to the tenant's requests; the strictest policy decides.
    #[schema(required)]
    policy: Option<String>,
    /// Default provider of the tenant's requests; null for the server's default.
    #[schema(required)]
    provider: Option<String>,
}

/// All tenants, by name.
#[derive(Serialize, ToSchema)]
pub(crate) struct TenantList {
    /// Tenants, sorted by name.
    tenants: Vec<Tenant>,
}

/// A tenant to create.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"name": "ada", "quotas": {"concurrency": 4}}))]
pub(crate) struct NewTenant {
    /// Name of the tenant.
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]*$", max_length = 63)]
    name: String,
    /// Quotas; absent ones are the server's defaults.
    quotas: Option<Quotas>,
}

/// Changes to a tenant. Absent fields stay as they are.
#[derive(Serialize, ToSchema)]
pub(crate) struct TenantChange {
    /// New quotas.
    quotas: Option<Quotas>,
    /// Whether the tenant is disabled.
    disabled: Option<bool>,
    /// Policy that always applies to the tenant's requests; `off` lets them choose freely.
    policy: Option<String>,
    /// Default provider of the tenant's requests: a name, `auto`, or null for the server's default.
    provider: Option<String>,
}

/// A key to create.
#[derive(Serialize, ToSchema)]
pub(crate) struct NewKey {
    /// Label for people.
    label: Option<String>,
    /// Scopes of the key; default `run` and `sandboxes`.
    scopes: Option<Vec<Scope>>,
    /// Lifetime in seconds; unlimited by default.
    expires_in_seconds: Option<u64>,
}

/// Permission of a key.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Scope {
    Run,
    Sandboxes,
    Admin,
}

/// Options for rotating a key.
#[derive(Serialize, ToSchema)]
pub(crate) struct KeyRotation {
    /// How long the old key stays valid, in seconds; default 0.
    old_valid_seconds: Option<u64>,
}

/// Metadata of a key. Times are in milliseconds since 1970.
#[derive(Serialize, ToSchema)]
pub(crate) struct Key {
    /// Key id, the public part of the key.
    id: String,
    /// Tenant of the key.
    tenant: String,
    /// Label for people.
    label: String,
    /// Scopes of the key.
    scopes: Vec<Scope>,
    /// Creation time.
    created: i64,
    /// Expiry time; null if it never expires.
    #[schema(required)]
    expires: Option<i64>,
    /// Time of last use; null if never used.
    #[schema(required)]
    last_used: Option<i64>,
    /// Revocation time; null while valid.
    #[schema(required)]
    revoked: Option<i64>,
}

/// A new key. Its secret is shown only in this response.
#[derive(Serialize, ToSchema)]
pub(crate) struct ShownKey {
    /// The secret key.
    key: String,
    /// Metadata of the key.
    record: Key,
}

/// Keys of a tenant.
#[derive(Serialize, ToSchema)]
pub(crate) struct KeyList {
    /// Keys of the tenant.
    keys: Vec<Key>,
}

/// Named defaults for requests: limits, network, environment and more.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"limits": {"timeout_ms": 1000}, "output_overflow": "kill"}))]
pub(crate) struct Profile {
    /// Resource limits.
    limits: Option<Limits>,
    /// Network access.
    network: Option<Network>,
    /// Environment variables.
    env: Option<BTreeMap<String, String>>,
    /// Modules that warm interpreters import in advance.
    preimports: Option<Vec<String>>,
    /// Packages installed for every run: Python packages, or JavaScript packages with the prefix `npm:`.
    packages: Option<Vec<String>>,
    /// Whether packages may be built from source and may run install scripts.
    build_packages: Option<bool>,
    /// Action when output exceeds its limit: truncate or kill.
    output_overflow: Option<String>,
    /// Provider of requests that name none: a name, or `auto`.
    provider: Option<String>,
    /// Policy that always applies to requests with this profile; the strictest policy decides.
    policy: Option<String>,
}

/// A profile with its name.
#[derive(Serialize, ToSchema)]
pub(crate) struct StoredProfile {
    /// Name of the profile.
    name: String,
    /// Content of the profile.
    profile: Profile,
    /// Time of the last change in milliseconds since 1970; absent in the response to setting it.
    changed: Option<i64>,
}

/// Profiles that were set over HTTP.
#[derive(Serialize, ToSchema)]
pub(crate) struct ProfileList {
    /// Profiles, sorted by name.
    profiles: Vec<StoredProfile>,
}

/// A page of the audit log.
#[derive(Serialize, ToSchema)]
pub(crate) struct AuditPage {
    /// Entries, newest first.
    entries: Vec<AuditEntry>,
    /// Cursor of the next page; null on the last page.
    #[schema(required)]
    next_cursor: Option<i64>,
}

/// An entry of the audit log.
#[derive(Serialize, ToSchema)]
pub(crate) struct AuditEntry {
    /// Ascending sequence number; a gap means that entries were deleted.
    seq: i64,
    /// Time in milliseconds since 1970.
    at: i64,
    /// Id of the acting key, or a name for an actor without a key.
    actor: String,
    /// Tenant of the actor.
    tenant: Option<String>,
    /// Action, such as `key.create`.
    action: String,
    /// Object of the action.
    target: Option<String>,
    /// Outcome: done, refused or failed.
    outcome: String,
    /// Id of the HTTP request.
    request_id: Option<String>,
    /// Details in one line.
    detail: Option<String>,
}
