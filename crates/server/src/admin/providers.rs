//! `/v1/providers`: the providers' health and configuration, and tests of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use belljar_engine::Engine;
use belljar_engine::catalog::ProviderSettings;
use belljar_engine::limits::Limits;
use belljar_engine::profile::Profiles;
use belljar_engine::provider::{Capabilities, DiscardSink, Provider};
use belljar_engine::provider_set::{AUTO, ProviderEntry};
use belljar_engine::report::{Report, Status};
use belljar_engine::request::{HostPaths, Request};
use belljar_store::{ExecutionId, ProviderVersion};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::AdminRequest;
use crate::app_state::AppState;
use crate::body::{JsonBody, parse};
use crate::error::Error;
use crate::provider_registry::{self, InitialProviderConfig, RegisteredProvider, SecretMask};
use crate::schema;

/// Timeout of a test, including setup.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);
/// Language and code of the default test program.
const DEFAULT_TEST_PROGRAM: (&str, &str) = ("python", "print(6 * 7)");

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewConfigurationBody {
    settings: ProviderSettings,
    #[serde(default)]
    instead: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RollBackBody {
    version: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ProviderTestBody {
    settings: Option<ProviderSettings>,
    language: Option<String>,
    code: Option<String>,
}

/// Lists all providers with their features and health, which is checked now.
#[utoipa::path(get, path = "/v1/providers", tag = "administration",
    responses((status = 200, description = "The providers, sorted by name", body = schema::ProviderList)))]
pub(crate) async fn list(desk: AdminRequest) -> Result<Json<Value>, Error> {
    let (roster, state) = (&desk.world.roster, desk.world.roster.state());
    let posts = desk.world.engine.providers().entries();
    provider_registry::check_health(posts.clone()).await;
    let shown = roster.catalog().names().into_iter().map(|name| {
        let post = posts.iter().find(|post| post.name() == name);
        let working = post.zip(state.entries.get(name)).map(|(post, seat)| provider_json(post, seat));
        let mut shown = working.unwrap_or_else(|| json!({"configured": false}));
        shown["name"] = name.into();
        shown["usual"] = (state.usual == name).into();
        shown
    });
    let shown: Vec<Value> = shown.collect();
    Ok(Json(json!({"usual": state.usual, "providers": shown})))
}

/// Returns the JSON Schema of a provider's settings.
#[utoipa::path(get, path = "/v1/providers/{provider}/schema", tag = "administration",
    params(("provider" = String, Path, description = "Provider name")),
    responses((status = 200, description = "JSON Schema; secrets are `writeOnly`, facts are `readOnly`",
        body = Value),
        (status = 422, description = "No such provider", body = schema::Problem)))]
pub(crate) async fn schema(desk: AdminRequest, Path(name): Path<String>) -> Result<Json<Value>, Error> {
    Ok(Json(desk.world.roster.catalog().schema(&name)?))
}

/// Returns the configuration of a provider, with secrets masked.
#[utoipa::path(get, path = "/v1/providers/{provider}/configuration", tag = "administration",
    params(("provider" = String, Path, description = "Provider name")),
    responses((status = 200, description = "The provider's configuration",
        body = schema::ProviderConfiguration),
        (status = 404, description = "The provider is not configured", body = schema::Problem)))]
pub(crate) async fn show(desk: AdminRequest, Path(name): Path<String>) -> Result<Json<Value>, Error> {
    configuration_json(&desk.world, &name).await.map(Json)
}

/// Sets the configuration of a provider, which applies from the next request on.
///
/// A masked secret keeps its value, unless it would be sent to another destination than before: then it must
/// be given again. The provider is built and tested first; if that fails, nothing changes.
#[utoipa::path(put, path = "/v1/providers/{provider}/configuration", tag = "administration",
    params(("provider" = String, Path, description = "Provider name")),
        request_body = schema::NewProviderConfiguration,
    responses((status = 200, description = "The new configuration", body = schema::ProviderConfiguration),
        (status = 422, description = "Invalid or not working; nothing was changed", body = schema::Problem)))]
pub(crate) async fn set(
    desk: AdminRequest,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<Json<Value>, Error> {
    provider_registry::check_provider_exists(desk.world.roster.catalog(), &name)?;
    let NewConfigurationBody { settings, instead } = parse(body)?;
    let (world, actor, provider) = desk.owned_parts(&name);
    let seed = InitialProviderConfig { settings, instead };
    let work = async move { world.roster.set(&world, &provider, seed, &actor).await };
    desk.run_audited("provider.set", &name, work).await?;
    configuration_json(&desk.world, &name).await.map(Json)
}

/// Removes the configuration of a provider.
///
/// A built-in provider returns to its defaults; any other is no longer used.
#[utoipa::path(delete, path = "/v1/providers/{provider}/configuration", tag = "administration",
    params(("provider" = String, Path, description = "Provider name")),
    responses((status = 204, description = "The configuration is removed"),
        (status = 404, description = "The provider is not configured", body = schema::Problem),
        (status = 422, description = "Another provider or the default still refers to it",
            body = schema::Problem)))]
