//! Profiles: those of the database override those of the configuration file.

use crate::app_state::AppState;
use crate::error::Error;

/// Loads all profiles into the engine.
///
/// # Errors
/// The database cannot be read.
pub(crate) async fn load(state: &AppState) -> Result<(), Error> {
    let mut profiles = state.profiles.clone();
    for stored in state.store.profiles().await? {
        match serde_json::from_str(&stored.json) {
            Ok(profile) => profiles.insert(stored.name.to_string(), profile),
            // Written by another version; the other profiles stay usable.
            Err(error) => tracing::warn!(profile = %stored.name, %error, "cannot use a stored profile"),
        }
    }
    state.engine.set_profiles(profiles);
    Ok(())
}
