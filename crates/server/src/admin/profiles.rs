//! `/v1/profiles`: profiles in the database, which override those of the configuration.
//!
//! Only the configuration file can mount host folders: a profile set over HTTP cannot.

use std::sync::Arc;

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use belljar_engine::limits::Limits;
use belljar_engine::profile::Profile;
use belljar_store::{ProfileName, StoredProfile, Timestamp};
use serde_json::{Map, Value, json};

use super::AdminRequest;
use super::tenants::check_policy;
use crate::app_state::AppState;
use crate::body::{JsonBody, parse, parse_bytes};
use crate::error::Error;
use crate::schema;

/// Loads all profiles into the engine.
///
/// # Errors
/// The database cannot be read.
pub(crate) async fn load(world: &AppState) -> Result<(), Error> {
    let mut profiles = world.profiles.clone();
    for stored in world.store.profiles().await? {
        match serde_json::from_str(&stored.json) {
            Ok(profile) => profiles.insert(stored.name.to_string(), profile),
            // Written by another version; the other profiles stay usable.
            Err(error) => tracing::warn!(profile = %stored.name, %error, "cannot use a stored profile"),
        }
    }
    world.engine.set_profiles(profiles);
    Ok(())
}

/// Lists the profiles that were set over HTTP.
#[utoipa::path(get, path = "/v1/profiles", tag = "administration",
    responses((status = 200, description = "The profiles, sorted by name", body = schema::ProfileList)))]
pub(crate) async fn list(desk: AdminRequest) -> Result<Json<Value>, Error> {
    let profiles: Vec<Value> = desk.world.store.profiles().await?.iter().map(profile_json).collect();
    Ok(Json(json!({"profiles": profiles})))
}

/// Returns a profile.
#[utoipa::path(get, path = "/v1/profiles/{profile}", tag = "administration",
    params(("profile" = String, Path, description = "Profile name")),
    responses((status = 200, description = "The profile", body = schema::StoredProfile),
        (status = 404, description = "No such profile", body = schema::Problem)))]
pub(crate) async fn show(desk: AdminRequest, Path(name): Path<String>) -> Result<Json<Value>, Error> {
    let found = desk.world.store.profile(&parse_profile_name(&name)?).await?;
    Ok(Json(profile_json(&found.ok_or(Error::NotFound("profile"))?)))
}

/// Creates or replaces a profile, which applies from the next request on.
#[utoipa::path(put, path = "/v1/profiles/{profile}", tag = "administration",
    params(("profile" = String, Path, description = "Profile name")),
    request_body = schema::Profile,
    responses((status = 200, description = "The new profile", body = schema::StoredProfile),
        (status = 422, description = "Invalid profile", body = schema::Problem)))]
pub(crate) async fn set(
    desk: AdminRequest,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<Json<Value>, Error> {
    let profile: ProfileName = name.parse()?;
    let new: Profile = parse_bytes(&body.bytes)?;
    check(&new, desk.world.engine.ceiling())?;
    if let Some(policy) = &new.policy {
        check_policy(&desk, policy)?;
    }
    let json: Map<String, Value> = parse(body)?;
    let (world, shown) = (Arc::clone(&desk.world), json!({"name": profile, "profile": json}));
    let work = async move {
        world.store.set_profile(&profile, &json, Timestamp::now()).await?;
        load(&world).await
    };
    desk.run_audited("profile.set", &name, work).await?;
    Ok(Json(shown))
}

/// Removes a profile.
///
/// A profile of the same name in the configuration applies again.
#[utoipa::path(delete, path = "/v1/profiles/{profile}", tag = "administration",
    params(("profile" = String, Path, description = "Profile name")),
    responses((status = 204, description = "The profile is removed"),
        (status = 404, description = "No such profile", body = schema::Problem)))]
pub(crate) async fn remove(desk: AdminRequest, Path(name): Path<String>) -> Result<StatusCode, Error> {
    let (profile, world) = (parse_profile_name(&name)?, Arc::clone(&desk.world));
    let work = async move {
        world.store.remove_profile(&profile).await?;
        load(&world).await
    };
    desk.run_audited("profile.remove", &name, work).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn check(profile: &Profile, ceiling: &Limits) -> Result<(), Error> {
    let refused = |field, message: &str| Err(Error::Invalid { field, message: message.to_owned() });
    if !profile.mounts.is_empty() {
        return refused("mounts", "host folders can only be set in belljar.toml");
    }
    if profile.image.as_deref().is_some_and(|image| image != "host") {
        return refused("image", "host folders can only be set in belljar.toml");
    }
    Ok(profile.check(ceiling)?)
}

fn parse_profile_name(name: &str) -> Result<ProfileName, Error> {
    name.parse().map_err(|_| Error::NotFound("profile"))
}

fn profile_json(stored: &StoredProfile) -> Value {
    let profile: Value = serde_json::from_str(&stored.json).unwrap_or_default();
    json!({"name": stored.name, "profile": profile, "changed": stored.changed})
}
