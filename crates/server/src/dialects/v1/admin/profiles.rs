//! `/v1/profiles`: profiles in the database, which override those of the configuration.
//!
//! Only the configuration file can mount host folders: a profile set over HTTP cannot.

use std::sync::Arc;

use axum::extract::Path;
use axum::http::StatusCode;
use belljar_engine::limits::Limits;
use belljar_engine::profile::Profile;
use belljar_store::{ProfileName, StoredProfile, Timestamp};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::AdminRequest;
use super::tenants::check_policy;
use crate::dialects::v1::schema;
use crate::error::Error;
use crate::http::body::{JsonBody, SortedJson, parse, parse_bytes};
use crate::profiles;

/// A profile with its name.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "StoredProfile")]
pub(crate) struct ProfileInfo {
    /// Name of the profile.
    name: ProfileName,
    /// Content of the profile.
    #[schemars(with = "Profile")]
    profile: Value,
    /// Time of the last change in milliseconds since 1970; absent in the response to setting it.
    #[serde(skip_serializing_if = "Option::is_none")]
    changed: Option<Timestamp>,
}

/// Profiles that were set over HTTP.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ProfileList {
    /// Profiles, sorted by name.
    profiles: Vec<ProfileInfo>,
}

impl From<StoredProfile> for ProfileInfo {
    fn from(stored: StoredProfile) -> Self {
        let profile = serde_json::from_str(&stored.json).unwrap_or_default();
        Self { name: stored.name, profile, changed: Some(stored.changed) }
    }
}

/// Lists the profiles that were set over HTTP.
#[utoipa::path(get, path = "/v1/profiles", tag = "administration",
    responses((status = 200, description = "The profiles, sorted by name", body = ref(schema::response::<ProfileList>()))))]
pub(crate) async fn list(admin: AdminRequest) -> Result<SortedJson<ProfileList>, Error> {
    let profiles = admin.state.store.profiles().await?.into_iter().map(ProfileInfo::from).collect();
    Ok(SortedJson(ProfileList { profiles }))
}

/// Returns a profile.
#[utoipa::path(get, path = "/v1/profiles/{profile}", tag = "administration",
    params(("profile" = String, Path, description = "Profile name")),
    responses((status = 200, description = "The profile", body = ref(schema::response::<ProfileInfo>())),
        (status = 404, description = "No such profile")))]
pub(crate) async fn show(
    admin: AdminRequest,
    Path(name): Path<String>,
) -> Result<SortedJson<ProfileInfo>, Error> {
    let found = admin.state.store.profile(&parse_profile_name(&name)?).await?;
    Ok(SortedJson(found.ok_or(Error::NotFound("profile"))?.into()))
}

/// Creates or replaces a profile, which applies from the next request on.
#[utoipa::path(put, path = "/v1/profiles/{profile}", tag = "administration",
    params(("profile" = String, Path, description = "Profile name")),
    request_body = ref(schema::request::<Profile>()),
    responses((status = 200, description = "The new profile", body = ref(schema::response::<ProfileInfo>())),
        (status = 422, description = "Invalid profile")))]
pub(crate) async fn set(
    admin: AdminRequest,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<SortedJson<ProfileInfo>, Error> {
    let profile: ProfileName = name.parse()?;
    let new: Profile = parse_bytes(&body.bytes)?;
    check(&new, admin.state.engine.ceiling())?;
    if let Some(policy) = &new.policy {
        check_policy(&admin, policy)?;
    }
    let json: Map<String, Value> = parse(body)?;
    let state = Arc::clone(&admin.state);
    let shown = ProfileInfo { name: profile.clone(), profile: json.clone().into(), changed: None };
    let work = async move {
        state.store.set_profile(&profile, &json, Timestamp::now()).await?;
        profiles::load(&state).await
    };
    admin.run_audited("profile.set", &name, work).await?;
    Ok(SortedJson(shown))
}

/// Removes a profile.
///
/// A profile of the same name in the configuration applies again.
#[utoipa::path(delete, path = "/v1/profiles/{profile}", tag = "administration",
    params(("profile" = String, Path, description = "Profile name")),
    responses((status = 204, description = "The profile is removed"),
        (status = 404, description = "No such profile")))]
pub(crate) async fn remove(admin: AdminRequest, Path(name): Path<String>) -> Result<StatusCode, Error> {
    let (profile, state) = (parse_profile_name(&name)?, Arc::clone(&admin.state));
    let work = async move {
        state.store.remove_profile(&profile).await?;
        profiles::load(&state).await
    };
    admin.run_audited("profile.remove", &name, work).await?;
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