pub(crate) async fn remove(desk: AdminRequest, Path(name): Path<String>) -> Result<StatusCode, Error> {
    let (world, actor, provider) = desk.owned_parts(&name);
    let work = async move { world.roster.remove(&world, &provider, &actor).await };
    desk.run_audited("provider.remove", &name, work).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists all versions of a provider's configuration, newest first, with secrets masked.
#[utoipa::path(get, path = "/v1/providers/{provider}/versions", tag = "administration",
    params(("provider" = String, Path, description = "Provider name")),
    responses((status = 200, description = "The latest hundred versions", body = schema::ProviderVersions)))]
pub(crate) async fn versions(desk: AdminRequest, Path(name): Path<String>) -> Result<Json<Value>, Error> {
    provider_registry::check_provider_exists(desk.world.roster.catalog(), &name)?;
    let versions = desk.world.store.provider_versions(&name).await?;
    Ok(Json(json!({"versions": versions.into_iter().map(version_json).collect::<Vec<_>>()})))
}

/// Restores an earlier version of a provider's configuration, including secrets.
///
/// It is tested first, and becomes a new version.
#[utoipa::path(post, path = "/v1/providers/{provider}/rollback", tag = "administration",
    params(("provider" = String, Path, description = "Provider name")),
    request_body = schema::ProviderRollBack,
    responses((status = 200, description = "The restored configuration",
        body = schema::ProviderConfiguration),
        (status = 404, description = "No such version", body = schema::Problem),
        (status = 422, description = "The version no longer works; nothing was changed",
            body = schema::Problem)))]
pub(crate) async fn roll_back(
    desk: AdminRequest,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<Json<Value>, Error> {
    let (RollBackBody { version }, (world, actor, provider)) = (parse(body)?, desk.owned_parts(&name));
    let work = async move { world.roster.roll_back(&world, &provider, version, &actor).await };
    desk.run_audited("provider.rollback", &name, work).await?;
    configuration_json(&desk.world, &name).await.map(Json)
}

/// Sets the default provider.
///
/// `auto` uses the strongest provider that passes its self-test.
#[utoipa::path(post, path = "/v1/providers/{provider}/activate", tag = "administration",
    params(("provider" = String, Path, description = "Provider name, or `auto`")),
    responses((status = 200, description = "The new default provider", body = schema::UsualProvider),
        (status = 422, description = "Not configured or not working; nothing was changed",
            body = schema::Problem)))]
pub(crate) async fn activate(desk: AdminRequest, Path(name): Path<String>) -> Result<Json<Value>, Error> {
    if name != AUTO {
        provider_registry::check_provider_exists(desk.world.roster.catalog(), &name)?;
    }
    let (world, _, provider) = desk.owned_parts(&name);
    let work = async move { world.roster.set_default(&world, &provider).await };
    desk.run_audited("provider.activate", &name, work).await?;
    Ok(Json(json!({"usual": name})))
}

/// Tests a provider end to end by running a real program.
///
/// The test uses the provider's configuration or the given settings, and changes nothing.
#[utoipa::path(post, path = "/v1/providers/{provider}/test", tag = "administration",
    params(("provider" = String, Path, description = "Provider name")), request_body = schema::ProviderTest,
    responses((status = 200, description = "Result of the test", body = schema::ProviderTested),
        (status = 422, description = "Not configured, or invalid settings", body = schema::Problem)))]
