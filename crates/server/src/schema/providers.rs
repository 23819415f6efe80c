//! Providers: who there is, what is said about each, and whether it works.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// Everybody.
#[derive(Serialize, ToSchema)]
pub(crate) struct ProviderList {
    /// Who serves whoever names nobody: a name, or `auto`.
    usual: String,
    providers: Vec<Provider>,
}

/// A way to make sandboxes.
#[derive(Serialize, ToSchema)]
pub(crate) struct Provider {
    name: String,
    /// Whether it is the one that serves whoever names nobody.
    usual: bool,
    /// Where this is false, it serves nobody, and what follows is absent.
    configured: bool,
    /// Absent where it has its defaults.
    version: Option<u32>,
    /// Who serves instead while it fails, in this order.
    instead: Option<Vec<String>>,
    capabilities: Option<ProviderCapabilities>,
    health: Option<ProviderHealth>,
}

/// What a provider can do.
#[derive(Serialize, ToSchema)]
pub(crate) struct ProviderCapabilities {
    living_sandboxes: bool,
    pause: bool,
    packages: bool,
    host_folders: bool,
    /// Whether `auto` may choose it.
    auto: bool,
    missing_layers: Vec<MissingLayer>,
}

/// What a provider does not enforce.
#[derive(Serialize, ToSchema)]
pub(crate) struct MissingLayer {
    layer: String,
    reason: String,
    remedy: String,
}

/// How a provider does.
#[derive(Serialize, ToSchema)]
pub(crate) struct ProviderHealth {
    /// Whether it passes its self-test.
    works: bool,
    #[schema(required)]
    error: Option<String>,
    /// Of real requests.
    failures_in_a_row: u32,
    #[schema(required)]
    last_failure: Option<String>,
}

/// What is said about a provider.
#[derive(Serialize, ToSchema)]
pub(crate) struct ProviderConfiguration {
    provider: String,
    #[serde(flatten)]
    version: ProviderVersion,
    /// What is so on this machine and cannot be set.
    #[schema(value_type = Object)]
    facts: Map<String, Value>,
}

/// What was said about a provider at one time.
#[derive(Serialize, ToSchema)]
pub(crate) struct ProviderVersion {
    #[schema(required)]
    version: Option<u32>,
    /// By the provider's schema; every secret is `********`. Null where it was not to be used.
    #[schema(required, value_type = Option<Object>)]
    settings: Option<Map<String, Value>>,
    instead: Vec<String>,
    #[schema(required)]
    changed: Option<i64>,
    /// The id of a key, or what stands for one.
    #[schema(required)]
    changed_by: Option<String>,
}

/// All that was said, newest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct ProviderVersions {
    versions: Vec<ProviderVersion>,
}

/// What to say about a provider.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"settings": {"image": "python:3.12-slim", "pool": 4}, "instead": ["native"]}))]
pub(crate) struct NewProviderConfiguration {
    /// By the provider's schema; `********` keeps a secret as it is, if it is sent where it was.
    #[schema(value_type = Object)]
    settings: Map<String, Value>,
    /// Who serves instead while it fails, in this order; nobody where this is left out.
    instead: Option<Vec<String>>,
}

/// Which version to go back to.
#[derive(Serialize, ToSchema)]
pub(crate) struct ProviderRollBack {
    version: u32,
}

/// Who serves whoever names nobody.
#[derive(Serialize, ToSchema)]
pub(crate) struct UsualProvider {
    usual: String,
}

/// What to test.
#[derive(Serialize, ToSchema)]
pub(crate) struct ProviderTest {
    /// Instead of those that count.
    #[schema(value_type = Option<Object>)]
    settings: Option<Map<String, Value>>,
    /// Of the program; Python unless said otherwise.
    language: Option<String>,
    /// The program.
    code: Option<String>,
}

/// What came of a test.
#[derive(Serialize, ToSchema)]
pub(crate) struct ProviderTested {
    provider: String,
    passed: bool,
    /// With everything that was needed.
    duration_ms: f64,
    #[schema(required)]
    error: Option<String>,
    /// What the program did; null where it did not run.
    #[schema(required)]
    result: Option<super::Result>,
}
