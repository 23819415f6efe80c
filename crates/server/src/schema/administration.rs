//! Tenants, keys, profiles and the audit log.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use super::{Limits, Network};

/// What a tenant may have; null is the server's own default.
#[derive(Serialize, ToSchema)]
pub(crate) struct Quotas {
    concurrency: Option<u32>,
    sandboxes: Option<u32>,
    cpu_seconds_per_day: Option<u64>,
    memory_bytes: Option<u64>,
    disk_bytes: Option<u64>,
}

/// A tenant.
#[derive(Serialize, ToSchema)]
pub(crate) struct Tenant {
    name: String,
    quotas: Quotas,
    created: i64,
    #[schema(required)]
    disabled: Option<i64>,
    stored_bytes: u64,
    /// Above which none of its requests can go.
    #[schema(required)]
    policy: Option<String>,
    /// Who serves its requests that name nobody; null for the usual one.
    #[schema(required)]
    provider: Option<String>,
}

/// Tenants by name.
#[derive(Serialize, ToSchema)]
pub(crate) struct TenantList {
    tenants: Vec<Tenant>,
}

/// A tenant to add.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"name": "ada", "quotas": {"concurrency": 4}}))]
pub(crate) struct NewTenant {
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]*$", max_length = 63)]
    name: String,
    quotas: Option<Quotas>,
}

/// What to change about a tenant.
#[derive(Serialize, ToSchema)]
pub(crate) struct TenantChange {
    quotas: Option<Quotas>,
    disabled: Option<bool>,
    /// Above which none of its requests can go; `off` lets them choose freely.
    policy: Option<String>,
    /// Who serves its requests that name nobody: a provider, `auto`, or null for the usual one.
    provider: Option<String>,
}

/// A key to make.
#[derive(Serialize, ToSchema)]
pub(crate) struct NewKey {
    /// What it is for.
    label: Option<String>,
    /// The first two unless said otherwise.
    scopes: Option<Vec<Scope>>,
    expires_in_seconds: Option<u64>,
}

/// What a key opens.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Scope {
    Run,
    Sandboxes,
    Admin,
}

/// How to rotate a key.
#[derive(Serialize, ToSchema)]
pub(crate) struct KeyRotation {
    /// How long the old one still opens; not at all unless said otherwise.
    old_valid_seconds: Option<u64>,
}

/// What may be known of a key.
#[derive(Serialize, ToSchema)]
pub(crate) struct Key {
    id: String,
    tenant: String,
    label: String,
    scopes: Vec<Scope>,
    created: i64,
    #[schema(required)]
    expires: Option<i64>,
    #[schema(required)]
    last_used: Option<i64>,
    #[schema(required)]
    revoked: Option<i64>,
}

/// A key, this once.
#[derive(Serialize, ToSchema)]
pub(crate) struct ShownKey {
    key: String,
    record: Key,
}

/// Keys of a tenant.
#[derive(Serialize, ToSchema)]
pub(crate) struct KeyList {
    keys: Vec<Key>,
}

/// Named limits, network and environment.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"limits": {"timeout_ms": 1000}, "output_overflow": "kill"}))]
pub(crate) struct Profile {
    limits: Option<Limits>,
    network: Option<Network>,
    env: Option<BTreeMap<String, String>>,
    preimports: Option<Vec<String>>,
    /// Of every run: of Python, or with npm: before the name of JavaScript.
    packages: Option<Vec<String>>,
    /// Whether packages may be built from their sources, and run their install scripts.
    build_packages: Option<bool>,
    /// truncate or kill.
    output_overflow: Option<String>,
    /// Who serves it, where the request does not say: the name of a provider, or `auto`.
    provider: Option<String>,
    /// The policy that holds, above which no request can go.
    policy: Option<String>,
}

/// A profile and its name.
#[derive(Serialize, ToSchema)]
pub(crate) struct StoredProfile {
    name: String,
    profile: Profile,
    changed: Option<i64>,
}

/// Profiles by name.
#[derive(Serialize, ToSchema)]
pub(crate) struct ProfileList {
    profiles: Vec<StoredProfile>,
}

/// Entries of the audit log, newest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct AuditPage {
    entries: Vec<AuditEntry>,
    #[schema(required)]
    next_cursor: Option<i64>,
}

/// Who did what.
#[derive(Serialize, ToSchema)]
pub(crate) struct AuditEntry {
    seq: i64,
    at: i64,
    actor: String,
    tenant: Option<String>,
    action: String,
    target: Option<String>,
    /// done, refused or failed.
    outcome: String,
    request_id: Option<String>,
    detail: Option<String>,
}