pub(crate) async fn test(
    desk: AdminRequest,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<Json<Value>, Error> {
    let ProviderTestBody { settings, language, code } =
        if body.bytes.is_empty() { ProviderTestBody::default() } else { parse(body)? };
    let (world, _, provider) = desk.owned_parts(&name);
    let (roster, store) = (&world.roster, &world.store);
    provider_registry::check_provider_exists(roster.catalog(), &name)?;
    let request = Request {
        language: Some(language.unwrap_or_else(|| DEFAULT_TEST_PROGRAM.0.to_owned())),
        code: Some(code.unwrap_or_else(|| DEFAULT_TEST_PROGRAM.1.to_owned())),
        ..Request::default()
    };
    // A provider built from other settings handles no requests and is shut down after the test.
    let (tested, secret_mask, own) = match settings {
        Some(settings) => {
            let provider_registry::ProviderCandidate { provider, secret_mask, .. } =
                roster.candidate(store, &name, settings).await?;
            (provider, secret_mask, true)
        }
        None => {
            world.engine.providers().check(&name)?;
            let seat = roster.state().entries.get(&name).cloned().ok_or(Error::NotFound("provider"))?;
            (seat.provider, seat.hidden, false)
        }
    };
    let work = async move {
        let began = Instant::now();
        let ran = timeout(TEST_TIMEOUT, run(Arc::clone(&tested), *world.engine.ceiling(), request)).await;
        let ran = ran.unwrap_or_else(|_| Err("the test took too long".to_owned()));
        let duration = began.elapsed().as_secs_f64() * 1_000.0;
        if own {
            world.roster.discard(&tested).await;
        }
        Ok(test_result_json(&provider, duration, ran, &secret_mask))
    };
    desk.run_audited("provider.test", &name, work).await.map(Json)
}

async fn run(provider: Arc<dyn Provider>, ceiling: Limits, request: Request) -> Result<Report, String> {
    let engine = Engine::new(provider, Profiles::built_in(), ceiling);
    let said = |error: belljar_engine::Error| error.to_string();
    let admitted = engine.admit(request, HostPaths::default()).map_err(said)?;
    let id = ExecutionId::generate().map_err(|error| error.to_string())?.to_string();
    let never = Box::pin(std::future::pending());
    engine.execute(id, admitted, &mut DiscardSink, never).await.map_err(said)
}

fn test_result_json(name: &str, duration_ms: f64, ran: Result<Report, String>, hidden: &SecretMask) -> Value {
    let (passed, error) = match &ran {
        Ok(report) if report.status == Status::Succeeded => (true, None),
        Ok(report) => {
            let why = report.error.clone().unwrap_or_else(|| "the program failed".to_owned());
            (false, Some(hidden.mask(&why)))
        }
        Err(error) => (false, Some(hidden.mask(error))),
    };
    json!({"provider": name, "passed": passed, "duration_ms": duration_ms, "error": error, "result": ran.ok()})
}

async fn configuration_json(world: &AppState, name: &str) -> Result<Value, Error> {
    let schema = world.roster.catalog().schema(name)?;
    let newest = provider_registry::newest_version(&world.store, name).await?;
    let mut shown = match newest {
        Some(newest) if newest.content.settings.is_some() => version_json(newest),
        _ if world.roster.catalog().exists_unconfigured(name) => {
            json!({"version": null, "settings": {}, "instead": [], "changed": null, "changed_by": null})
        }
        _ => return Err(Error::NotFound("configuration: this provider is not configured")),
    };
    let properties = schema["properties"].as_object().into_iter().flatten();
    let facts = properties.filter(|(_, property)| property["readOnly"] == true);
    let facts: ProviderSettings = facts.map(|(name, fact)| (name.clone(), fact["const"].clone())).collect();
    shown["provider"] = name.into();
    shown["facts"] = facts.into();
    Ok(shown)
}

fn version_json(version: ProviderVersion) -> Value {
    let ProviderVersion { version, content, actor, changed, .. } = version;
    json!({
        "version": version, "settings": content.settings, "instead": content.fallbacks,
        "changed": changed, "changed_by": actor,
    })
}

fn provider_json(post: &ProviderEntry, seat: &RegisteredProvider) -> Value {
    let health = post.health_snapshot();
    let error = match &health.self_test {
        Some(Err(why)) => Some(seat.hidden.mask(why)),
        _ => None,
    };
    let failing = (health.failures > 0).then(|| seat.hidden.mask(&health.last_error));
    json!({
        "configured": true, "version": seat.version, "instead": seat.instead,
        "capabilities": capabilities_json(post.capabilities()),
        "health": {
            "works": error.is_none(), "error": error,
            "failures_in_a_row": health.failures, "last_failure": failing,
        },
    })
}

fn capabilities_json(can: &Capabilities) -> Value {
    let missing = can.missing.iter().map(
        |missing| json!({"layer": missing.layer.name(), "reason": missing.reason, "remedy": missing.remedy}),
    );
    json!({
        "living_sandboxes": can.sandboxes.is_some(),
        "pause": can.sandboxes.as_ref().is_some_and(|living| living.cannot_pause.is_none()),
        "packages": can.package_layers,
        "host_folders": can.host_paths,
        "auto": can.strength.is_some(),
        "missing_layers": missing.collect::<Vec<_>>(),
    })
}

impl AdminRequest {
    /// Returns owned values that an audited action on a provider needs.
    fn owned_parts(&self, name: &str) -> (Arc<AppState>, String, String) {
        (Arc::clone(&self.world), self.caller.actor.clone(), name.to_owned())
    }
}
