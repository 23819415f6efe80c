//! `/v1/providers`: the providers' health and configuration, and tests of them.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use belljar_engine::catalog::ProviderSettings;
use belljar_engine::provider::{Capabilities, MissingLayer};
use belljar_engine::provider_set::{AUTO, ProviderEntry};
use belljar_engine::report::{Report, Status};
use belljar_engine::request::Request;
use belljar_store::{ProviderVersion, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::AdminRequest;
use crate::app_state::AppState;
use crate::dialects::v1::schema;
use crate::error::Error;
use crate::http::body::{JsonBody, SortedJson, parse};
use crate::provider_registry::{self, InitialProviderConfig, RegisteredProvider, SecretMask};

/// Language and code of the default test program.
const DEFAULT_TEST_PROGRAM: (&str, &str) = ("python", "print(6 * 7)");

/// Configuration to set for a provider.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NewProviderConfiguration", example = configuration_example())]
struct NewConfigurationBody {
    /// Settings that fit the provider's schema. `********` keeps a secret, if it is still sent to the same
    /// destination.
    settings: ProviderSettings,
    /// Providers to use instead while it fails, in this order; none by default.
    #[serde(default)]
    instead: Vec<String>,
}

fn configuration_example() -> Value {
    json!({"settings": {"image": "python:3.12-slim", "pool": 4}, "instead": ["native"]})
}

/// Version to roll back to.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ProviderRollBack")]
struct RollBackBody {
    /// Version number.
    version: u32,
}

/// Options of a provider test.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "ProviderTest")]
struct ProviderTestBody {
    /// Settings to test instead of the configured ones.
    settings: Option<ProviderSettings>,
    /// Language of the test program; default Python.
    language: Option<String>,
    /// Source code of the test program.
    code: Option<String>,
}

/// All providers.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ProviderList {
    /// Default provider: a name, or `auto`.
    usual: String,
    /// The providers.
    providers: Vec<ProviderInfo>,
}

/// A provider: a backend that runs sandboxes.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Provider")]
struct ProviderInfo {
    /// Name of the provider.
    name: &'static str,
    /// Whether it is the default provider.
    usual: bool,
    /// Whether it is configured; if not, it runs nothing and the following fields are absent.
    configured: bool,
    #[serde(flatten)]
    working: Option<ConfiguredProvider>,
}

/// A configured provider.
#[derive(Debug, Serialize, JsonSchema)]
struct ConfiguredProvider {
    /// Version of its configuration; null if it has default settings.
    version: Option<u32>,
    /// Providers to use instead while it fails, in this order.
    instead: Vec<String>,
    /// Features of the provider.
    capabilities: ProviderCapabilities,
    /// Health of the provider.
    health: ProviderHealth,
}

/// Features of a provider.
#[derive(Debug, Serialize, JsonSchema)]
struct ProviderCapabilities {
    /// Whether it supports long-lived sandboxes.
    living_sandboxes: bool,
    /// Whether it can pause sandboxes.
    pause: bool,
    /// Whether it can install packages.
    packages: bool,
    /// Whether it can mount host folders.
    host_folders: bool,
    /// Whether requests may ask for GPUs.
    gpus: bool,
    /// Whether `auto` may choose it.
    auto: bool,
    /// Isolation layers that it does not enforce.
    missing_layers: Vec<MissingLayer>,
}

/// Health of a provider.
#[derive(Debug, Serialize, JsonSchema)]
struct ProviderHealth {
    /// Whether it passes its self-test, and the last request did not fail because of it.
    works: bool,
    /// Error of the last self-test, else of the last request; null if it works.
    error: Option<String>,
    /// Number of consecutive requests that failed.
    failures_in_a_row: u32,
    /// Error of the last failed request; null while requests succeed.
    last_failure: Option<String>,
}

/// Configuration of a provider.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ProviderConfiguration {
    /// Name of the provider.
    provider: String,
    #[serde(flatten)]
    version: ProviderVersionInfo,
    /// Read-only facts about the provider on this machine.
    facts: ProviderSettings,
}

/// A version of a provider's configuration.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "ProviderVersion")]
struct ProviderVersionInfo {
    /// Version number; null for default settings.
    version: Option<u32>,
    /// Settings that fit the provider's schema, with secrets masked as `********`; null if the configuration
    /// was removed.
    settings: Option<ProviderSettings>,
    /// Providers to use instead while it fails, in this order.
    instead: Vec<String>,
    /// Time of the change in milliseconds since 1970.
    changed: Option<Timestamp>,
    /// Id of the key that made the change, or a name in its place.
    changed_by: Option<String>,
}

