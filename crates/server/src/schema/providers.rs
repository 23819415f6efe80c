//! Providers: their configuration, capabilities and health.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// All providers.
#[derive(Serialize, ToSchema)]
pub(crate) struct ProviderList {
    /// Default provider: a name, or `auto`.
    usual: String,
    /// The providers.
    providers: Vec<Provider>,
}

/// A provider: a backend that runs sandboxes.
#[derive(Serialize, ToSchema)]
pub(crate) struct Provider {
    /// Name of the provider.
    name: String,
    /// Whether it is the default provider.
    usual: bool,
    /// Whether it is configured; if not, it runs nothing and the following fields are absent.
    configured: bool,
    /// Version of its configuration; absent if it has default settings.
    version: Option<u32>,
    /// Providers to use instead while it fails, in this order.
    instead: Option<Vec<String>>,
    /// Features of the provider.
    capabilities: Option<ProviderCapabilities>,
    /// Health of the provider.
    health: Option<ProviderHealth>,
}

/// Features of a provider.
#[derive(Serialize, ToSchema)]
pub(crate) struct ProviderCapabilities {
    /// Whether it supports long-lived sandboxes.
    living_sandboxes: bool,
    /// Whether it can pause sandboxes.
    pause: bool,
    /// Whether it can install packages.
    packages: bool,
    /// Whether it can mount host folders.
    host_folders: bool,
    /// Whether `auto` may choose it.
    auto: bool,
    /// Isolation layers that it does not enforce.
    missing_layers: Vec<MissingLayer>,
}

/// An isolation layer that a provider does not enforce.
#[derive(Serialize, ToSchema)]
pub(crate) struct MissingLayer {
    /// Name of the layer.
    layer: String,
    /// Reason it is missing.
    reason: String,
    /// How to enable it.
    remedy: String,
}

/// Health of a provider.
#[derive(Serialize, ToSchema)]
pub(crate) struct ProviderHealth {
    /// Whether it passes its self-test.
    works: bool,
    /// Error of the last self-test; null if it passed.
    #[schema(required)]
    error: Option<String>,
    /// Number of consecutive requests that failed.
    failures_in_a_row: u32,
    /// Error of the last failed request; null while requests succeed.
    #[schema(required)]
    last_failure: Option<String>,
}

/// Configuration of a provider.
#[derive(Serialize, ToSchema)]
pub(crate) struct ProviderConfiguration {
    /// Name of the provider.
    provider: String,
    #[serde(flatten)]
    version: ProviderVersion,
    /// Read-only facts about the provider on this machine.
    #[schema(value_type = Object)]
    facts: Map<String, Value>,
}

/// A version of a provider's configuration.
#[derive(Serialize, ToSchema)]
pub(crate) struct ProviderVersion {
    /// Version number; null for default settings.
    #[schema(required)]
    version: Option<u32>,
    /// Settings that fit the provider's schema, with secrets masked as `********`; null if the configuration
    /// was removed.
    #[schema(required, value_type = Option<Object>)]
    settings: Option<Map<String, Value>>,
    /// Providers to use instead while it fails, in this order.
    instead: Vec<String>,
    /// Time of the change in milliseconds since 1970.
    #[schema(required)]
    changed: Option<i64>,
    /// Id of the key that made the change, or a name in its place.
    #[schema(required)]
    changed_by: Option<String>,
}

/// All versions of a provider's configuration.
#[derive(Serialize, ToSchema)]
pub(crate) struct ProviderVersions {
    /// Versions, newest first.
    versions: Vec<ProviderVersion>,
}

/// Configuration to set for a provider.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"settings": {"image": "python:3.12-slim", "pool": 4}, "instead": ["native"]}))]
pub(crate) struct NewProviderConfiguration {
    /// Settings that fit the provider's schema. `********` keeps a secret, if it is still sent to the same
    /// destination.
    #[schema(value_type = Object)]
    settings: Map<String, Value>,
    /// Providers to use instead while it fails, in this order; none by default.
    instead: Option<Vec<String>>,
}

/// Version to roll back to.
#[derive(Serialize, ToSchema)]
pub(crate) struct ProviderRollBack {
    /// Version number.
    version: u32,
}

/// The default provider.
#[derive(Serialize, ToSchema)]
pub(crate) struct UsualProvider {
    /// Name of the provider, or `auto`.
    usual: String,
}

/// Options of a provider test.
#[derive(Serialize, ToSchema)]
pub(crate) struct ProviderTest {
    /// Settings to test instead of the configured ones.
    #[schema(value_type = Option<Object>)]
    settings: Option<Map<String, Value>>,
    /// Language of the test program; default Python.
    language: Option<String>,
    /// Source code of the test program.
    code: Option<String>,
}

/// Result of a provider test.
#[derive(Serialize, ToSchema)]
pub(crate) struct ProviderTested {
    /// Name of the provider.
    provider: String,
    /// Whether the test passed.
    passed: bool,
    /// Total time in milliseconds, including setup.
    duration_ms: f64,
    /// Reason the test failed; null if it passed.
    #[schema(required)]
    error: Option<String>,
    /// Result of the test program; null if it did not run.
    #[schema(required)]
    result: Option<super::Result>,
}
