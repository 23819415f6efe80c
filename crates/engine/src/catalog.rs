//! The port of provider kinds: which providers can be configured, with which settings. Implemented where the
//! parts are wired together.

mod check;

use std::fmt::Debug;
use std::sync::Arc;

use belljar_analysis::imports::edit_distance;
use serde_json::{Map, Value};

use crate::Error;
use crate::provider::Provider;

pub use check::{changed_destination, check_settings, secret_names};

/// Settings of a provider: plain values by name.
pub type ProviderSettings = Map<String, Value>;

/// Replaces a secret wherever settings are shown. A client that sends it back keeps the stored secret, unless
/// the destination changed ([`changed_destination`]).
pub const SECRET_MASK: &str = "********";

/// The provider kinds that can be configured.
pub trait ProviderCatalog: Debug + Send + Sync {
    /// Returns the names of all kinds.
    fn names(&self) -> Vec<&'static str>;

    /// Returns whether a provider of this kind exists without being configured.
    fn exists_unconfigured(&self, name: &str) -> bool;

    /// Returns the JSON Schema of a kind's settings: an object of plain values. Secrets are marked
    /// `writeOnly`; settings that decide where secrets are sent are marked `x-destination`.
    ///
    /// # Errors
    /// Fails if there is no such kind.
    fn schema(&self, name: &str) -> Result<Value, Error>;

    /// Creates a provider from settings that fit the schema, without contacting it.
    ///
    /// # Errors
    /// Names the invalid setting, never its value.
    fn build(&self, name: &str, settings: &ProviderSettings) -> Result<Arc<dyn Provider>, Error>;
}

/// Returns the error for an unknown provider kind.
pub fn unknown_provider(name: &str, known: &[&str]) -> Error {
    Error::Unsupported { field: "provider", message: unknown_provider_message(name, known) }
}

/// Returns the message for an unknown provider, with the closest known name.
pub(crate) fn unknown_provider_message(name: &str, known: &[&str]) -> String {
    let meant =
        closest_name(name, known).map(|known| format!(" (did you mean '{known}'?)")).unwrap_or_default();
    format!("there is no provider '{}'{meant}; known: {}", name.escape_debug(), known.join(", "))
}

/// Returns the closest known name: at most two edits away, and at most one per three letters.
pub fn closest_name<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let near = known.iter().filter(|known| known.len().abs_diff(name.len()) <= 2);
    let near = near.map(|known| (edit_distance(name, known), *known));
    near.filter(|(apart, known)| *apart <= (known.len() / 3).min(2)).min().map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_names_are_suggested() {
        let known = ["agentrun", "docker", "e2b", "native"];
        for (name, wanted) in [
            ("dokcer", Some("docker")),
            ("Docker", Some("docker")),
            ("e2", Some("e2b")),
            ("agent-run", Some("agentrun")),
            ("b2", None),
            ("nope", None),
            ("", None),
        ] {
            assert_eq!(closest_name(name, &known), wanted, "{name}");
        }
    }
}