/// All versions of a provider's configuration.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ProviderVersions {
    /// Versions, newest first.
    versions: Vec<ProviderVersionInfo>,
}

/// The default provider.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct UsualProvider {
    /// Name of the provider, or `auto`.
    usual: String,
}

/// Result of a provider test.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ProviderTested {
    /// Name of the provider.
    provider: String,
    /// Whether the test passed.
    passed: bool,
    /// Total time in milliseconds, including setup.
    duration_ms: f64,
    /// Reason the test failed; null if it passed.
    error: Option<String>,
    /// Result of the test program; null if it did not run.
    result: Option<Report>,
}

/// Lists all providers with their features and health, which is checked now.
#[utoipa::path(get, path = "/v1/providers", tag = "administration",
    responses((status = 200, description = "The providers, sorted by name", body = ref(schema::response::<ProviderList>()))))]
pub(crate) async fn list(admin: AdminRequest) -> Result<SortedJson<ProviderList>, Error> {
    let (registry, state) = (&admin.state.provider_registry, admin.state.provider_registry.state());
    let entries = admin.state.engine.providers().entries();
    provider_registry::check_health(entries.clone()).await;
    let shown = registry.catalog().names().into_iter().map(|name| {
        let entry = entries.iter().find(|entry| entry.name() == name);
        let working = entry.zip(state.entries.get(name));
        let working = working.map(|(entry, registered)| configured_provider(entry, registered));
        ProviderInfo { name, usual: state.usual == name, configured: working.is_some(), working }
    });
    let providers = shown.collect();
    Ok(SortedJson(ProviderList { usual: state.usual.clone(), providers }))
}

/// Returns the JSON Schema of a provider's settings.
#[utoipa::path(get, path = "/v1/providers/{provider}/schema", tag = "administration",
    params(("provider" = String, Path, description = "Provider name")),
    responses((status = 200, description = "JSON Schema; secrets are `writeOnly`, facts are `readOnly`",
        body = Value),
        (status = 422, description = "No such provider")))]
pub(crate) async fn schema(admin: AdminRequest, Path(name): Path<String>) -> Result<Json<Value>, Error> {
    Ok(Json(admin.state.provider_registry.catalog().schema(&name)?))
}

/// Returns the configuration of a provider, with secrets masked.
#[utoipa::path(get, path = "/v1/providers/{provider}/configuration", tag = "administration",
    params(("provider" = String, Path, description = "Provider name")),
    responses((status = 200, description = "The provider's configuration",
        body = ref(schema::response::<ProviderConfiguration>())),
        (status = 404, description = "The provider is not configured")))]
pub(crate) async fn show(
    admin: AdminRequest,
    Path(name): Path<String>,
) -> Result<SortedJson<ProviderConfiguration>, Error> {
    configuration(&admin.state, &name).await.map(SortedJson)
}

/// Sets the configuration of a provider, which applies from the next request on.
///
/// A masked secret keeps its value, unless it would be sent to another destination than before: then it must
/// be given again. The provider is built first and runs a program; if that fails, nothing changes.
#[utoipa::path(put, path = "/v1/providers/{provider}/configuration", tag = "administration",
    params(("provider" = String, Path, description = "Provider name")),
        request_body = ref(schema::request::<NewConfigurationBody>()),
    responses((status = 200, description = "The new configuration", body = ref(schema::response::<ProviderConfiguration>())),
        (status = 422, description = "Invalid or not working; nothing was changed")))]
pub(crate) async fn set(
    admin: AdminRequest,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<SortedJson<ProviderConfiguration>, Error> {
    provider_registry::check_provider_exists(admin.state.provider_registry.catalog(), &name)?;
    let NewConfigurationBody { settings, instead } = parse(body)?;
    let (state, actor, provider) = admin.owned_parts(&name);
    let seed = InitialProviderConfig { settings, instead };
    let work = async move { state.provider_registry.set(&provider, seed, &actor).await };
    admin.run_audited("provider.set", &name, work).await?;
    configuration(&admin.state, &name).await.map(SortedJson)
}

/// Removes the configuration of a provider.
///
/// A built-in provider returns to its defaults; any other is no longer used.
#[utoipa::path(delete, path = "/v1/providers/{provider}/configuration", tag = "administration",
    params(("provider" = String, Path, description = "Provider name")),
    responses((status = 204, description = "The configuration is removed"),
        (status = 404, description = "The provider is not configured"),
        (status = 422, description = "Another provider or the default still refers to it")))]
