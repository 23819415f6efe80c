//! The times of a sandbox: how long it may be unused, and its life.

use std::time::Duration;

use belljar_engine::quantity::{show_duration, show_time};
use belljar_engine::sandbox::AdmittedSandbox;

use crate::app_state::AppState;
use crate::error::Error;

/// Returns the life of a new sandbox. Without `has_timeout`, sets the server's default timeout.
pub(super) fn admit_life(
    state: &AppState,
    admitted: &mut AdmittedSandbox,
    has_timeout: bool,
) -> Result<Duration, Error> {
    let most = state.settings.sandbox_life;
    let life = admitted.life.unwrap_or(most);
    if life > most {
        let (life, most) = (show_time(life), show_time(most));
        let message = format!("{life} is above {most}, the longest life here; server.sandbox_life raises it");
        return Err(Error::Invalid { field: "life_ms", message });
    }
    if has_timeout {
        check_timeout(admitted.timeout, life)?;
    } else {
        admitted.timeout = state.settings.sandbox_idle.min(life).min(state.engine.ceiling().timeout);
    }
    Ok(life)
}

/// Refuses a timeout that is longer than what is left of the life.
pub(super) fn check_timeout(timeout: Duration, life_left: Duration) -> Result<(), Error> {
    if timeout <= life_left {
        return Ok(());
    }
    let (timeout, left) = (show_time(timeout), show_duration(life_left));
    let message = format!("{timeout} is longer than this sandbox's life, of which {left} are left");
    Err(Error::Invalid { field: "timeout_ms", message })
}