pub(crate) async fn remove(admin: AdminRequest, Path(name): Path<String>) -> Result<StatusCode, Error> {
    let (state, actor, provider) = admin.owned_parts(&name);
    let work = async move { state.provider_registry.remove(&provider, &actor).await };
    admin.run_audited("provider.remove", &name, work).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists all versions of a provider's configuration, newest first, with secrets masked.
#[utoipa::path(get, path = "/v1/providers/{provider}/versions", tag = "administration",
    params(("provider" = String, Path, description = "Provider name")),
    responses((status = 200, description = "The latest hundred versions", body = ref(schema::response::<ProviderVersions>()))))]
pub(crate) async fn versions(
    admin: AdminRequest,
    Path(name): Path<String>,
) -> Result<SortedJson<ProviderVersions>, Error> {
    provider_registry::check_provider_exists(admin.state.provider_registry.catalog(), &name)?;
    let versions = admin.state.store.provider_versions(&name).await?;
    Ok(SortedJson(ProviderVersions { versions: versions.into_iter().map(version_info).collect() }))
}

/// Restores an earlier version of a provider's configuration, including secrets.
///
/// It is tested first, and becomes a new version.
#[utoipa::path(post, path = "/v1/providers/{provider}/rollback", tag = "administration",
    params(("provider" = String, Path, description = "Provider name")),
    request_body = ref(schema::request::<RollBackBody>()),
    responses((status = 200, description = "The restored configuration",
        body = ref(schema::response::<ProviderConfiguration>())),
        (status = 404, description = "No such version"),
        (status = 422, description = "The version no longer works; nothing was changed")))]
pub(crate) async fn roll_back(
    admin: AdminRequest,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<SortedJson<ProviderConfiguration>, Error> {
    let (RollBackBody { version }, (state, actor, provider)) = (parse(body)?, admin.owned_parts(&name));
    let work = async move { state.provider_registry.roll_back(&provider, version, &actor).await };
    admin.run_audited("provider.rollback", &name, work).await?;
    configuration(&admin.state, &name).await.map(SortedJson)
}

/// Sets the default provider.
///
/// `auto` uses the strongest provider that passes its self-test.
#[utoipa::path(post, path = "/v1/providers/{provider}/activate", tag = "administration",
    params(("provider" = String, Path, description = "Provider name, or `auto`")),
    responses((status = 200, description = "The new default provider", body = ref(schema::response::<UsualProvider>())),
        (status = 422, description = "Not configured or not working; nothing was changed")))]
pub(crate) async fn activate(
    admin: AdminRequest,
    Path(name): Path<String>,
) -> Result<SortedJson<UsualProvider>, Error> {
    if name != AUTO {
        provider_registry::check_provider_exists(admin.state.provider_registry.catalog(), &name)?;
    }
    let (state, _, provider) = admin.owned_parts(&name);
    let work = async move { state.provider_registry.set_default(&provider).await };
    admin.run_audited("provider.activate", &name, work).await?;
    Ok(SortedJson(UsualProvider { usual: name }))
}

/// Tests a provider end to end by running a real program.
///
/// The test uses the provider's configuration or the given settings, and changes nothing.
#[utoipa::path(post, path = "/v1/providers/{provider}/test", tag = "administration",
    params(("provider" = String, Path, description = "Provider name")), request_body = ref(schema::request::<ProviderTestBody>()),
    responses((status = 200, description = "Result of the test", body = ref(schema::response::<ProviderTested>())),
        (status = 422, description = "Not configured, or invalid settings")))]
pub(crate) async fn test(
    admin: AdminRequest,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<SortedJson<ProviderTested>, Error> {
    let ProviderTestBody { settings, language, code } =
        if body.bytes.is_empty() { ProviderTestBody::default() } else { parse(body)? };
    let (state, _, provider) = admin.owned_parts(&name);
    let registry = &state.provider_registry;
    provider_registry::check_provider_exists(registry.catalog(), &name)?;
    let request = Request {
        language: Some(language.unwrap_or_else(|| DEFAULT_TEST_PROGRAM.0.to_owned())),
        code: Some(code.unwrap_or_else(|| DEFAULT_TEST_PROGRAM.1.to_owned())),
        ..Request::default()
    };
    // A provider built from other settings handles no requests and is shut down after the test.
    let (tested, secret_mask, own) = match settings {
        Some(settings) => {
            let provider_registry::ProviderCandidate { provider, secret_mask, .. } =
                registry.candidate(&name, settings).await?;
            (provider, secret_mask, true)
        }
        None => {
            state.engine.providers().check(&name)?;
            let registered =
                registry.state().entries.get(&name).cloned().ok_or(Error::NotFound("provider"))?;
            (registered.provider, registered.hidden, false)
        }
    };
    let work = async move {
        let began = Instant::now();
        let ran = provider_registry::run_request(&tested, *state.engine.ceiling(), request).await;
        let duration = began.elapsed().as_secs_f64() * 1_000.0;
        if own {
            state.provider_registry.discard(&tested).await;
        }
        Ok(test_result(provider, duration, ran, &secret_mask))
    };
    admin.run_audited("provider.test", &name, work).await.map(SortedJson)
}

fn test_result(
    provider: String,
    duration_ms: f64,
    ran: Result<Report, String>,
    hidden: &SecretMask,
) -> ProviderTested {
    let (passed, error) = match &ran {
        Ok(report) if report.status == Status::Succeeded => (true, None),
        Ok(report) => {
            let why = report.error.clone().unwrap_or_else(|| "the program failed".to_owned());
            (false, Some(hidden.mask(&why)))
        }
        Err(error) => (false, Some(hidden.mask(error))),
    };
    ProviderTested { provider, passed, duration_ms, error, result: ran.ok() }
}

async fn configuration(state: &AppState, name: &str) -> Result<ProviderConfiguration, Error> {
    let schema = state.provider_registry.catalog().schema(name)?;
    let newest = provider_registry::newest_version(&state.store, name).await?;
    let version = match newest {
        Some(newest) if newest.content.settings.is_some() => version_info(newest),
        _ if state.provider_registry.catalog().exists_unconfigured(name) => {
            ProviderVersionInfo { settings: Some(ProviderSettings::new()), ..Default::default() }
        }
        _ => return Err(Error::NotFound("configuration: this provider is not configured")),
    };
    let properties = schema["properties"].as_object().into_iter().flatten();
    let facts = properties.filter(|(_, property)| property["readOnly"] == true);
    let facts = facts.map(|(name, fact)| (name.clone(), fact["const"].clone())).collect();
    Ok(ProviderConfiguration { provider: name.to_owned(), version, facts })
}

fn version_info(version: ProviderVersion) -> ProviderVersionInfo {
    let ProviderVersion { version, content, actor, changed, .. } = version;
    ProviderVersionInfo {
        version: Some(version),
        settings: content.settings,
        instead: content.fallbacks,
        changed: Some(changed),
        changed_by: Some(actor),
    }
}

fn configured_provider(entry: &ProviderEntry, registered: &RegisteredProvider) -> ConfiguredProvider {
    let health = entry.health_snapshot();
    let failing = (health.failures > 0).then(|| registered.hidden.mask(&health.last_error));
    let error = match &health.self_test {
        Some(Err(why)) => Some(registered.hidden.mask(why)),
        _ => failing.as_ref().map(|why| format!("{} failed in a row: {why}", count_runs(health.failures))),
    };
    ConfiguredProvider {
        version: registered.version,
        instead: registered.instead.clone(),
        capabilities: capabilities(entry.capabilities()),
        health: ProviderHealth {
            works: error.is_none(),
            error,
            failures_in_a_row: health.failures,
            last_failure: failing,
        },
    }
}

fn count_runs(count: u32) -> String {
    if count == 1 { "the last run".to_owned() } else { format!("the last {count} runs") }
}

fn capabilities(can: &Capabilities) -> ProviderCapabilities {
    ProviderCapabilities {
        living_sandboxes: can.sandboxes.is_some(),
        pause: can.sandboxes.as_ref().is_some_and(|living| living.cannot_pause.is_none()),
        packages: can.package_layers,
        host_folders: can.host_paths,
        gpus: can.gpus,
        auto: can.strength.is_some(),
        missing_layers: can.missing.clone(),
    }
}

impl AdminRequest {
    /// Returns owned values that an audited action on a provider needs.
    fn owned_parts(&self, name: &str) -> (Arc<AppState>, String, String) {
        (Arc::clone(&self.state), self.caller.actor.clone(), name.to_owned())
    }
}
